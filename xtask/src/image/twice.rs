//! `cargo xtask image --twice`: the programs once more, in other folders, to the same bytes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, bail};
use cluster::{Home, Progress};
use sha2::{Digest, Sha256};

use super::PROGRAMS;
use super::place::{Place, copy_sources};

/// Name of the folder in Weft's cache. Beside the usual one, Cargo would read this repository's settings twice.
const NAME: &str = "image-twice";

/// A program of both builds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pair {
    name: &'static str,
    digests: [String; 2],
}

/// Builds the programs in other folders, and compares them with those of the usual place. Returns the digests in words.
pub(super) fn compare(steps: &mut dyn Progress) -> anyhow::Result<String> {
    let home = Home::from_env()?;
    let _lock = home.lock(NAME, steps)?;
    let dir = home.dir(NAME)?;
    let clear = || fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()));
    // A build that went on where another one stopped would prove nothing.
    clear()?;
    let usual = Place::usual()?;
    let other = prepare(&dir, &usual)?;
    steps.step("once more in other folders");
    other.compile(&PROGRAMS, steps)?;
    let mut pairs = Vec::new();
    for program in PROGRAMS {
        let digests = [digest(&usual.built(program))?, digest(&other.built(program))?];
        let name = program.name;
        pairs.push(Pair { name, digests });
    }
    match verdict(&pairs) {
        Ok(same) => {
            clear()?;
            Ok(same)
        }
        Err(different) => bail!(
            "{different}the programs of both builds are in {} and {}; diffoscope tells where they differ",
            usual.target.display(),
            other.target.display()
        ),
    }
}

/// Other folders for everything: also Cargo's own, by a link.
fn prepare(dir: &Path, usual: &Place) -> anyhow::Result<Place> {
    let place = Place {
        sources: dir.join("sources"),
        target: dir.join("target"),
        home: dir.join("cargo"),
    };
    copy_sources(&place.sources)?;
    symlink(&usual.home, &place.home)
        .with_context(|| format!("cannot create the link {}", place.home.display()))?;
    Ok(place)
}

fn digest(file: &Path) -> anyhow::Result<String> {
    let content = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

/// A line for each program; an error where one differs.
fn verdict(pairs: &[Pair]) -> Result<String, String> {
    let line = |pair: &Pair| {
        let [one, other] = &pair.digests;
        if one == other {
            format!("{:10} {one}  the same in both builds\n", pair.name)
        } else {
            format!("{:10} {one}\n{:10} {other}  different\n", pair.name, "")
        }
    };
    let text = pairs.iter().map(line).collect();
    if pairs.iter().all(
        |Pair {
             digests: [one, other],
             ..
         }| one == other,
    ) {
        Ok(text)
    } else {
        Err(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_program_that_differs_fails_the_comparison() {
        let pair = |name, one: &str, other: &str| Pair {
            name,
            digests: [one.to_owned(), other.to_owned()],
        };
        assert_eq!(
            verdict(&[pair("weft", "aa", "aa")]),
            Ok("weft       aa  the same in both builds\n".to_owned())
        );
        let different = verdict(&[pair("weft", "aa", "aa"), pair("weft-cni", "bb", "cc")]).unwrap_err();
        assert!(
            different.ends_with("weft-cni   bb\n           cc  different\n"),
            "{different}"
        );
    }

    #[test]
    fn the_other_folders_hold_the_sources_and_the_same_packages() {
        let dir = tempfile::tempdir().unwrap();
        let usual = Place::usual().unwrap();
        let place = prepare(dir.path(), &usual).unwrap();
        assert!(place.sources.join("Cargo.toml").is_file());
        assert_eq!(
            place.home.canonicalize().unwrap(),
            usual.home.canonicalize().unwrap()
        );
        assert!(
            [&place.sources, &place.target, &place.home]
                .iter()
                .all(|it| it.starts_with(dir.path()))
        );
    }
}

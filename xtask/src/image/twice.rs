//! `cargo xtask image --twice`: a second build of the image in other directories, with equal bytes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, bail};
use cluster::{Home, Progress};
use sha2::{Digest, Sha256};

use super::place::{Place, copy_sources};
use super::{PROGRAMS, build_in};

/// Name of the directory in Weft's cache. Inside the normal directory, Cargo would read this repository's settings
/// twice.
const NAME: &str = "image-twice";
/// Name of the whole image as text.
const IMAGE: &str = "image";

/// A program, or the image, of both builds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pair {
    name: &'static str,
    digests: [String; 2],
}

/// Builds the image in other directories, and compares it and its programs with those of the normal build. Returns the
/// digests as text.
pub(super) fn compare(steps: &mut dyn Progress) -> anyhow::Result<String> {
    let home = Home::from_env()?;
    let _lock = home.lock(NAME, steps)?;
    let dir = home.dir(NAME)?;
    let clear = || fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()));
    // A build that continues an interrupted one would prove nothing.
    clear()?;
    let usual = Place::usual()?;
    let other = prepare(&dir, &usual)?;
    steps.step("building again in other directories");
    build_in(&other, steps)?;
    match verdict(&pairs(&usual, &other)?) {
        Ok(same) => {
            clear()?;
            Ok(same)
        }
        Err(different) => bail!(
            "{different}both builds are in {} and {}; diffoscope shows their differences",
            usual.target.display(),
            other.target.display()
        ),
    }
}

/// Returns other directories for everything, including Cargo's home, by a link.
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

/// Returns the digests of each program, and of the image: its documents are compared by it alone.
fn pairs(one: &Place, other: &Place) -> anyhow::Result<Vec<Pair>> {
    let programs = PROGRAMS.map(|program| (program.name, [one.built(program), other.built(program)]));
    let image = (IMAGE, [one.archive(), other.archive()]);
    programs
        .into_iter()
        .chain([image])
        .map(|(name, [one, other])| {
            let digests = [digest(&one)?, digest(&other)?];
            Ok(Pair { name, digests })
        })
        .collect()
}

fn digest(file: &Path) -> anyhow::Result<String> {
    let content = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

/// Returns a line for each program and for the image, or an error if one differs.
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

    /// A build with these contents of all programs, and of the image.
    fn built(target: &Path, program: &str, image: &str) -> Place {
        let place = Place {
            sources: target.join("sources"),
            target: target.to_owned(),
            home: target.join("home"),
        };
        let programs = PROGRAMS.map(|it| (place.built(it), program));
        for (file, content) in programs.into_iter().chain([(place.archive(), image)]) {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        place
    }

    #[test]
    fn different_image_of_same_programs_fails_the_comparison() {
        let dir = tempfile::tempdir().unwrap();
        let build = |name: &str, program, image| built(&dir.path().join(name), program, image);
        let usual = build("usual", "p", "i");
        let same = verdict(&pairs(&usual, &build("same", "p", "i")).unwrap()).unwrap();
        let lines: Vec<&str> = same.lines().collect();
        assert_eq!(lines.len(), PROGRAMS.len() + 1, "{same}");
        assert!(lines.last().unwrap().starts_with("image "), "{same}");
        let other = verdict(&pairs(&usual, &build("other", "p", "j")).unwrap()).unwrap_err();
        assert_eq!(other.matches("different").count(), 1, "{other}");
        assert_eq!(
            other.matches("the same in both builds").count(),
            PROGRAMS.len(),
            "{other}"
        );
        assert!(other.contains("\nimage "), "{other}");
    }

    #[test]
    fn different_program_fails_the_comparison() {
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
    fn other_directories_have_the_sources_and_the_same_packages() {
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

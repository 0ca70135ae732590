//! `cargo xtask manifests`: what one applies to install the operator.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use cluster::run;

use crate::paths;

/// The image named by the manifests that are checked in; whoever installs names another.
const CHECKED_IN_IMAGE: &str = "localhost/weft:latest";

/// Which manifests to write, and where.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image to install; without it the checked-in manifests below deploy/ are brought up to date
    #[arg(long, value_name = "REF")]
    image: Option<String>,
    /// Where to write them [default: target/manifests]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Where the checked-in manifests are.
fn checked_in() -> PathBuf {
    paths::root().join("deploy/operator")
}

/// Where manifests for one image are written unless told otherwise.
pub(crate) fn default_dir() -> PathBuf {
    paths::target().join("manifests")
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let Some(image) = args.image else {
        let dir = args.out.unwrap_or_else(checked_in);
        write(CHECKED_IN_IMAGE, &dir)?;
        println!("{}", dir.display());
        return Ok(());
    };
    let dir = args.out.unwrap_or_else(default_dir);
    write(&image, &dir)?;
    println!("{}", dir.display());
    eprintln!(
        "\n  kubectl apply --filename {0}\n  kubectl apply --filename examples/network-addons-config.yaml",
        dir.display()
    );
    Ok(())
}

/// Writes the manifests that install `image` to `dir`, which holds nothing else afterwards.
pub(crate) fn write(image: &str, dir: &Path) -> anyhow::Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut weft = paths::cargo();
    weft.args([
        "run",
        "--quiet",
        "--package",
        "weft",
        "--",
        "manifests",
        "--image",
        image,
        "--dir",
    ])
    .arg(dir);
    run::output(&mut weft).context("cannot generate the manifests")?;
    Ok(())
}

/// Names of checked-in manifests that are not what would be generated now.
pub(crate) fn stale() -> anyhow::Result<Vec<String>> {
    let fresh = paths::target().join("manifests-check");
    write(CHECKED_IN_IMAGE, &fresh)?;
    Ok(differences(&contents(&checked_in()), &contents(&fresh)))
}

type Contents = std::collections::BTreeMap<String, Vec<u8>>;

fn contents(dir: &Path) -> Contents {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            Some((
                entry.file_name().to_string_lossy().into_owned(),
                fs::read(entry.path()).ok()?,
            ))
        })
        .collect()
}

fn differences(old: &Contents, new: &Contents) -> Vec<String> {
    let names: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    names
        .into_iter()
        .filter(|name| old.get(*name) != new.get(*name))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_added_and_removed_files_are_stale() {
        let of = |pairs: &[(&str, &str)]| -> Contents {
            pairs
                .iter()
                .map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()))
                .collect()
        };
        let old = of(&[("a.yaml", "1"), ("b.yaml", "2"), ("c.yaml", "3")]);
        let new = of(&[("a.yaml", "1"), ("b.yaml", "changed"), ("d.yaml", "4")]);
        assert_eq!(differences(&old, &new), ["b.yaml", "c.yaml", "d.yaml"]);
    }
}

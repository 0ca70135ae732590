//! `cargo xtask manifests`: what one applies to install the operator.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use cluster::run;

use crate::paths;

/// What is applied, in this order; the file of an example configuration is written beside them.
pub(crate) const INSTALL: [&str; 3] = [
    "namespace.yaml",
    "network-addons-config.crd.yaml",
    "operator.yaml",
];

/// Which manifests to write, and where.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image to install
    #[arg(long, value_name = "REF")]
    image: String,
    /// Where to write them [default: target/manifests]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Where manifests are written unless told otherwise.
pub(crate) fn default_dir() -> PathBuf {
    paths::target().join("manifests")
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let dir = args.out.unwrap_or_else(default_dir);
    write(&args.image, &dir)?;
    println!("{}", dir.display());
    eprintln!("\nto install:");
    for name in INSTALL {
        eprintln!("  kubectl apply --filename {}", dir.join(name).display());
    }
    eprintln!("  kubectl apply --filename examples/network-addons-config.yaml");
    Ok(())
}

/// Writes the manifests that install `image` to `dir`.
pub(crate) fn write(image: &str, dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let dir = dir
        .canonicalize()
        .with_context(|| format!("cannot resolve {}", dir.display()))?;
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

//! `cargo xtask manifests`: the manifests that install the operator, and the other files of a release.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use cluster::{Steps, run};

use crate::{build, image, paths};

/// The applied files, in order. An example configuration is written beside them.
pub(crate) const INSTALL: [&str; 3] = [
    "namespace.yaml",
    "network-addons-config.crd.yaml",
    "operator.yaml",
];

/// The admission policies that restrict programs on nodes to their own node.
pub(crate) const NODES_POLICIES: &str = "admission-policy-nodes.yaml";

/// The file that installs the pod network.
pub(crate) const POD_NETWORK: &str = "pod-network/pod-network.yaml";

/// Arguments of the command.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image to install
    #[arg(long, value_name = "REF")]
    image: String,
    /// Version of the release [default: the version of this repository]
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
    /// Version that this release replaces, for OLM
    #[arg(long, value_name = "VERSION")]
    version_replaces: Option<String>,
    /// Directory of the manifests [default: target/manifests]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Default directory of the manifests.
pub(crate) fn default_dir() -> PathBuf {
    paths::target().join("manifests")
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        image,
        version,
        version_replaces,
        out,
    } = args;
    let dir = out.unwrap_or_else(default_dir);
    let versions = [("--version", version), ("--version-replaces", version_replaces)];
    let more: Vec<String> = versions
        .into_iter()
        .filter_map(|(flag, value)| value.map(|value| format!("{flag}={value}")))
        .collect();
    let weft = build::programs(build::Extent::Product, &mut Steps::new())?.binary(image::WEFT.name)?;
    generate(&weft, &image, &dir, &more)?;
    println!("{}", dir.display());
    eprintln!("\nto install:");
    for name in INSTALL {
        eprintln!("  kubectl apply --filename {}", dir.join(name).display());
    }
    eprintln!("  kubectl apply --filename examples/network-addons-config.yaml");
    eprintln!(
        "or: helm install --namespace cluster-network-addons weft {}",
        dir.join("chart").display()
    );
    eprintln!(
        "beside them: the same files by version (manifests/), an OLM bundle (bundle/), node state alone (nmstate/), \
         multus alone (multus/), the pod network (pod-network/), the cluster network operator (cluster-network/)"
    );
    Ok(())
}

/// Writes the manifests that install an image, with the image's program.
pub(crate) fn write(built: &image::Built) -> anyhow::Result<()> {
    generate(&built.weft, &built.reference, &default_dir(), &[])
}

fn generate(weft: &Path, image: &str, dir: &Path, more: &[String]) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let dir = dir
        .canonicalize()
        .with_context(|| format!("cannot resolve {}", dir.display()))?;
    let mut operator = Command::new(weft);
    operator
        .args(["manifests", "--image", image, "--dir"])
        .arg(&dir)
        .args(more);
    run::output(&mut operator).context("cannot generate the manifests")?;
    let mut network = Command::new(weft);
    network
        .args(["network", "manifests", "--image", image, "--dir"])
        .arg(dir.join("cluster-network"));
    run::output(&mut network).context("cannot generate the manifests of the cluster network operator")?;
    Ok(())
}

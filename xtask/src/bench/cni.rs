//! `cargo xtask bench cni`: the image's `weft-cni` beside Debian's plugins, measured by the program in `testing/bench`.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};
use cluster::{Home, Packages, Steps};
use vm::{Boot, Vm};

use super::harness;
use crate::{build, image, test};

/// The measuring program.
const HARNESS: &str = "cni-bench";
/// The first process of a virtual machine.
const INIT: &str = "vm-init";
/// Cases with links that only the kernel of a virtual machine has.
const GUEST_CASES: [&str; 1] = ["ipvlan"];
/// Debian's plugins in these cases.
const GUEST_PLUGINS: [&str; 2] = ["ipvlan", "host-local"];
/// Directory of Debian's plugins in a virtual machine.
const GUEST_DIR: &str = "/upstream";

/// Arguments of the measurement.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Pairs of attachments for each case, one by each plugin
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Case to measure; can be repeated. Default: all. An unknown name lists the cases
    #[arg(long = "case", value_name = "NAME", conflicts_with = "vm")]
    cases: Vec<String>,
    /// Measure cases that this machine's kernel may lack (ipvlan) in a virtual machine. Its processor is emulated:
    /// times are many times longer, and only ratios are meaningful
    #[arg(long)]
    vm: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if args.vm {
        return run_in_machine(args.pairs);
    }
    let mut command = harness::build(HARNESS, &[image::CNI])?;
    command.arg("--ours").arg(image::built(image::CNI)?);
    command.args(["--pairs", &args.pairs.to_string()]);
    for case in &args.cases {
        command.args(["--case", case]);
    }
    harness::run(command)
}

/// Boots a virtual machine that measures the cases of its kernel, and prints its output.
fn run_in_machine(pairs: u32) -> anyhow::Result<()> {
    let mut steps = Steps::new();
    let home = Home::from_env()?;
    let vm = Vm::ensure(&home, &mut steps)?;
    let packages = Packages::ensure(&home, &mut steps)?;
    let programs = build::programs(build::Extent::Programs, &mut steps)?;
    let (harness, init) = (programs.binary(HARNESS)?, programs.binary(INIT)?);
    image::compile(&[image::CNI], &mut steps)?;
    let ours = image::built(image::CNI)?;

    let dir = test::machine_folder()?;
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let script = dir.join("measure.sh");
    write_script(&script, &measurement(&harness, &ours, pairs))?;
    let upstream = GUEST_PLUGINS.map(|name| {
        (
            packages.file(&format!("usr/lib/cni/{name}")),
            Path::new(GUEST_DIR).join(name),
        )
    });
    let boot = Boot {
        init,
        tests: vec![(HARNESS.to_owned(), script)],
        programs: vec![harness, ours],
        tools: upstream.into(),
        libraries: None,
    };
    let ended = vm.run(&boot, &dir, &mut steps, &mut |line| println!("{line}"));
    let _ = fs::remove_dir_all(&dir);
    match ended?.into_iter().find_map(|end| end.failure) {
        Some(failure) => bail!("the measurement in the virtual machine failed: {failure}"),
        None => Ok(()),
    }
}

/// Returns the command line in the virtual machine.
fn measurement(harness: &Path, ours: &Path, pairs: u32) -> Command {
    let mut command = Command::new(harness);
    command.arg("--ours").arg(ours).args(["--theirs", GUEST_DIR]);
    command.args(["--pairs", &pairs.to_string()]);
    for case in GUEST_CASES {
        command.args(["--case", case]);
    }
    command
}

/// Writes a shell script for the guest. It ignores the arguments of test programs.
fn write_script(path: &PathBuf, command: &Command) -> anyhow::Result<()> {
    let text = format!("#!/bin/sh\nexec {}\n", cluster::run::shown(command));
    fs::write(path, text)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot write {}", path.display()))
}

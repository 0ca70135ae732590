//! The tier that runs in a virtual machine: builds its test programs static, and runs them in one boot.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context;
use cluster::{Home, Packages, Progress, Steps, run};
use vm::{Boot, Vm};

use crate::libtest::Reader;
use crate::test::{APART, Outcome};
use crate::{image, paths};

/// Name of the program that is the guest's first process.
const INIT: &str = "vm-init";

/// Runs the test programs `vm` of these packages.
pub(crate) fn run(packages: &BTreeSet<String>, steps: &mut Steps) -> anyhow::Result<Outcome> {
    let vm = match Vm::ensure(&Home::from_env()?, steps) {
        Err(vm::Error::Unavailable(why)) => return Ok(Outcome::LeftOut(why)),
        vm => vm?,
    };
    let mut boot = build(packages, steps)?;
    if packages.contains(APART) {
        add_network_manager(&mut boot, steps)?;
    }
    let dir = paths::target().join(format!("vm-{}", std::process::id()));
    let mut reader = Reader::default();
    let ended = vm.run(&boot, &dir, steps, &mut |line| {
        if let Some(shown) = reader.line(line) {
            println!("{shown}");
        }
    });
    // Holds nothing that explains a failure.
    let _ = std::fs::remove_dir_all(&dir);
    let mut totals = reader.totals();
    match ended {
        Ok(ended) => {
            for (name, failure) in ended
                .iter()
                .filter_map(|end| Some((&end.name, end.failure.as_ref()?)))
            {
                println!("the tests of {name} failed ({failure})");
                // One that died has no line with counts.
                totals.failed = totals.failed.max(1);
            }
        }
        Err(error) => {
            println!("\n{:#}", anyhow::Error::from(error));
            totals.failed += 1;
        }
    }
    Ok(Outcome::Ran(totals))
}

/// Has the guest find NetworkManager and the bus that one talks to it by.
fn add_network_manager(boot: &mut Boot, steps: &mut Steps) -> anyhow::Result<()> {
    let packages = Packages::ensure_network_manager(&Home::from_env()?, steps)?;
    for program in ["usr/sbin/NetworkManager", "usr/bin/dbus-daemon"] {
        boot.tools
            .push((packages.file(program), Path::new("/").join(program)));
    }
    let mut variables = packages.variables().into_iter();
    boot.libraries = variables.find_map(|(name, path)| (name == "LD_LIBRARY_PATH").then_some(path));
    Ok(())
}

/// Builds the programs; what cargo says tells where they are.
fn build(packages: &BTreeSet<String>, steps: &mut Steps) -> anyhow::Result<Boot> {
    steps.step("building the test programs");
    let mut messages = String::new();
    for packages in crate::test::commands(packages) {
        let mut cargo = paths::cargo();
        cargo.args(["test", "--no-run", "--message-format", "json-render-diagnostics"]);
        // Static, that would be one more build of all that it stands on. Its libraries come along instead.
        if !packages.contains(APART) {
            cargo.env(image::STATIC.0, image::STATIC.1);
            cargo.args(["--target", &image::triple()]);
        }
        cargo.args(packages.iter().flat_map(|name| ["--package", name]));
        cargo.args(["--test", crate::test::Tier::Vm.name()]);
        messages.push_str(&run::output(&mut cargo)?);
    }
    boot(&messages)
}

/// Reads cargo's messages: one JSON object a line.
fn boot(messages: &str) -> anyhow::Result<Boot> {
    let mut init = None;
    let mut tests = Vec::new();
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: serde_json::Value =
            serde_json::from_str(line).context("cannot read what cargo says about the test programs")?;
        let Some(path) = message["executable"].as_str().map(PathBuf::from) else {
            continue;
        };
        if message["profile"]["test"] == true {
            tests.push((package(&message), path));
        } else if message["target"]["name"] == INIT {
            init = Some(path);
        } else if message["target"]["name"] != APART {
            // That one is large, and its tests do without.
            programs.push(path);
        }
    }
    tests.sort();
    Ok(Boot {
        init: init.with_context(|| format!("cargo built no {INIT}"))?,
        tests,
        programs,
        tools: Vec::new(),
        libraries: None,
    })
}

/// The package of an artifact: the folder of its manifest.
fn package(message: &serde_json::Value) -> String {
    let manifest = PathBuf::from(message["manifest_path"].as_str().unwrap_or_default());
    let folder = manifest.parent().and_then(|folder| folder.file_name());
    folder.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_apart_by_what_cargo_says() {
        let artifact = |package: &str, name: &str, test: bool, executable: &str| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "manifest_path": format!("/w/{package}/Cargo.toml"),
                "target": { "name": name },
                "profile": { "test": test },
                "executable": executable,
            })
            .to_string()
        };
        let messages = [
            r#"{"reason":"compiler-artifact","target":{"name":"serde"},"profile":{"test":false},"executable":null}"#.to_owned(),
            artifact("vm", "vm-init", false, "/t/vm-init"),
            artifact("vm", "vm", true, "/t/vm-2"),
            artifact("plugins", "weft-cni", false, "/t/weft-cni"),
            artifact("plugins", "vm", true, "/t/vm-1"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let boot = boot(&messages.join("\n")).unwrap();
        assert_eq!(boot.init, PathBuf::from("/t/vm-init"));
        assert_eq!(
            boot.tests,
            [
                ("plugins".to_owned(), PathBuf::from("/t/vm-1")),
                ("vm".to_owned(), PathBuf::from("/t/vm-2")),
            ]
        );
        assert_eq!(boot.programs, [PathBuf::from("/t/weft-cni")]);
        assert!(super::boot("{}").is_err());
    }
}

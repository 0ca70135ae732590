//! The binary from the outside.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

fn run(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .env_remove("KUBECONFIG")
        .output()
        .expect("the program runs")
}

fn weft(arguments: &[&str]) -> Output {
    run(Path::new(env!("CARGO_BIN_EXE_weft")), arguments)
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn flags_of_the_bridge_marker_that_make_no_sense_end_it() {
    // cni-plugins#64
    for (arguments, text) in [
        (&["bridge-marker"][..], "node-name must be set"),
        (
            &["bridge-marker", "-node-name", "n", "-health-probe-port", "0"],
            "health-probe-port must be between 1 and 65535, got 0",
        ),
        (
            &[
                "bridge-marker",
                "-node-name",
                "n",
                "-health-probe-port=70000",
                "-v",
                "3",
                "-logtostderr",
            ],
            "health-probe-port must be between 1 and 65535, got 70000",
        ),
    ] {
        let output = weft(arguments);
        assert!(!output.status.success());
        assert!(error(&output).contains(text), "{}", error(&output));
    }
}

#[test]
fn it_answers_to_the_names_of_the_programs_that_it_replaces() {
    let root = tempfile::tempdir().expect("a directory");
    let named = |name: &str| {
        let path = root.path().join(name);
        symlink(env!("CARGO_BIN_EXE_weft"), &path).expect("a link");
        path
    };
    let output = run(&named("bridge-marker"), &[]);
    assert!(
        error(&output).contains("node-name must be set"),
        "{}",
        error(&output)
    );

    let install_multus = named("install_multus");
    let output = run(&install_multus, &["-d", "/nowhere"]);
    assert_eq!(
        error(&output).trim(),
        "--type is missing or --type has invalid value"
    );
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(run(&install_multus, &["-h"]).status.code(), Some(1));

    let (from, to) = (root.path().join("weft-cni"), root.path().join("bin"));
    std::fs::write(&from, "plugin").expect("a binary");
    let (from, to) = (from.display().to_string(), to.display().to_string());
    let output = run(
        &install_multus,
        &["-t", "thick", "-dest-dir", &to, "--from", &from],
    );
    assert!(output.status.success(), "{}", error(&output));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        printed,
        "multus multus-shim copy succeeded!\nmultus passthru copy succeeded!\n"
    );
}

#[test]
fn help_names_every_command() {
    let output = weft(&["--help"]);
    assert!(output.status.success());
    let help = String::from_utf8_lossy(&output.stdout);
    for command in [
        "operator",
        "manifests",
        "install-multus",
        "install-plugins",
        "bridge-marker",
    ] {
        assert!(
            help.contains(&format!("\n  {command}")),
            "{command} is missing:\n{help}"
        );
    }
}

#[test]
fn an_installer_that_stays_ends_at_sigterm() {
    let root = tempfile::tempdir().expect("a directory");
    let (from, to) = (root.path().join("weft-cni"), root.path().join("bin"));
    std::fs::write(&from, "plugin").expect("a binary");
    let mut child = Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(["install-plugins", "--host-dir", "/opt/cni/bin", "bridge"])
        .args([Path::new("--to"), &to, Path::new("--from"), &from])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it runs");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("its output");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("a line");
    assert_eq!(line, "Entering sleep... (success)\n");
    let killed = Command::new("kill")
        .arg(child.id().to_string())
        .status()
        .expect("kill runs");
    assert!(killed.success());
    assert!(child.wait().expect("it ends").success());
    assert_eq!(
        std::fs::read_to_string(to.join("cnv-bridge")).expect("a file"),
        "plugin"
    );
}

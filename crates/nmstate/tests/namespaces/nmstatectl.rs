//! `nmstatectl` as probes and runbooks call it, on a host with NetworkManager (nmstate §4.6).

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::host::Host;
use crate::kernel;

const BRIDGE: &str = "interfaces:\n- name: br1\n  type: linux-bridge\n  state: up\n  ipv4:\n    enabled: true\n    dhcp: false\n    \
                      address:\n    - ip: 192.0.2.1\n      prefix-length: 24\n  bridge:\n    port:\n    - name: eth1\n";

/// The program under its upstream name.
struct Tool(TempDir);

impl Tool {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        symlink(
            env!("CARGO_BIN_EXE_weft-nmstate"),
            directory.path().join("nmstatectl"),
        )
        .unwrap();
        std::fs::write(directory.path().join("bridge.yml"), BRIDGE).unwrap();
        Self(directory)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(self.0.path().join("nmstatectl"))
            .args(arguments)
            .current_dir(self.0.path())
            .output()
            .unwrap()
    }

    /// Its output on success.
    fn prints(&self, host: &Host, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}\n{}", host.log());
        String::from_utf8(output.stdout).unwrap()
    }
}

fn is_there(link: &str) -> bool {
    Path::new("/proc/sys/net/ipv4/conf").join(link).exists()
}

#[test]
fn handler_probe_without_network_manager_reads_the_kernel() {
    let _host = kernel::Host::enter();
    let tool = Tool::new();
    let output = Command::new(tool.0.path().join("nmstatectl"))
        .args(["show", "lo"])
        .env("WEFT_NMSTATE_BACKEND", "kernel")
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
}

#[test]
fn nmstatectl_shows_applies_commits_and_rolls_back() {
    let host = Host::enter();
    let tool = Tool::new();
    let all: Value = serde_yaml::from_str(&tool.prints(&host, &["show", "-vv"])).unwrap();
    assert!(
        all["routes"]["running"].is_array() && all["ovn"].is_object(),
        "{all:#}"
    );
    let one: Value = serde_json::from_str(&tool.prints(&host, &["s", "eth1", "--json"])).unwrap();
    assert_eq!(
        (
            &one["interfaces"][0]["name"],
            one["interfaces"].as_array().unwrap().len()
        ),
        (&"eth1".into(), 1)
    );
    tool.prints(&host, &["show", "lo", "-k"]);

    tool.prints(&host, &["apply", "bridge.yml", "--no-commit", "--timeout", "300"]);
    assert!(is_there("br1"));
    tool.prints(&host, &["rollback"]);
    assert!(!is_there("br1"), "{}", host.log());

    tool.prints(&host, &["apply", "--no-commit", "bridge.yml"]);
    tool.prints(&host, &["commit"]);
    assert_eq!(host.profiles(), ["br1", "eth1"]);
    let nothing_to_undo = tool.run(&["rollback"]);
    assert_eq!(nothing_to_undo.status.code(), Some(65));
    let error = String::from_utf8_lossy(&nothing_to_undo.stderr);
    assert!(error.starts_with("NmstateError: "), "{error}");
    assert_eq!(tool.run(&["show", "eth7"]).status.code(), Some(65));
    assert_eq!(tool.run(&["apply", "--timeout"]).status.code(), Some(2));
}

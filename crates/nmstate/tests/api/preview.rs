//! `weft nmstate preview` against a cluster that has policies, nodes and reports.

use std::path::Path;

use clap::Parser;
use kube_kit::connection::Answer;
use serde_json::{Value, json};
use tempfile::TempDir;
use weft_nmstate::preview::{self, Args};

use crate::fixture::{Kind, Stage};
use crate::host;

/// The output for a policy of this name.
fn shown(stage: &Stage, directory: &Path, name: &str, spec: Value, more: &[&str]) -> Answer {
    let file = directory.join("policy.yaml");
    let policy = json!({
        "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy",
        "metadata": { "name": name }, "spec": spec,
    });
    std::fs::write(&file, policy.to_string()).expect("a file");
    let mut argv = vec!["preview".as_ref(), "-f".as_ref(), file.as_os_str()];
    argv.extend(["--kubeconfig".as_ref(), stage.kubeconfig().as_os_str()]);
    argv.extend(more.iter().map(AsRef::<std::ffi::OsStr>::as_ref));
    let args = Args::try_parse_from(argv).expect("arguments");
    kube_kit::process::run(preview::answer(args, 80)).expect("a runtime")
}

#[test]
fn preview_evaluates_every_node_and_writes_nothing() {
    let stage = Stage::start();
    let directory = TempDir::new().expect("a directory");
    for (node, zone) in [("node01", "a"), ("node02", "b"), ("node03", "a"), ("node04", "a")] {
        stage.node(node, &[("zone", zone), ("mtu", "9000")]);
    }
    let state = |node: &str| {
        json!({
            "apiVersion": "nmstate.io/v1beta1", "kind": "NodeNetworkState", "metadata": { "name": node },
        })
    };
    for node in ["node01", "node02", "node03"] {
        stage.create(Kind::State, &state(node));
        let mut current = host::two_nics();
        if node == "node03" {
            current["interfaces"][1]["mtu"] = json!(9000);
        }
        stage.report(Kind::State, node, &json!({ "currentState": current }));
    }
    let objects = || [Kind::State, Kind::Policy, Kind::Enactment, Kind::Node].map(|kind| stage.list(kind));
    let before = objects();
    let spec = json!({
        "nodeSelector": { "zone": "a" },
        "capture": { "nic": "interfaces.name==\"eth1\"" },
        "desiredState": { "interfaces": [
            { "name": "{{ capture.nic.interfaces.0.name }}", "type": "ethernet", "state": "up", "mtu": "{{ node.labels.mtu }}" },
        ] },
    });
    let answer = shown(&stage, directory.path(), "mtu", spec, &[]);
    assert_eq!(
        (answer.text.as_str(), answer.remarks.as_str(), answer.code),
        (
            "\
NODE    SELECTED  WOULD CHANGE
node01  yes       ~ ethernet eth1
node02  no        its labels lack zone: a
node03  yes       nothing
node04  yes       unknown, no report: no handler runs there

node01:
  ~ ethernet eth1
      mtu: 1500 → 9000
",
            "",
            2
        )
    );
    let old = json!({
        "match": { "interfaces": { "name": "eth1", "type": "ethernet" } },
        "desiredState": { "interfaces": [{ "ipv4": { "enabled": true, "dhcp": true } }] },
    });
    let answer = shown(&stage, directory.path(), "old", old, &["--node", "node02"]);
    assert!(
        answer.text.contains("node02  yes       ~ ethernet eth1\n")
            && answer.text.contains("      ipv4.enabled: false → true\n")
            && answer.code == 1,
        "{answer:?}"
    );
    let wrong = json!({ "capture": { "nic": "interfaces.name==\"eth7\"" }, "desiredState": { "interfaces": [
        { "name": "{{ capture.nic.interfaces.0.name }}" },
    ] } });
    let answer = shown(&stage, directory.path(), "wrong", wrong, &["--node", "node01"]);
    assert!(
        answer.text.contains("would fail: ") && answer.text.contains("eth7") && answer.code == 2,
        "{answer:?}"
    );
    let empty = shown(
        &stage,
        directory.path(),
        "empty",
        json!({}),
        &["--node", "node01"],
    );
    assert_eq!(
        (empty.code, empty.text.lines().last()),
        (0, Some("node01  yes       nothing"))
    );
    let unknown = shown(&stage, directory.path(), "p", json!({}), &["--node", "node09"]);
    assert_eq!(
        (unknown.code, unknown.remarks.as_str()),
        (
            2,
            "error: node node09 does not exist; `kubectl get nodes` lists the nodes\n"
        )
    );
    assert_eq!(objects(), before, "a preview wrote something");
}

// nmstate#115
#[test]
fn json_preview_has_the_changes_of_each_node() {
    let stage = Stage::start();
    let directory = TempDir::new().expect("a directory");
    stage.node("node01", &[]);
    let state = json!({
        "apiVersion": "nmstate.io/v1beta1", "kind": "NodeNetworkState", "metadata": { "name": "node01" },
    });
    stage.create(Kind::State, &state);
    stage.report(
        Kind::State,
        "node01",
        &json!({ "currentState": host::two_nics() }),
    );
    let spec =
        json!({ "desiredState": { "interfaces": [{ "name": "eth1", "type": "ethernet", "mtu": 9000 }] } });
    let answer = shown(&stage, directory.path(), "bigger", spec, &["-o", "json"]);
    let output: Value = serde_json::from_str(&answer.text).expect("JSON");
    let change = json!({ "action": "change", "what": "ethernet eth1", "details": ["mtu: 1500 → 9000"] });
    let node = json!({ "name": "node01", "outcome": "Changes", "changes": [change] });
    assert_eq!(
        output,
        json!({ "policies": [{ "name": "bigger", "nodes": [node], "notes": [] }] })
    );
    assert_eq!((answer.remarks.as_str(), answer.code), ("", 1));
}

//! `weft network check` with a real source.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use connectivity::cli::{self, Args};
use serde_json::json;

use crate::source::{reachable, start, unused};
use crate::stage::{NS, POD, Stage, checks, pod, until};

/// A check whose name contains the node of its source.
const CHECK: &str = "network-check-source-node1-to-target";

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

/// Output and exit code of the command.
fn printed(kubeconfig: &Path, more: &[&str]) -> (String, u8) {
    let kubeconfig = kubeconfig.display().to_string();
    let args = ["check", "--kubeconfig", &kubeconfig];
    let Command { args } = Command::parse_from(args.iter().chain(more));
    let answer = cli::answer(&args);
    (answer.text + &answer.remarks, answer.code)
}

#[test]
fn check_command_runs_the_checks_now() {
    // cluster-network#206
    let stage = Stage::start();
    stage.source();
    let address = unused();
    let listener = TcpListener::bind(address).expect("a listener");
    stage.check(CHECK, POD, &address.to_string());
    // The interval is longer than the test: only a request runs the check again.
    let _task = start(&stage, Duration::from_hours(1));
    stage.wait_for_status(CHECK, "reachable", |status| reachable(status) == "True");
    drop(listener);

    let (text, code) = printed(stage.kubeconfig(), &["--stored"]);
    assert!(text.starts_with("node1: 1 of 1 endpoints reachable\n"), "{text}");
    assert_eq!(code, 0, "{text}");
    let check = stage.get(&format!("{}/{CHECK}", checks())).expect("the check");
    assert!(
        check["metadata"]["annotations"].is_null(),
        "nothing requested: {check:#}"
    );

    let (text, code) = printed(stage.kubeconfig(), &[]);
    assert!(
        text.starts_with("node1: 0 of 1 endpoints reachable\n  FAIL  target  "),
        "{text}"
    );
    assert!(!text.contains("no new result"), "{text}");
    assert_eq!(code, 1, "{text}");
    let check = stage.get(&format!("{}/{CHECK}", checks())).expect("the check");
    assert_eq!(
        check["status"]["failures"].as_array().map(Vec::len),
        Some(1),
        "{check:#}"
    );
    assert_eq!(
        check["status"]["successes"].as_array().map(Vec::len),
        Some(1),
        "{check:#}"
    );
}

/// A kubeconfig of a user who may read checks and pods, and change nothing.
fn reader(stage: &Stage) -> tempfile::NamedTempFile {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": "reader", "namespace": NS },
        "rules": [
            {
                "apiGroups": ["controlplane.operator.openshift.io"], "resources": ["podnetworkconnectivitychecks"],
                "verbs": ["get", "list"],
            },
            { "apiGroups": [""], "resources": ["pods"], "verbs": ["list"] },
        ],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "reader", "namespace": NS },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader" }],
    });
    stage.apply_all(&[role, binding]);
    let view = ["config", "view", "--raw", "-o", "json"];
    let mut config = stage.kubectl().json(view).expect("a kubeconfig");
    config["users"][0]["user"]["as"] = json!("reader");
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(config.to_string().as_bytes()).expect("written");
    file
}

#[test]
fn user_without_the_right_to_patch_sees_stored_results() {
    // cluster-network#206
    let stage = Stage::start();
    stage.check(CHECK, POD, "h:1");
    let file = reader(&stage);

    // The API server learns of the role within moments.
    let (text, code) = until("the right to list", || {
        let (text, code) = printed(file.path(), &["--stored"]);
        if code == 2 { Err(text) } else { Ok((text, code)) }
    });
    assert!(text.contains("  ?     target  h:1  not checked yet\n"), "{text}");
    assert_eq!(code, 1, "{text}");
    let (text, code) = printed(file.path(), &[]);
    assert!(
        text.starts_with("error: cannot run the connectivity checks: "),
        "{text}"
    );
    assert!(text.contains("`weft network check --stored` shows"), "{text}");
    assert_eq!(code, 2, "{text}");
    let check = stage.get(&format!("{}/{CHECK}", checks())).expect("the check");
    assert!(check["metadata"]["annotations"].is_null(), "{check:#}");
}

#[test]
fn matrix_names_nodes_without_results_and_the_missing_right() {
    // cluster-network#208
    let stage = Stage::start();
    stage.check(CHECK, POD, "h:1");
    let (text, code) = printed(stage.kubeconfig(), &["--matrix"]);
    assert!(
        text.starts_with("error: this cluster has no pods of network-check-target\n"),
        "{text}"
    );
    assert_eq!(code, 2, "{text}");

    for (name, node) in [("waiting", "node1"), ("running", "node2")] {
        stage.create(
            &format!("/api/v1/namespaces/{NS}/pods"),
            &pod(name, "network-check-target", node),
        );
    }
    let running = [
        "patch",
        "pod",
        "running",
        "--namespace",
        NS,
        "--subresource=status",
    ];
    let status = json!({ "status": { "phase": "Running" } }).to_string();
    let kubectl = stage.kubectl();
    kubectl
        .run(running.into_iter().chain(["--patch", &status]))
        .expect("patched");
    let (text, code) = printed(stage.kubeconfig(), &["--matrix"]);
    let expected = "node1: no results\n  pod waiting is Pending\nnode2: no results\n  cannot run a program in pod running: pods \"node2\" not found";
    assert!(text.starts_with(expected), "no kubelet has this pod: {text}");
    assert!(text.ends_with("\n2 of 2 nodes gave no results.\n"), "{text}");
    assert_eq!(code, 1, "{text}");

    let file = reader(&stage);
    let (text, code) = until("the rights to list", || {
        let (text, code) = printed(file.path(), &["--matrix"]);
        if text.contains("not allowed to read") {
            Err(text)
        } else {
            Ok((text, code))
        }
    });
    assert!(
        text.starts_with("error: not allowed to run a program in pod running: "),
        "{text}"
    );
    assert_eq!(code, 2, "{text}");
    let check = stage.get(&format!("{}/{CHECK}", checks())).expect("the check");
    assert!(check["metadata"]["annotations"].is_null(), "{check:#}");
}

//! `weft network check` with a real source.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use connectivity::cli::{self, Args};
use serde_json::json;

use crate::source::{reachable, start, unused};
use crate::stage::{NS, POD, Stage, checks, until};

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

#[test]
fn user_without_the_right_to_patch_sees_stored_results() {
    // cluster-network#206
    let stage = Stage::start();
    stage.check(CHECK, POD, "h:1");
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": "reader", "namespace": NS },
        "rules": [{
            "apiGroups": ["controlplane.operator.openshift.io"], "resources": ["podnetworkconnectivitychecks"],
            "verbs": ["get", "list"],
        }],
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

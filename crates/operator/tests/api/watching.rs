//! Refused and stale watches in the status and in readiness.

use std::time::Duration;

use serde_json::json;
use stage::until;

use crate::fixture::{Fixture, NAMESPACE, conditions, message};

const BLOCKED: [&str; 3] = [
    "Available False Failing",
    "Degraded True FailedToWatch",
    "Progressing False InvalidConfiguration",
];

const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

fn wait_until_ready(fixture: &Fixture) {
    until("the operator to be ready", || {
        if fixture.is_ready() {
            Ok(())
        } else {
            Err("it is not")
        }
    });
}

/// Waits until the status names exactly these watches.
fn wait_until_blocked(fixture: &Fixture, lines: &[String]) {
    let expected = lines.join("\n");
    fixture.wait_for_operand("networkaddonsconfig", "cluster", |configuration| {
        let is_reported =
            message(configuration, "Degraded") == expected && conditions(configuration) == BLOCKED;
        is_reported.then_some(())
    });
    until("the operator not to be ready", || {
        if fixture.is_ready() { Err("it is") } else { Ok(()) }
    });
}

// operator#91
#[test]
fn operator_under_roles_of_another_version_names_each_missing_right() {
    let mut fixture = Fixture::running();
    fixture.configure(&json!({ "multus": {} }));
    fixture.roll_out(&["multus"]);
    fixture.wait_until_available();
    wait_until_ready(&fixture);
    let observer = fixture.observer();
    let is_up = |fixture: &Fixture, resource: &str| {
        let beginning = format!("weft_watch_up{{resource=\"{resource}\"");
        observer.figure(fixture, &beginning, "")
    };
    assert!(is_up(&fixture, DEFINITIONS) > 0.5, "watched");
    fixture.stop();

    // Upstream's roles do not allow lists of these kinds.
    let everywhere = fixture.forbid("clusterrole", "customresourcedefinitions", "list");
    fixture.forbid("clusterrole", "clusterroles", "list");
    let at_home = fixture.forbid("role", "serviceaccounts", "list");
    fixture.set_watch_timeout(Duration::from_secs(2));
    fixture.start();
    wait_until_blocked(
        &fixture,
        &[
            "not allowed to list clusterrolebindings.rbac.authorization.k8s.io".to_owned(),
            "not allowed to list clusterroles.rbac.authorization.k8s.io".to_owned(),
            "not allowed to list customresourcedefinitions.apiextensions.k8s.io".to_owned(),
            format!("not allowed to list serviceaccounts in namespace {NAMESPACE}"),
            format!("not allowed to list services in namespace {NAMESPACE}"),
        ],
    );

    assert!(is_up(&fixture, DEFINITIONS) < 0.5, "refused");
    assert!(is_up(&fixture, "daemonsets.apps") > 0.5, "still watched");

    fixture.permit("clusterrole", &everywhere);
    fixture.permit("role", &at_home);
    fixture.wait_until_available();
    wait_until_ready(&fixture);
}

// operator#93
#[test]
fn operator_with_a_stale_watch_names_it_until_it_has_caught_up() {
    let mut fixture = Fixture::installed();
    let hold = fixture.hold("serviceaccounts");
    fixture.set_watch_timeout(Duration::from_secs(1));
    fixture.start();
    fixture.configure(&json!({ "multus": {} }));
    wait_until_blocked(
        &fixture,
        &[format!(
            "the watch of serviceaccounts in namespace {NAMESPACE} is stale: it lacks recent writes"
        )],
    );
    // The configuration is still applied.
    fixture.roll_out(&["multus"]);
    hold.release();
    fixture.wait_until_available();
    wait_until_ready(&fixture);
}

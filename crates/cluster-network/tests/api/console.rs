//! The networking plugin of the web console, with definitions of OpenShift's kinds.

use std::time::Duration;

use serde_json::{Value, json};

use crate::proxies::definition;
use crate::stage::{ACCOUNT, CLUSTER_OPERATOR, MULTUS, OPERATOR, Stage, condition};

const NAME: &str = "networking-console-plugin";
const CONSOLE: &str = "/apis/operator.openshift.io/v1/consoles/cluster";
const PLUGIN: &str = "/apis/console.openshift.io/v1/consoleplugins/networking-console-plugin";
const DEPLOYMENT: &str =
    "/apis/apps/v1/namespaces/openshift-network-console/deployments/networking-console-plugin";

/// Defines the kinds of the web console.
fn define(stage: &Stage) {
    for (group, kind, plural, singular) in [
        ("operator.openshift.io", "Console", "consoles", "console"),
        (
            "console.openshift.io",
            "ConsolePlugin",
            "consoleplugins",
            "consoleplugin",
        ),
    ] {
        stage.apply(&json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": {
                "group": group, "scope": "Cluster",
                "names": { "kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": singular },
                "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                    "type": "object", "properties": { "spec": {
                        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                        "properties": { "plugins": { "type": "array", "items": { "type": "string" } } },
                    } },
                } } }],
            },
        }));
        stage.wait_until_served(&format!("/apis/{group}/v1/{plural}"));
    }
}

/// Creates the console with these plugins.
fn create_console(stage: &Stage, plugins: &Value) {
    stage.apply(&json!({
        "apiVersion": "operator.openshift.io/v1", "kind": "Console", "metadata": { "name": "cluster" },
        "spec": { "managementState": "Managed", "plugins": plugins },
    }));
}

/// Waits until the console has these plugins.
#[track_caller]
fn enabled(stage: &Stage, expected: &[&str]) {
    stage.wait_for(&format!("plugins {expected:?}"), CONSOLE, |console| {
        (console?["spec"]["plugins"] == json!(expected)).then_some(())
    });
}

/// Reports that one node runs the workloads.
pub(crate) fn has_one_worker(stage: &Stage) {
    let infrastructures = "/apis/config.openshift.io/v1/infrastructures";
    stage.apply(&definition("Infrastructure", "infrastructures"));
    stage.wait_until_served(infrastructures);
    stage.apply(&json!({
        "apiVersion": "config.openshift.io/v1", "kind": "Infrastructure", "metadata": { "name": "cluster" },
    }));
    stage.report(
        &format!("{infrastructures}/cluster"),
        &json!({ "infrastructureTopology": "SingleReplica" }),
    );
}

// cluster-network#149
#[test]
fn plugin_of_an_earlier_operator_is_pruned_and_disabled() {
    let stage = Stage::start();
    define(&stage);
    create_console(&stage, &json!(["a", NAME]));
    let owner = stage.related(&json!([
        { "group": "console.openshift.io", "resource": "consoleplugins", "name": NAME },
    ]));
    stage.apply(&json!({
        "apiVersion": "console.openshift.io/v1", "kind": "ConsolePlugin",
        "metadata": { "name": NAME, "ownerReferences": [owner] }, "spec": { "displayName": "earlier" },
    }));
    let mut settings = crate::stage::settings();
    settings.console_plugin_image = None;
    let _operator = stage.operator_of(settings, Duration::ZERO);
    stage.configure("Calico");
    stage.gone(PLUGIN);
    enabled(&stage, &["a"]);
    stage.at_rest();
    stage.condition("Degraded", "False : ");
}

// cluster-network#147-149
#[test]
fn plugin_appears_with_its_kind_and_keeps_plugins_of_others() {
    let stage = Stage::start();
    let operator = stage.operator();
    stage.there(CLUSTER_OPERATOR);
    // The kinds are defined after the start of the operator.
    define(&stage);
    create_console(&stage, &json!(["monitoring-plugin"]));
    stage.configure("Calico");
    stage.there(MULTUS);
    let plugin = stage.there(PLUGIN);
    assert_eq!(plugin["metadata"]["ownerReferences"][0]["kind"], "Network");
    stage.there(DEPLOYMENT);
    enabled(&stage, &["monitoring-plugin", NAME]);
    // Another operator adds its plugin: nothing has to be written.
    let mark = stage.at_rest();
    stage.change(
        CONSOLE,
        &json!({ "spec": { "plugins": ["monitoring-plugin", NAME, "nmstate-console-plugin"] } }),
    );
    stage.at_rest();
    assert_eq!(
        stage.there(CONSOLE)["spec"],
        json!({
            "managementState": "Managed", "plugins": ["monitoring-plugin", NAME, "nmstate-console-plugin"],
        })
    );
    let is_write = |verb: &str| !["get", "list", "watch"].contains(&verb);
    let writes: Vec<_> = stage
        .requests_of(ACCOUNT, mark)
        .into_iter()
        .filter(|it| is_write(&it.verb))
        .collect();
    assert!(writes.is_empty(), "{writes:#?}");
    // Drift of each object is repaired.
    stage.change(
        CONSOLE,
        &json!({ "spec": { "plugins": ["nmstate-console-plugin"] } }),
    );
    enabled(&stage, &["nmstate-console-plugin", NAME]);
    stage.remove(PLUGIN);
    stage.there(PLUGIN);
    stage.change(DEPLOYMENT, &json!({ "spec": { "replicas": 5 } }));
    stage.wait_for("two replicas", DEPLOYMENT, |object| {
        (object?["spec"]["replicas"] == 2).then_some(())
    });
    stage.at_rest();
    let degraded = condition(&stage.there(OPERATOR), "Degraded");
    assert_eq!(degraded.as_deref(), Some("False : "));
    // A restarted operator finds no difference.
    let before = stage.there(CONSOLE)["metadata"]["resourceVersion"].clone();
    drop(operator);
    let _operator = stage.operator();
    stage.at_rest();
    assert_eq!(stage.there(CONSOLE)["metadata"]["resourceVersion"], before);
    stage.there(PLUGIN);
}

// cluster-network#150
#[test]
fn plugin_that_another_client_keeps_removing_is_reported() {
    let stage = Stage::start();
    define(&stage);
    create_console(&stage, &json!([]));
    let _operator = stage.operator_that_waits(Duration::ZERO);
    stage.configure("Calico");
    // The first five writes follow at once.
    for _ in 0..5 {
        enabled(&stage, &[NAME]);
        stage.change(CONSOLE, &json!({ "spec": { "plugins": [] } }));
    }
    stage.condition(
        "Degraded",
        "True ApplyOperatorConfig: (operator.openshift.io/v1, Kind=Console) /cluster: another client keeps removing \
         networking-console-plugin from spec.plugins",
    );
    // The operator tries again after a pause.
    enabled(&stage, &[NAME]);
    stage.condition("Degraded", "False : ");
}

// cluster-network#149
#[test]
fn plugin_without_an_image_is_pruned_and_disabled() {
    let stage = Stage::start();
    define(&stage);
    create_console(&stage, &Value::Null);
    has_one_worker(&stage);
    let operator = stage.operator();
    stage.configure("Calico");
    stage.there(PLUGIN);
    enabled(&stage, &[NAME]);
    assert_eq!(stage.there(DEPLOYMENT)["spec"]["replicas"], 1);
    stage.change(CONSOLE, &json!({ "spec": { "plugins": ["a", NAME, "b"] } }));
    stage.at_rest();
    drop(operator);
    let mut settings = crate::stage::settings();
    settings.console_plugin_image = None;
    let _operator = stage.operator_of(settings, Duration::ZERO);
    stage.gone(PLUGIN);
    stage.gone(DEPLOYMENT);
    enabled(&stage, &["a", "b"]);
    stage.at_rest();
    let degraded = condition(&stage.there(OPERATOR), "Degraded");
    assert_eq!(degraded.as_deref(), Some("False : "));
    // The same plugin of another installer stays, and stays enabled.
    let mut plugin = json!({
        "apiVersion": "console.openshift.io/v1", "kind": "ConsolePlugin", "metadata": { "name": NAME },
        "spec": { "displayName": "another" },
    });
    stage.apply(&plugin);
    stage.change(CONSOLE, &json!({ "spec": { "plugins": [NAME] } }));
    stage.change(OPERATOR, &json!({ "spec": { "useMultiNetworkPolicy": true } }));
    stage.at_rest();
    plugin = stage.there(PLUGIN);
    assert_eq!(plugin["spec"]["displayName"], "another");
    enabled(&stage, &[NAME]);
}

//! The operator on the cluster.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::dump;
use crate::pods::{TestNamespace, bridge_network, pod};
use crate::support::{NODES, OPERATOR, OPERATOR_NAMESPACE, Stage};

const WORKLOADS: [&str; 3] = ["multus", "kube-cni-linux-bridge-plugin", "bridge-marker"];

#[test]
fn workloads_are_reported_and_run_the_image() {
    // operator#78, which the environment checks after this test and all others
    let Some(stage) = Stage::enter() else { return };
    let config = stage.network_addons_config();
    let containers: Vec<_> = config["status"]["containers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| {
            (
                c["parentName"].as_str().unwrap(),
                c["name"].as_str().unwrap(),
                c["image"].as_str().unwrap(),
            )
        })
        .collect();
    let image = stage.image();
    assert_eq!(
        containers,
        [
            ("multus", "install-multus-binary", image.as_str()),
            ("multus", "kube-multus", image.as_str()),
            ("kube-cni-linux-bridge-plugin", "cni-plugins", image.as_str()),
            ("bridge-marker", "bridge-marker", image.as_str()),
        ]
    );
    for name in WORKLOADS {
        let set = stage.json(&["-n", OPERATOR_NAMESPACE, "get", "daemonset", name]);
        assert_eq!(set["status"]["numberReady"], 2, "{name}: {}", set["status"]);
    }
}

#[test]
fn deleted_daemonset_is_created_again_at_once() {
    // operator#18, without the condition in between
    let Some(stage) = Stage::enter() else { return };
    for name in WORKLOADS {
        let uid = stage.daemonset_uid(name).expect("deployed");
        let start = Instant::now();
        stage.kubectl(&[
            "-n",
            OPERATOR_NAMESPACE,
            "delete",
            "daemonset",
            name,
            "--wait=false",
        ]);
        stage.wait(&format!("DaemonSet {name} comes back"), || {
            stage.daemonset_uid(name).filter(|now| *now != uid).map(|_| ())
        });
        println!(
            "measured: DaemonSet {name} deleted and back in {:.2} s",
            start.elapsed().as_secs_f64()
        );
    }
    stage.available();
}

#[test]
fn edited_pod_template_is_reverted() {
    let Some(stage) = Stage::enter() else { return };
    let patch = json!({ "spec": { "template": { "metadata": { "annotations": { "foreign": "edit" } } } } });
    let start = Instant::now();
    stage.kubectl(&[
        "-n",
        OPERATOR_NAMESPACE,
        "patch",
        "daemonset",
        "bridge-marker",
        "--type=merge",
        "-p",
        &patch.to_string(),
    ]);
    stage.wait("the annotation is gone again", || {
        let set = stage.json(&["-n", OPERATOR_NAMESPACE, "get", "daemonset", "bridge-marker"]);
        set["spec"]["template"]["metadata"]["annotations"]["foreign"]
            .is_null()
            .then_some(())
    });
    println!(
        "measured: an edited pod template reverted in {:.2} s",
        start.elapsed().as_secs_f64()
    );
    stage.available();
}

#[test]
fn invalid_spec_is_reported_and_keeps_the_workloads() {
    // operator#37 (the condition); operator#39
    let Some(stage) = Stage::enter() else { return };
    let before: Vec<_> = WORKLOADS.iter().map(|name| stage.daemonset_uid(name)).collect();
    stage.patch_config(&json!([{ "op": "add", "path": "/spec/imagePullPolicy", "value": "BAD" }]));
    let degraded = stage.wait("the CR is Degraded", || {
        stage
            .condition("Degraded")
            .filter(|condition| condition["status"] == "True")
    });
    assert_eq!(degraded["reason"], "FailedToValidate");
    let message = degraded["message"].as_str().unwrap();
    assert!(
        message.contains("requested imagePullPolicy 'BAD' is not valid"),
        "{message}"
    );
    assert_eq!(stage.condition("Available").unwrap()["status"], "False");
    let now: Vec<_> = WORKLOADS.iter().map(|name| stage.daemonset_uid(name)).collect();
    assert_eq!(before, now, "what runs is untouched");
    stage.patch_config(
        &json!([{ "op": "replace", "path": "/spec/imagePullPolicy", "value": "IfNotPresent" }]),
    );
    stage.available();
    assert_eq!(stage.condition("Degraded").unwrap()["status"], "False");
}

#[test]
fn removed_component_is_deleted_and_the_others_stay() {
    // operator#15
    let Some(stage) = Stage::enter() else { return };
    let multus = stage.daemonset_uid("multus");
    stage.patch_config(&json!([{ "op": "remove", "path": "/spec/linuxBridge" }]));
    for name in ["kube-cni-linux-bridge-plugin", "bridge-marker"] {
        stage.wait(&format!("DaemonSet {name} is gone"), || {
            stage.daemonset_uid(name).is_none().then_some(())
        });
    }
    stage.wait("the marker's cluster role is gone", || {
        stage
            .try_kubectl(&["get", "clusterrole", "bridge-marker-cr"])
            .is_err()
            .then_some(())
    });
    assert_eq!(stage.daemonset_uid("multus"), multus, "multus stays");
    stage.available();
    assert_eq!(stage.condition("Degraded").unwrap()["status"], "False");

    // Pods without the bridge start meanwhile.
    let ns = TestNamespace::create(&stage, "e2e-removed");
    ns.apply(&pod("plain", Some("node01"), &json!([])));
    ns.ready("plain");

    stage.patch_config(&json!([{ "op": "add", "path": "/spec/linuxBridge", "value": {} }]));
    stage.available();
    ns.apply(&bridge_network("lan", "br1"));
    ns.apply(&pod(
        "bridged",
        Some("node01"),
        &json!([{ "name": "lan", "ips": ["10.77.4.1/24"] }]),
    ));
    ns.ready("bridged");
}

#[test]
fn nodes_use_their_own_network_after_the_removal_of_multus() {
    let Some(stage) = Stage::enter() else { return };
    for node in NODES {
        assert!(
            !stage.multus_configuration(node).is_empty(),
            "{node} runs multus before"
        );
    }
    stage.remove_multus();
    let ns = TestNamespace::create(&stage, "e2e-no-multus");
    ns.apply(&pod("plain", Some("node02"), &json!([])));
    let ready = ns.ready("plain");
    assert!(
        !ready.has_network_status(),
        "the cluster's own network attached it"
    );

    stage.add_multus();
    stage.available_on_all_nodes(&["multus"]);
    for node in NODES {
        assert!(
            !stage.multus_configuration(node).is_empty(),
            "Available means that {node} attaches"
        );
    }
}

#[test]
fn deleted_config_removes_all_objects_and_can_be_created_again() {
    // operator#13, operator#14
    let Some(stage) = Stage::enter() else { return };
    assert!(stage.applied_configuration().is_some());
    stage.kubectl(&["delete", "networkaddonsconfig", "cluster", "--wait"]);
    for name in WORKLOADS {
        stage.wait(&format!("DaemonSet {name} is gone"), || {
            stage.daemonset_uid(name).is_none().then_some(())
        });
    }
    // CRDs are kept, because their deletion would delete users' objects. Earlier tests left CRDs of other components.
    let definition = "CustomResourceDefinition ";
    stage.wait_equal(
        "all that was deployed is gone, but definitions",
        &Vec::new(),
        || {
            let mut names: Vec<_> = dump::deployed(&stage).into_keys().collect();
            names.retain(|name| !name.starts_with(definition));
            names
        },
    );
    let left = dump::deployed(&stage);
    let networks = format!("{definition}/network-attachment-definitions.k8s.cni.cncf.io");
    assert!(left.contains_key(&networks), "{:?}", left.keys());
    assert_eq!(stage.applied_configuration(), None);
    for node in NODES {
        stage.wait(&format!("multus' config is gone from {node}"), || {
            stage.multus_configuration(node).is_empty().then_some(())
        });
    }
    stage.kubectl(&["get", "namespace", OPERATOR_NAMESPACE]);
    stage.configure(&json!({ "multus": {}, "linuxBridge": {}, "imagePullPolicy": "IfNotPresent" }));
    stage.available();
    for name in WORKLOADS {
        assert!(stage.daemonset_uid(name).is_some(), "{name} is back");
    }
}

#[test]
fn idle_operator_writes_nothing() {
    let Some(stage) = Stage::enter() else { return };
    stage.available();
    stage.settle();
    assert!(
        !stage.operator_requests().is_empty(),
        "the audit log knows the operator"
    );
    let window = stage.observe(Duration::from_secs(60));
    let requests: Vec<Value> = window
        .into_iter()
        .filter(|event| {
            event["user"]["username"] == format!("system:serviceaccount:{OPERATOR_NAMESPACE}:{OPERATOR}")
        })
        .collect();
    let listing = |verbs: &[&str]| -> Vec<String> {
        requests
            .iter()
            .filter(|event| verbs.contains(&event["verb"].as_str().unwrap_or_default()))
            .map(|event| format!("{} {}", event["verb"], event["requestURI"]))
            .collect()
    };
    let writes = listing(&["create", "update", "patch", "delete", "deletecollection"]);
    assert!(writes.is_empty(), "written while idle: {writes:#?}");
    let reads = listing(&["get", "list"]);
    assert!(reads.len() <= 1, "read while idle: {reads:#?}");
    println!(
        "measured: 60 idle seconds: 0 writes, {} reads, {} requests in all",
        reads.len(),
        requests.len()
    );
}

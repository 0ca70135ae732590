//! Admission policies that refuse unsafe changes before the API server stores them.

use cluster_network::manifests;
use serde_json::{Value, json};

use crate::{
    ovn::{configure, settled},
    stage::{CLUSTER, OPERATOR, RECORD, Stage, until},
};

/// Sends a change as a dry run, and returns the text of its refusal. Empty for an accepted change.
fn refusal(stage: &Stage, path: &str, spec: &Value) -> String {
    let answer = stage.patch(&format!("{path}?dryRun=All"), &json!({ "spec": spec }));
    if answer.status.is_success() {
        return String::new();
    }
    answer.refused()
}

fn ovn(config: &Value) -> Value {
    json!({ "defaultNetwork": { "ovnKubernetesConfig": config } })
}

fn pods(cidr: &str, prefix: i64) -> Value {
    json!({ "clusterNetwork": [{ "cidr": cidr, "hostPrefix": prefix }] })
}

/// Paths, changes, and the texts of their refusals.
fn unsafe_changes() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        (
            OPERATOR,
            json!({ "disableMultiNetwork": true }),
            "cannot change DisableMultiNetwork",
        ),
        (
            OPERATOR,
            json!({ "defaultNetwork": { "type": "Calico" } }),
            "cannot change default network type",
        ),
        (
            CLUSTER,
            json!({ "networkType": "Calico" }),
            "cannot change default network type",
        ),
        (
            OPERATOR,
            ovn(&json!({ "mtu": 1300 })),
            "cannot change ovn-kubernetes MTU without migration",
        ),
        (
            OPERATOR,
            ovn(&json!({ "genevePort": 6082 })),
            "cannot change ovn-kubernetes genevePort",
        ),
        (
            CLUSTER,
            json!({ "serviceNetwork": ["10.97.0.0/16"] }),
            "unsupported change to ServiceNetwork",
        ),
        (
            CLUSTER,
            json!({ "clusterNetwork": [{ "cidr": "10.244.0.0/16", "hostPrefix": 24 }, { "cidr": "10.9.0.0/16", "hostPrefix": 24 }] }),
            "adding/removing clusterNetwork entries of the same type is not supported",
        ),
        (
            CLUSTER,
            pods("10.244.0.0/17", 24),
            "reducing IP range with a larger CIDR mask for clusterNetwork CIDR is unsupported",
        ),
        (
            CLUSTER,
            pods("10.244.0.0/16", 25),
            "modifying a clusterNetwork's hostPrefix value is unsupported",
        ),
        (
            CLUSTER,
            pods("10.0.0.0/16", 24),
            "modifying IP network value for clusterNetwork CIDR is unsupported",
        ),
    ]
}

fn safe_changes() -> Vec<(&'static str, Value)> {
    vec![
        (
            OPERATOR,
            ovn(&json!({ "gatewayConfig": { "routingViaHost": true } })),
        ),
        (
            OPERATOR,
            ovn(&json!({ "hybridOverlayConfig": { "hybridOverlayVXLANPort": 4790 } })),
        ),
        (OPERATOR, ovn(&json!({ "mtu": 1400, "genevePort": 6081 }))),
        (
            OPERATOR,
            json!({
                "migration": { "mtu": { "network": { "from": 1400, "to": 1300 }, "machine": { "to": 1500 } } },
            }),
        ),
        (CLUSTER, pods("10.244.0.0/15", 24)),
        (CLUSTER, json!({ "networkDiagnostics": { "mode": "Disabled" } })),
    ]
}

#[test]
fn admission_policy_refuses_unsafe_changes_before_they_are_stored() {
    let stage = Stage::start();
    let _operator = stage.operator();
    configure(&stage);
    settled(&stage);
    let install = manifests::Install {
        image: "weft",
        version: "",
        pull_policy: "",
        images: manifests::Images::default(),
        api_server: None,
    };
    let files = manifests::files(&install).expect("files");
    let policy = manifests::ADMISSION_POLICY;
    let (_, text) = files.iter().find(|(name, _)| *name == policy).expect("the file");
    let objects: Vec<Value> = serde_saphyr::from_multiple(text).expect("YAML");
    for object in &objects {
        stage.apply(object);
    }
    // The API server compiles a policy some time after it has stored the policy.
    until("the policies", || {
        let texts = [
            refusal(&stage, OPERATOR, &json!({ "disableMultiNetwork": true })),
            refusal(&stage, CLUSTER, &json!({ "networkType": "Calico" })),
        ];
        if texts.iter().any(String::is_empty) {
            Err(format!("{texts:?}"))
        } else {
            Ok(())
        }
    });
    for (path, change, text) in unsafe_changes() {
        let refused = refusal(&stage, path, &change);
        assert!(refused.contains(text), "{change}: {refused:?}, not {text}");
    }
    for (path, change) in safe_changes() {
        let refused = refusal(&stage, path, &change);
        assert!(refused.is_empty(), "{change}: {refused}");
    }
    // Without the recorded configuration, every change is safe.
    stage.change(OPERATOR, &json!({ "spec": { "managementState": "Unmanaged" } }));
    stage.at_rest();
    stage.remove(RECORD);
    until("a forced change", || {
        let refused = refusal(&stage, OPERATOR, &json!({ "disableMultiNetwork": true }));
        if refused.is_empty() { Ok(()) } else { Err(refused) }
    });
}

//! The definitions of node network state against the tables of nmstate §2.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use crate::definitions::{nodes_of, schema, walk};

// The table of nmstate §2.2. Affinities and tolerations are Kubernetes' types. handlerConfiguration is an addition.
#[test]
fn nmstate_matches_upstream() {
    let crd = api::node_state::crd().expect("a definition");
    assert_eq!(crd.metadata.name.as_deref(), Some("nmstates.nmstate.io"));
    let value = serde_json::to_value(&crd).expect("JSON");
    assert_eq!(value["spec"]["scope"], "Cluster");
    assert_eq!(
        value["spec"]["names"],
        json!({ "kind": "NMState", "plural": "nmstates", "singular": "nmstate" })
    );
    let column = |name: &str, field: &str| {
        let path = format!(r#".status.conditions[?(@.status=="True")].{field}"#);
        json!({ "name": name, "type": "string", "jsonPath": path })
    };
    let warning = "nmstate/v1beta1 deprecated, use nmstate/v1 instead";
    for (index, name, deprecated) in [(0, "v1", None), (1, "v1beta1", Some(warning))] {
        let version = &value["spec"]["versions"][index];
        assert_eq!(version["name"], name);
        assert_eq!(version["served"], true);
        assert_eq!(version["storage"], deprecated.is_none());
        assert_eq!(version.get("deprecated"), deprecated.map(|_| &json!(true)));
        assert_eq!(
            version.get("deprecationWarning"),
            deprecated.map(|text| json!(text)).as_ref()
        );
        assert_eq!(version["subresources"], json!({ "status": {} }));
        assert_eq!(
            version["additionalPrinterColumns"],
            json!([column("Status", "type"), column("Reason", "reason")])
        );
        let schema = schema(&crd, index);
        let kubernetes = ["affinity", "infraAffinity", "tolerations", "infraTolerations"];
        let own: Vec<_> = nodes_of(&schema)
            .into_iter()
            .filter(|(path, _)| {
                let inside =
                    |name: &&str| path.starts_with(&format!(".spec.{name}")) && path.len() > 6 + name.len();
                !kubernetes.iter().any(inside)
            })
            .map(|(path, kind)| format!("{path} {kind}"))
            .collect();
        assert_eq!(
            own.join("\n"),
            NODE_STATE.trim().replace("    ", "").replace("/ ", " "),
            "{name}"
        );
        assert_eq!(
            schema.pointer("/properties/spec/properties/logLevel/enum"),
            Some(&json!(["info", "debug"]))
        );
        assert_eq!(
            schema.pointer("/properties/spec/properties/probeConfiguration/properties/dns/required"),
            Some(&json!(["host"]))
        );
        let mut defaults = BTreeMap::new();
        walk(&schema, "", &mut |path, node| {
            if let Some(default) = node.get("default") {
                defaults.insert(path.to_owned(), default.to_string());
            }
        });
        let mut expected = vec![
            (".spec", "{}"),
            (".spec.logLevel", r#""info""#),
            (".spec.metricsConfiguration.bindAddress", r#"":8089""#),
            (".spec.probeConfiguration", "{}"),
            (".spec.probeConfiguration.dns", r#"{"host":"root-servers.net"}"#),
            (".spec.probeConfiguration.dns.host", r#""root-servers.net""#),
        ];
        if deprecated.is_none() {
            expected.push((".spec.metricsConfiguration", "{}"));
        }
        let expected = expected
            .into_iter()
            .map(|(path, value)| (path.to_owned(), value.to_owned()));
        assert_eq!(defaults, expected.collect(), "{name}");
    }
    let affinity = &value["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        ["affinity"];
    let term =
        "/properties/podAffinity/properties/requiredDuringSchedulingIgnoredDuringExecution/items/properties";
    for property in ["namespaceSelector", "matchLabelKeys", "topologyKey"] {
        assert!(
            affinity
                .pointer(term)
                .is_some_and(|term| term.get(property).is_some()),
            "{property}"
        );
    }
}

const NODE_STATE: &str = "
    / object
    .apiVersion string
    .kind string
    .metadata object
    .spec object
    .spec.affinity object
    .spec.handlerConfiguration object
    .spec.handlerConfiguration.backend string
    .spec.handlerConfiguration.driftSeconds integer
    .spec.handlerConfiguration.originalDesign boolean
    .spec.infraAffinity object
    .spec.infraNodeSelector object
    .spec.infraNodeSelector{} string
    .spec.infraTolerations array
    .spec.logLevel string
    .spec.metricsConfiguration object
    .spec.metricsConfiguration.bindAddress string
    .spec.nodeSelector object
    .spec.nodeSelector{} string
    .spec.probeConfiguration object
    .spec.probeConfiguration.dns object
    .spec.probeConfiguration.dns.host string
    .spec.selfSignConfiguration object
    .spec.selfSignConfiguration.caOverlapInterval string
    .spec.selfSignConfiguration.caRotateInterval string
    .spec.selfSignConfiguration.certOverlapInterval string
    .spec.selfSignConfiguration.certRotateInterval string
    .spec.tolerations array
    .status object
    .status.conditions array
    .status.conditions[] object
    .status.conditions[].lastHeartbeatTime string date-time
    .status.conditions[].lastTransitionTime string date-time
    .status.conditions[].message string
    .status.conditions[].observedGeneration integer int64
    .status.conditions[].reason string
    .status.conditions[].status string
    .status.conditions[].type string
";

/// The properties of a kind besides its schema.
struct Kind {
    crd: CustomResourceDefinition,
    names: [&'static str; 4],
    versions: &'static [(&'static str, bool)],
    columns: Value,
    nodes: &'static str,
}

// nmstate§2.3-2.5 and §3.2-1, §3.2-2; observedGeneration and diff are additions.
// nmstate#67 (stored objects)
#[test]
fn version_of_a_kind_has_the_fields_of_all_designs() {
    let path = |field: &str| format!(r#".status.conditions[?(@.status=="True")].{field}"#);
    let column =
        |name: &str, kind: &str, field: &str| json!({ "name": name, "type": kind, "jsonPath": path(field) });
    let status = column("Status", "string", "type");
    let reason = column("Reason", "string", "reason");
    let kinds = [
        Kind {
            crd: api::node_state::network_state_crd().expect("a definition"),
            names: ["NodeNetworkState", "nodenetworkstate", "nodenetworkstates", "nns"],
            versions: &[("v1beta1", false), ("v1", false), ("v1alpha1", true)],
            columns: Value::Null,
            nodes: REPORT,
        },
        Kind {
            crd: api::node_state::policy_crd().expect("a definition"),
            names: [
                "NodeNetworkConfigurationPolicy",
                "nodenetworkconfigurationpolicy",
                "nodenetworkconfigurationpolicies",
                "nncp",
            ],
            versions: &[("v1", false), ("v1beta1", true), ("v1alpha1", true)],
            columns: json!([status, reason]),
            nodes: POLICY,
        },
        Kind {
            crd: api::node_state::enactment_crd().expect("a definition"),
            names: [
                "NodeNetworkConfigurationEnactment",
                "nodenetworkconfigurationenactment",
                "nodenetworkconfigurationenactments",
                "nnce",
            ],
            versions: &[("v1beta1", false), ("v1alpha1", true)],
            columns: json!([status, column("Status Age", "date", "lastTransitionTime"), reason]),
            nodes: ENACTMENT,
        },
    ];
    for Kind {
        crd,
        names,
        versions,
        columns,
        nodes,
    } in kinds
    {
        let [kind, singular, plural, short] = names;
        let value = serde_json::to_value(&crd).expect("JSON");
        assert_eq!(value["metadata"]["name"], format!("{plural}.nmstate.io"));
        assert_eq!(value["spec"]["group"], "nmstate.io");
        assert_eq!(value["spec"]["scope"], "Cluster");
        assert_eq!(value["spec"].get("conversion"), None);
        assert_eq!(
            value["spec"]["names"],
            json!({ "kind": kind, "singular": singular, "plural": plural, "shortNames": [short] })
        );
        let found = value["spec"]["versions"].as_array().expect("versions");
        assert_eq!(found.len(), versions.len(), "{kind}");
        for (index, (name, deprecated)) in versions.iter().enumerate() {
            let version = &found[index];
            assert_eq!(version["name"], *name);
            assert_eq!(version["served"], true);
            assert_eq!(version["storage"], index == 0, "{kind} {name}");
            assert_eq!(
                version.get("deprecated"),
                deprecated.then_some(&json!(true)),
                "{kind} {name}"
            );
            assert_eq!(version.get("deprecationWarning"), None);
            assert_eq!(version["subresources"], json!({ "status": {} }));
            assert_eq!(version["additionalPrinterColumns"], columns, "{kind} {name}");
            let schema = schema(&crd, index);
            assert_eq!(
                text_of(&schema),
                nodes.trim().replace("    ", "").replace("/ ", " "),
                "{kind} {name}"
            );
            walk(&schema, "", &mut |path, node| {
                let described = node["description"].as_str().is_some_and(|text| !text.is_empty());
                assert!(described || path == ".metadata", "{kind} {path}");
                assert_eq!(node.get("default"), None, "{kind} {path}");
            });
        }
    }
}

/// Prints each node of a schema with its properties, one per line.
fn text_of(schema: &Value) -> String {
    let mut lines = BTreeMap::new();
    let kinds = nodes_of(schema);
    walk(schema, "", &mut |path, node| {
        let mut line = kinds[path].clone();
        if node.get("x-kubernetes-preserve-unknown-fields").is_some() {
            line += " any";
        }
        if node.get("x-kubernetes-int-or-string").is_some() {
            line += " int-or-string";
        }
        if let Some(required) = node.get("required") {
            line += &format!(" {required}");
        }
        lines.insert(path.to_owned(), line);
    });
    let lines: Vec<String> = lines
        .into_iter()
        .map(|(path, line)| format!("{path} {}", line.trim()))
        .collect();
    lines.join("\n")
}

// nmstate#19 (the schema)
#[test]
fn node_selector_keys_are_qualified_names() {
    let crd = api::node_state::policy_crd().expect("a definition");
    let schema = schema(&crd, 0);
    let selector = schema
        .pointer("/properties/spec/properties/nodeSelector")
        .expect("a node selector");
    assert_eq!(selector["maxProperties"], 256);
    assert_eq!(
        selector["x-kubernetes-validations"],
        json!([{
            "rule": "self.all(k, !format.qualifiedName().validate(k).hasValue())",
            "message": "nodeSelector keys must be valid qualified names",
        }])
    );
}

#[test]
fn objects_are_read_and_written_unchanged() {
    use api::node_state::{
        NodeNetworkConfigurationEnactment, NodeNetworkConfigurationPolicy, NodeNetworkState,
    };
    let report = json!({
        "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkState", "metadata": { "name": "node01" },
        "spec": { "managed": true, "nodeName": "node01", "desiredState": { "interfaces": null } },
        "status": { "currentState": { "interfaces": [{ "name": "0042" }] }, "more": [1] },
    });
    let read: NodeNetworkState = serde_json::from_value(report.clone()).expect("a report");
    assert_eq!(serde_json::to_value(&read).expect("JSON"), report);
    let policy = json!({
        "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy", "metadata": { "name": "p" },
        "spec": { "priority": 99, "match": { "interfaces": [{ "name": "eth1" }] }, "autoconfig": null,
                  "maxUnavailable": "50%", "desiredState": {} },
        "status": { "conditions": [{ "type": "Available", "status": "Unknown" }], "more": {} },
    });
    let read: NodeNetworkConfigurationPolicy = serde_json::from_value(policy.clone()).expect("a policy");
    let mut written = policy;
    written["spec"]
        .as_object_mut()
        .expect("a spec")
        .shift_remove("autoconfig");
    assert_eq!(serde_json::to_value(&read).expect("JSON"), written);
    let bare: NodeNetworkConfigurationPolicy = serde_json::from_value(json!({})).expect("a policy");
    assert_eq!(bare, NodeNetworkConfigurationPolicy::default());
    let enactment = NodeNetworkConfigurationEnactment::new("node01.p");
    assert_eq!(
        serde_json::to_value(&enactment).expect("JSON"),
        json!({ "apiVersion": "nmstate.io/v1beta1", "kind": "NodeNetworkConfigurationEnactment",
                "metadata": { "name": "node01.p" } })
    );
}

const REPORT: &str = r#"
    / object
    .apiVersion string
    .kind string
    .metadata object
    .spec object
    .spec.desiredState object null any
    .spec.managed boolean
    .spec.nodeName string
    .status object any
    .status.conditions array
    .status.conditions[] object ["status","type"]
    .status.conditions[].lastHeartbeatTime string date-time
    .status.conditions[].lastTransitionTime string date-time
    .status.conditions[].message string
    .status.conditions[].observedGeneration integer int64
    .status.conditions[].reason string
    .status.conditions[].status string
    .status.conditions[].type string
    .status.currentState object any
    .status.handlerNetworkManagerVersion string
    .status.handlerNmstateVersion string
    .status.hostNetworkManagerVersion string
    .status.lastSuccessfulUpdateTime string date-time
    .status.observedGeneration integer int64
"#;

const POLICY: &str = r#"
    / object
    .apiVersion string
    .kind string
    .metadata object
    .spec object
    .spec.autoConfig object null any
    .spec.autoconfig object null any
    .spec.capture object
    .spec.capture{} string
    .spec.desiredState object any
    .spec.match any
    .spec.matchRules any
    .spec.maxUnavailable int-or-string
    .spec.nodeSelector object
    .spec.nodeSelector{} string
    .spec.parallel boolean
    .spec.priority integer int64
    .status object any
    .status.conditions array
    .status.conditions[] object ["status","type"]
    .status.conditions[].lastHeartbeatTime string date-time
    .status.conditions[].lastTransitionTime string date-time
    .status.conditions[].message string
    .status.conditions[].observedGeneration integer int64
    .status.conditions[].reason string
    .status.conditions[].status string
    .status.conditions[].type string
    .status.lastUnavailableNodeCountUpdate string date-time
    .status.observedGeneration integer int64
    .status.unavailableNodeCount integer int64
    .status.unavailableNodeCountMap object
    .status.unavailableNodeCountMap{} integer int64
"#;

const ENACTMENT: &str = r#"
    / object any
    .apiVersion string
    .kind string
    .metadata object
    .status object any
    .status.capturedStates object
    .status.capturedStates{} object
    .status.capturedStates{}.metaInfo object
    .status.capturedStates{}.metaInfo.time string date-time
    .status.capturedStates{}.metaInfo.version string
    .status.capturedStates{}.state object any
    .status.conditions array
    .status.conditions[] object ["status","type"]
    .status.conditions[].lastHeartbeatTime string date-time
    .status.conditions[].lastTransitionTime string date-time
    .status.conditions[].message string
    .status.conditions[].observedGeneration integer int64
    .status.conditions[].reason string
    .status.conditions[].status string
    .status.conditions[].type string
    .status.desiredState object any
    .status.desiredStateMetaInfo object
    .status.desiredStateMetaInfo.time string date-time
    .status.desiredStateMetaInfo.version string
    .status.diff object any
    .status.features array
    .status.features[] string
    .status.policyGeneration integer int64
    .status.retryCount object
    .status.retryCount{} integer int64
"#;

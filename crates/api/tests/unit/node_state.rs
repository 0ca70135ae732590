//! The definition of `NMState` against the table of nmstate §2.2.

use std::collections::BTreeMap;

use serde_json::json;

use crate::definitions::{nodes_of, schema, walk};

// The table of nmstate §2.2; affinities and tolerations are Kubernetes' own types.
#[test]
fn node_state_is_wished_for_as_established() {
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
    .status.conditions[].reason string
    .status.conditions[].status string
    .status.conditions[].type string
";

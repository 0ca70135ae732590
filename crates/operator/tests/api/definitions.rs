//! The definition of the configuration resource on an API server.

use kube_kit::object::{Kind, NETWORK_ADDONS_CONFIG};
use serde_json::{Value, json};

use crate::fixture::{DEADLINE, Fixture};

fn spec_as(fixture: &Fixture, version: &'static str) -> Value {
    let kind = Kind {
        version,
        ..NETWORK_ADDONS_CONFIG
    };
    let path = format!("{}/cluster", kind.path(None));
    fixture.admin().get(&path).expect("the configuration")["spec"].clone()
}

fn full_spec() -> Value {
    json!({
        "multus": {}, "linuxBridge": {}, "ovs": {}, "nmstate": {},
        "multusDynamicNetworks": { "hostCRISocketPath": "/run/containerd/containerd.sock" },
        "kubeMacPool": { "rangeStart": "02:00:00:00:00:00", "rangeEnd": "02:00:00:00:00:0f" },
        "imagePullPolicy": "Always",
        "kubeSecondaryDNS": { "domain": "vm.example", "nameServerIP": "192.0.2.1" },
        "macvtap": { "devicePluginConfig": "mine" },
        "kubevirtIpamController": { "defaultNetworkNADNamespace": "default" },
        "selfSignConfiguration": {
            "caRotateInterval": "4h", "caOverlapInterval": "2h", "certRotateInterval": "2h", "certOverlapInterval": "1h",
        },
        "placementConfiguration": {
            "infra": { "affinity": { "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 7, "podAffinityTerm": {
                    "topologyKey": "zone", "namespaces": ["a"],
                    "labelSelector": { "matchLabels": { "a": "b" },
                        "matchExpressions": [{ "key": "c", "operator": "In", "values": ["d"] }] },
                } }],
            } } },
            "workloads": {
                "nodeSelector": { "a": "b" },
                "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n"] }] }],
                } } },
                "tolerations": [{ "key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 5 }],
            },
        },
        "tlsSecurityProfile": {
            "type": "Custom",
            "custom": { "ciphers": ["AES128-SHA", "DES-CBC3-SHA"], "minTLSVersion": "VersionTLS12" },
        },
    })
}

// operator#1, operator#6
#[test]
fn both_versions_have_same_specification() {
    let fixture = Fixture::installed();
    for (written, read) in [("v1alpha1", "v1"), ("v1", "v1alpha1")] {
        fixture.configure_as(written, "cluster", &full_spec());
        assert_eq!(
            spec_as(&fixture, read),
            full_spec(),
            "written as {written}, read as {read}"
        );
        assert_eq!(spec_as(&fixture, written), full_spec());
        fixture
            .kubectl()
            .delete(["networkaddonsconfig", "cluster"])
            .expect("deleted");
    }
}

// operator#3
#[test]
fn unknown_field_is_pruned() {
    let fixture = Fixture::installed();
    fixture.create_raw(&json!({
        "sriov": {}, "multus": {},
        "placementConfiguration": { "workloads": { "affinity": { "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{ "topologyKey": "zone", "namespaceSelector": {} }],
        } } } },
    }));
    assert_eq!(
        spec_as(&fixture, "v1"),
        json!({ "multus": {}, "placementConfiguration": { "workloads": { "affinity": { "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{ "topologyKey": "zone" }],
        } } } } })
    );
}

/// Paths of all nodes of a schema without a description.
fn without_text(node: &Value, path: &str, gaps: &mut Vec<String>) {
    if node["description"].as_str().is_none_or(str::is_empty) {
        gaps.push(path.to_owned());
    }
    let mut node = node;
    while let Some(items) = node.get("items") {
        node = items;
    }
    for (name, field) in node["properties"].as_object().into_iter().flatten() {
        without_text(field, &format!("{path}.{name}"), gaps);
    }
}

/// Paths of all nodes of a schema that have fields: explaining such a node prints the descriptions of its fields too.
fn with_fields(node: &Value, path: &str, paths: &mut Vec<String>) {
    let mut node = node;
    while let Some(items) = node.get("items") {
        node = items;
    }
    let Some(fields) = node.get("properties").and_then(Value::as_object) else {
        return;
    };
    paths.push(path.to_owned());
    for (name, field) in fields {
        with_fields(field, &format!("{path}.{name}"), paths);
    }
}

// operator#4
#[test]
fn explain_describes_every_field() {
    let fixture = Fixture::installed();
    let name = "networkaddonsconfigs.networkaddonsoperator.network.kubevirt.io";
    let definition = fixture.object("crd", name).expect("the definition");
    for version in definition["spec"]["versions"].as_array().expect("versions") {
        let name = version["name"].as_str().expect("a name");
        let schema = &version["schema"]["openAPIV3Schema"];
        let mut gaps = Vec::new();
        without_text(schema, &format!("{name} networkaddonsconfigs"), &mut gaps);
        // The API server describes it itself.
        gaps.retain(|path| !path.ends_with("networkaddonsconfigs.metadata"));
        assert_eq!(gaps, Vec::<String>::new());
        let mut paths = Vec::new();
        with_fields(schema, "networkaddonsconfigs", &mut paths);
        assert!(paths.len() > 30, "{paths:?}");
        // Output of kubectl for the deepest field.
        let deepest = paths.iter().max_by_key(|path| path.matches('.').count());
        let path = deepest.expect("a path");
        let version = format!("--api-version=networkaddonsoperator.network.kubevirt.io/{name}");
        // The OpenAPI document is published a moment after the kind is served.
        let explain = || fixture.kubectl().run(["explain", path, &version]);
        let text = cluster::wait::until(path, DEADLINE, explain).expect("an explanation");
        let gap = ["<empty>", "<no description>"]
            .into_iter()
            .find(|gap| text.contains(gap));
        assert!(
            text.contains("DESCRIPTION:") && gap.is_none(),
            "{version} {path}:\n{text}"
        );
    }
}

// Additions to upstream's definition (operator §1).
#[test]
fn list_by_short_name_fits_eighty_columns() {
    let fixture = Fixture::installed();
    fixture.configure(&json!({}));
    let status = json!({ "status": {
        "observedVersion": "0.102.0-rc.1",
        "conditions": [
            { "type": "Available", "status": "False", "reason": "Failing" },
            { "type": "Progressing", "status": "False", "reason": "InvalidConfiguration" },
            { "type": "Degraded", "status": "True", "reason": "FailedToValidate" },
        ],
    } });
    let patch = status.to_string();
    let patch = [
        "patch",
        "nac",
        "cluster",
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch,
    ];
    fixture.kubectl().run(patch).expect("a status");
    for kind in [
        "nac",
        "networkaddonsconfigs.v1alpha1.networkaddonsoperator.network.kubevirt.io",
    ] {
        let text = fixture.kubectl().run(["get", kind]).expect("a table");
        let lines: Vec<Vec<_>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            lines[0],
            ["NAME", "AVAILABLE", "PROGRESSING", "DEGRADED", "VERSION", "AGE"]
        );
        assert_eq!(
            lines[1][..5],
            ["cluster", "False", "False", "True", "0.102.0-rc.1"]
        );
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        let wide = fixture
            .kubectl()
            .run(["get", kind, "--output", "wide"])
            .expect("a table");
        assert!(
            wide.contains("REASON") && wide.contains("FailedToValidate"),
            "{wide}"
        );
    }
}

// operator#5
#[test]
fn null_in_tls_profile_is_accepted() {
    let fixture = Fixture::installed();
    for profile in [
        json!(null),
        json!({ "type": "Modern", "custom": null, "old": null, "intermediate": null, "modern": null }),
    ] {
        fixture.create_raw(&json!({ "tlsSecurityProfile": profile }));
        assert_eq!(spec_as(&fixture, "v1")["tlsSecurityProfile"], profile);
        fixture
            .kubectl()
            .delete(["networkaddonsconfig", "cluster"])
            .expect("deleted");
    }
}

#[test]
fn value_outside_of_schema_is_refused() {
    let fixture = Fixture::installed();
    for (spec, complaint) in [
        (
            json!({ "tlsSecurityProfile": { "type": "Newest" } }),
            "Unsupported value",
        ),
        (
            json!({ "tlsSecurityProfile": { "type": "Custom", "custom": { "ciphers": ["RC4"] } } }),
            "Unsupported value",
        ),
        (json!({ "multus": 7 }), "must be of type object"),
    ] {
        let object = json!({
            "apiVersion": "networkaddonsoperator.network.kubevirt.io/v1", "kind": "NetworkAddonsConfig",
            "metadata": { "name": "cluster" }, "spec": spec,
        });
        let error = fixture
            .kubectl()
            .apply(&object.to_string())
            .expect_err("a refusal")
            .to_string();
        assert!(error.contains(complaint), "{error}");
    }
}

//! The definition of the configuration resource, as an API server sees it.

use serde_json::{Value, json};

use crate::fixture::{DEADLINE, Fixture};

fn spec_as(fixture: &Fixture, version: &str) -> Value {
    let kind = format!("networkaddonsconfigs.{version}.networkaddonsoperator.network.kubevirt.io");
    fixture.object(&[&kind, "cluster"]).expect("the configuration")["spec"].clone()
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
fn both_versions_show_the_same_specification() {
    let fixture = Fixture::installed("definitions-versions");
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
fn what_is_not_in_the_schema_is_pruned() {
    let fixture = Fixture::installed("definitions-pruning");
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

// operator#4
#[test]
fn explain_has_a_text_for_everything() {
    let fixture = Fixture::installed("definitions-explain");
    for path in [
        "",
        ".spec",
        ".status",
        ".spec.tlsSecurityProfile.custom",
        ".spec.placementConfiguration.infra.affinity",
    ] {
        let what = format!("networkaddonsconfigs{path}");
        // The description is published a moment after the kind is served.
        let explain = || fixture.kubectl().run(["explain", &what]);
        let text = cluster::wait::until(&what, DEADLINE, explain).expect("an explanation");
        assert!(
            text.contains("DESCRIPTION:") && !text.contains("<empty>"),
            "{what}:\n{text}"
        );
    }
}

// operator#5
#[test]
fn null_is_accepted_in_the_tls_profile() {
    let fixture = Fixture::installed("definitions-null");
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
fn values_outside_of_the_schema_are_refused() {
    let fixture = Fixture::installed("definitions-values");
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

//! A failure of one component affects only that component.

use std::time::Instant;

use serde_json::json;

use crate::{
    fixture::{Fixture, NAMESPACE, message},
    stubs::{self, CERT_MANAGER, NODE_STATE},
};

const BRIDGE: [&str; 2] = ["kube-cni-linux-bridge-plugin", "bridge-marker"];
const REJECTED: [&str; 3] = [
    "Available False Failing",
    "Degraded True FailedToApply",
    "Progressing False InvalidConfiguration",
];

// operator#77, with the upstream image
#[test]
fn missing_kind_stops_one_component_until_it_is_served() {
    let mut fixture = Fixture::installed();
    fixture.set("KUBEVIRT_IPAM_CONTROLLER_IMAGE", "registry.example/ipam:1");
    fixture.start();
    fixture.configure(&json!({ "multus": {}, "linuxBridge": {}, "kubevirtIpamController": {} }));
    fixture.roll_out(&["multus"]);
    fixture.roll_out(&BRIDGE);
    let configuration = fixture.wait_for_conditions(&REJECTED);
    let complaint = "could not apply (cert-manager.io/v1, Kind=Certificate) \
                     networking/kubevirt-ipam-controller-serving-cert: \
                     no matches for kind \"Certificate\" in version \"cert-manager.io/v1\"";
    assert_eq!(message(&configuration, "Degraded"), complaint);
    let configuration = fixture.wait_for_components(&[
        "KubevirtIpamControllerAvailable False FailedToApply",
        "LinuxBridgeAvailable True",
        "MultusAvailable True",
        "NetworkPoliciesAvailable True",
    ]);
    assert_eq!(
        message(&configuration, "KubevirtIpamControllerAvailable"),
        complaint
    );
    for (kind, name) in [
        ("daemonset", "multus"),
        ("daemonset", "bridge-marker"),
        ("networkpolicy", "cnao-allow-egress-to-cluster-dns"),
        ("deployment", "kubevirt-ipam-controller-manager"),
    ] {
        assert!(fixture.operand(kind, name).is_some(), "{kind} {name}");
    }
    let webhook = "kubevirt-ipam-controller-mutating-webhook-configuration";
    assert!(
        fixture.operand("mutatingwebhookconfiguration", webhook).is_none(),
        "a webhook without a trusted certificate would block all users"
    );

    // Other components are removed and repaired too.
    fixture.configure(&json!({ "multus": {}, "kubevirtIpamController": {} }));
    for name in BRIDGE {
        fixture.wait_until_gone("daemonset", name);
    }
    fixture.remove("serviceaccount", "multus");
    fixture.wait_for_operand("serviceaccount", "multus", |_| Some(()));
    fixture.wait_for_components(&[
        "KubevirtIpamControllerAvailable False FailedToApply",
        "MultusAvailable True",
        "NetworkPoliciesAvailable True",
    ]);

    stubs::define(fixture.admin(), CERT_MANAGER);
    let defined = Instant::now();
    fixture.wait_for_operand("mutatingwebhookconfiguration", webhook, |_| Some(()));
    println!(
        "healed {} ms after the definition at most",
        defined.elapsed().as_millis()
    );
    fixture.roll_out_deployments(&["kubevirt-ipam-controller-manager"]);
    fixture.wait_until_available();
    fixture.wait_for_components(&[
        "KubevirtIpamControllerAvailable True",
        "MultusAvailable True",
        "NetworkPoliciesAvailable True",
    ]);
    // From now on the operator watches them like all other kinds.
    let issuer = "kubevirt-ipam-controller-selfsigned-issuer";
    fixture.remove("issuer", issuer);
    fixture.wait_for_operand("issuer", issuer, |object| {
        object["metadata"]["deletionTimestamp"].is_null().then_some(())
    });

    // The kind is deleted during the test, with all its objects.
    stubs::undefine(fixture.admin(), CERT_MANAGER);
    fixture.wait_for_conditions(&REJECTED);
    fixture.remove("daemonset", "multus");
    fixture.roll_out(&["multus"]);
    fixture.wait_for_components(&[
        "KubevirtIpamControllerAvailable False FailedToApply",
        "MultusAvailable True",
        "NetworkPoliciesAvailable True",
    ]);
    stubs::define(fixture.admin(), CERT_MANAGER);
    fixture.wait_until_available();
}

#[test]
fn forbidden_list_of_nmstates_stops_one_component() {
    let mut fixture = Fixture::with(NODE_STATE);
    fixture.start();
    fixture.configure(&json!({ "multus": {}, "linuxBridge": {}, "nmstate": {} }));
    fixture.roll_out(&["multus"]);
    fixture.roll_out(&BRIDGE);
    fixture.wait_until_available();
    fixture.wait_for_operand("nmstate", "nmstate", |_| Some(()));

    // The running operator uses the objects of its watch.
    fixture.stop();
    let rules = fixture.forbid("clusterrole", "nmstates", "list");
    fixture.configure(&json!({ "multus": {}, "nmstate": {} }));
    fixture.start();
    for name in BRIDGE {
        fixture.wait_until_gone("daemonset", name);
    }
    fixture.wait_for_conditions(&[
        "Available False Failing",
        "Degraded True FailedToRender",
        "Progressing False InvalidConfiguration",
    ]);
    let configuration = fixture.wait_for_components(&[
        "MultusAvailable True",
        "NetworkPoliciesAvailable True",
        "NmstateAvailable False FailedToRender",
    ]);
    let complaint = message(&configuration, "NmstateAvailable");
    assert!(
        complaint.contains("nmstates.nmstate.io is forbidden"),
        "{complaint}"
    );
    // Objects whose state cannot be read are not pruned.
    assert!(fixture.operand("nmstate", "nmstate").is_some());

    fixture.permit("clusterrole", &rules);
    fixture.nudge();
    fixture.roll_out(&["multus"]);
    fixture.wait_until_available();
    fixture.configure(&json!({ "multus": {} }));
    fixture.wait_until_gone("nmstate", "nmstate");
}

#[test]
fn forbidden_deletion_of_leftovers_stops_one_component() {
    let mut fixture = Fixture::installed();
    let thin = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": "kube-multus-ds-amd64", "namespace": NAMESPACE },
        "spec": {
            "selector": { "matchLabels": { "name": "multus" } },
            "template": {
                "metadata": { "labels": { "name": "multus" } },
                "spec": { "containers": [{ "name": "multus", "image": "old:1" }] },
            },
        },
    });
    fixture.kubectl().apply(&thin.to_string()).expect("thin multus");
    let rules = fixture.forbid("role", "daemonsets", "delete");
    fixture.start();
    fixture.configure(&json!({ "multus": {}, "linuxBridge": {} }));
    fixture.roll_out(&BRIDGE);
    fixture.wait_for_conditions(&[
        "Available False Failing",
        "Degraded True FailedToRender",
        "Progressing False InvalidConfiguration",
    ]);
    let configuration = fixture.wait_for_components(&[
        "LinuxBridgeAvailable True",
        "MultusAvailable False FailedToRender",
        "NetworkPoliciesAvailable True",
    ]);
    let complaint = message(&configuration, "MultusAvailable");
    let expected = "invalid configuration:\ncould not delete (apps/v1, Kind=DaemonSet) \
                    networking/kube-multus-ds-amd64: ";
    assert!(complaint.starts_with(expected), "{complaint}");
    assert!(
        fixture.operand("daemonset", "multus").is_none(),
        "two of them would fight over the node"
    );
    fixture.permit("role", &rules);
    fixture.nudge();
    fixture.wait_until_gone("daemonset", "kube-multus-ds-amd64");
    fixture.roll_out(&["multus"]);
    fixture.roll_out(&BRIDGE);
    fixture.wait_until_available();
}

#[test]
fn failed_deletion_does_not_block_others() {
    let fixture = Fixture::running();
    fixture.configure(&json!({ "multus": {}, "linuxBridge": {} }));
    fixture.roll_out(&["multus"]);
    fixture.roll_out(&BRIDGE);
    fixture.wait_until_available();
    let rules = fixture.forbid("role", "serviceaccounts", "delete");
    fixture.configure(&json!({ "multus": {} }));
    for (kind, name) in [
        ("daemonset", "kube-cni-linux-bridge-plugin"),
        ("daemonset", "bridge-marker"),
        ("clusterrole", "bridge-marker-cr"),
        ("clusterrolebinding", "bridge-marker-crb"),
    ] {
        fixture.wait_until_gone(kind, name);
    }
    let configuration = fixture.wait_for_conditions(&[
        "Available False Failing",
        "Degraded True FailedToDeleteObjects",
        "Progressing False InvalidConfiguration",
    ]);
    let complaint = message(&configuration, "Degraded");
    assert!(
        complaint.contains("Kind=ServiceAccount) networking/bridge-marker: "),
        "{complaint}"
    );
    fixture.wait_for_components(&["MultusAvailable True", "NetworkPoliciesAvailable True"]);
    assert!(fixture.operand("serviceaccount", "bridge-marker").is_some());

    fixture.permit("role", &rules);
    fixture.nudge();
    fixture.wait_until_gone("serviceaccount", "bridge-marker");
    fixture.roll_out(&["multus"]);
    fixture.wait_until_available();
}

#[test]
fn failed_status_write_does_not_block_repairs() {
    let fixture = Fixture::running();
    fixture.configure(&json!({ "multus": {} }));
    fixture.roll_out(&["multus"]);
    fixture.wait_until_available();
    let uid = |fixture: &Fixture| {
        let found = fixture.operand("daemonset", "multus");
        found.map(|found| found["metadata"]["uid"].clone())
    };
    let before = uid(&fixture);
    let rules = fixture.forbid("clusterrole", "networkaddonsconfigs/status", "patch");
    fixture.remove("daemonset", "multus");
    fixture.wait_for_operand("daemonset", "multus", |object| {
        (Some(&object["metadata"]["uid"]) != before.as_ref()).then_some(())
    });
    fixture.configure(&json!({ "multus": {}, "linuxBridge": {} }));
    for name in BRIDGE {
        fixture.wait_for_operand("daemonset", name, |_| Some(()));
    }
    let stale = fixture.configuration();
    assert_eq!(crate::fixture::conditions(&stale)[0], "Available True");
    fixture.permit("clusterrole", &rules);
    fixture.nudge();
    fixture.wait_until_progressing();
    fixture.roll_out(&["multus"]);
    fixture.roll_out(&BRIDGE);
    fixture.wait_until_available();
}

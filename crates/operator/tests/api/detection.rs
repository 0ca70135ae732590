//! Changes of the platform while the operator runs.

use serde_json::{Value, json};

use crate::{
    fixture::{Fixture, VERSION},
    stubs::{self, MONITORING, OPENSHIFT},
};

const BRIDGE: [&str; 2] = ["kube-cni-linux-bridge-plugin", "bridge-marker"];
const MONITOR: &str = "service-monitor-cluster-network-addons-operator";
const RULES: &str = "prometheus-rules-cluster-network-addons-operator";

fn uid(object: &Value) -> Option<Value> {
    object["metadata"]["deletionTimestamp"]
        .is_null()
        .then(|| object["metadata"]["uid"].clone())
}

// operator#11
#[test]
fn monitoring_follows_its_kinds() {
    let mut fixture = Fixture::installed();
    fixture.set("MACVTAP_CNI_IMAGE", "registry.example/macvtap:1");
    fixture.start();
    fixture.configure(&json!({ "macvtap": {} }));
    fixture.roll_out(&["macvtap-cni"]);
    fixture.wait_until_available();
    fixture.wait_for_components(&["MacvtapAvailable True", "NetworkPoliciesAvailable True"]);

    stubs::define(fixture.admin(), MONITORING);
    fixture.wait_for_components(&[
        "MacvtapAvailable True",
        "MonitoringAvailable True",
        "NetworkPoliciesAvailable True",
    ]);
    fixture.wait_until_available();
    for (kind, name) in [
        ("servicemonitor", MONITOR),
        ("prometheusrule", RULES),
        ("service", "cluster-network-addons-operator-prometheus-metrics"),
        ("role", "cluster-network-addons-operator-monitoring"),
        ("rolebinding", "cluster-network-addons-operator-monitoring"),
    ] {
        let object = fixture.operand(kind, name);
        let object = object.unwrap_or_else(|| panic!("there is no {kind} {name}"));
        let labels = &object["metadata"]["labels"];
        for (label, value) in [
            ("networkaddonsoperator.network.kubevirt.io/version", VERSION),
            ("prometheus.cnao.io", "true"),
            ("app.kubernetes.io/managed-by", "cnao-operator"),
            ("app.kubernetes.io/component", "network"),
        ] {
            assert_eq!(labels[label], value, "{kind} {name} {label}");
        }
    }

    // The operator watches them like all other kinds.
    let kind = "servicemonitor";
    let before = fixture.operand(kind, MONITOR).as_ref().and_then(uid);
    fixture.remove(kind, MONITOR);
    fixture.wait_for_operand(kind, MONITOR, |object| (uid(object) != before).then_some(()));

    stubs::undefine(fixture.admin(), MONITORING);
    fixture.wait_for_components(&["MacvtapAvailable True", "NetworkPoliciesAvailable True"]);
    fixture.wait_until_gone("service", "cluster-network-addons-operator-prometheus-metrics");
    fixture.wait_until_available();
}

// operator#68
#[test]
fn openshift_is_detected_late_and_its_constraints_are_removed() {
    let fixture = Fixture::running();
    fixture.configure(&json!({ "multus": {}, "linuxBridge": {} }));
    let directory = |volume: &'static str| {
        move |object: &Value| {
            let volumes = object["spec"]["template"]["spec"]["volumes"].as_array();
            let mut volumes = volumes.expect("volumes").iter();
            let found = volumes.find(|found| found["name"] == volume)?;
            found["hostPath"]["path"].as_str().map(str::to_owned)
        }
    };
    let place = fixture.wait_for_operand("daemonset", "multus", directory("cnibin"));
    assert_eq!(place, "/opt/cni/bin");

    stubs::define(fixture.admin(), OPENSHIFT);
    fixture.wait_for_operand("daemonset", "multus", |object| {
        (directory("cnibin")(object)? == "/var/lib/cni/bin").then_some(())
    });
    let constraints = "securitycontextconstraints";
    for name in ["multus", "linux-bridge", "bridge-marker"] {
        fixture.wait_for_operand(constraints, name, |_| Some(()));
    }
    fixture.roll_out(&["multus"]);
    fixture.roll_out(&BRIDGE);
    fixture.wait_until_available();
    let before = fixture.operand(constraints, "multus").as_ref().and_then(uid);
    fixture.remove(constraints, "multus");
    fixture.wait_for_operand(constraints, "multus", |object| {
        (uid(object) != before).then_some(())
    });

    fixture.configure(&json!({ "multus": {} }));
    for name in ["linux-bridge", "bridge-marker"] {
        fixture.wait_until_gone(constraints, name);
    }
    for name in BRIDGE {
        fixture.wait_until_gone("daemonset", name);
    }
    fixture.wait_until_available();
    assert!(fixture.operand(constraints, "multus").is_some());
}

#[test]
fn restart_on_openshift_changes_nothing() {
    let mut fixture = Fixture::with(OPENSHIFT);
    stubs::define(fixture.admin(), MONITORING);
    fixture.start();
    fixture.configure(&json!({ "linuxBridge": {} }));
    fixture.roll_out(&BRIDGE);
    let before = fixture.wait_until_available();
    let constraints = "securitycontextconstraints";
    fixture.wait_for_operand(constraints, "linux-bridge", |_| Some(()));
    fixture.stop();
    let mark = fixture.mark();
    fixture.start();
    // The repair shows that the operator has processed all earlier changes.
    fixture.remove("serviceaccount", "linux-bridge");
    fixture.wait_for_operand("serviceaccount", "linux-bridge", uid);
    let after = fixture.wait_until_available();
    assert_eq!(
        before["metadata"]["resourceVersion"],
        after["metadata"]["resourceVersion"]
    );
    let requests = fixture.requests_since(mark).into_iter();
    let writes: Vec<_> = requests
        .filter(|request| !["get", "list"].contains(&request.verb.as_str()))
        .collect();
    assert!(
        writes.iter().all(|write| write.uri.contains("/serviceaccounts")),
        "{writes:#?}"
    );
}

#[test]
fn deleted_definition_is_recreated() {
    let fixture = Fixture::running();
    fixture.configure(&json!({ "multus": {} }));
    fixture.roll_out(&["multus"]);
    fixture.wait_until_available();
    let networks = "network-attachment-definitions.k8s.cni.cncf.io";
    let before = fixture.operand("crd", networks).as_ref().and_then(uid);
    // The definition may exist again before kubectl checks its absence.
    let delete = ["delete", "--wait=false", "crd", networks];
    fixture.kubectl().run(delete).expect("deleted");
    fixture.wait_for_operand("crd", networks, |object| {
        (uid(object)? != before.clone()?).then_some(())
    });
    fixture.wait_until_available();
}

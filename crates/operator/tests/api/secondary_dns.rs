//! The secondary DNS with Weft's own programs.

use serde_json::json;

use crate::fixture::{Fixture, NAMESPACE};

// secondary-dns#61-64: the objects on a real API server; the answers of the pods are not a part of it.
#[test]
fn secondary_dns_is_deployed_rolled_and_removed() {
    let fixture = Fixture::running();
    fixture.configure(&json!({ "kubeSecondaryDNS": {} }));
    fixture.roll_out_deployments(&["secondary-dns"]);
    fixture.wait_until_available();
    let operand = |kind: &str, name: &str| {
        fixture
            .operand(kind, name)
            .unwrap_or_else(|| panic!("no {kind} {name}"))
    };
    let settings = |key: &str| operand("configmap", "secondary-dns")["data"][key].clone();
    assert_eq!(
        (settings("DOMAIN"), settings("NAME_SERVER_IP")),
        (json!(""), json!(""))
    );
    assert_eq!(operand("deployment", "secondary-dns")["spec"]["replicas"], 2);
    let budget = operand("poddisruptionbudget", "secondary-dns");
    assert_eq!(budget["spec"]["maxUnavailable"], 1);
    assert!(fixture.operand("service", "secondary-dns").is_none());
    let marked = || {
        let deployment = operand("deployment", "secondary-dns");
        let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
        annotations["networkaddonsoperator.network.kubevirt.io/secondary-dns-settings"].clone()
    };
    assert_eq!(marked(), "{}");

    // The Service is created and deleted without a restart of the pods.
    let service = json!({ "type": "NodePort", "nodePort": 31111 });
    let domain = json!({ "domain": "123", "nameServerIP": "192.0.2.53", "service": service });
    fixture.configure(&json!({ "kubeSecondaryDNS": domain }));
    let pods = |wanted: &'static str| {
        fixture.wait_for_operand("deployment", "secondary-dns", move |deployment| {
            let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
            let marked = &annotations["networkaddonsoperator.network.kubevirt.io/secondary-dns-settings"];
            (marked == wanted).then_some(())
        });
    };
    pods(r#"{"domain":"123","nameServerIP":"192.0.2.53"}"#);
    fixture.roll_out_deployments(&["secondary-dns"]);
    fixture.wait_for_operand("service", "secondary-dns", |_| Some(()));
    assert_eq!(settings("DOMAIN"), "123");
    let ports = operand("service", "secondary-dns")["spec"]["ports"].clone();
    for (port, protocol) in ports.as_array().expect("ports").iter().zip(["UDP", "TCP"]) {
        let found = (
            &port["protocol"],
            &port["port"],
            &port["targetPort"],
            &port["nodePort"],
        );
        assert_eq!(found, (&json!(protocol), &json!(53), &json!(5353), &json!(31111)));
    }
    fixture.wait_until_available();

    // Defaults of the API server are no drift, and real drift is corrected.
    let mark = fixture.mark();
    fixture.nudge();
    fixture.patch(
        "poddisruptionbudget",
        "secondary-dns",
        &json!({ "spec": { "maxUnavailable": 0 } }),
    );
    fixture.wait_for_operand("poddisruptionbudget", "secondary-dns", |budget| {
        (budget["spec"]["maxUnavailable"] == 1).then_some(())
    });
    let work = fixture.work_since(mark);
    let namespace = "/apis/policy/v1/namespaces/networking/poddisruptionbudgets/secondary-dns";
    assert!(
        work.iter().all(|request| request.contains(namespace)),
        "{work:#?}"
    );

    fixture.configure(&json!({}));
    for kind in [
        "deployment",
        "configmap",
        "serviceaccount",
        "poddisruptionbudget",
        "service",
    ] {
        let name = if kind == "serviceaccount" {
            "secondary"
        } else {
            "secondary-dns"
        };
        fixture.wait_until_gone(kind, name);
    }
    fixture.wait_until_gone("networkpolicy", "allow-ingress-to-secondary-dns");
    let namespace = fixture.object("namespace", NAMESPACE).expect("the namespace");
    assert!(namespace["metadata"]["deletionTimestamp"].is_null());
}

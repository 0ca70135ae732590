//! The webhook with requests of a real API server (kubevirt-ipam §3, §6).

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use serde_json::json;

use crate::manager::{Managing, get};
use crate::stage::{Stage, instances, launcher, pods, until};

fn asked() -> (Stage, Managing) {
    let stage = Stage::start().granted();
    let manager = Managing::start(&stage);
    stage.both_networks();
    stage.configure(manager.port);
    until("the webhook to be called", || {
        let path = format!("{}?dryRun=All", pods("ns1"));
        let answer = stage.try_create(&path, &launcher("probe", "none", ""));
        if answer.status.is_success() {
            Err("not yet")
        } else {
            Ok(())
        }
    });
    (stage, manager)
}

// kubevirt-ipam#3
#[test]
fn pod_gets_references_before_claims_exist() {
    let (stage, _manager) = asked();
    stage.instance("vm1");
    let pod = stage.create(&pods("ns1"), &launcher("pod1", "vm1", "ns1/supadupanet"));
    assert_eq!(
        pod["metadata"]["annotations"],
        json!({
            "kubevirt.io/domain": "vm1",
            "k8s.ovn.org/primary-udn-ipamclaim": "vm1.podnet",
            "k8s.v1.cni.cncf.io/networks":
                r#"[{"name":"supadupanet","namespace":"ns1","ipam-claim-reference":"vm1.random.net"}]"#,
        })
    );
}

// kubevirt-ipam#15
#[test]
fn default_network_annotation_is_refused_in_the_fixed_words() {
    let (stage, _manager) = asked();
    stage.instance("vm1");
    let mut pod = launcher("pod1", "vm1", "ns1/supadupanet");
    pod["metadata"]["annotations"]["v1.multus-cni.io/default-network"] = json!(r#"[{"name":"not-podnet"}]"#);
    let answer = stage.try_create(&pods("ns1"), &pod);
    assert_eq!(
        (answer.status.as_u16(), &answer.object["reason"]),
        (403, &json!("Forbidden"))
    );
    assert_eq!(
        answer.refused(),
        "admission webhook \"ipam-claims.k8s.cni.cncf.io\" denied the request: multus default network annotation \
         \"v1.multus-cni.io/default-network\" is not allowed on pod creation"
    );
}

// kubevirt-ipam#90
#[test]
fn pod_whose_instance_is_gone_can_be_changed() {
    let (stage, _manager) = asked();
    stage.instance("vm1");
    let mut pod = launcher("pod1", "vm1", "ns1/supadupanet");
    pod["metadata"]["finalizers"] = json!(["test/hold"]);
    stage.create(&pods("ns1"), &pod);
    stage.delete(&format!("{}/vm1", instances("ns1")));
    let path = format!("{}/pod1", pods("ns1"));
    let networks =
        json!({ "metadata": { "annotations": { "k8s.v1.cni.cncf.io/networks": "ns1/supadupanet" } } });
    stage.patch(&path, &networks).accepted();
    stage.delete(&path);
    stage.let_go(&pods("ns1"), "pod1");
    stage.wait_for("the pod to go", &path, |pod| pod.is_none().then_some(()));
}

// kubevirt-ipam#106
#[test]
fn pod_without_requests_needs_no_controller() {
    let (stage, manager) = asked();
    stage.instance("vm1");
    let path = pods("ns1");
    stage.create(&path, &launcher("pod1", "vm1", "ns1/supadupanet"));
    // The webhook is down: the API server refuses all pods from now on.
    drop(manager);
    let pod1 = format!("{path}/pod1");
    let labelled = json!({ "metadata": { "labels": { "a": "b" }, "finalizers": ["test/hold"] } });
    stage.patch(&pod1, &labelled).accepted();
    let annotated = json!({ "metadata": { "annotations": { "k8s.v1.cni.cncf.io/networks": "" } } });
    let refused = stage.patch(&pod1, &annotated).refused();
    assert!(refused.contains("failed calling webhook"), "{refused}");
    stage.let_go(&path, "pod1");
    let mut other = launcher("pod2", "vm1", "ns1/supadupanet");
    let refused = stage.try_create(&path, &other).refused();
    assert!(refused.contains("failed calling webhook"), "{refused}");
    // A pod with only the label is no launcher pod.
    other["metadata"]["annotations"] = json!({ "k8s.v1.cni.cncf.io/networks": "ns1/supadupanet" });
    stage.create(&path, &other);
    other["metadata"]["name"] = json!("pod3");
    other["metadata"]["annotations"] = json!(null);
    stage.create(&path, &other);
    stage.delete(&pod1);
}

// kubevirt-ipam#68
#[test]
fn certificate_is_exchanged_without_a_failed_request() {
    let (stage, manager) = asked();
    stage.instance("vm1");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).expect("names");
    let certificate = params.self_signed(&key).expect("a certificate");
    let address = SocketAddr::from(([127, 0, 0, 1], manager.port));
    let before = shown(address);
    stage.write_certificate(&certificate.pem(), &key.serialize_pem());
    // The API server keeps using its open connection.
    stage.create(&pods("ns1"), &launcher("pod1", "vm1", "ns1/supadupanet"));
    let der = certificate.der().to_vec();
    until("the new certificate", || {
        let now = shown(address);
        if now == der {
            Ok(())
        } else {
            Err(format!("still the old one: {}", now == before))
        }
    });
}

/// The certificate that a server presents.
fn shown(address: SocketAddr) -> Vec<u8> {
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(std::sync::Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(tls_client::Anybody::new(provider))
        .with_no_client_auth();
    let name = "localhost".try_into().expect("a name");
    let mut tls = rustls::ClientConnection::new(config.into(), name).expect("a client");
    let mut tcp = TcpStream::connect(address).expect("a connection");
    tcp.set_read_timeout(Some(Duration::from_secs(30)))
        .expect("a timeout");
    while tls.is_handshaking() {
        tls.complete_io(&mut tcp).expect("a handshake");
    }
    tls.peer_certificates().expect("a certificate")[0].to_vec()
}

#[test]
fn probes_and_metrics_are_correct() {
    let (stage, manager) = asked();
    let [probes, figures] = manager.plain[..] else {
        panic!("two addresses");
    };
    assert!(get(probes, "/healthz").starts_with("HTTP/1.1 200"));
    assert!(get(probes, "/readyz").starts_with("HTTP/1.1 200"));
    stage.instance("vm1");
    stage.wait_until_held("vm1.podnet", true);
    until("figures", || {
        let text = get(figures, "/metrics");
        let expected = [
            r#"kubevirt_ipam_claims{state="held"} 2"#,
            r#"leader_election_master_status{name="71d89df3"} 1"#,
            r#"controller_runtime_reconcile_total{controller="virtualmachine",result="error"} 0"#,
            r#"controller_runtime_webhook_requests_total{webhook="/mutate-v1-pod",code="200"}"#,
        ];
        match expected.iter().find(|line| !text.contains(**line)) {
            None => Ok(()),
            Some(line) => Err(format!("{line} is not in\n{text}")),
        }
    });
}

//! Tests of the test fixture.

use axum::{Json, Router, routing::post};
use kube::{Api, api::ListParams};
use kube_kit::{
    serve::Server,
    tls::{Identity, Tls},
};
use serde_json::{Value, json};
use std::{net::SocketAddr, sync::mpsc};

use crate::{
    fixture::{NAMESPACE, RANGE, Stage},
    objects::{Kind, Nic, addresses, machine, pod, running},
};

#[test]
fn stage_has_kubevirt_kinds_and_calls_webhooks() {
    let stage = Stage::start();
    let began = stage.mark();
    stage.namespace("vms", &[]);
    stage.create(
        Kind::Machine,
        "vms",
        &machine("before", &[Nic::masquerade("default").with("02:00:00:00:00:01")]),
    );
    stage.create(
        Kind::Instance,
        "vms",
        &crate::objects::instance("i", &[Nic::multus("br1")]),
    );
    let status = running(&[("br1", "02:00:00:00:00:07")]);
    let instance = stage.report(Kind::Instance, "vms", "i", &status);
    assert_eq!(instance["status"]["phase"], "Running");
    assert_eq!(
        stage.run_pod("vms", &pod("p", None))["status"]["phase"],
        "Running"
    );

    let certificate = std::fs::read(stage.certificate().dir().join("tls.crt")).expect("a certificate");
    let key = std::fs::read(stage.certificate().dir().join("tls.key")).expect("a key");
    let (at, address) = mpsc::channel();
    let server = stage.task(move |client, shutdown| async move {
        let deny = |Json(review): Json<Value>| async move {
            Json(json!({
                "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
                "response": {
                    "uid": review["request"]["uid"], "allowed": false, "warnings": ["be careful"],
                    "status": { "code": 500, "message": "the range is full" },
                },
            }))
        };
        let router = Router::new().route("/mutate-virtualmachines", post(deny));
        let tls = Tls::new(Identity::from_pem(&certificate, &key).expect("an identity")).expect("TLS");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::start_tls(any, router, &tls).await.expect("a server");
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client);
        namespaces.list(&ListParams::default()).await.expect("namespaces");
        at.send(server.address()).expect("a test");
        shutdown.wait().await;
    });
    let port = address.recv().expect("an address").port();
    let mark = stage.mark();
    stage.configure(port);
    let vm = machine("vm", &[Nic::masquerade("default")]);
    stage.wait_until_called(Kind::Machine, "vms", &vm, |answer| !answer.status.is_success());
    let answer = stage.try_create(Kind::Machine, "vms", &vm);
    assert_eq!(answer.warnings, ["be careful"]);
    assert_eq!(
        answer.refused(),
        "admission webhook \"mutatevirtualmachines.kubemacpool.io\" denied the request: the range is full"
    );
    assert!(stage.get(Kind::Machine, "vms", "vm").is_none());
    let before = stage.get(Kind::Machine, "vms", "before").expect("it is older");
    assert_eq!(addresses(&before), ["02:00:00:00:00:01"]);
    assert!(stage.requests_since(mark).is_empty(), "no request after the mark");
    let before = stage.requests_since(began);
    assert_eq!(
        (before[0].verb.as_str(), before[0].uri.as_str()),
        ("list", "/api/v1/namespaces?")
    );
    drop(server);
}

#[test]
fn stage_starts_clean() {
    for _ in 0..2 {
        let stage = Stage::start();
        assert!(stage.list(Kind::Machine, "").is_empty());
        assert!(stage.list(Kind::Webhooks, "").is_empty());
        stage.namespace("vms", &[("runlevel", "0")]);
        stage.configure(1);
        let mut vm = machine("vm", &[]);
        vm["metadata"]["finalizers"] = json!(["k8s.v1.cni.cncf.io/kubeMacPool"]);
        stage.create(Kind::Machine, "vms", &vm);
        assert!(stage.get(Kind::ConfigMap, NAMESPACE, RANGE).is_some());
    }
}

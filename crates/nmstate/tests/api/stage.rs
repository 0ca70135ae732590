//! The assumptions of all other tests.

use serde_json::json;

use crate::fixture::{Kind, NAMESPACE, Stage};
use crate::host::{self, Host};

#[test]
fn stage_starts_clean_and_counts_requests() {
    for _ in 0..2 {
        let stage = Stage::start();
        let mark = stage.mark();
        assert!(stage.list(Kind::Node).is_empty());
        assert!(stage.list(Kind::Policy).is_empty());
        stage.node("node01", &[("zone", "a")]);
        let policy = json!({
            "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy", "metadata": { "name": "p" },
        });
        stage.create(Kind::Policy, &policy);
        let pods = stage.list(Kind::Pod);
        assert_eq!(pods[0]["metadata"]["namespace"], NAMESPACE);
        assert!(stage.requests_since(mark).is_empty(), "no requests");
        let task = stage.task(|client, _| async move {
            let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(client);
            nodes
                .list(&kube::api::ListParams::default())
                .await
                .expect("nodes");
        });
        drop(task);
        let asked = stage.requests_since(mark);
        assert_eq!(
            (asked[0].verb.as_str(), asked[0].uri.as_str()),
            ("list", "/api/v1/nodes?")
        );
    }
}

#[tokio::test]
async fn simulated_host_applies_commits_and_rolls_back() {
    let host = Host::new(host::two_nics());
    let engine = host.engine();
    let desired =
        json!({ "interfaces": [{ "name": "eth1", "type": "ethernet", "state": "up", "mtu": 9000 }] });
    let difference = engine.diff(desired.clone()).await.expect("a difference");
    assert_eq!(difference["interfaces"][0]["mtu"], 9000, "{difference}");
    engine.apply(desired.clone()).await.expect("applied");
    assert_eq!(host.current()["interfaces"][1]["mtu"], 9000);
    engine.rollback().await.expect("rolled back");
    assert_eq!(host.current(), host::two_nics());
    engine.rollback().await.expect_err("nothing to roll back");
    engine.apply(desired.clone()).await.expect("applied");
    engine.commit().await.expect("committed");
    engine.rollback().await.expect_err("nothing to roll back");
    host.refuse(host::error("VerificationError", "no"));
    engine.apply(desired.clone()).await.expect_err("refused");
    let wrong = json!({ "interfaces": [{ "name": "eth1", "type": "ethernet", "mtuu": 1 }] });
    let error = engine.apply(wrong).await.expect_err("refused");
    assert_eq!(error.kind, "InvalidArgument");
    assert_eq!(
        (host.applied().len(), host.commits(), host.rollbacks()),
        (4, 1, 1)
    );
    assert_eq!(engine.report().await.expect("a report"), host.current());
    assert_eq!(host.reports(), 1);
}

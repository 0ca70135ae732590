use super::*;
use serde_json::{Value, json};

fn request(change: impl FnOnce(&mut Value)) -> CertificateSigningRequest {
    let mut request = json!({
        "metadata": { "name": "r" },
        "spec": {
            "signerName": "network.openshift.io/signer", "username": "system:ovn-node:node1", "request": "",
            "usages": ["ipsec tunnel"],
        },
    });
    change(&mut request);
    serde_json::from_value(request).expect("a request")
}

fn with(kind: &str) -> CertificateSigningRequest {
    request(|request| {
        request["status"] = json!({ "conditions": [{ "type": kind, "status": "True" }] });
    })
}

fn by(user: &str) -> CertificateSigningRequest {
    request(|request| request["spec"]["username"] = json!(user))
}

#[test]
fn only_nodes_of_the_cluster_get_certificates() {
    let failed = |user: &str| Decision::Fail {
        reason: "CSRInvalidUser",
        message: format!("requester {user:?} is not a node of this cluster"),
    };
    assert_eq!(decide(&request(|_| {}), true), Decision::Approve);
    assert_eq!(decide(&request(|_| {}), false), failed("system:ovn-node:node1"));
    for user in ["system:admin", "system:node:node1", "system:ovn-node:", ""] {
        assert_eq!(decide(&by(user), true), failed(user));
    }
    // Another client approved the request.
    assert_eq!(decide(&with("Approved"), true), Decision::Sign);
    assert_eq!(decide(&with("Approved"), false), failed("system:ovn-node:node1"));
}

#[test]
fn answered_request_is_left() {
    for kind in ["Denied", "Failed"] {
        assert_eq!(decide(&with(kind), true), Decision::Leave);
    }
    let signed = request(|request| request["status"] = json!({ "certificate": "eA==" }));
    assert_eq!(decide(&signed, true), Decision::Leave);
    let other = request(|request| request["spec"]["signerName"] = json!("kubernetes.io/kubelet-serving"));
    assert_eq!(decide(&other, true), Decision::Leave);
}

#[test]
fn usages_are_the_requested_ones() {
    let asked: Vec<_> = ["digital signature", "ipsec tunnel", "client auth", "cert sign"]
        .map(str::to_owned)
        .into();
    assert_eq!(
        usages(&asked),
        [Usage::Other(vec![1, 3, 6, 1, 5, 5, 7, 3, 6]), Usage::ClientAuth]
    );
}

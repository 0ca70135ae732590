//! The operator's metrics, read by a client like Prometheus.

use std::net::SocketAddr;

use serde_json::json;
use stage::Method;
use tls_client::Peer;

use crate::stage::{OPERATOR, Stage, until};

/// The status code and the text of the answer.
fn get(address: SocketAddr, path: &str, token: Option<&str>) -> Result<(u16, String), String> {
    let peer = Peer {
        versions: vec![&rustls::version::TLS13],
        trusted: None,
        timeout: std::time::Duration::from_mins(1),
    };
    let bearer = token
        .map(|token| format!("Authorization: Bearer {token}\r\n"))
        .unwrap_or_default();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{bearer}\r\n");
    peer.ask(address, request.as_bytes())
}

// cluster-network#90-92
#[test]
fn metrics_are_refused_without_the_right_to_read_them() {
    let stage = Stage::start();
    let (_operator, address) = stage.operator_with_metrics();
    stage.configure("Weft");
    stage.there(OPERATOR);
    until("the probe", || match get(address, "/readyz", None)? {
        (200, _) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(get(address, "/metrics", None).expect("an answer").0, 401);

    stage.namespace("monitoring", &[]);
    stage.apply(&json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": "prometheus", "namespace": "monitoring" },
    }));
    let path = "/api/v1/namespaces/monitoring/serviceaccounts/prometheus/token";
    let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
    let token = stage.send(Method::POST, path, Some(&request)).accepted();
    let token = token["status"]["token"].as_str().expect("a token").to_owned();
    assert_eq!(get(address, "/metrics", Some(&token)).expect("an answer").0, 403);

    let rbac = "rbac.authorization.k8s.io";
    stage.apply(&json!({
        "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": { "name": "reader" },
        "rules": [{ "nonResourceURLs": ["/metrics"], "verbs": ["get"] }],
    }));
    stage.apply(&json!({
        "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": { "name": "reader" },
        "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": "reader" },
        "subjects": [{ "kind": "ServiceAccount", "name": "prometheus", "namespace": "monitoring" }],
    }));
    let read = |line: &str| {
        until(line, || {
            let (code, text) = get(address, "/metrics", Some(&token))?;
            let states = text
                .lines()
                .filter(|line| line.starts_with("openshift_network_operator"));
            match states.collect::<Vec<_>>().as_slice() {
                [found] if *found == line => Ok(text),
                _ => Err(format!("{code}: {text}")),
            }
        })
    };
    let text = read(
        "openshift_network_operator_ipsec_state{mode=\"Disabled\",is_legacy_api=\"N/A - ipsec not supported \
         (non-OVN network)\"} 1",
    );
    for controller in [
        "configmap_ca_injector",
        "connectivity_check",
        "egress_router",
        "ingressconfig",
        "mtu_migration",
        "pki",
        "proxyconfig",
        "signer",
    ] {
        let label = format!("{{controller=\"{controller}\",");
        for family in ["controller_runtime_reconcile_total", "workqueue_depth"] {
            assert!(
                text.contains(&format!("{family}{label}")),
                "{family}{label} in {text}"
            );
        }
    }
    let passes = "controller_runtime_reconcile_total{controller=\"operconfig\",result=\"success\"} ";
    let count = text.lines().find_map(|line| line.strip_prefix(passes));
    assert!(
        count.is_some_and(|count| count.parse::<u64>().is_ok_and(|count| count > 0)),
        "{text}"
    );
}

//! The operator's metrics, read by a client like Prometheus.

use std::net::SocketAddr;

use serde_json::json;
use stage::Method;
use tls_client::Peer;

use crate::stage::{MULTUS, OPERATOR, Stage, until};

/// The status code and the text of the answer.
pub(crate) fn get(address: SocketAddr, path: &str, token: Option<&str>) -> Result<(u16, String), String> {
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

/// Creates an account, and returns its token.
fn token(stage: &Stage) -> String {
    stage.namespace("monitoring", &[]);
    stage.apply(&json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": "prometheus", "namespace": "monitoring" },
    }));
    let path = "/api/v1/namespaces/monitoring/serviceaccounts/prometheus/token";
    let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
    let token = stage.send(Method::POST, path, Some(&request)).accepted();
    token["status"]["token"].as_str().expect("a token").to_owned()
}

/// Grants the account the right to read metrics.
fn permit(stage: &Stage) {
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
}

/// The number of successful reconciliations of the operator.
fn reconciliations(text: &str) -> Option<u64> {
    let family = "controller_runtime_reconcile_total{controller=\"operconfig\",result=\"success\"} ";
    let count = text.lines().find_map(|line| line.strip_prefix(family))?;
    count.parse().ok()
}

#[test]
fn report_of_a_kubelet_causes_no_reconciliation() {
    let stage = Stage::start();
    let nodes = "/api/v1/nodes";
    let node = format!("{nodes}/n1");
    stage.create(
        nodes,
        &json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } }),
    );
    let (_operator, address) = stage.operator_with_metrics();
    stage.configure("Weft");
    let token = token(&stage);
    permit(&stage);
    stage.there(OPERATOR);
    let count = || {
        until("reconciliations", || {
            let (code, text) = get(address, "/metrics", Some(&token))?;
            reconciliations(&text).ok_or_else(|| format!("{code}: {text}"))
        })
    };
    stage.at_rest();
    let before = count();
    for number in 0..3 {
        let report = json!({ "type": "Ready", "status": "True", "message": number.to_string() });
        stage.report(&node, &json!({ "conditions": [report] }));
    }
    stage.at_rest();
    // The operator processes events in order: it has seen the reports when it has seen the label.
    stage.change(&node, &json!({ "metadata": { "labels": { "seen": "last" } } }));
    until("the label", || match count() - before {
        0 => Err("not yet".to_owned()),
        _ => Ok(()),
    });
    assert_eq!(count() - before, 1);
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

    let token = token(&stage);
    assert_eq!(get(address, "/metrics", Some(&token)).expect("an answer").0, 403);

    permit(&stage);
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
        "infrastructureconfig",
        "ingressconfig",
        "mtu_migration",
        "observability",
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
    let count = reconciliations(&text);
    assert!(count.is_some_and(|count| count > 0), "{text}");
}

// cluster-network#211
#[test]
fn metric_follows_the_condition_of_the_operator() {
    let stage = Stage::start();
    let (_operator, address) = stage.operator_with_metrics();
    stage.configure("Calico");
    stage.there(MULTUS);
    let token = token(&stage);
    permit(&stage);
    let is = |value: u8| {
        let line = format!("weft_cluster_network_condition{{condition=\"Degraded\"}} {value}");
        until(&line, || {
            let (code, text) = get(address, "/metrics", Some(&token))?;
            let is_there = text.lines().any(|found| found == line);
            if is_there {
                Ok(())
            } else {
                Err(format!("{code}: {text}"))
            }
        });
    };
    is(0);
    stage.change(
        OPERATOR,
        &json!({ "spec": { "kubeProxyConfig": { "bindAddress": "abc" } } }),
    );
    is(1);
}

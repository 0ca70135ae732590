use prometheus_client::encoding::text::encode;
use serde_json::{Value, json};

use super::counts::Snapshot;
use super::*;

/// The text for these objects.
fn text(states: &[Value], policies: &[Value], enactments: &[Value]) -> String {
    let read = |value: &Value| value.to_string();
    let states = states.iter().map(read).map(|text| {
        let state: NodeNetworkState = serde_json::from_str(&text).expect("a state");
        (
            state.meta().name.clone().unwrap_or_default(),
            ReportCounts::of(&state),
        )
    });
    let policies = policies
        .iter()
        .map(read)
        .map(|text| PolicyCounts::of(&serde_json::from_str(&text).expect("a policy")));
    let enactments = enactments
        .iter()
        .map(read)
        .map(|text| EnactmentCounts::of(serde_json::from_str(&text).expect("an enactment")));
    let counts = Snapshot {
        reports: Some(states.collect()),
        policies: Some(policies.collect()),
        enactments: Some(enactments.collect()),
    };
    written(&counts)
}

fn written(counts: &Snapshot) -> String {
    let counts = counts.clone();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(SnapshotCollector(Arc::new(move || counts.clone()))));
    let mut text = String::new();
    encode(&mut text, &registry).expect("text");
    text
}

fn state(node: &str, current: &Value) -> Value {
    json!({
        "apiVersion": "nmstate.io/v1beta1", "kind": "NodeNetworkState",
        "metadata": { "name": node, "resourceVersion": "1", "labels": { "nmstate.io/force-nns-refresh": "1" } },
        "status": { "currentState": current, "handlerNmstateVersion": "nmstatectl 2.2.62" },
    })
}

fn condition(kind: &str, status: &str) -> Value {
    json!({ "type": kind, "status": status, "reason": "x", "lastHeartbeatTime": "2026-01-01T00:00:00Z" })
}

fn policy(conditions: &[Value]) -> Value {
    json!({ "metadata": { "name": "p" }, "spec": { "desiredState": {} }, "status": { "conditions": conditions } })
}

fn enactment(node: Option<&str>, conditions: &[Value], features: &[&str]) -> Value {
    json!({
        "metadata": { "name": "n.p", "labels": { "nmstate.io/policy": "p", "nmstate.io/node": node } },
        "status": { "conditions": conditions, "features": features, "desiredState": { "interfaces": [] } },
    })
}

const NOTHING: &str = "\
# HELP kubernetes_nmstate_features_applied Number of nmstate features applied labeled by its name
# TYPE kubernetes_nmstate_features_applied gauge
# HELP kubernetes_nmstate_enactments_status Number of NodeNetworkConfigurationEnactments labeled by node and status condition
# TYPE kubernetes_nmstate_enactments_status gauge
# HELP kubernetes_nmstate_policies_status Number of NodeNetworkConfigurationPolicies labeled by their status condition
# TYPE kubernetes_nmstate_policies_status gauge
kubernetes_nmstate_policies_status{status=\"Available\"} 0
kubernetes_nmstate_policies_status{status=\"Degraded\"} 0
kubernetes_nmstate_policies_status{status=\"Ignored\"} 0
kubernetes_nmstate_policies_status{status=\"Progressing\"} 0
# HELP kubernetes_nmstate_network_interfaces Number of network interfaces labeled by its type
# TYPE kubernetes_nmstate_network_interfaces gauge
# HELP kubernetes_nmstate_routes Number of network routes labeled by node, IP stack and type (static/dynamic)
# TYPE kubernetes_nmstate_routes gauge
# EOF
";

#[test]
fn empty_cluster_has_zero_policies() {
    assert_eq!(text(&[], &[], &[]), NOTHING);
}

#[test]
fn unlisted_kinds_have_no_metrics() {
    assert_eq!(written(&Snapshot::default()), "# EOF\n");
}

#[track_caller]
fn assert_series(text: &str, name: &str, expected: &[&str]) {
    let found: Vec<_> = text.lines().filter(|line| line.starts_with(name)).collect();
    assert_eq!(found, expected, "{text}");
}

// nmstate#81, nmstate#82
#[test]
fn interfaces_and_routes_are_counted_by_node() {
    let first = state(
        "node01",
        &json!({
            "interfaces": [
                { "name": "eth0", "type": "ethernet", "state": "up" },
                { "name": "eth1", "type": "ethernet", "state": "down" },
                { "name": "br1", "type": "linux-bridge", "bridge": { "port": [] } },
                { "name": "odd" },
            ],
            "routes": {
                "config": [{ "destination": "10.0.0.0/8", "next-hop-interface": "eth0" }, { "destination": "10.1.0.0/16" }],
                "running": [
                    { "destination": "0.0.0.0/0", "next-hop-address": "192.0.2.1" },
                    { "destination": "10.0.0.0/8" }, { "destination": "10.0.0.0/8", "metric": 100 },
                    { "destination": "::/0" }, { "destination": "fe80::/64" },
                ],
            },
        }),
    );
    let second = state(
        "node02",
        &json!({ "interfaces": [{ "name": "lo", "type": "loopback" }] }),
    );
    let empty = state("node03", &json!({}));
    let text = text(&[first, second, empty], &[], &[]);
    assert_series(
        &text,
        "kubernetes_nmstate_network_interfaces{",
        &[
            "kubernetes_nmstate_network_interfaces{node=\"node01\",type=\"ethernet\"} 2",
            "kubernetes_nmstate_network_interfaces{node=\"node01\",type=\"linux-bridge\"} 1",
            "kubernetes_nmstate_network_interfaces{node=\"node02\",type=\"loopback\"} 1",
        ],
    );
    assert_series(
        &text,
        "kubernetes_nmstate_routes{",
        &[
            "kubernetes_nmstate_routes{ip_stack=\"ipv4\",node=\"node01\",type=\"dynamic\"} 1",
            "kubernetes_nmstate_routes{ip_stack=\"ipv4\",node=\"node01\",type=\"static\"} 2",
            "kubernetes_nmstate_routes{ip_stack=\"ipv6\",node=\"node01\",type=\"dynamic\"} 2",
        ],
    );
}

// nmstate#83
#[test]
fn policies_and_enactments_are_counted_by_active_condition() {
    let policies = [
        policy(&[condition("Available", "True"), condition("Degraded", "False")]),
        policy(&[
            condition("Available", "False"),
            condition("Degraded", "True"),
            condition("Ignored", "True"),
        ]),
        policy(&[condition("Available", "True")]),
        policy(&[condition("Available", "Unknown")]),
        policy(&[condition("Strange", "True"), condition("Available", "True")]),
        policy(&[]),
        json!({ "metadata": { "name": "new" } }),
    ];
    let enactments = [
        enactment(
            Some("node01"),
            &[condition("Failing", "True"), condition("Progressing", "True")],
            &[],
        ),
        enactment(
            Some("node01"),
            &[condition("Failing", "False"), condition("Aborted", "True")],
            &[],
        ),
        enactment(Some("node02"), &[], &[]),
        enactment(Some(""), &[condition("Available", "True")], &[]),
        enactment(None, &[condition("Available", "True")], &[]),
    ];
    let text = text(&[], &policies, &enactments);
    assert_series(
        &text,
        "kubernetes_nmstate_policies_status{",
        &[
            "kubernetes_nmstate_policies_status{status=\"Available\"} 2",
            "kubernetes_nmstate_policies_status{status=\"Degraded\"} 1",
            "kubernetes_nmstate_policies_status{status=\"Ignored\"} 0",
            "kubernetes_nmstate_policies_status{status=\"Progressing\"} 0",
        ],
    );
    assert_series(
        &text,
        "kubernetes_nmstate_enactments_status{",
        &[
            "kubernetes_nmstate_enactments_status{node=\"node01\",status=\"Aborted\"} 1",
            "kubernetes_nmstate_enactments_status{node=\"node01\",status=\"Available\"} 0",
            "kubernetes_nmstate_enactments_status{node=\"node01\",status=\"Failing\"} 1",
            "kubernetes_nmstate_enactments_status{node=\"node01\",status=\"Pending\"} 0",
            "kubernetes_nmstate_enactments_status{node=\"node01\",status=\"Progressing\"} 0",
            "kubernetes_nmstate_enactments_status{node=\"node02\",status=\"Aborted\"} 0",
            "kubernetes_nmstate_enactments_status{node=\"node02\",status=\"Available\"} 0",
            "kubernetes_nmstate_enactments_status{node=\"node02\",status=\"Failing\"} 0",
            "kubernetes_nmstate_enactments_status{node=\"node02\",status=\"Pending\"} 0",
            "kubernetes_nmstate_enactments_status{node=\"node02\",status=\"Progressing\"} 0",
        ],
    );
}

// nmstate#80
#[test]
fn features_are_exported_once() {
    let enactments = [
        enactment(Some("node01"), &[], &["static-route", "lldp"]),
        enactment(None, &[], &["lldp"]),
    ];
    assert_series(
        &text(&[], &[], &enactments),
        "kubernetes_nmstate_features_applied{",
        &[
            "kubernetes_nmstate_features_applied{name=\"lldp\"} 1",
            "kubernetes_nmstate_features_applied{name=\"static-route\"} 1",
        ],
    );
}

#[test]
fn hostile_names_are_escaped() {
    let odd = state("node01", &json!({ "interfaces": [{ "type": "a\"b\\c\nd" }] }));
    assert_series(
        &text(&[odd], &[], &[]),
        "kubernetes_nmstate_network_interfaces{",
        &[r#"kubernetes_nmstate_network_interfaces{node="node01",type="a\"b\\c\nd"} 1"#],
    );
}

#[test]
fn families_are_dumped_in_prometheus_form() {
    assert_eq!(
        families(),
        "[{\"name\":\"kubernetes_nmstate_features_applied\",\"help\":\"Number of nmstate features applied labeled by its name\",\"type\":1},\
         {\"name\":\"kubernetes_nmstate_network_interfaces\",\"help\":\"Number of network interfaces labeled by its type\",\"type\":1},\
         {\"name\":\"kubernetes_nmstate_routes\",\"help\":\"Number of network routes labeled by node, IP stack and type (static/dynamic)\",\"type\":1},\
         {\"name\":\"kubernetes_nmstate_policies_status\",\"help\":\"Number of NodeNetworkConfigurationPolicies labeled by their status condition\",\"type\":1},\
         {\"name\":\"kubernetes_nmstate_enactments_status\",\"help\":\"Number of NodeNetworkConfigurationEnactments labeled by node and status condition\",\"type\":1}]"
    );
}

#[test]
fn settings_are_read_from_the_environment() {
    let read = |set: &[(&str, &str)]| {
        Settings::read(|name| {
            set.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        })
    };
    let settings = read(&[]).expect("settings");
    assert_eq!(settings.bind, Bind::Everywhere(8089));
    assert_eq!((settings.guarded, settings.certificates), (false, None));
    let none: [&str; 0] = [];
    assert_eq!(settings.profile, tls::Profile::read("VersionTLS12", &none));
    let settings = read(&[
        ("METRICS_BIND_ADDRESS", ":8443"),
        ("IS_OPENSHIFT", "false"),
        ("POD_NAMESPACE", "nmstate"),
    ]);
    let settings = settings.expect("settings");
    assert_eq!(
        (settings.bind, settings.namespace.as_str()),
        (Bind::Everywhere(8443), "nmstate")
    );
    assert_eq!(
        read(&[("METRICS_BIND_ADDRESS", "0")]).expect("settings").bind,
        Bind::Off
    );
    let error = read(&[("METRICS_BIND_ADDRESS", "here")]).expect_err("an error");
    assert_eq!(
        error.to_string(),
        "invalid metrics address \"here\", expected host:port or :port"
    );
    let error = read(&[("IS_OPENSHIFT", "true")]).expect_err("no file here");
    assert_eq!(
        error.to_string(),
        "cannot read the TLS profile /etc/nmstate/tls/profile.json"
    );
}

//! Objects for Prometheus, and its alerts.

use stage::prometheus;

use super::*;

#[test]
fn endpoint_without_a_success_for_ten_minutes_fires_an_alert() {
    // cluster-network#210
    let Some(programs) = prometheus::programs() else {
        return;
    };
    let rendered = rendered(&of_type("Weft"));
    let rules = &find(&rendered, "PrometheusRule", "network-check-rules").expect("rules")["spec"];
    prometheus::check(&programs, rules);
    let counter = |check: &str, result: &str, values: &str| {
        let labels = format!("checkName=\"{check}\",targetEndpoint=\"h:1\",tcpConnect=\"{result}\"");
        json!({ "series": format!("pod_network_connectivity_check_count{{{labels}}}"), "values": values })
    };
    let alert = json!({
        "exp_labels": {
            "checkName": "down", "targetEndpoint": "h:1", "severity": "warning",
            "namespace": "openshift-network-diagnostics",
        },
        "exp_annotations": {
            "summary": "An endpoint of the connectivity checks is unreachable.",
            "description": "Check down has not reached h:1 for ten minutes. `weft network check --matrix` shows from which \
                            nodes it is unreachable.",
        },
    });
    let at = |time: &str, alerts: Value| json!({ "eval_time": time, "alertname": "PodNetworkConnectivityCheckFailing", "exp_alerts": alerts });
    let tests = json!([{
        "interval": "1m",
        "input_series": [
            counter("down", "success", "0+1x10 10+0x20"),
            counter("down", "failure", "0+0x10 0+1x20"),
            counter("flaky", "success", "0+1x30"),
            counter("flaky", "failure", "0+1x30"),
            counter("up", "success", "0+1x30"),
        ],
        "alert_rule_test": [at("19m", json!([])), at("21m", json!([alert]))],
    }]);
    prometheus::test(&programs, rules, "1m", &tests);
}

#[test]
fn degraded_and_missing_operators_fire_alerts() {
    // cluster-network#211
    let Some(programs) = prometheus::programs() else {
        return;
    };
    let rendered = rendered(&of_type("Weft"));
    let rules = &find(&rendered, "PrometheusRule", "network-operator-rules").expect("rules")["spec"];
    prometheus::check(&programs, rules);
    let condition = |values: &str| {
        let series = "weft_cluster_network_condition{condition=\"Degraded\"}";
        json!([{ "series": series, "values": values }])
    };
    let alert = |name: &str| {
        let rules = rules["groups"][0]["rules"].as_array().expect("rules");
        let rule = rules.iter().find(|rule| rule["alert"] == name).expect("an alert");
        json!([{ "exp_labels": { "severity": "warning" }, "exp_annotations": rule["annotations"] }])
    };
    let (degraded, down) = ("ClusterNetworkDegraded", "ClusterNetworkOperatorDown");
    let at = |time: &str, name: &str, alerts: Value| json!({ "eval_time": time, "alertname": name, "exp_alerts": alerts });
    let tests = json!([
        {
            "interval": "1m",
            "input_series": condition("0x5 1x9 0 1x15"),
            "alert_rule_test": [
                at("15m", degraded, json!([])),
                at("26m", degraded, json!([])),
                at("27m", degraded, alert(degraded)),
                at("27m", down, json!([])),
            ],
        },
        {
            "interval": "1m",
            "input_series": condition("0x5 stale"),
            "alert_rule_test": [
                at("15m", down, json!([])),
                at("16m", down, alert(down)),
                at("16m", degraded, json!([])),
            ],
        },
    ]);
    prometheus::test(&programs, rules, "1m", &tests);
}

#[test]
fn nothing_is_rendered_for_prometheus_where_it_is_not() {
    let facts = Facts {
        monitoring: false,
        ..facts()
    };
    let rendered = rendered_on(&of_type("Weft"), &NetworkDiagnostics::default(), &facts);
    assert!(
        !rendered
            .objects
            .iter()
            .any(|object| object["kind"] == "ServiceMonitor")
    );
}

// cluster-network#93, cluster-network#211
#[test]
fn metrics_of_the_operator_are_announced_to_prometheus() {
    let spec = of_type("Weft");
    let on = |monitoring, openshift| {
        let facts = Facts {
            openshift,
            monitoring,
            ..facts()
        };
        rendered_on(&spec, &NetworkDiagnostics::default(), &facts)
    };
    assert_eq!(
        of_part(&on(false, false), Part::OperatorMetrics),
        Vec::<String>::new()
    );
    let plain = on(true, false);
    assert_eq!(
        of_part(&plain, Part::OperatorMetrics),
        [
            "ServiceMonitor network-operator",
            "Role prometheus-k8s",
            "RoleBinding prometheus-k8s",
            "PrometheusRule openshift-network-operator-ipsec-rules",
            "PrometheusRule network-operator-rules",
        ]
    );
    assert!(
        find(&on(true, true), "PrometheusRule", "network-operator-rules").is_none(),
        "OpenShift has alerts of its own"
    );
    let tls = |rendered: &Rendered| {
        let monitor = find(rendered, "ServiceMonitor", "network-operator").expect("a monitor");
        monitor["spec"]["endpoints"][0]["tlsConfig"].clone()
    };
    assert_eq!(tls(&plain), json!({ "insecureSkipVerify": true }));
    assert_eq!(
        tls(&on(true, true))["serverName"],
        "metrics.openshift-network-operator.svc"
    );
}

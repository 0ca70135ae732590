//! The deployed rules, parsed and evaluated by Prometheus.

use kube_kit::object::Owner;
use operator::{
    cluster_facts::{Cluster, NodeState, Platform},
    components::Context,
    configuration,
    images::Images,
    labels::Stamp,
    render,
    settings::Prometheus,
};
use serde_json::{Value, json};
use stage::prometheus;

/// The groups of each `PrometheusRule` of a full deployment, by the name of the object.
pub(crate) fn rules() -> Vec<(String, Value)> {
    let spec = json!({
        "multus": {}, "multusDynamicNetworks": {}, "linuxBridge": {}, "kubeMacPool": {}, "ovs": {}, "macvtap": {},
        "kubeSecondaryDNS": {}, "kubevirtIpamController": {}, "nmstate": {},
    });
    let spec = configuration::read(spec).expect("a specification");
    let cluster = Cluster {
        platform: Platform {
            monitoring: true,
            ..Platform::default()
        },
        openshift_network: None,
    };
    let images = Images::read(|_| None).with_own(Some("weft:1".to_owned()));
    let context = Context {
        spec: &configuration::complete(&spec, None, cluster.platform, [1, 2]),
        cluster: &cluster,
        images: &images,
        namespace: "addons",
        prometheus: &Prometheus::default(),
        node_state: &NodeState::default(),
    };
    let stamp = Stamp {
        operator_version: "1".to_owned(),
        operator_namespace: "addons".to_owned(),
        cr_labels: std::collections::BTreeMap::new(),
        owner: Owner {
            api_version: "v1".to_owned(),
            kind: "NetworkAddonsConfig".to_owned(),
            name: "cluster".to_owned(),
            uid: "1".to_owned(),
        },
    };
    let groups = render::render(&context, &stamp).expect("objects");
    let objects = groups.into_iter().flat_map(|group| group.objects);
    objects
        .filter(|object| object["kind"] == "PrometheusRule")
        .map(|object| {
            let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
            (name, object["spec"].clone())
        })
        .collect()
}

/// Runs tests of the rules of one object.
fn evaluate(object: &str, interval: &str, tests: &Value) {
    let Some(programs) = prometheus::programs() else {
        return;
    };
    let rules = rules();
    let (_, spec) = rules.iter().find(|(name, _)| name == object).expect("the rules");
    prometheus::test(&programs, spec, interval, tests);
}

#[test]
fn prometheus_accepts_the_rules() {
    let Some(programs) = prometheus::programs() else {
        return;
    };
    let names: Vec<_> = rules().into_iter().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        [
            "kubemacpool-prometheus-rule",
            "prometheus-rules-cluster-network-addons-operator"
        ]
    );
    for (_, spec) in rules() {
        prometheus::check(&programs, &spec);
    }
}

const OPERATOR_RULES: &str = "prometheus-rules-cluster-network-addons-operator";
const ALERTS: [(&str, &str, &str); 3] = [
    ("CnaoDown", "warning", "CNAO pod is down."),
    (
        "KubemacpoolDown",
        "critical",
        "KubeMacpool is deployed by CNAO CR but KubeMacpool pod is down.",
    ),
    (
        "NetworkAddonsConfigNotReady",
        "warning",
        "CNAO CR NetworkAddonsConfig is not ready.",
    ),
];

/// At each of the times, exactly these of the operator's alerts fire.
fn firing(times: &[(&str, &[&str])]) -> Vec<Value> {
    let at = |time: &str, expected: &[&str], (name, severity, summary): &(&str, &str, &str)| {
        let alert = json!({
            "exp_labels": {
                "severity": severity, "operator_health_impact": severity,
                "kubernetes_operator_part_of": "kubevirt",
                "kubernetes_operator_component": "cluster-network-addons-operator",
            },
            "exp_annotations": {
                "summary": summary, "runbook_url": format!("https://kubevirt.io/monitoring/runbooks/{name}"),
            },
        });
        let alerts = if expected.contains(name) {
            vec![alert]
        } else {
            Vec::new()
        };
        json!({ "eval_time": time, "alertname": name, "exp_alerts": alerts })
    };
    times
        .iter()
        .flat_map(|(time, expected)| ALERTS.iter().map(move |alert| at(time, expected, alert)))
        .collect()
}

fn operator_series(values: [&str; 4]) -> Value {
    let names = [
        "up{namespace='addons', pod='cluster-network-addons-operator-6b7c-x'}",
        "kubevirt_cnao_cr_ready{namespace='addons', pod='cluster-network-addons-operator-6b7c-x'}",
        "kubevirt_cnao_cr_kubemacpool_deployed{namespace='addons', pod='cluster-network-addons-operator-6b7c-x'}",
        "up{namespace='addons', pod='kubemacpool-mac-controller-manager-5d8-y'}",
    ];
    let there = names.iter().zip(values).filter(|(_, values)| !values.is_empty());
    let mut series: Vec<_> = there
        .map(|(series, values)| json!({ "series": series, "values": values }))
        .collect();
    // Metrics of another installation, which must not count.
    for other in [
        "up{namespace='other', pod='cluster-network-addons-operator-1'}",
        "kubevirt_cnao_cr_ready{namespace='other'}",
    ] {
        series.push(json!({ "series": other, "values": "1x60" }));
    }
    json!(series)
}

// operator#72, the rules
#[test]
fn alerts_fire_after_five_minutes_and_not_before() {
    let tests = json!([
        {
            "name": "healthy", "interval": "1m",
            "input_series": operator_series(["1x60", "1x60", "1x60", "1x60"]),
            "alert_rule_test": firing(&[("0m", &[]), ("30m", &[])]),
        },
        {
            "name": "healthy without a MAC pool", "interval": "1m",
            "input_series": operator_series(["1x60", "1x60", "0x60", ""]),
            "alert_rule_test": firing(&[("30m", &[])]),
        },
        {
            "name": "no node for the MAC pool", "interval": "1m",
            "input_series": operator_series(["1x60", "0x60", "1x60", ""]),
            "alert_rule_test": firing(&[
                ("4m", &[]),
                ("5m", &["KubemacpoolDown", "NetworkAddonsConfigNotReady"]),
            ]),
        },
        {
            "name": "ready again in time", "interval": "1m",
            "input_series": operator_series(["1x60", "0x3 1x56", "1x60", "1x60"]),
            "alert_rule_test": firing(&[("5m", &[]), ("10m", &[])]),
        },
        {
            // The last samples are of the tenth minute.
            "name": "the operator scaled to 0", "interval": "1m",
            "input_series": operator_series(["1x10 stale", "1x10 stale", "1x10 stale", "1x60"]),
            "alert_rule_test": firing(&[
                ("15m", &[]),
                ("16m", &["CnaoDown", "NetworkAddonsConfigNotReady"]),
            ]),
        },
    ]);
    evaluate(OPERATOR_RULES, "1m", &tests);
}

#[test]
fn records_have_the_names_of_both_generations() {
    let value = |name: &str, value: u32| {
        json!({
            "expr": name, "eval_time": "1m",
            "exp_samples": [{ "labels": name, "value": value }],
        })
    };
    let mut series = operator_series(["1x5", "1x5", "1x5", "1x5"]);
    series.as_array_mut().expect("series").extend([
        json!({ "series": "kubevirt_kmp_duplicate_macs{namespace='addons'}", "values": "3x5" }),
        json!({ "series": "up{namespace='addons', pod='kubemacpool-mac-controller-manager-5d8-z'}", "values": "1x5" }),
    ]);
    let tests = json!([{
        "interval": "1m", "input_series": series,
        "promql_expr_test": [
            value("cluster:kubevirt_cnao_cr_kubemacpool_deployed:sum", 1),
            value("cluster:kubevirt_cnao_kubemacpool_manager_up:sum", 2),
            value("cluster:kubevirt_cnao_operator_up:sum", 1),
            value("kubevirt_cnao_cr_kubemacpool_aggregated", 1),
            value("kubevirt_cnao_kubemacpool_duplicate_macs", 3),
            value("kubevirt_cnao_kubemacpool_manager_up", 2),
            value("kubevirt_cnao_operator_up", 1),
        ],
    }]);
    evaluate(OPERATOR_RULES, "1m", &tests);
}

// kubemacpool#82
#[test]
fn collisions_of_addresses_alert_after_half_a_minute_until_they_end() {
    let alert = |count: u8| {
        json!({
            "exp_labels": { "severity": "warning", "operator_health_impact": "warning" },
            "exp_annotations": {
                "summary": "MAC address collisions detected.",
                "description": format!(
                    "{count} MAC address(es) have collisions. \
                     Multiple running objects are using the same MAC address."
                ),
                "runbook_url": "https://kubevirt.io/monitoring/runbooks/KubemacpoolMACCollisionDetected",
            },
        })
    };
    let at = |time: &str, alerts: &[Value]| json!({ "eval_time": time, "alertname": "KubemacpoolMACCollisionDetected", "exp_alerts": alerts });
    let tests = json!([
        {
            "name": "two addresses, one after the other", "interval": "10s",
            "input_series": [
                // A series ends when its collision ends.
                { "series": "kmp_mac_collisions{mac='02:00:00:00:00:01'}", "values": "_x5 2x10 stale" },
                { "series": "kmp_mac_collisions{mac='02:00:00:00:00:02'}", "values": "_x9 3x10 stale" },
                { "series": "kmp_mac_collisions{mac='02:00:00:00:00:03'}", "values": "1x60" },
            ],
            "alert_rule_test": [
                at("70s", &[]), at("80s", &[alert(1)]), at("90s", &[alert(2)]), at("150s", &[alert(2)]),
                at("160s", &[alert(1)]), at("190s", &[alert(1)]), at("200s", &[]), at("300s", &[]),
            ],
        },
        {
            "name": "over in time", "interval": "10s",
            "input_series": [{ "series": "kmp_mac_collisions{mac='02:00:00:00:00:01'}", "values": "2x2 stale" }],
            "alert_rule_test": [at("20s", &[]), at("30s", &[]), at("90s", &[])],
        },
    ]);
    evaluate("kubemacpool-prometheus-rule", "10s", &tests);
}

//! Operands §9, operator §10.2.

use super::*;

fn monitored() -> Setting {
    Setting {
        monitoring: true,
        ..Setting::default()
    }
}

const DEPLOYED: &str = "sum(kubevirt_cnao_cr_kubemacpool_deployed{namespace='addons'} or vector(0))";
const MANAGER_UP: &str =
    "sum(up{namespace='addons', pod=~'kubemacpool-mac-controller-manager-.*'} or vector(0))";
const OPERATOR_UP: &str =
    "sum(up{namespace='addons', pod=~'cluster-network-addons-operator-.*'} or vector(0))";
const DUPLICATES: &str = "sum(kubevirt_kmp_duplicate_macs{namespace='addons'} or vector(0))";

fn rules() -> Value {
    let record = |name: &str, query: &str| json!({ "record": name, "expr": query });
    let alert = |name: &str, query: &str, severity: &str, summary: &str| {
        json!({
            "alert": name, "expr": query, "for": "5m",
            "labels": {
                "severity": severity,
                "operator_health_impact": severity,
                "kubernetes_operator_part_of": "kubevirt",
                "kubernetes_operator_component": "cluster-network-addons-operator",
            },
            "annotations": {
                "summary": summary, "runbook_url": format!("https://runbooks.example/{name}.html"),
            },
        })
    };
    let down = "cluster:kubevirt_cnao_cr_kubemacpool_deployed:sum == 1 and \
        cluster:kubevirt_cnao_kubemacpool_manager_up:sum == 0";
    json!({
        "apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
        "metadata": {
            "name": "prometheus-rules-cluster-network-addons-operator", "namespace": "addons",
            "labels": { "prometheus.cnao.io": "true" },
        },
        "spec": { "groups": [
            { "name": "recordingRules.rules", "rules": [
                record("cluster:kubevirt_cnao_cr_kubemacpool_deployed:sum", DEPLOYED),
                record("cluster:kubevirt_cnao_kubemacpool_manager_up:sum", MANAGER_UP),
                record("cluster:kubevirt_cnao_operator_up:sum", OPERATOR_UP),
                record("kubevirt_cnao_cr_kubemacpool_aggregated", DEPLOYED),
                record("kubevirt_cnao_kubemacpool_duplicate_macs", DUPLICATES),
                record("kubevirt_cnao_kubemacpool_manager_up", MANAGER_UP),
                record("kubevirt_cnao_operator_up", OPERATOR_UP),
            ] },
            { "name": "alerts.rules", "rules": [
                alert("CnaoDown", "cluster:kubevirt_cnao_operator_up:sum == 0", "warning", "CNAO pod is down."),
                alert(
                    "KubemacpoolDown", down, "critical",
                    "KubeMacpool is deployed by CNAO CR but KubeMacpool pod is down.",
                ),
                alert(
                    "NetworkAddonsConfigNotReady",
                    "sum(kubevirt_cnao_cr_ready{namespace='addons'} or vector(0)) == 0", "warning",
                    "CNAO CR NetworkAddonsConfig is not ready.",
                ),
            ] },
        ] },
    })
}

// operands#14, operator#73
#[test]
fn monitoring_is_rendered_if_its_kinds_are_served() {
    let [role, binding] = scraping("cluster-network-addons-operator-monitoring");
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "cluster-network-addons-operator-prometheus-metrics", "namespace": "addons",
            "labels": { "prometheus.cnao.io": "true" },
        },
        "spec": {
            "type": "ClusterIP", "sessionAffinity": "None",
            "selector": { "prometheus.cnao.io": "true" },
            "ports": [{ "name": "metrics", "port": 8443, "targetPort": "metrics", "protocol": "TCP" }],
        },
    });
    let monitor = json!({
        "apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor",
        "metadata": {
            "name": "service-monitor-cluster-network-addons-operator", "namespace": "addons",
            "labels": { "openshift.io/cluster-monitoring": "", "prometheus.cnao.io": "true" },
        },
        "spec": {
            "namespaceSelector": { "matchNames": ["addons"] },
            "selector": { "matchLabels": { "prometheus.cnao.io": "true" } },
            "endpoints": [{
                "port": "metrics", "scheme": "https",
                "bearerTokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token",
                "tlsConfig": { "insecureSkipVerify": true },
            }],
        },
    });
    let expected = [role, binding, service, monitor, rules()];
    for native in [false, true] {
        for spec in [json!({}), json!({ "multus": {}, "kubeMacPool": {} })] {
            assert!(enables("monitoring", &complete(spec.clone())));
            let setting = Setting {
                native,
                ..monitored()
            };
            assert_objects(&setting.render("monitoring", spec.clone()), &expected);
            assert_objects(&Setting::default().render("monitoring", spec), &[]);
        }
    }
}

// operands#14: it is rendered with any specification, after the components and before the policies.
#[test]
fn empty_specification_is_monitored() {
    let names = |setting: Setting, render: fn(&Context<'_>) -> Vec<Group>| -> Vec<_> {
        let groups = setting.with(json!({}), render).into_iter();
        let deployed = groups.filter(|group| !group.objects.is_empty());
        deployed.map(|group| group.component).collect()
    };
    // The order is after the components and before the policies.
    assert_eq!(
        names(monitored(), render_enabled),
        ["monitoring", "networkPolicies"]
    );
    assert_eq!(names(Setting::default(), render_enabled), ["networkPolicies"]);
}

// operator#73, in the rules of the operator and of the MAC pool
#[test]
fn alert_of_each_rule_has_a_health_impact_a_summary_and_a_runbook() {
    let spec = json!({ "kubeMacPool": {} });
    let objects = [
        monitored().render("monitoring", spec.clone()),
        monitored().render("kubeMacPool", spec),
    ]
    .concat();
    let rules = objects.iter().filter(|object| object["kind"] == "PrometheusRule");
    let alerts: Vec<_> = rules
        .flat_map(|rule| rule["spec"]["groups"].as_array().expect("groups"))
        .flat_map(|group| group["rules"].as_array().expect("rules"))
        .filter_map(|rule| Some((rule["alert"].as_str()?, rule)))
        .collect();
    let names: Vec<_> = alerts.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names,
        [
            "CnaoDown",
            "KubemacpoolDown",
            "NetworkAddonsConfigNotReady",
            "KubemacpoolMACCollisionDetected",
        ]
    );
    for (name, alert) in alerts {
        let impact = alert["labels"]["operator_health_impact"].as_str();
        assert!(
            matches!(impact, Some("warning" | "critical")),
            "{name}: {impact:?}"
        );
        let annotations = &alert["annotations"];
        assert!(annotations["summary"].is_string(), "{name}");
        let runbook = annotations["runbook_url"].as_str().expect("a runbook");
        assert!(runbook.contains(name), "{name}: {runbook}");
    }
}

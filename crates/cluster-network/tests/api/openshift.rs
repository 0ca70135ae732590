//! Operands that OpenShift alone has: dashboards of the console, and iptables-alerter.

use std::time::Duration;

use serde_json::json;

use crate::console::has_one_worker;
use crate::stage::{MULTUS, OPERATOR, Stage, condition};

const ALERTER: &str = "/apis/apps/v1/namespaces/openshift-network-operator/daemonsets/iptables-alerter";
const ALERTER_ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/openshift-iptables-alerter";
const METRICS: &str = "/apis/apps/v1/namespaces/openshift-multus/daemonsets/network-metrics-daemon";
const DASHBOARD: &str =
    "/api/v1/namespaces/openshift-config-managed/configmaps/grafana-dashboard-network-stats";
const SWITCH: &str = "/api/v1/namespaces/openshift-network-operator/configmaps";

// cluster-network#169, cluster-network#170, cluster-network#172, cluster-network#173
#[test]
fn operands_of_openshift_are_kept_and_switched() {
    let stage = Stage::start();
    has_one_worker(&stage);
    let _operator = stage.operator_that_waits(Duration::ZERO);
    stage.configure("Calico");
    for path in [MULTUS, METRICS, ALERTER, ALERTER_ROLE, DASHBOARD] {
        stage.there(path);
    }
    stage.at_rest();
    stage.condition("Degraded", "False : ");
    // Drift is repaired.
    for path in [METRICS, ALERTER_ROLE, DASHBOARD] {
        stage.remove(path);
        stage.there(path);
    }
    // The switch counts at once.
    stage.create(
        SWITCH,
        &json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "iptables-alerter-config" },
            "data": { "enabled": "false" },
        }),
    );
    stage.gone(ALERTER);
    stage.gone(ALERTER_ROLE);
    let switch = format!("{SWITCH}/iptables-alerter-config");
    stage.change(&switch, &json!({ "data": { "enabled": "maybe" } }));
    stage.there(ALERTER);
    // A dashboard that cannot be written degrades its own level.
    stage.change(
        DASHBOARD,
        &json!({ "immutable": true, "data": { "dashboard.json": "{}" } }),
    );
    stage.wait_for("the failure of the dashboard", OPERATOR, |object| {
        let degraded = condition(object?, "Degraded")?;
        let text = "True DashboardError: failed to apply dashboard manifests: ";
        (degraded.starts_with(text) && degraded.contains("field is immutable")).then_some(())
    });
    stage.remove(DASHBOARD);
    stage.condition("Degraded", "False : ");
    assert_ne!(stage.there(DASHBOARD)["data"]["dashboard.json"], "{}");
}

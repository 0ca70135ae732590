//! Monitoring of the operator and of its operands: alerts and their recording rules (operands §9). Deployed with any
//! specification if the cluster serves the Prometheus operator's kinds.

use serde_json::{Value, json};

use super::Context;
use crate::{
    manifest::{Error, Manifest},
    names,
};

pub(crate) fn render(context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
    let mut objects = objects(
        context,
        "monitoring/objects.yaml",
        include_str!("monitoring/objects.yaml"),
    )?;
    for object in &mut objects {
        match object.kind() {
            "ServiceMonitor" => select_namespace(object, context.namespace)?,
            "PrometheusRule" => measure_namespace(object, context.namespace),
            _ => {}
        }
    }
    Ok(objects)
}

/// Reads a component's file of monitoring objects; empty without monitoring. Binds roles to the monitoring stack, and
/// sets the links of alerts to their runbooks.
pub(super) fn objects(context: &Context<'_>, file: &'static str, yaml: &str) -> Result<Vec<Manifest>, Error> {
    if !context.cluster.platform.monitoring {
        return Ok(Vec::new());
    }
    let mut objects = context.objects(file, yaml)?;
    for object in &mut objects {
        if object.kind() == "RoleBinding" {
            object.bind_to(&context.prometheus.namespace, &context.prometheus.service_account);
        }
        for rule in object.prometheus_rules() {
            let Some(alert) = rule.get("alert").and_then(Value::as_str) else {
                continue;
            };
            let url = context.prometheus.runbook_url(alert);
            if let Some(annotations) = rule.get_mut("annotations").and_then(Value::as_object_mut) {
                annotations.insert("runbook_url".into(), json!(url));
            }
        }
    }
    Ok(objects)
}

/// Selects services in the namespace.
fn select_namespace(monitor: &mut Manifest, namespace: &str) -> Result<(), Error> {
    monitor.set_spec("namespaceSelector", json!({ "matchNames": [namespace] }))
}

/// Replaces the shipped namespace in the queries. The name of a namespace needs no quoting in a query.
fn measure_namespace(rules: &mut Manifest, namespace: &str) {
    let matcher = |namespace: &str| format!("namespace='{namespace}'");
    let (shipped, ours) = (matcher(names::DEFAULT_NAMESPACE), matcher(namespace));
    for rule in rules.prometheus_rules() {
        if let Some(Value::String(query)) = rule.get_mut("expr") {
            *query = query.replace(&shipped, &ours);
        }
    }
}

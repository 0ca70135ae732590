//! Network policies that allow pods of components to reach the API server and the DNS of the cluster if other policies
//! isolate them. Always deployed (operands §10). The policy that lets clients reach a component is with the component.

use serde_json::{Value, json};

use super::Context;
use crate::manifest::{Error, Manifest};

pub(crate) fn render(context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
    let mut objects = context.objects(
        "egress_policies/policies.yaml",
        include_str!("egress_policies/policies.yaml"),
    )?;
    if context.cluster.platform.openshift4 {
        for policy in &mut objects {
            dns_of_openshift(policy);
        }
    }
    Ok(objects)
}

/// Changes the egress to Kubernetes' DNS into an egress to OpenShift's; other policies have no `to`.
fn dns_of_openshift(policy: &mut Manifest) {
    let mut object = std::mem::replace(policy, Manifest::from_value(Value::Null)).into_value();
    if let Some(rule) = object
        .pointer_mut("/spec/egress/0")
        .filter(|rule| rule.get("to").is_some())
    {
        rule["to"] = json!([{
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "openshift-dns" } },
            "podSelector": { "matchLabels": { "dns.operator.openshift.io/daemonset-dns": "default" } },
        }]);
        for port in rule
            .get_mut("ports")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            port["port"] = json!(5353);
        }
    }
    *policy = Manifest::from_value(object);
}

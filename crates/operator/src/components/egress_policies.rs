//! Network policies that allow pods of components to reach the API server and the DNS of the cluster if other policies
//! isolate them. Always deployed (operands §10). The policy that lets clients reach a component is with the component.

use serde_json::json;

use super::Context;
use crate::manifest::{Error, Manifest};

pub(crate) fn render(context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
    let mut objects = context.objects(
        "egress_policies/policies.yaml",
        include_str!("egress_policies/policies.yaml"),
    )?;
    if context.cluster.platform.openshift4 {
        for policy in &mut objects {
            dns_of_openshift(policy)?;
        }
    }
    Ok(objects)
}

/// Changes the egress to Kubernetes' DNS into an egress to OpenShift's; other policies have no `to`.
fn dns_of_openshift(policy: &mut Manifest) -> Result<(), Error> {
    const PEERS: &str = "/spec/egress/0/to";
    if policy.value().pointer(PEERS).is_none() {
        return Ok(());
    }
    let peer = json!({
        "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "openshift-dns" } },
        "podSelector": { "matchLabels": { "dns.operator.openshift.io/daemonset-dns": "default" } },
    });
    policy.replace(PEERS, json!([peer]))?;
    let ports = ["TCP", "UDP"].map(|protocol| json!({ "protocol": protocol, "port": 5353 }));
    policy.replace("/spec/egress/0/ports", json!(ports))
}

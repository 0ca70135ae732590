//! The control plane of OVN-Kubernetes in the management cluster (§18.3).

use serde_json::{Value, json};

use super::{
    super::{
        Context, Error, hosted,
        objects::{container, extend, find, parse, set},
        parts::hash,
    },
    CONTROL_PLANE_HASH, Decided, describe, file, hold,
};
use crate::{names, ovn::flags, settings::SERVICE_CA};

/// Objects of the cluster that monitor its own control plane.
const OF_OWN_CONTROL_PLANE: [(&str, &str); 2] = [
    ("Service", "ovn-kubernetes-control-plane"),
    ("ServiceMonitor", "monitor-ovn-control-plane-metrics"),
];
/// Alerts about the control plane.
const RULES: &str = "master-rules";

/// Moves the control plane and its monitoring to the management cluster. Returns the objects for that cluster: none if
/// the cluster has its own control plane.
pub(super) fn control_plane(
    context: &Context<'_>,
    decided: &Decided,
    objects: &mut Vec<Value>,
) -> Result<Vec<Value>, Error> {
    let Some(place) = hosted::Place::of(context)? else {
        return Ok(Vec::new());
    };
    let rules = find(objects, "PrometheusRule", RULES)?.take();
    objects.retain(|object| {
        let is = |(kind, name): &(&str, &str)| object["kind"] == *kind && object["metadata"]["name"] == *name;
        !object.is_null() && !OF_OWN_CONTROL_PLANE.iter().any(is)
    });
    let mut moved = parse("hosted.yaml", include_str!("hosted.yaml"))?;
    moved.push(of_namespace(&rules, &place.settings.namespace)?);
    let file = file(context, Some(&place.settings.api_server));
    let map = find(&mut moved, "ConfigMap", names::OVN_CONFIG)?;
    set(map, "/data/ovnkube.conf", json!(file))?;
    // Otherwise the operator of hosted clusters creates the Secret.
    if place.settings.authorities.0 == SERVICE_CA {
        let service = find(&mut moved, "Service", "ovn-kubernetes-control-plane")?;
        service["metadata"]["annotations"]["service.beta.openshift.io/serving-cert-secret-name"] =
            json!("ovn-control-plane-metrics-cert");
    }
    let monitor = find(&mut moved, "ServiceMonitor", "monitor-ovn-control-plane-metrics")?;
    place.monitor(
        monitor,
        "ovn-kubernetes-control-plane",
        "ovn-control-plane-metrics-cert",
    )?;
    let workload = find(&mut moved, "Deployment", names::OVN_CONTROL_PLANE)?;
    describe(workload, context, decided, CONTROL_PLANE_HASH);
    workload["spec"]["template"]["metadata"]["annotations"][CONTROL_PLANE_HASH] = json!(hash(&file));
    let args = &mut container(workload, names::OVN_CONTROL_PLANE)?["args"];
    extend(args, flags::control_plane(context.spec, context.facts));
    if let Some(profile) = &context.facts.tls_profile {
        extend(args, profile.flags());
    }
    if !decided.order.control_plane {
        hold(workload, names::CREATE_ONLY);
    }
    place.minted(workload, names::OVN_NAMESPACE, "ovn-kubernetes-control-plane")?;
    place.complete(&mut moved)?;
    Ok(moved)
}

/// Rules about the namespace of a hosted control plane instead of that of OVN-Kubernetes.
fn of_namespace(rules: &Value, namespace: &str) -> Result<Value, Error> {
    let text = rules.to_string().replace(names::OVN_NAMESPACE, namespace);
    serde_json::from_str(&text).map_err(|cause| Error::Syntax {
        file: "monitoring.yaml",
        cause: cause.to_string(),
    })
}

//! A cluster whose control plane another cluster hosts: the management cluster (§18.3).
//!
//! ```text
//!     management cluster, one namespace                      hosted cluster
//!   HostedControlPlane ──> ControlPlane ──> render ──┬──> nodes, roles, definitions
//!            ▲                                       │
//!            │        Deployments, Service, ... <────┘
//!            └── conditions <──────────────────────────── status of the operator configuration
//! ```

use std::collections::BTreeMap;

use api::cluster_network::Condition;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube_kit::{
    conditions::since,
    object::{HOSTED_CONTROL_PLANE, ObjectId},
};
use serde_json::{Map, Value, json};

use crate::{
    objects::{list, text},
    settings,
    tls_profile::Profile,
};

/// Prefix of the operator's conditions in a `HostedControlPlane`.
const PREFIX: &str = "network.operator.openshift.io/";
/// Condition of a `HostedControlPlane` without an operator configuration.
const NO_CONFIG: &str = "NetworkOperatorAvailable";
/// Annotation of a `HostedControlPlane` whose changes restart the pods, and annotation of these pods.
pub const RESTART_DATE: &str = "hypershift.openshift.io/restart-date";
/// Annotation of a `HostedControlPlane` with the priority class of the pods.
const PRIORITY_CLASS: &str = "hypershift.openshift.io/control-plane-priority-class";

/// Fields of a `HostedControlPlane` that decide its network components.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlPlane {
    /// Name of the object.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// Identifier of the hosted cluster in metrics.
    pub cluster_id: String,
    /// Pods of each Deployment, at most.
    pub replicas: u32,
    /// Node selector of the pods.
    pub node_selector: Map<String, Value>,
    /// Additional labels of the pods.
    pub labels: Map<String, Value>,
    /// Additional tolerations of the pods.
    pub tolerations: Vec<Value>,
    /// Priority class of the pods. `None` for the default.
    pub priority_class: Option<String>,
    /// Date of the requested restart of the pods.
    pub restart_date: Option<String>,
    /// TLS profile that the hosted cluster requires.
    pub tls_profile: Option<Profile>,
}

impl ControlPlane {
    /// Reads a `HostedControlPlane`.
    pub fn of(object: &Value) -> Self {
        let one = |pointer: &str| text(object, pointer).to_owned();
        let annotation = |key: &str| {
            let value = object["metadata"]["annotations"][key].as_str()?;
            Some(value.to_owned()).filter(|value| !value.is_empty())
        };
        let map = |pointer: &str| {
            let map = object.pointer(pointer).and_then(Value::as_object);
            map.cloned().unwrap_or_default()
        };
        let is_highly_available = text(object, "/spec/controllerAvailabilityPolicy") == "HighlyAvailable";
        let api_server = object.pointer("/spec/configuration/apiServer");
        Self {
            name: one("/metadata/name"),
            namespace: one("/metadata/namespace"),
            uid: one("/metadata/uid"),
            cluster_id: one("/spec/clusterID"),
            replicas: if is_highly_available { 3 } else { 1 },
            node_selector: map("/spec/nodeSelector"),
            labels: map("/spec/labels"),
            tolerations: list(object, "/spec/tolerations").cloned().collect(),
            priority_class: annotation(PRIORITY_CLASS),
            restart_date: annotation(RESTART_DATE),
            tls_profile: api_server.and_then(|spec| Profile::of(&json!({ "spec": spec }))),
        }
    }

    /// Owner reference in objects of the management cluster: they are deleted with the hosted cluster.
    pub fn owner(&self) -> Value {
        json!({
            "apiVersion": HOSTED_CONTROL_PLANE.api_version(),
            "kind": HOSTED_CONTROL_PLANE.kind,
            "name": self.name,
            "uid": self.uid,
        })
    }
}

/// Observed state of the management cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Management {
    /// The `HostedControlPlane`.
    pub control_plane: ControlPlane,
    /// Value of the label of workloads whose rollout the operator reports.
    pub status_label: String,
    /// True if the management cluster serves the kinds of Prometheus' operator.
    pub monitoring: bool,
    /// Resource requests of containers, by their Deployment and name: other clients may change them.
    pub requests: BTreeMap<(String, String), Map<String, Value>>,
}

/// Identifier of the `HostedControlPlane`.
pub fn control_plane_id(settings: &settings::Hosted) -> ObjectId {
    HOSTED_CONTROL_PLANE.object(Some(&settings.namespace), &settings.name)
}

/// The conditions of a `HostedControlPlane` with those of the operator configuration. `None` if nothing changes.
pub fn conditions(object: &Value, operator: Option<&[Condition]>, now: Timestamp) -> Option<Vec<Value>> {
    let before: Vec<Value> = list(object, "/status/conditions").cloned().collect();
    let mut after = before.clone();
    let Some(conditions) = operator else {
        let message = "No networks.operator.openshift.io cluster found";
        set(
            &mut after,
            NO_CONFIG,
            ["Unknown", "NoNetworkOperConfig", message],
            now,
        );
        return (after != before).then_some(after);
    };
    after.retain(|condition| condition["type"] != NO_CONFIG);
    for condition in conditions {
        let reason = if condition.reason.is_empty() {
            "AsExpected"
        } else {
            &condition.reason
        };
        let kind = format!("{PREFIX}{}", condition.kind);
        set(
            &mut after,
            &kind,
            [&condition.status, reason, &condition.message],
            now,
        );
    }
    (after != before).then_some(after)
}

/// Sets status, reason and message of a condition.
fn set(conditions: &mut Vec<Value>, kind: &str, [status, reason, message]: [&str; 3], now: Timestamp) {
    let at = conditions.iter().position(|condition| condition["type"] == kind);
    let mut condition = at.map_or_else(|| json!({ "type": kind }), |at| conditions[at].clone());
    let time: Option<Time> = serde_json::from_value(condition["lastTransitionTime"].clone()).ok();
    let previous = condition["status"].as_str().map(|status| (status, time.as_ref()));
    condition["lastTransitionTime"] = json!(since(previous, status, now));
    for (key, value) in [("status", status), ("reason", reason), ("message", message)] {
        condition[key] = json!(value);
    }
    match at {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
}

#[cfg(test)]
mod tests;

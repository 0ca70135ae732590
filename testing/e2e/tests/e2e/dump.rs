//! All objects of the operator, in a form that can be compared between runs.

use std::collections::BTreeMap;

use e2e::{MANAGED_BY, MANAGER};
use serde_json::Value;

use crate::support::Stage;

/// Kinds that the operator deploys on a cluster without OpenShift and Prometheus.
const KINDS: &str = "daemonsets,deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings,\
                     clusterroles,clusterrolebindings,networkpolicies,poddisruptionbudgets,\
                     mutatingwebhookconfigurations,validatingwebhookconfigurations,customresourcedefinitions,\
                     namespaces";

/// Fields of the API server or of other controllers, which differ between equal objects.
const FILLED_IN: [&str; 8] = [
    "/metadata/creationTimestamp",
    "/metadata/generation",
    "/metadata/managedFields",
    "/metadata/resourceVersion",
    "/metadata/uid",
    "/metadata/annotations/deprecated.daemonset.template.generation",
    "/metadata/annotations/deployment.kubernetes.io~1revision",
    "/status",
];

/// Objects by kind, namespace and name.
pub type Dump = BTreeMap<String, Value>;

/// Returns all objects with the operator's label.
pub fn deployed(stage: &Stage) -> Dump {
    let ours = format!("{MANAGED_BY}={MANAGER}");
    let list = stage.json(&["get", KINDS, "--all-namespaces", "--selector", &ours]);
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items
        .into_iter()
        .map(|object| (name(&object), normal(object)))
        .collect()
}

fn name(object: &Value) -> String {
    let text = |pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    format!(
        "{} {}/{}",
        text("/kind"),
        text("/metadata/namespace"),
        text("/metadata/name")
    )
}

fn normal(mut object: Value) -> Value {
    for pointer in FILLED_IN {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = if parent.is_empty() {
            Some(&mut object)
        } else {
            object.pointer_mut(parent)
        };
        if let Some(members) = parent.and_then(Value::as_object_mut) {
            members.shift_remove(&key.replace("~1", "/"));
        }
    }
    let owners = object.pointer_mut("/metadata/ownerReferences");
    for owner in owners.and_then(Value::as_array_mut).into_iter().flatten() {
        owner["uid"] = Value::Null;
    }
    for address in ["clusterIP", "clusterIPs"] {
        if let Some(spec) = object.pointer_mut("/spec").and_then(Value::as_object_mut) {
            spec.shift_remove(address);
        }
    }
    object
}

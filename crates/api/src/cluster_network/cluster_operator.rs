//! `ClusterOperator.config.openshift.io`: how an operator of the platform is doing (cluster-network §10.1). Shipped for
//! clusters that have no such kind.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, null_as_default, schemas};
use crate::{Error, schema};

/// Nothing is asked for.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "config.openshift.io",
    version = "v1",
    kind = "ClusterOperator",
    plural = "clusteroperators",
    singular = "clusteroperator",
    shortname = "co",
    status = "ClusterOperatorStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Version","type":"string","jsonPath":".status.versions[?(@.name==\"operator\")].version"}"#,
    printcolumn = r#"{"name":"Available","type":"string","jsonPath":".status.conditions[?(@.type==\"Available\")].status"}"#,
    printcolumn = r#"{"name":"Progressing","type":"string","jsonPath":".status.conditions[?(@.type==\"Progressing\")].status"}"#,
    printcolumn = r#"{"name":"Degraded","type":"string","jsonPath":".status.conditions[?(@.type==\"Degraded\")].status"}"#,
    printcolumn = r#"{"name":"Since","type":"date","jsonPath":".status.conditions[?(@.type==\"Available\")].lastTransitionTime"}"#,
    doc = "How an operator of the platform is doing."
)]
pub struct ClusterOperatorSpec {}

/// How the operator is doing.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterOperatorStatus {
    /// Aspects of its state.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Versions that everything has reached.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<OperandVersion>,
    /// Objects that belong to the operator.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub related_objects: Vec<ObjectReference>,
}

/// A version that a part has reached.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct OperandVersion {
    /// The part; `operator` is the whole.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// An object that belongs to the operator.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ObjectReference {
    /// API group, empty for the core group.
    pub group: String,
    /// Name as in URLs, such as daemonsets.
    pub resource: String,
    /// Namespace, for objects that have one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// The definition of the resource.
///
/// # Errors
/// When the generated schema is not the one that Kubernetes' types can hold; a test rules it out.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    use kube::CustomResourceExt;
    let texts = ["Nothing is asked for.", "How the operator is doing."];
    let nullable = ["conditions", "versions", "relatedObjects"];
    let crd = schema::finish(ClusterOperator::crd(), &nullable, &texts)?;
    let map = serde_json::json!({ "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"] });
    schemas::add(crd, [("status.conditions", map)])
}

//! `ClusterOperator.config.openshift.io`: the state of an operator of the platform (cluster-network §10.1). Weft ships
//! the definition for clusters without this kind.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, null_as_default, schemas};
use crate::{Error, schema};

/// The spec has no fields.
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
    doc = "The state of an operator of the platform."
)]
pub struct ClusterOperatorSpec {}

/// The state of the operator.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterOperatorStatus {
    /// Conditions of the operator.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Versions that are rolled out completely.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<OperandVersion>,
    /// Objects that the operator manages.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub related_objects: Vec<ObjectReference>,
}

/// The version of an operand.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct OperandVersion {
    /// Name of the operand. `operator` stands for the whole.
    pub name: String,
    /// Version that is rolled out completely.
    pub version: String,
}

/// An object that the operator manages.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ObjectReference {
    /// API group, empty for the core group.
    pub group: String,
    /// Name of the resource in URLs, such as daemonsets.
    pub resource: String,
    /// Namespace, for namespaced objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

/// Returns the definition of the resource.
///
/// # Errors
/// If the generated schema does not fit into Kubernetes' types. A test excludes this.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    use kube::CustomResourceExt;
    let texts = ["The spec has no fields.", "The state of the operator."];
    let nullable = ["conditions", "versions", "relatedObjects"];
    let crd = schema::finish(ClusterOperator::crd(), &nullable, &texts)?;
    let map = serde_json::json!({ "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"] });
    schemas::add(crd, [("status.conditions", map)])
}

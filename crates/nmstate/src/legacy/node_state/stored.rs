//! The `NodeNetworkState` without its report, which may exceed a megabyte and changes often: it is not even parsed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// The desired state and the conditions.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = api::node_state::NodeNetworkState)]
pub(super) struct NodeNetworkState {
    #[serde(deserialize_with = "metadata")]
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: Value,
    #[serde(default)]
    pub(super) status: Option<Status>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Status {
    #[serde(default)]
    pub(super) conditions: Option<Vec<Value>>,
}

/// Drops the managed fields, which name every field of the report.
fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        name: Option<String>,
        uid: Option<String>,
        generation: Option<i64>,
        resource_version: Option<String>,
    }
    let metadata = Metadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: metadata.name,
        uid: metadata.uid,
        generation: metadata.generation,
        resource_version: metadata.resource_version,
        ..ObjectMeta::default()
    })
}

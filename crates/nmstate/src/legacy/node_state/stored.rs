//! The `NodeNetworkState` as far as its wish goes. The report in it may have a megabyte, and changes often: nothing is
//! built of that.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// What is wished, and what conditions there are.
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

/// Without what the API server notes about writers: it names every field of the report.
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

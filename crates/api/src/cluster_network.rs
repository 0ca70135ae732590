//! The network of a cluster (cluster-network §2, §3): what the installer chose, how the operator brings it about, and
//! what the operator says about it.
//!
//! ```text
//! Network.config.openshift.io   ── pools, type ──> Network.operator.openshift.io ──> cluster network operator
//!         ▲ status                                        ▲ status                           │
//!         └───────────────────────────────────────────────┴── ClusterOperator ◄──────────────┘
//! ```

pub mod cluster_operator;
pub mod config;
pub mod operator;
mod schemas;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// Group of the cluster configuration and of [`ClusterOperator`](cluster_operator::ClusterOperator).
pub const CONFIG_GROUP: &str = "config.openshift.io";
/// Group of the operator configuration.
pub const OPERATOR_GROUP: &str = "operator.openshift.io";
/// The one object of both kinds that the operator acts upon.
pub const SINGLETON: &str = "cluster";

/// Addresses of pods, and how much of them a node gets.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterNetworkEntry {
    /// The block, such as 10.128.0.0/14.
    pub cidr: String,
    /// Length of the prefix of a node's part. A network that does not divide the block leaves it out.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schemas::uint32")]
    pub host_prefix: u32,
}

/// One aspect of an operator's state.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which aspect: Available, Progressing, Degraded or Upgradeable.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// When the status of the condition last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Why, in one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A change of the MTU, and the MTU before and after it.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct MtuMigration {
    /// MTU of the default network of pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<MtuMigrationValues>,
    /// MTU of the interfaces of nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<MtuMigrationValues>,
}

/// The MTU before and after a change.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct MtuMigrationValues {
    /// MTU before the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::uint32")]
    pub from: Option<u32>,
    /// MTU after the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::uint32")]
    pub to: Option<u32>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// Reads `null` as nothing, as Go does.
fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    input: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(input).map(Option::unwrap_or_default)
}

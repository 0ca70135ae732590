//! The network of a cluster (cluster-network §2, §3): the configuration of the installer, the configuration of the
//! operator, and the operator's status.
//!
//! ```text
//! Network.config.openshift.io   ── pools, type ──> Network.operator.openshift.io ──> cluster network operator
//!         ▲ status                                        ▲ status                           │
//!         └───────────────────────────────────────────────┴── ClusterOperator ◄──────────────┘
//! ```

pub mod cluster_operator;
pub mod config;
pub mod egress_router;
pub mod operator;
mod schemas;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// Group of the cluster configuration and of [`ClusterOperator`](cluster_operator::ClusterOperator).
pub const CONFIG_GROUP: &str = "config.openshift.io";
/// Group of the operator configuration.
pub const OPERATOR_GROUP: &str = "operator.openshift.io";
/// Name of the single object of both kinds that the operator reads.
pub const SINGLETON: &str = "cluster";

/// A range of pod addresses, and the size of each node's part.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterNetworkEntry {
    /// The range, such as 10.128.0.0/14.
    pub cidr: String,
    /// Prefix length of a node's range. Not set for networks that do not divide the range.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schemas::uint32")]
    pub host_prefix: u32,
}

/// A condition of an operator.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition: Available, Progressing, Degraded or Upgradeable.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// When the status of the condition last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Reason of the status, in one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Reason of the status, as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A change of the MTU, and the MTU before and after it.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct MtuMigration {
    /// MTU of the default pod network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<MtuMigrationValues>,
    /// MTU of the nodes' interfaces.
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

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// Reads `null` as the default value, like Go.
fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    input: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(input).map(Option::unwrap_or_default)
}

//! Node network state (nmstate §2): the deployment of its components, reports of the nodes' networks, and policies.
//!
//! ```text
//! NMState ──> deployment
//! node's network ──> NodeNetworkState (status; in the original design also a desired state, in spec)
//! NodeNetworkConfigurationPolicy ──> NodeNetworkConfigurationEnactment, one a node
//! ```
//!
//! Documents of the nmstate library are held as JSON, because only the library interprets them. All versions of a kind
//! have the same schema with the union of their fields: no version loses fields of another (nmstate §3.2-1).

mod definition;
mod enactment;
mod nmstate;
mod policy;
mod report;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

pub use enactment::{
    CapturedState, DocumentMetaInfo, NodeNetworkConfigurationEnactment,
    NodeNetworkConfigurationEnactmentStatus, crd as enactment_crd,
};
pub use nmstate::{
    DnsProbe, HandlerConfiguration, MetricsConfiguration, NMState, NMStateSpec, NMStateStatus,
    ProbeConfiguration, SelfSignConfiguration, crd,
};
pub use policy::{
    NodeNetworkConfigurationPolicy, NodeNetworkConfigurationPolicySpec, NodeNetworkConfigurationPolicyStatus,
    crd as policy_crd,
};
pub use report::{NodeNetworkState, NodeNetworkStateSpec, NodeNetworkStateStatus, crd as network_state_crd};

/// Group of all kinds.
pub const GROUP: &str = "nmstate.io";

/// The status of a condition.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub enum Status {
    /// The condition applies.
    True,
    /// The condition does not apply.
    False,
    /// The state is not known yet.
    #[default]
    #[serde(other)]
    Unknown,
}

/// A condition of an object (nmstate §2.1).
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    #[schemars(with = "String")]
    pub status: Status,
    /// Reason of the status, in one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Reason of the status, as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When the condition was last set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// When the status of the condition last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Generation of the object that the condition refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// A document of the nmstate library, with an open schema.
fn document(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// A document of the nmstate library, or `null` for no request.
fn nullable_document(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true })
}

/// Arbitrary JSON.
fn anything(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

//! Node network state (nmstate §2): how it is deployed, what nodes' networks are, and what they are to be.
//!
//! ```text
//! NMState ──> what is deployed
//! node's network ──> NodeNetworkState (status; in the original design also a wish, in spec)
//! NodeNetworkConfigurationPolicy ──> NodeNetworkConfigurationEnactment, one a node
//! ```
//!
//! Documents of the nmstate library are held as JSON: what is in them is the library's business. Every version of a
//! kind has the same schema, with the fields of all of them: what is stored in one version loses nothing in another
//! (nmstate §3.2-1).

mod definition;
mod enactment;
mod policy;
mod report;
mod wish;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

pub use enactment::{
    CapturedState, DocumentMetaInfo, NodeNetworkConfigurationEnactment,
    NodeNetworkConfigurationEnactmentStatus, crd as enactment_crd,
};
pub use policy::{
    NodeNetworkConfigurationPolicy, NodeNetworkConfigurationPolicySpec, NodeNetworkConfigurationPolicyStatus,
    crd as policy_crd,
};
pub use report::{NodeNetworkState, NodeNetworkStateSpec, NodeNetworkStateStatus, crd as network_state_crd};
pub use wish::{
    DnsProbe, HandlerConfiguration, MetricsConfiguration, NMState, NMStateSpec, NMStateStatus,
    ProbeConfiguration, SelfSignConfiguration, crd,
};

/// Group of all kinds.
pub const GROUP: &str = "nmstate.io";

/// Whether something is so.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub enum Status {
    /// It is.
    True,
    /// It is not.
    False,
    /// Nobody knows yet.
    #[default]
    #[serde(other)]
    Unknown,
}

/// One aspect of an object's state (nmstate §2.1).
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which aspect.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    #[schemars(with = "String")]
    pub status: Status,
    /// Why, in one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When the condition was last set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// When the status of the condition last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Generation of the object that the condition is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// A document of the nmstate library; a definition says nothing about what is in it.
fn document(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// A document of the nmstate library that may also be `null`: nothing is requested.
fn nullable_document(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true })
}

/// Any JSON.
fn anything(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

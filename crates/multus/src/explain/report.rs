//! The report about a pod.

use super::facts::Event;
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) pod: About,
    /// In the order of attachment.
    pub(super) networks: Vec<Network>,
    pub(super) problems: Vec<Problem>,
    /// Events about networks, oldest first.
    pub(super) events: Vec<Event>,
    /// Limits of the report.
    pub(super) notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct About {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) node: String,
    pub(super) phase: String,
    pub(super) host_network: bool,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Network {
    /// Its interface in the pod.
    pub(super) interface: String,
    /// `<namespace>/<name>` of the definition, or the configuration's name; empty when unknown.
    pub(super) name: String,
    /// The source of the request.
    pub(super) from: String,
    /// The plugins in order; empty when the configuration is unknown.
    pub(super) plugins: Vec<String>,
    /// The device plugin resource that it needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) resource: Option<String>,
    /// The attributes that the pod requests.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) asks: BTreeMap<&'static str, String>,
    /// The plugins' configuration, without the runtime's additions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) config: Option<Box<RawValue>>,
    /// The attached interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) attached: Option<Attached>,
}

/// An entry of the pod's network status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Attached {
    pub(super) interface: String,
    pub(super) ips: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) mac: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Problem {
    /// The subject: an interface and its network, or an annotation.
    pub(super) about: String,
    #[serde(rename = "problem")]
    pub(super) text: String,
    /// Advice for the user.
    pub(super) advice: String,
}

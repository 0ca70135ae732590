//! What is told about a pod.

use super::facts::Event;
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) pod: About,
    /// In the order in which they are attached.
    pub(super) networks: Vec<Network>,
    pub(super) problems: Vec<Problem>,
    /// About networks, the newest last.
    pub(super) events: Vec<Event>,
    /// What could not be found out.
    pub(super) notes: Vec<String>,
}

/// The pod.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct About {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) node: String,
    pub(super) phase: String,
    pub(super) host_network: bool,
}

/// A network that the pod is to have.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Network {
    /// Its interface in the pod.
    pub(super) interface: String,
    /// `<namespace>/<name>` of the definition, or else the configuration's name; empty when it is not known.
    pub(super) name: String,
    /// Who asks for it.
    pub(super) from: String,
    /// The plugins in their order; none when the configuration can't be seen.
    pub(super) plugins: Vec<String>,
    /// The device plugin resource that it needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) resource: Option<String>,
    /// What the pod asks of it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) asks: BTreeMap<&'static str, String>,
    /// What the plugins are given, but for what the runtime adds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) config: Option<Box<RawValue>>,
    /// What came of it.
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

/// Something that is not as it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Problem {
    /// What it is about: an interface and its network, or an annotation.
    pub(super) about: String,
    #[serde(rename = "problem")]
    pub(super) text: String,
    /// What to do.
    pub(super) advice: String,
}

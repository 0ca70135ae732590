//! `PodNetworkConnectivityCheck`: whether a pod reaches an endpoint, and since when it does not (cluster-network §13.3).

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, schema};

/// Which pod connects to which endpoint.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "controlplane.operator.openshift.io",
    version = "v1alpha1",
    kind = "PodNetworkConnectivityCheck",
    plural = "podnetworkconnectivitychecks",
    singular = "podnetworkconnectivitycheck",
    namespaced,
    status = "PodNetworkConnectivityCheckStatus",
    derive = "PartialEq",
    doc = "A check of the connection from a pod to an endpoint, and its results."
)]
#[serde(rename_all = "camelCase")]
pub struct PodNetworkConnectivityCheckSpec {
    /// Name of the pod that connects; it is in the namespace of the check.
    #[serde(default)]
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"))]
    pub source_pod: String,
    /// Host and port of the endpoint.
    #[serde(default)]
    #[schemars(regex(pattern = r"^\S+:\d*$"))]
    pub target_endpoint: String,
    /// Secret with the certificate that the pod shows to the endpoint: its keys are `tls.crt` and `tls.key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_client_cert: Option<SecretReference>,
}

/// A Secret in the namespace of the check.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct SecretReference {
    /// Its name.
    #[serde(default)]
    pub name: String,
}

/// Results of the check; every list begins with its newest entry.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct PodNetworkConnectivityCheckStatus {
    /// Latest successes, at most 10.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub successes: Vec<LogEntry>,
    /// Latest failures, at most 10.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<LogEntry>,
    /// Latest outages, at most 20.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outages: Vec<Outage>,
    /// The condition `Reachable`: whether the latest connection succeeded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// What one step of one check came to.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct LogEntry {
    /// When the step began.
    pub time: Option<Time>,
    /// Whether it succeeded.
    #[serde(default)]
    pub success: bool,
    /// Which step it was and how it ended, as one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The same in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// How long it took, as Go writes durations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<String>,
}

/// A time in which the endpoint was out of reach.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outage {
    /// When the first failure happened.
    pub start: Option<Time>,
    /// When the first success after it happened; none as long as the outage lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Time>,
    /// The first failure, and failures with another message than the one before; at most 5.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub start_logs: Vec<LogEntry>,
    /// The latest failures, and the success that ended the outage; at most 5.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub end_logs: Vec<LogEntry>,
    /// What happened, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// One aspect of the check.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which aspect it is: `Reachable`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, as one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Since when the status is what it is.
    pub last_transition_time: Option<Time>,
}

/// Properties that may be `null`: the established programs write unset times so.
const NULLABLE: [&str; 5] = ["time", "latency", "start", "end", "lastTransitionTime"];
/// Properties that must be there although they may be `null`, or empty in what is read.
const REQUIRED: [(&str, &[&str]); 6] = [
    ("/spec", &["sourcePod", "targetEndpoint"]),
    ("/spec/properties/tlsClientCert", &["name"]),
    ("/status/properties/successes/items", &["success", "time"]),
    ("/status/properties/failures/items", &["success", "time"]),
    ("/status/properties/outages/items", &["start"]),
    (
        "/status/properties/conditions/items",
        &["lastTransitionTime", "status", "type"],
    ),
];

/// The definition of the resource, as the cluster network operator deploys it.
///
/// # Errors
/// When the generated schema is not the one that Kubernetes' types can hold; a test rules it out.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    use kube::CustomResourceExt;
    let texts = [
        "Which pod connects to which endpoint.",
        "Results of the check; every list begins with its newest entry.",
    ];
    let mut crd = schema::finish(PodNetworkConnectivityCheck::crd(), &NULLABLE, &texts)?;
    schema::require(&mut crd, &REQUIRED)?;
    crd.spec.names.list_kind = Some("PodNetworkConnectivityCheckList".to_owned());
    Ok(crd)
}

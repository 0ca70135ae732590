//! `PodNetworkConnectivityCheck`: a check of the connection from a pod to an endpoint, with its outages
//! (cluster-network §13.3).

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, schema};

/// The source pod and the endpoint.
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
    /// Name of the pod that connects, in the namespace of the check.
    #[serde(default)]
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"))]
    pub source_pod: String,
    /// Host and port of the endpoint.
    #[serde(default)]
    #[schemars(regex(pattern = r"^\S+:\d*$"))]
    pub target_endpoint: String,
    /// Secret with the client certificate for the endpoint, with the keys `tls.crt` and `tls.key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_client_cert: Option<SecretReference>,
}

/// A Secret in the namespace of the check.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct SecretReference {
    /// Name of the Secret.
    #[serde(default)]
    pub name: String,
}

/// Results of the check. Each list starts with its newest entry.
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
    /// The condition `Reachable`: the result of the latest connection.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// The result of one step of a check.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct LogEntry {
    /// Start of the step.
    pub time: Option<Time>,
    /// True if the step succeeded.
    #[serde(default)]
    pub success: bool,
    /// The step and its result, in one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The step and its result, as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Duration of the step, in Go's format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<String>,
}

/// A period in which the endpoint was unreachable.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outage {
    /// Time of the first failure.
    pub start: Option<Time>,
    /// Time of the first success afterwards. Not set while the outage lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Time>,
    /// The first failure, and failures with a different message than the failure before. At most 5.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub start_logs: Vec<LogEntry>,
    /// The latest failures, and the success that ended the outage. At most 5.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub end_logs: Vec<LogEntry>,
    /// Description of the outage.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A condition of the check.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition: `Reachable`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Reason of the status, in one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Reason of the status, as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Time of the last change of the status.
    pub last_transition_time: Option<Time>,
}

/// Properties that may be `null`: upstream's programs write `null` for unset times.
const NULLABLE: [&str; 5] = ["time", "latency", "start", "end", "lastTransitionTime"];
/// Required properties, including properties that may be `null` and properties that readers may omit.
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

/// Returns the definition of the resource, as deployed by the cluster network operator.
///
/// # Errors
/// If the generated schema does not fit into Kubernetes' types. A test excludes this.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    use kube::CustomResourceExt;
    let texts = [
        "The source pod and the endpoint.",
        "Results of the check. Each list starts with its newest entry.",
    ];
    let mut crd = schema::finish(PodNetworkConnectivityCheck::crd(), &NULLABLE, &texts)?;
    schema::require(&mut crd, &REQUIRED)?;
    crd.spec.names.list_kind = Some("PodNetworkConnectivityCheckList".to_owned());
    Ok(crd)
}

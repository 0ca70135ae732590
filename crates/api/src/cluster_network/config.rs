//! `Network.config.openshift.io`: the configuration of the installer (cluster-network §2).

use std::collections::BTreeMap;

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{ClusterNetworkEntry, MtuMigration, null_as_default, schemas};
use crate::{Error, placement::Toleration, schema};

/// A range of ports for services, such as 30000-32767.
const PORT_RANGE: &str = "^([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])-\
                          ([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$";

/// The network of the cluster.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "config.openshift.io",
    version = "v1",
    kind = "Network",
    plural = "networks",
    singular = "network",
    status = "NetworkStatus",
    derive = "PartialEq",
    doc = "The network of the cluster. The operator reads only the object named `cluster`."
)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkSpec {
    /// Ranges of pod addresses.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub cluster_network: Vec<ClusterNetworkEntry>,
    /// Ranges of service addresses: one range, or one range of each family.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub service_network: Vec<String>,
    /// The default network: Weft, `OVNKubernetes`, or the name of a network that is installed by other means. The field
    /// is immutable.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_type: String,
    /// Additional addresses of services. Other controllers read this field.
    #[serde(rename = "externalIP", skip_serializing_if = "Option::is_none")]
    pub external_ip: Option<ExternalIpConfig>,
    /// Ports for services of type `NodePort`. Other controllers read this field.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "port_range")]
    pub service_node_port_range: String,
    /// Connectivity checks of the cluster.
    #[serde(skip_serializing_if = "NetworkDiagnostics::is_empty")]
    pub network_diagnostics: NetworkDiagnostics,
    /// Observation of network traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_observability: Option<NetworkObservability>,
}

/// Additional addresses of services.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct ExternalIpConfig {
    /// Addresses that users may request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<ExternalIpPolicy>,
    /// Ranges from which services of type `LoadBalancer` get addresses automatically.
    #[serde(rename = "autoAssignCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub auto_assign_cidrs: Vec<String>,
}

/// Addresses that users may request.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct ExternalIpPolicy {
    /// Allowed ranges.
    #[serde(rename = "allowedCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub allowed_cidrs: Vec<String>,
    /// Rejected ranges. They take precedence over allowed ranges.
    #[serde(rename = "rejectedCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub rejected_cidrs: Vec<String>,
}

/// Connectivity checks of the cluster.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkDiagnostics {
    /// Mode of the checks: All, which is the default, or Disabled.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "diagnostics_mode")]
    pub mode: String,
    /// Placement of the pod that connects.
    #[serde(skip_serializing_if = "DiagnosticsPlacement::is_empty")]
    pub source_placement: DiagnosticsPlacement,
    /// Placement of the pods that answer.
    #[serde(skip_serializing_if = "DiagnosticsPlacement::is_empty")]
    pub target_placement: DiagnosticsPlacement,
}

impl NetworkDiagnostics {
    /// No field is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Placement of the checks' pods.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DiagnosticsPlacement {
    /// Required labels of nodes. The default is Linux nodes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations of the pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
}

impl DiagnosticsPlacement {
    /// No field is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Observation of network traffic.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkObservability {
    /// Installation of the observability operator: `InstallAndEnable` or `NoAction`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "installation_policy")]
    pub installation_policy: String,
}

/// The observed state of the network.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkStatus {
    /// Ranges of pod addresses.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub cluster_network: Vec<ClusterNetworkEntry>,
    /// Ranges of service addresses.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub service_network: Vec<String>,
    /// The default network.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_type: String,
    /// MTU of the default network.
    #[serde(rename = "clusterNetworkMTU", skip_serializing_if = "super::is_zero")]
    #[schemars(schema_with = "schemas::uint32")]
    pub cluster_network_mtu: u32,
    /// The migration in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration: Option<NetworkMigration>,
    /// Conditions of the network.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// A migration of the network.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkMigration {
    /// The default network after the migration.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_type: String,
    /// The migration of the MTU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<MtuMigration>,
}

/// A condition of the network.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition, such as `NetworkDiagnosticsAvailable`.
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
    /// Generation of the object that the condition refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

fn port_range(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "pattern": PORT_RANGE })
}

fn diagnostics_mode(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["", "All", "Disabled"] })
}

fn installation_policy(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["", "InstallAndEnable", "NoAction"] })
}

/// Returns the definition of the resource. The status is part of the object, not a subresource.
///
/// # Errors
/// If the generated schema does not fit into Kubernetes' types. A test excludes this.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    use kube::CustomResourceExt;
    let texts = [
        "The desired state of the network.",
        "The observed state of the network.",
    ];
    let mut crd = schema::finish(Network::crd(), &["clusterNetwork", "serviceNetwork"], &texts)?;
    for version in &mut crd.spec.versions {
        version.subresources = None;
    }
    let atomic = || json!({ "x-kubernetes-list-type": "atomic" });
    schemas::add(
        crd,
        [
            ("spec.clusterNetwork", atomic()),
            ("spec.clusterNetwork[]", json!({ "required": ["cidr"] })),
            ("spec.serviceNetwork", atomic()),
            (
                "status.conditions",
                json!({ "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"] }),
            ),
        ],
    )
}

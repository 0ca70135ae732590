//! `Network.config.openshift.io`: what was chosen when the cluster was installed (cluster-network §2).

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

/// Ports that may be given to services, such as 30000-32767.
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
    doc = "The network of the cluster. The operator acts upon the object named `cluster` only."
)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkSpec {
    /// Addresses of pods.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub cluster_network: Vec<ClusterNetworkEntry>,
    /// Addresses of services: one block, or one of each family.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub service_network: Vec<String>,
    /// The default network: Weft, `OVNKubernetes`, or the name of one that somebody else installs. It cannot be changed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_type: String,
    /// Addresses that services may have beside their own. Other controllers read it.
    #[serde(rename = "externalIP", skip_serializing_if = "Option::is_none")]
    pub external_ip: Option<ExternalIpConfig>,
    /// Ports that services of type `NodePort` may have. Other controllers read it.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "port_range")]
    pub service_node_port_range: String,
    /// Checks of the cluster's connectivity.
    #[serde(skip_serializing_if = "NetworkDiagnostics::is_empty")]
    pub network_diagnostics: NetworkDiagnostics,
    /// Observation of the network's traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_observability: Option<NetworkObservability>,
}

/// Addresses that services may have beside their own.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct ExternalIpConfig {
    /// Addresses that users may ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<ExternalIpPolicy>,
    /// Blocks that services of type `LoadBalancer` get addresses from by themselves.
    #[serde(rename = "autoAssignCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub auto_assign_cidrs: Vec<String>,
}

/// Addresses that users may ask for.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct ExternalIpPolicy {
    /// Blocks that are allowed.
    #[serde(rename = "allowedCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub allowed_cidrs: Vec<String>,
    /// Blocks that are not; they outrank those that are.
    #[serde(rename = "rejectedCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub rejected_cidrs: Vec<String>,
}

/// Checks of the cluster's connectivity.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkDiagnostics {
    /// Whether the checks run: All, which is the default, or Disabled.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "diagnostics_mode")]
    pub mode: String,
    /// Where the pod that checks runs.
    #[serde(skip_serializing_if = "DiagnosticsPlacement::is_empty")]
    pub source_placement: DiagnosticsPlacement,
    /// Where the pods that are checked run.
    #[serde(skip_serializing_if = "DiagnosticsPlacement::is_empty")]
    pub target_placement: DiagnosticsPlacement,
}

impl NetworkDiagnostics {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Where pods of the checks run.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DiagnosticsPlacement {
    /// Labels that a node must have. Linux nodes by default.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pods tolerate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
}

impl DiagnosticsPlacement {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Observation of the network's traffic.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkObservability {
    /// Whether its operator is installed.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "installation_policy")]
    pub installation_policy: String,
}

/// What the network is like.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkStatus {
    /// Addresses of pods.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub cluster_network: Vec<ClusterNetworkEntry>,
    /// Addresses of services.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub service_network: Vec<String>,
    /// The default network.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_type: String,
    /// MTU of the default network.
    #[serde(rename = "clusterNetworkMTU", skip_serializing_if = "super::is_zero")]
    #[schemars(schema_with = "schemas::uint32")]
    pub cluster_network_mtu: u32,
    /// The change that is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration: Option<NetworkMigration>,
    /// Aspects of the network's state.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// The change that is under way.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkMigration {
    /// The default network that is changed to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_type: String,
    /// The change of the MTU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<MtuMigration>,
}

/// One aspect of the network's state.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which aspect, such as `NetworkDiagnosticsAvailable`.
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
    /// Generation of the object that the condition is about.
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

/// The definition of the resource. Its status is a part of the object, not a subresource.
///
/// # Errors
/// When the generated schema is not the one that Kubernetes' types can hold; a test rules it out.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    use kube::CustomResourceExt;
    let texts = ["What the network is to be like.", "What the network is like."];
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

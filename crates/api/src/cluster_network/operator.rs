//! `Network.operator.openshift.io`: how the operator brings the network about (cluster-network §3).
//!
//! Strings that the schema restricts to a set stay strings here: an object that was stored under an older schema must
//! still be readable, so that a condition can say what is wrong.

mod additional;
mod ovn;

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use additional::{
    AdditionalNetwork, IpamConfig, SimpleMacvlanConfig, StaticIpamAddress, StaticIpamConfig, StaticIpamDns,
    StaticIpamRoute,
};
pub use ovn::{
    BgpManagedConfig, EgressIpConfig, GatewayConfig, GatewayFamilyConfig, HybridOverlayConfig, IpsecConfig,
    IpsecFullConfig, NoOverlayConfig, OvnFamilyConfig, OvnKubernetesConfig, PolicyAuditConfig,
};

pub use super::Condition;
use super::{ClusterNetworkEntry, MtuMigration, is_false, null_as_default, schemas};
use crate::{Error, schema};

/// An IPv4 address and a port.
const COLLECTOR: &str = r"^(([0-9]|[0-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-5])\.){3}([0-9]|[0-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-5]):([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$";

/// Properties of the schema that accept `null`.
const NULLABLE: [&str; 8] = [
    "observedConfig",
    "unsupportedConfigOverrides",
    "clusterNetwork",
    "serviceNetwork",
    "additionalNetworks",
    "ovnKubernetesConfig",
    "conditions",
    "generations",
];

/// How the operator brings the network about.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "operator.openshift.io",
    version = "v1",
    kind = "Network",
    plural = "networks",
    singular = "network",
    status = "NetworkStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Available","type":"string","jsonPath":".status.conditions[?(@.type==\"Available\")].status"}"#,
    printcolumn = r#"{"name":"Progressing","type":"string","jsonPath":".status.conditions[?(@.type==\"Progressing\")].status"}"#,
    printcolumn = r#"{"name":"Degraded","type":"string","jsonPath":".status.conditions[?(@.type==\"Degraded\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Degraded\")].reason","priority":1}"#,
    doc = "How the operator brings the cluster's network about. It acts upon the object named `cluster` only."
)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkSpec {
    /// Whether the operator acts: Managed or Unmanaged. It cannot be removed.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "management_state")]
    pub management_state: String,
    /// How much the operands log: Normal, Debug, Trace or `TraceAll`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "log_level")]
    pub log_level: String,
    /// How much the operator logs: Normal, Debug, Trace or `TraceAll`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "log_level")]
    pub operator_log_level: String,
    /// Not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::document")]
    pub observed_config: Option<Value>,
    /// Settings that nobody supports.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::document")]
    pub unsupported_config_overrides: Option<Value>,
    /// Addresses of pods. They come from the cluster configuration; changes made here are reverted.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub cluster_network: Vec<ClusterNetworkEntry>,
    /// Addresses of services. They come from the cluster configuration; changes made here are reverted.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub service_network: Vec<String>,
    /// The network that all pods are in.
    #[serde(deserialize_with = "null_as_default")]
    pub default_network: DefaultNetwork,
    /// Networks that pods can be attached to as well.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub additional_networks: Vec<AdditionalNetwork>,
    /// Routing protocols.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub additional_routing_capabilities: Option<AdditionalRoutingCapabilities>,
    /// Whether multus is left out, so that pods are in no more than the default network. It cannot be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_multi_network: Option<bool>,
    /// Whether network policies for additional networks are obeyed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_multi_network_policy: Option<bool>,
    /// Whether kube-proxy is deployed. It is by default, but not with `OVNKubernetes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deploy_kube_proxy: Option<bool>,
    /// How kube-proxy is set up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kube_proxy_config: Option<ProxyConfig>,
    /// Whether the checks of connectivity are off, where the cluster configuration says nothing about them.
    #[serde(skip_serializing_if = "is_false")]
    pub disable_network_diagnostics: bool,
    /// Where flows are reported to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export_network_flows: Option<ExportNetworkFlows>,
    /// A change that is carried out in steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration: Option<NetworkMigration>,
}

/// The network that all pods are in.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DefaultNetwork {
    /// Weft, `OVNKubernetes`, or the name of one that somebody else installs. It comes from the cluster configuration.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Not used any more.
    #[serde(rename = "openshiftSDNConfig", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "openshift_sdn")]
    pub openshift_sdn_config: Option<Value>,
    /// How OVN-Kubernetes is set up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ovn_kubernetes_config: Option<OvnKubernetesConfig>,
}

/// Routing protocols.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct AdditionalRoutingCapabilities {
    /// Who provides them: FRR.
    #[schemars(schema_with = "routing_providers")]
    pub providers: Vec<String>,
}

/// How kube-proxy is set up.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyConfig {
    /// How often the rules are written anew although nothing changed, such as 30s.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub iptables_sync_period: String,
    /// Address that kube-proxy listens on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bind_address: String,
    /// Further arguments of kube-proxy. Of each list the last value counts.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub proxy_arguments: BTreeMap<String, Vec<String>>,
}

/// Where flows are reported to.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExportNetworkFlows {
    /// `NetFlow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_flow: Option<FlowCollectors>,
    /// sFlow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s_flow: Option<FlowCollectors>,
    /// IPFIX.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipfix: Option<FlowCollectors>,
}

/// Who collects flows.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct FlowCollectors {
    /// IPv4 addresses with ports.
    #[schemars(schema_with = "collectors")]
    pub collectors: Vec<String>,
}

/// A change that is carried out in steps.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkMigration {
    /// The change of the MTU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<MtuMigration>,
    /// Another default network, which is not supported.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_type: String,
    /// How the default network is changed.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "migration_mode")]
    pub mode: String,
    /// What of the former network is taken along, which is not supported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<FeaturesMigration>,
}

/// What of the former network is taken along.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FeaturesMigration {
    /// Egress firewalls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_firewall: Option<bool>,
    /// Egress addresses.
    #[serde(rename = "egressIP", skip_serializing_if = "Option::is_none")]
    pub egress_ip: Option<bool>,
    /// Multicast.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multicast: Option<bool>,
}

/// How the operator is doing.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkStatus {
    /// Generation of the object that the operator has seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Aspects of its state.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Version that everything has reached.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_available_revision: Option<i32>,
    /// Not used.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "generations")]
    pub generations: Vec<Value>,
}

fn management_state(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "pattern": "^(Managed|Unmanaged|Force|Removed)$" })
}

fn log_level(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["", "Normal", "Debug", "Trace", "TraceAll"] })
}

fn migration_mode(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["", "Live", "Offline"] })
}

fn routing_providers(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "minItems": 1, "maxItems": 1, "x-kubernetes-list-type": "atomic",
        "items": { "type": "string", "enum": ["FRR"] },
    })
}

fn collectors(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "minItems": 1, "maxItems": 10, "x-kubernetes-list-type": "atomic",
        "items": { "type": "string", "pattern": COLLECTOR },
    })
}

fn openshift_sdn(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "nullable": true,
        "properties": {
            "enableUnidling": { "type": "boolean", "description": "Not used any more." },
            "mode": { "type": "string", "description": "Not used any more." },
            "mtu": { "type": "integer", "format": "int64", "minimum": 0, "description": "Not used any more." },
            "useExternalOpenvswitch": { "type": "boolean", "description": "Not used any more." },
            "vxlanPort": { "type": "integer", "format": "int64", "minimum": 0, "description": "Not used any more." },
        },
    })
}

fn generations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "nullable": true, "x-kubernetes-list-type": "atomic",
        "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
    })
}

/// The definition of the resource.
///
/// # Errors
/// When the generated schema is not the one that Kubernetes' types can hold; a test rules it out.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    use kube::CustomResourceExt;
    let texts = [
        "How the operator brings the network about.",
        "How the operator is doing.",
    ];
    let crd = schema::finish(Network::crd(), &NULLABLE, &texts)?;
    let atomic = || json!({ "x-kubernetes-list-type": "atomic" });
    let level = || json!({ "default": "Normal" });
    let by = |key: &str| json!({ "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key] });
    let own = [
        (
            "",
            schemas::rule(
                "!has(self.spec) || !has(self.spec.defaultNetwork) || \
                 !has(self.spec.defaultNetwork.ovnKubernetesConfig) || \
                 !has(self.spec.defaultNetwork.ovnKubernetesConfig.routeAdvertisements) || \
                 self.spec.defaultNetwork.ovnKubernetesConfig.routeAdvertisements != 'Enabled' || \
                 (has(self.spec.additionalRoutingCapabilities) && \
                 'FRR' in self.spec.additionalRoutingCapabilities.providers)",
                "Route advertisements cannot be Enabled if 'FRR' routing capability provider is not available",
            ),
        ),
        ("spec.logLevel", level()),
        ("spec.operatorLogLevel", level()),
        ("spec.clusterNetwork", atomic()),
        ("spec.serviceNetwork", atomic()),
        ("spec.additionalNetworks", by("name")),
        ("spec.additionalNetworks[]", json!({ "required": ["name"] })),
        (
            "spec.additionalRoutingCapabilities",
            json!({ "required": ["providers"] }),
        ),
        (
            "spec.migration",
            schemas::rule(
                "!has(self.mtu) || !has(self.networkType) || self.networkType == '' || \
                 (has(self.mode) && self.mode == 'Live')",
                "networkType migration in mode other than 'Live' may not be configured at the same time as mtu migration",
            ),
        ),
        ("status.conditions", by("type")),
        (
            "status.conditions[]",
            json!({ "description": "One aspect of the operator's state." }),
        ),
    ];
    schemas::add(
        crd,
        own.into_iter()
            .chain(ovn::additions())
            .chain(additional::additions()),
    )
}

//! `Network.operator.openshift.io`: the configuration of the operator (cluster-network §3).
//!
//! Strings with an enumeration in the schema are strings here too: an object that was stored under an older schema must
//! be readable, so that a condition can report its defects.

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

/// The configuration of the network that the operator deploys.
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
    doc = "Configuration of the cluster's network. The operator reads only the object named `cluster`."
)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkSpec {
    /// Management state: Managed, or Unmanaged, which stops the operator's changes. The field cannot be removed.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "management_state")]
    pub management_state: String,
    /// Log level of the operands: Normal, Debug, Trace or `TraceAll`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "log_level")]
    pub log_level: String,
    /// Log level of the operator: Normal, Debug, Trace or `TraceAll`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "log_level")]
    pub operator_log_level: String,
    /// Unused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::document")]
    pub observed_config: Option<Value>,
    /// Settings without support.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::document")]
    pub unsupported_config_overrides: Option<Value>,
    /// Ranges of pod addresses, copied from the cluster configuration. The operator reverts changes.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub cluster_network: Vec<ClusterNetworkEntry>,
    /// Ranges of service addresses, copied from the cluster configuration. The operator reverts changes.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub service_network: Vec<String>,
    /// The default network of all pods.
    #[serde(deserialize_with = "null_as_default")]
    pub default_network: DefaultNetwork,
    /// Additional networks for pods.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub additional_networks: Vec<AdditionalNetwork>,
    /// Routing protocols.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub additional_routing_capabilities: Option<AdditionalRoutingCapabilities>,
    /// If true, multus is not deployed, and pods have only the default network. The field is immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_multi_network: Option<bool>,
    /// If true, network policies apply to additional networks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_multi_network_policy: Option<bool>,
    /// If true, kube-proxy is deployed. The default is false with `OVNKubernetes`, and true with other networks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deploy_kube_proxy: Option<bool>,
    /// Settings of kube-proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kube_proxy_config: Option<ProxyConfig>,
    /// If true, the connectivity checks are disabled, unless the cluster configuration configures them.
    #[serde(skip_serializing_if = "is_false")]
    pub disable_network_diagnostics: bool,
    /// Collectors of network flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export_network_flows: Option<ExportNetworkFlows>,
    /// A migration in steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration: Option<NetworkMigration>,
}

/// The default network of all pods.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DefaultNetwork {
    /// Weft, `OVNKubernetes`, or the name of a network that is installed by other means. Copied from the cluster
    /// configuration.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// No longer used.
    #[serde(rename = "openshiftSDNConfig", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "openshift_sdn")]
    pub openshift_sdn_config: Option<Value>,
    /// Settings of OVN-Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ovn_kubernetes_config: Option<OvnKubernetesConfig>,
}

/// Routing protocols.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct AdditionalRoutingCapabilities {
    /// The routing provider: FRR.
    #[schemars(schema_with = "routing_providers")]
    pub providers: Vec<String>,
}

/// Settings of kube-proxy.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyConfig {
    /// Interval between full writes of the rules, such as 30s.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub iptables_sync_period: String,
    /// Listen address of kube-proxy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bind_address: String,
    /// Additional arguments of kube-proxy. The last value of each list applies.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub proxy_arguments: BTreeMap<String, Vec<String>>,
}

/// Collectors of network flows.
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

/// Collectors of one protocol.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct FlowCollectors {
    /// IPv4 addresses with ports.
    #[schemars(schema_with = "collectors")]
    pub collectors: Vec<String>,
}

/// A migration in steps.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkMigration {
    /// The migration of the MTU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<MtuMigration>,
    /// Another default network, which is unsupported.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_type: String,
    /// Mode of the migration of the default network.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "migration_mode")]
    pub mode: String,
    /// Features of the previous network to migrate, which are unsupported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<FeaturesMigration>,
    /// Whether the operator changes the MTU of the nodes through node network policies. `DryRun` only compares. `Apply`
    /// compares, then changes one node after the other, and removes the migration from this object at its end. If the
    /// field is not set, another agent changes the nodes.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "node_policies")]
    pub node_policies: String,
}

/// Features of the previous network to migrate.
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

/// The state of the operator.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkStatus {
    /// Generation of the object that the operator last read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions of the operator.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Version that is rolled out completely.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Unused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Unused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_available_revision: Option<i32>,
    /// Unused.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "generations")]
    pub generations: Vec<Value>,
}

fn management_state(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "pattern": "^(Managed|Unmanaged|Force|Removed)$" })
}

/// Route advertisements of OVN-Kubernetes lack their provider.
pub const ROUTES_NEED_FRR: &str =
    "Route advertisements cannot be Enabled if 'FRR' routing capability provider is not available";

fn log_level(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["", "Normal", "Debug", "Trace", "TraceAll"] })
}

fn migration_mode(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["", "Live", "Offline"] })
}

fn node_policies(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["", "DryRun", "Apply"] })
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
            "enableUnidling": { "type": "boolean", "description": "No longer used." },
            "mode": { "type": "string", "description": "No longer used." },
            "mtu": { "type": "integer", "format": "int64", "minimum": 0, "description": "No longer used." },
            "useExternalOpenvswitch": { "type": "boolean", "description": "No longer used." },
            "vxlanPort": { "type": "integer", "format": "int64", "minimum": 0, "description": "No longer used." },
        },
    })
}

fn generations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "nullable": true, "x-kubernetes-list-type": "atomic",
        "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
    })
}

/// Returns the definition of the resource.
///
/// # Errors
/// If the generated schema does not fit into Kubernetes' types. A test excludes this.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    use kube::CustomResourceExt;
    let texts = ["The desired state of the network.", "The state of the operator."];
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
                ROUTES_NEED_FRR,
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

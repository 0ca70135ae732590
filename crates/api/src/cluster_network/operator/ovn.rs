//! How OVN-Kubernetes is set up.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::{
    ClusterNetworkEntry, is_false, null_as_default,
    schemas::{self, Addition},
};

/// How OVN-Kubernetes is set up.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OvnKubernetesConfig {
    /// MTU of pods. Without it, that of the nodes less what tunnels need.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::uint32")]
    pub mtu: Option<u32>,
    /// UDP port of the tunnels. It cannot be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "positive")]
    pub geneve_port: Option<u32>,
    /// Tunnels to nodes with Windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hybrid_overlay_config: Option<HybridOverlayConfig>,
    /// Encryption of traffic between nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipsec_config: Option<IpsecConfig>,
    /// Log of what network policies allow and deny.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_audit_config: Option<PolicyAuditConfig>,
    /// How traffic leaves nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway_config: Option<GatewayConfig>,
    /// Addresses that pods leave the cluster with.
    #[serde(rename = "egressIPConfig", skip_serializing_if = "EgressIpConfig::is_empty")]
    pub egress_ip_config: EgressIpConfig,
    /// The former name of `ipv4.internalJoinSubnet`.
    #[serde(rename = "v4InternalSubnet", skip_serializing_if = "String::is_empty")]
    pub v4_internal_subnet: String,
    /// The former name of `ipv6.internalJoinSubnet`.
    #[serde(rename = "v6InternalSubnet", skip_serializing_if = "String::is_empty")]
    pub v6_internal_subnet: String,
    /// Subnets that only OVN-Kubernetes uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<OvnFamilyConfig>,
    /// Subnets that only OVN-Kubernetes uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<OvnFamilyConfig>,
    /// Whether routes to pods are advertised by BGP.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "switch")]
    pub route_advertisements: String,
    /// How packets get from node to node: Geneve, which is the default, or `NoOverlay`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "transport")]
    pub transport: String,
    /// How it is without tunnels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_overlay_config: Option<NoOverlayConfig>,
    /// How BGP is set up that the operator manages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bgp_managed_config: Option<BgpManagedConfig>,
}

/// Tunnels to nodes with Windows.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HybridOverlayConfig {
    /// Addresses of pods on those nodes. Only the first entry is used.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub hybrid_cluster_network: Vec<ClusterNetworkEntry>,
    /// UDP port of the tunnels.
    #[serde(rename = "hybridOverlayVXLANPort", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::uint32")]
    pub hybrid_overlay_vxlan_port: Option<u32>,
}

/// Encryption of traffic between nodes.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct IpsecConfig {
    /// Disabled, External or Full. An object that says nothing means Full.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "ipsec_mode")]
    pub mode: String,
    /// What there is to say about mode Full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full: Option<IpsecFullConfig>,
}

/// What there is to say about mode Full.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct IpsecFullConfig {
    /// Whether encrypted packets are put into UDP: Always, or Auto, which is only where it is needed.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "encapsulation")]
    pub encapsulation: String,
}

/// Log of what network policies allow and deny.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyAuditConfig {
    /// Messages a second and node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "positive")]
    pub rate_limit: Option<u32>,
    /// Megabytes of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "positive")]
    pub max_file_size: Option<u32>,
    /// Files that are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "positive")]
    pub max_log_files: Option<i32>,
    /// Where else the log goes: null, libc, unix:FILE or udp:HOST:PORT.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub destination: String,
    /// Facility of syslog, such as local0.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub syslog_facility: String,
}

/// How traffic leaves nodes.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayConfig {
    /// Whether it goes through the routing table of the node.
    #[serde(skip_serializing_if = "is_false")]
    pub routing_via_host: bool,
    /// What nodes forward: Restricted, which is cluster traffic alone, or Global.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip_forwarding: String,
    /// Subnets of IPv4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<GatewayFamilyConfig>,
    /// Subnets of IPv6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<GatewayFamilyConfig>,
}

/// Subnets of a family.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayFamilyConfig {
    /// Addresses behind which services are reached from the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub internal_masquerade_subnet: String,
}

/// Addresses that pods leave the cluster with.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EgressIpConfig {
    /// Seconds after which a node that does not answer loses its egress addresses. 0 never asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "reachability")]
    pub reachability_total_timeout_seconds: Option<u32>,
}

impl EgressIpConfig {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        self.reachability_total_timeout_seconds.is_none()
    }
}

/// Subnets that only OVN-Kubernetes uses.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OvnFamilyConfig {
    /// Between nodes and their gateways.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub internal_join_subnet: String,
    /// Between nodes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub internal_transit_switch_subnet: String,
}

/// How it is without tunnels.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NoOverlayConfig {
    /// Whether pods leave the cluster with the address of their node.
    #[serde(rename = "outboundSNAT", skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "switch")]
    pub outbound_snat: String,
    /// Who sees to routes: Managed or Unmanaged.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "routing")]
    pub routing: String,
}

/// How BGP is set up that the operator manages.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BgpManagedConfig {
    /// Who talks to whom: `FullMesh`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "bgp_topology")]
    pub bgp_topology: String,
    /// Number of the autonomous system.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "as_number")]
    pub as_number: Option<u32>,
}

fn positive(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "format": "int64", "minimum": 1 })
}

fn reachability(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "format": "int64", "minimum": 0, "maximum": 60 })
}

fn as_number(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "format": "int64", "minimum": 1, "maximum": 4_294_967_295_u32 })
}

fn switch(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["", "Enabled", "Disabled"] })
}

fn transport(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["", "Geneve", "NoOverlay"] })
}

fn routing(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["Managed", "Unmanaged"] })
}

fn bgp_topology(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["FullMesh"] })
}

fn ipsec_mode(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["Disabled", "External", "Full"] })
}

fn encapsulation(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["Always", "Auto"] })
}

/// A subnet that is at most so large a prefix, of IPv4.
fn subnet_v4(prefix: u8) -> Value {
    json!({
        "maxLength": 18,
        "x-kubernetes-validations": [
            { "rule": "isCIDR(self) && cidr(self).ip().family() == 4",
              "message": "Subnet must be in valid IPV4 CIDR format" },
            { "rule": format!("!isCIDR(self) || cidr(self).prefixLength() <= {prefix}"),
              "message": format!("subnet must be in the range /0 to /{prefix} inclusive") },
            { "rule": "!isCIDR(self) || int(self.split('.')[0]) > 0",
              "message": "first IP address octet must not be 0" },
        ],
    })
}

/// A subnet of IPv6.
fn subnet_v6() -> Value {
    json!({
        "maxLength": 48,
        "x-kubernetes-validations": [
            { "rule": "isCIDR(self) && cidr(self).ip().family() == 6",
              "message": "Subnet must be in valid IPV6 CIDR format" },
            { "rule": "!isCIDR(self) || cidr(self).prefixLength() <= 125",
              "message": "subnet must be in the range /0 to /125 inclusive" },
        ],
    })
}

/// What derivation does not know of the schema.
pub(super) fn additions() -> Vec<Addition> {
    let default = |value: Value| json!({ "default": value });
    let atomic = json!({ "x-kubernetes-list-type": "atomic" });
    let ipsec = json!({
        "default": { "mode": "Disabled" },
        "x-kubernetes-validations": [
            { "rule": "self == oldSelf || has(self.mode)", "message": "ipsecConfig.mode is required" },
            { "rule": "has(self.mode) && self.mode == 'Full' || !has(self.full)",
              "message": "full is forbidden when mode is not Full" },
        ],
    });
    let forwarding = json!({
        "x-kubernetes-validations": [{
            "rule": "self in ['', 'Restricted', 'Global'] || (oldSelf.hasValue() && oldSelf.value() == self)",
            "optionalOldSelf": true,
            "message": "invalid value for IPForwarding, valid values are 'Restricted' or 'Global'",
        }],
    });
    vec![
        (
            "spec.defaultNetwork.ovnKubernetesConfig.hybridOverlayConfig.hybridClusterNetwork",
            atomic,
        ),
        ("spec.defaultNetwork.ovnKubernetesConfig.ipsecConfig", ipsec),
        (
            "spec.defaultNetwork.ovnKubernetesConfig.ipsecConfig.full",
            json!({ "minProperties": 1 }),
        ),
        (
            "spec.defaultNetwork.ovnKubernetesConfig.policyAuditConfig.rateLimit",
            default(json!(20)),
        ),
        (
            "spec.defaultNetwork.ovnKubernetesConfig.policyAuditConfig.maxFileSize",
            default(json!(50)),
        ),
        (
            "spec.defaultNetwork.ovnKubernetesConfig.policyAuditConfig.maxLogFiles",
            default(json!(5)),
        ),
        (
            "spec.defaultNetwork.ovnKubernetesConfig.policyAuditConfig.destination",
            default(json!("null")),
        ),
        (
            "spec.defaultNetwork.ovnKubernetesConfig.policyAuditConfig.syslogFacility",
            default(json!("local0")),
        ),
        (
            "spec.defaultNetwork.ovnKubernetesConfig.gatewayConfig.routingViaHost",
            default(json!(false)),
        ),
        (
            "spec.defaultNetwork.ovnKubernetesConfig.gatewayConfig.ipForwarding",
            forwarding,
        ),
        (
            "spec.defaultNetwork.ovnKubernetesConfig.ipv4.internalJoinSubnet",
            subnet_v4(30),
        ),
        (
            "spec.defaultNetwork.ovnKubernetesConfig.ipv4.internalTransitSwitchSubnet",
            subnet_v4(30),
        ),
        (
            "spec.defaultNetwork.ovnKubernetesConfig.ipv6.internalJoinSubnet",
            subnet_v6(),
        ),
        (
            "spec.defaultNetwork.ovnKubernetesConfig.ipv6.internalTransitSwitchSubnet",
            subnet_v6(),
        ),
        (
            "spec.defaultNetwork.ovnKubernetesConfig.gatewayConfig.ipv4.internalMasqueradeSubnet",
            subnet_v4(29),
        ),
        (
            "spec.defaultNetwork.ovnKubernetesConfig.gatewayConfig.ipv6.internalMasqueradeSubnet",
            subnet_v6(),
        ),
        (
            "spec.defaultNetwork.ovnKubernetesConfig.bgpManagedConfig.asNumber",
            default(json!(64512)),
        ),
    ]
}

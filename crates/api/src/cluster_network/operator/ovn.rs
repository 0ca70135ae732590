//! Settings of OVN-Kubernetes.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::{
    ClusterNetworkEntry, is_false, null_as_default,
    schemas::{self, Addition},
};

/// Settings of OVN-Kubernetes.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OvnKubernetesConfig {
    /// MTU of pods. The default is the MTU of the nodes minus the overhead of tunnels.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::uint32")]
    pub mtu: Option<u32>,
    /// UDP port of the tunnels. The field is immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "positive")]
    pub geneve_port: Option<u32>,
    /// Tunnels to Windows nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hybrid_overlay_config: Option<HybridOverlayConfig>,
    /// Encryption of traffic between nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipsec_config: Option<IpsecConfig>,
    /// Audit log of network policies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_audit_config: Option<PolicyAuditConfig>,
    /// Traffic that leaves the nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway_config: Option<GatewayConfig>,
    /// Egress addresses of pods.
    #[serde(rename = "egressIPConfig", skip_serializing_if = "EgressIpConfig::is_empty")]
    pub egress_ip_config: EgressIpConfig,
    /// The former name of `ipv4.internalJoinSubnet`.
    #[serde(rename = "v4InternalSubnet", skip_serializing_if = "String::is_empty")]
    pub v4_internal_subnet: String,
    /// The former name of `ipv6.internalJoinSubnet`.
    #[serde(rename = "v6InternalSubnet", skip_serializing_if = "String::is_empty")]
    pub v6_internal_subnet: String,
    /// Internal IPv4 subnets of OVN-Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<OvnFamilyConfig>,
    /// Internal IPv6 subnets of OVN-Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<OvnFamilyConfig>,
    /// Advertisement of routes to pods by BGP: Enabled or Disabled.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "switch")]
    pub route_advertisements: String,
    /// Transport between nodes: Geneve, which is the default, or `NoOverlay`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "transport")]
    pub transport: String,
    /// Settings of the transport `NoOverlay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_overlay_config: Option<NoOverlayConfig>,
    /// Settings of BGP that the operator manages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bgp_managed_config: Option<BgpManagedConfig>,
}

/// Tunnels to Windows nodes.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HybridOverlayConfig {
    /// Ranges of pod addresses on Windows nodes. Only the first entry is used.
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
    /// Disabled, External or Full. An object without mode means Full.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "ipsec_mode")]
    pub mode: String,
    /// Settings of mode Full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full: Option<IpsecFullConfig>,
}

/// Settings of mode Full.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct IpsecFullConfig {
    /// UDP encapsulation of encrypted packets: Always, or Auto, which uses it only where necessary.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "encapsulation")]
    pub encapsulation: String,
}

/// Audit log of network policies.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyAuditConfig {
    /// Messages per second and node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "positive")]
    pub rate_limit: Option<u32>,
    /// Maximum size of a file, megabytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "positive")]
    pub max_file_size: Option<u32>,
    /// Maximum number of files.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "positive")]
    pub max_log_files: Option<i32>,
    /// Additional destination of the log: null, libc, unix:FILE or udp:HOST:PORT.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub destination: String,
    /// Syslog facility, such as local0.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub syslog_facility: String,
}

/// Traffic that leaves the nodes.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayConfig {
    /// If true, the traffic passes the routing table of the node.
    #[serde(skip_serializing_if = "is_false")]
    pub routing_via_host: bool,
    /// Forwarding on nodes: Restricted, which forwards only cluster traffic, or Global.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip_forwarding: String,
    /// IPv4 subnets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<GatewayFamilyConfig>,
    /// IPv6 subnets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<GatewayFamilyConfig>,
}

/// Subnets of one family.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayFamilyConfig {
    /// Subnet of the addresses that represent services on the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub internal_masquerade_subnet: String,
}

/// Egress addresses of pods.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EgressIpConfig {
    /// Seconds until an unreachable node loses its egress addresses. 0 disables the check.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "reachability")]
    pub reachability_total_timeout_seconds: Option<u32>,
}

impl EgressIpConfig {
    /// No field is set.
    pub fn is_empty(&self) -> bool {
        self.reachability_total_timeout_seconds.is_none()
    }
}

/// Internal subnets of OVN-Kubernetes.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OvnFamilyConfig {
    /// Subnet between nodes and their gateways.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub internal_join_subnet: String,
    /// Subnet between nodes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub internal_transit_switch_subnet: String,
}

/// Settings of the transport `NoOverlay`.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NoOverlayConfig {
    /// If enabled, packets of pods leave the cluster with the address of their node.
    #[serde(rename = "outboundSNAT", skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "switch")]
    pub outbound_snat: String,
    /// Management of the routes: Managed or Unmanaged.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "routing")]
    pub routing: String,
}

/// Settings of BGP that the operator manages.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BgpManagedConfig {
    /// Topology of the BGP sessions: `FullMesh`.
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

/// An IPv4 subnet with at most this prefix length.
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

/// An IPv6 subnet.
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

/// Parts of the schema that are not derived.
pub(super) fn additions() -> Vec<Addition> {
    let default = |value: Value| json!({ "default": value });
    let atomic = json!({ "x-kubernetes-list-type": "atomic" });
    let ipsec = json!({
        "default": { "mode": "Disabled" },
        "x-kubernetes-validations": [
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

//! Additional networks for pods (cluster-network §8).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::{
    is_zero, null_as_default,
    schemas::{self, Addition},
};

/// An additional network for pods.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AdditionalNetwork {
    /// Raw or `SimpleMacvlan`.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Name of the `NetworkAttachmentDefinition`.
    pub name: String,
    /// Namespace of the `NetworkAttachmentDefinition`. The default is `default`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// CNI configuration of a network of type Raw, as JSON text.
    #[serde(rename = "rawCNIConfig", skip_serializing_if = "String::is_empty")]
    pub raw_cni_config: String,
    /// Settings of a network of type `SimpleMacvlan`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simple_macvlan_config: Option<SimpleMacvlanConfig>,
}

/// Settings of a network of type `SimpleMacvlan`.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SimpleMacvlanConfig {
    /// Interface of the node. The default is the interface of the default route.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub master: String,
    /// Source of addresses. The default is DHCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipam_config: Option<IpamConfig>,
    /// Mode of macvlan: Bridge, Private, VEPA or Passthru.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mode: String,
    /// MTU of the interface. The kernel chooses the default.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schemas::uint32")]
    pub mtu: u32,
}

/// Source of addresses.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct IpamConfig {
    /// DHCP or Static.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Static addresses.
    #[serde(rename = "staticIPAMConfig", skip_serializing_if = "Option::is_none")]
    pub static_ipam_config: Option<StaticIpamConfig>,
}

/// Static addresses.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct StaticIpamConfig {
    /// Addresses of the interface. If empty, the annotation of the pod contains the addresses.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<StaticIpamAddress>,
    /// Routes of the pod.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<StaticIpamRoute>,
    /// DNS of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<StaticIpamDns>,
}

/// An address of the interface.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct StaticIpamAddress {
    /// The address with its prefix length.
    pub address: String,
    /// Gateway of the default route.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gateway: String,
}

/// A route of the pod.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct StaticIpamRoute {
    /// The destination range.
    pub destination: String,
    /// The gateway. The default is the gateway of the interface.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gateway: String,
}

/// DNS of the pod.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct StaticIpamDns {
    /// Addresses of name servers.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain of short names.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// The search domains.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
}

/// Parts of the schema that are not derived.
pub(super) fn additions() -> Vec<Addition> {
    let atomic = || serde_json::json!({ "x-kubernetes-list-type": "atomic" });
    vec![
        (
            "spec.additionalNetworks[].simpleMacvlanConfig.ipamConfig.staticIPAMConfig.addresses",
            atomic(),
        ),
        (
            "spec.additionalNetworks[].simpleMacvlanConfig.ipamConfig.staticIPAMConfig.routes",
            atomic(),
        ),
    ]
}

//! Networks that pods can be attached to as well (cluster-network §8).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::{
    is_zero, null_as_default,
    schemas::{self, Addition},
};

/// A network that pods can be attached to as well.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AdditionalNetwork {
    /// Raw or `SimpleMacvlan`.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Name of its `NetworkAttachmentDefinition`.
    pub name: String,
    /// Namespace of its `NetworkAttachmentDefinition`; `default` by default.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// CNI configuration of a network of type Raw, as JSON text.
    #[serde(rename = "rawCNIConfig", skip_serializing_if = "String::is_empty")]
    pub raw_cni_config: String,
    /// How a network of type `SimpleMacvlan` is set up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simple_macvlan_config: Option<SimpleMacvlanConfig>,
}

/// How a network of type `SimpleMacvlan` is set up.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SimpleMacvlanConfig {
    /// Interface of the node; the one of the default route by default.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub master: String,
    /// Where addresses come from; DHCP by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipam_config: Option<IpamConfig>,
    /// Mode of macvlan: Bridge, Private, VEPA or Passthru.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mode: String,
    /// MTU of the interface; the kernel chooses it by default.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(schema_with = "schemas::uint32")]
    pub mtu: u32,
}

/// Where addresses come from.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct IpamConfig {
    /// DHCP or Static.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Addresses that are written down here.
    #[serde(rename = "staticIPAMConfig", skip_serializing_if = "Option::is_none")]
    pub static_ipam_config: Option<StaticIpamConfig>,
}

/// Addresses that are written down here.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct StaticIpamConfig {
    /// Addresses of the interface. Without any, a pod says them in its annotation.
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
    /// The address with the length of its prefix.
    pub address: String,
    /// Gateway of the default route.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gateway: String,
}

/// A route of the pod.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct StaticIpamRoute {
    /// The block that is routed.
    pub destination: String,
    /// The gateway; that of the interface by default.
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
    /// Domain of short names.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Domains that are searched.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
}

/// What derivation does not know of the schema.
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

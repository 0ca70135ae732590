//! `NetworkAddonsConfig`: the network add-ons of a cluster and their settings (operator §1).
//!
//! Strings with an enumeration in the schema (of the TLS profile) are strings here too: a resource that was stored
//! under an older schema must be readable, so that its status can report invalid values.

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{Error, names, placement::Placement, schema};

/// Ciphers of custom TLS profiles: OpenSSL's names, and the names of TLS 1.3 (operator §1.1).
pub const CIPHERS: [&str; 21] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-CHACHA20-POLY1305",
    "ECDHE-ECDSA-AES128-SHA256",
    "ECDHE-RSA-AES128-SHA256",
    "ECDHE-ECDSA-AES128-SHA",
    "ECDHE-RSA-AES128-SHA",
    "ECDHE-ECDSA-AES256-SHA",
    "ECDHE-RSA-AES256-SHA",
    "AES128-GCM-SHA256",
    "AES256-GCM-SHA384",
    "AES128-SHA256",
    "AES128-SHA",
    "AES256-SHA",
    "DES-CBC3-SHA",
];

/// Minimum TLS versions of custom profiles.
pub const TLS_VERSIONS: [&str; 4] = ["VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];

/// Kinds of a TLS profile.
pub const TLS_PROFILE_TYPES: [&str; 4] = ["Old", "Intermediate", "Modern", "Custom"];

/// Properties of the schema that accept `null`.
const NULLABLE: [&str; 7] = [
    "tlsSecurityProfile",
    "old",
    "intermediate",
    "modern",
    "custom",
    "lastHeartbeatTime",
    "lastTransitionTime",
];

/// The add-ons to deploy. A component is deployed if its field is present, and removed when the field is removed.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "networkaddonsoperator.network.kubevirt.io",
    version = "v1",
    kind = "NetworkAddonsConfig",
    plural = "networkaddonsconfigs",
    singular = "networkaddonsconfig",
    shortname = "nac",
    status = "NetworkAddonsConfigStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name": "Available", "type": "string", "description": "True if all components are available.", "jsonPath": ".status.conditions[?(@.type=='Available')].status"}"#,
    printcolumn = r#"{"name": "Progressing", "type": "string", "description": "True during a rollout.", "jsonPath": ".status.conditions[?(@.type=='Progressing')].status"}"#,
    printcolumn = r#"{"name": "Degraded", "type": "string", "description": "True if a component failed.", "jsonPath": ".status.conditions[?(@.type=='Degraded')].status"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "description": "Operator version of the last available components.", "jsonPath": ".status.observedVersion"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "description": "Age of the configuration.", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "description": "Reason of a failure, in one word.", "jsonPath": ".status.conditions[?(@.type=='Degraded')].reason", "priority": 1}"#,
    doc = "Chooses the network add-ons of a cluster. The operator reads only the object named `cluster`."
)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkAddonsConfigSpec {
    /// Multus, which attaches pods to additional networks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multus: Option<Multus>,
    /// Attachment and detachment of networks of running pods. Requires multus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multus_dynamic_networks: Option<MultusDynamicNetworks>,
    /// CNI plugins for Linux bridges and interface tuning, and node resources for bridges.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linux_bridge: Option<LinuxBridge>,
    /// CNI plugin for Open vSwitch bridges, and node resources for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ovs: Option<Ovs>,
    /// MAC pool, which assigns unique MAC addresses to virtual machines and pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kube_mac_pool: Option<KubeMacPool>,
    /// Pull policy of the components' images: Always, Never or `IfNotPresent`, which is the default. The field is
    /// immutable once components are deployed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image_pull_policy: String,
    /// Configuration of the nodes' network interfaces by policies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nmstate: Option<NMState>,
    /// DNS server for the addresses of virtual machines on secondary networks.
    #[serde(rename = "kubeSecondaryDNS", skip_serializing_if = "Option::is_none")]
    pub kube_secondary_dns: Option<KubeSecondaryDNS>,
    /// Device plugin and CNI plugin for macvtap interfaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub macvtap: Option<Macvtap>,
    /// Persistent IP addresses of virtual machines on secondary networks, across restarts and migrations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubevirt_ipam_controller: Option<KubevirtIpamController>,
    /// Renewal intervals of self-signed certificates. All four intervals are required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_sign_configuration: Option<SelfSignConfiguration>,
    /// Placement of the components.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement_configuration: Option<PlacementConfiguration>,
    /// CNI directories of the nodes, if they differ from the directories that the operator detects. Each directory is
    /// an absolute path of letters, digits and `.`, `_`, `+`, `-`, without `..`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cni_directories: Option<CniDirectories>,
    /// TLS versions and ciphers of the components' servers. The default is the Modern profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_security_profile: Option<TlsSecurityProfile>,
}

/// Multus, which attaches pods to additional networks.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Multus {
    /// If true, pods use networks of their own namespace and of `globalNamespaces` alone. The default is false. The
    /// field has no effect on OpenShift, which deploys multus itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_isolation: Option<bool>,
    /// Namespaces whose networks all pods may use while namespaces are isolated. The default is `default`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub global_namespaces: Vec<String>,
}

/// Attachment and detachment of networks of running pods.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct MultusDynamicNetworks {
    /// Socket of the container runtime on the nodes: /run/crio/crio.sock, /run/containerd/containerd.sock,
    /// /run/k3s/containerd/containerd.sock or /var/snap/microk8s/common/run/containerd.sock. The default is the
    /// previously deployed socket, or else the socket of the runtime on the operator's node.
    #[serde(rename = "hostCRISocketPath", skip_serializing_if = "String::is_empty")]
    pub host_cri_socket_path: String,
}

/// CNI plugins for Linux bridges and interface tuning.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LinuxBridge {
    /// If true, a port with VLANs also stays in the default VLAN of its bridge, unless its network sets
    /// `preserveDefaultVlan`. The default is false; plugins up to version 1.5 behaved as with true. The field has no
    /// effect on plugins of another image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preserve_default_vlan: Option<bool>,
    /// If true, pods can get addresses by DHCP: the operator installs the IPAM plugin `dhcp` and runs its daemon on
    /// each node. The default is false. The field has no effect on plugins of another image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dhcp: Option<bool>,
}

/// CNI plugin for Open vSwitch bridges. It has no settings.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Ovs {}

/// MAC pool, which assigns unique MAC addresses to virtual machines and pods.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeMacPool {
    /// First address of the pool. Set both ends or none; the default is a random range that is chosen once and kept.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub range_start: String,
    /// Last address of the pool.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub range_end: String,
}

/// Configuration of the nodes' network interfaces by policies. It has no settings.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct NMState {}

/// DNS server for the addresses of virtual machines on secondary networks.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct KubeSecondaryDNS {
    /// Domain of the served names.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Address of the name server for clients outside of the cluster.
    #[serde(rename = "nameServerIP", skip_serializing_if = "String::is_empty")]
    pub name_server_ip: String,
    /// Seconds for which clients may cache answers, from 0 to 86400. Defaults to an hour. Only Weft's images use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<i32>,
    /// Prefixes such as 10.10.0.0/16. Only addresses in one of these prefixes are published. Without prefixes, all
    /// addresses are published. Only Weft's images use them.
    #[serde(rename = "allowedPrefixes", skip_serializing_if = "Vec::is_empty")]
    pub allowed_prefixes: Vec<String>,
    /// One process of Weft watches machines and answers queries, instead of two. It does not log queries.
    #[serde(rename = "singleProcess", skip_serializing_if = "std::ops::Not::not")]
    pub single_process: bool,
    /// Running pods of Weft apply changes of domain, nameServerIP, ttl and allowedPrefixes within two minutes, without a
    /// restart.
    #[serde(rename = "followSettings", skip_serializing_if = "std::ops::Not::not")]
    pub follow_settings: bool,
    /// Service `secondary-dns` for the name server, on port 53 over UDP and TCP. Without the field, the administrator
    /// creates a Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<KubeSecondaryDNSService>,
}

/// A Service for the name server.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeSecondaryDNSService {
    /// Type of the Service: `ClusterIP`, which is the default, `NodePort` or `LoadBalancer`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<KubeSecondaryDNSServiceType>,
    /// Port on the nodes, over UDP and TCP. The cluster chooses the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_port: Option<i32>,
}

/// The type of a Service.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum KubeSecondaryDNSServiceType {
    /// A virtual address inside of the cluster.
    ClusterIP,
    /// A port of each node.
    NodePort,
    /// An external address.
    LoadBalancer,
}

/// Device plugin and CNI plugin for macvtap interfaces.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Macvtap {
    /// Name of the ConfigMap with the interfaces that the device plugin offers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub device_plugin_config: String,
}

/// Persistent IP addresses of virtual machines on secondary networks.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct KubevirtIpamController {
    /// Namespace of the NetworkAttachmentDefinition of the default network.
    #[serde(
        rename = "defaultNetworkNADNamespace",
        skip_serializing_if = "String::is_empty"
    )]
    pub default_network_nad_namespace: String,
}

/// Renewal intervals of self-signed certificates, in the format `48h0m0s`.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SelfSignConfiguration {
    /// Lifetime of a certificate authority.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ca_rotate_interval: String,
    /// Overlap of a certificate authority with its successor.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ca_overlap_interval: String,
    /// Lifetime of a serving certificate.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cert_rotate_interval: String,
    /// Overlap of a serving certificate with its successor.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cert_overlap_interval: String,
}

/// Placement of the components.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct PlacementConfiguration {
    /// Placement of components that run once in the cluster. The default prefers control plane nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infra: Option<Placement>,
    /// Placement of components that run on each node with workloads. The default is all Linux nodes, including cordoned
    /// nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workloads: Option<Placement>,
}

/// CNI directories of the nodes.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct CniDirectories {
    /// Directory of CNI plugins, such as /opt/cni/bin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bin: Option<String>,
    /// Directory of CNI configurations, such as /etc/cni/net.d.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conf: Option<String>,
}

/// TLS versions and ciphers of servers, in the format of OpenShift's API.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct TlsSecurityProfile {
    /// Type of the profile: Old, Intermediate, Modern or Custom.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "tls_profile_type")]
    pub kind: String,
    /// The Old profile, from TLS 1.0 on. It has no settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<NoSettings>,
    /// The Intermediate profile, from TLS 1.2 on. It has no settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intermediate: Option<NoSettings>,
    /// The Modern profile, TLS 1.3. It has no settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modern: Option<NoSettings>,
    /// A custom profile. If set, it applies with every type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom: Option<CustomTlsProfile>,
}

/// A profile without settings.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct NoSettings {}

/// A custom TLS profile.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct CustomTlsProfile {
    /// Accepted ciphers, by OpenSSL's names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "ciphers")]
    pub ciphers: Vec<String>,
    /// Minimum accepted TLS version.
    #[serde(rename = "minTLSVersion", skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "tls_version")]
    pub min_tls_version: String,
}

fn tls_profile_type(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": TLS_PROFILE_TYPES })
}

fn tls_version(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": TLS_VERSIONS })
}

fn ciphers(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": {
        "type": "string", "enum": CIPHERS, "description": "Name of a cipher.",
    } })
}

/// The state of the deployment (operator §1.2).
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkAddonsConfigStatus {
    /// Version of the running operator.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operator_version: String,
    /// Operator version of the last available components.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub observed_version: String,
    /// Version of the rollout in progress.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target_version: String,
    /// State of the deployment: the conditions Available, Progressing and Degraded, and for each component a condition
    /// such as `MultusAvailable`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Containers of the deployed components, with their desired images.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<Container>,
}

/// A condition of the deployment.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition, such as Available, Progressing or Degraded.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// Reason of the status, in one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Reason of the status, as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// No longer written.
    #[serde(default)]
    pub last_heartbeat_time: Option<Time>,
    /// When the status of the condition last changed.
    #[serde(default)]
    pub last_transition_time: Option<Time>,
}

/// A container of a deployed component.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Kind of the container's object: DaemonSet or Deployment.
    pub parent_kind: String,
    /// Name of the container's object.
    pub parent_name: String,
    /// Name of the container.
    pub name: String,
    /// Image of the container.
    pub image: String,
}

/// Returns the definition of the resource. Both versions have the same schema.
///
/// # Errors
/// If the generated schema does not fit into Kubernetes' types. A test excludes this.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    use kube::CustomResourceExt;
    let texts = [
        "Chooses and configures the add-ons.",
        "The state of the deployment.",
    ];
    let mut crd = schema::finish(NetworkAddonsConfig::crd(), &NULLABLE, &texts)?;
    // The default is written explicitly: it makes an API server clear a leftover `true` of a first-generation
    // definition.
    crd.spec.preserve_unknown_fields = Some(false);
    let old: Vec<_> = crd
        .spec
        .versions
        .iter()
        .cloned()
        .map(|mut version| {
            names::NETWORK_ADDONS_OLD_VERSION.clone_into(&mut version.name);
            version.storage = false;
            version
        })
        .collect();
    crd.spec.versions.extend(old);
    Ok(crd)
}

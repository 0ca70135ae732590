//! `NetworkAddonsConfig`: which network add-ons a cluster has, and how they are set up (operator §1).
//!
//! Strings that the schema restricts to a set (the TLS profile's) stay strings here: a resource that
//! was stored under an older schema may hold values that are no longer in it, and it must still be
//! readable, so that its status can say what is wrong.

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{Error, names, placement::Placement, schema};

/// Ciphers that a custom TLS profile may name: OpenSSL's names, and the names of TLS 1.3 (operator §1.1).
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

/// TLS versions that a custom profile may name as its lowest.
pub const TLS_VERSIONS: [&str; 4] = ["VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];

/// Kinds of a TLS profile.
pub const TLS_PROFILE_TYPES: [&str; 4] = ["Old", "Intermediate", "Modern", "Custom"];

/// Properties of the schema that accept `null`; all others do not.
const NULLABLE: [&str; 7] = [
    "tlsSecurityProfile",
    "old",
    "intermediate",
    "modern",
    "custom",
    "lastHeartbeatTime",
    "lastTransitionTime",
];

/// What to deploy. A component is deployed when its field is present, and removed when the field goes.
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
    printcolumn = r#"{"name": "Available", "type": "string", "description": "Whether all components are available.", "jsonPath": ".status.conditions[?(@.type=='Available')].status"}"#,
    printcolumn = r#"{"name": "Progressing", "type": "string", "description": "Whether something is being rolled out.", "jsonPath": ".status.conditions[?(@.type=='Progressing')].status"}"#,
    printcolumn = r#"{"name": "Degraded", "type": "string", "description": "Whether something is wrong.", "jsonPath": ".status.conditions[?(@.type=='Degraded')].status"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "description": "Version of the operator whose components were last seen to be available.", "jsonPath": ".status.observedVersion"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "description": "Since when the configuration exists.", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "description": "Why something is wrong, in one word.", "jsonPath": ".status.conditions[?(@.type=='Degraded')].reason", "priority": 1}"#,
    doc = "Chooses the network add-ons of a cluster. The operator acts upon the object named `cluster` only."
)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkAddonsConfigSpec {
    /// Attaches pods to more networks than the cluster's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multus: Option<Multus>,
    /// Attaches running pods to networks and detaches them. Needs multus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multus_dynamic_networks: Option<MultusDynamicNetworks>,
    /// CNI plugins for Linux bridges and interface tuning, and node resources named after bridges.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linux_bridge: Option<LinuxBridge>,
    /// CNI plugin for Open vSwitch bridges, and node resources named after them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ovs: Option<Ovs>,
    /// Gives virtual machines and pods MAC addresses from a pool, without collisions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kube_mac_pool: Option<KubeMacPool>,
    /// When the images of the components are pulled: Always, Never or `IfNotPresent`, which is the
    /// default. It cannot be changed once components are deployed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image_pull_policy: String,
    /// Configures the network interfaces of nodes by policies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nmstate: Option<NMState>,
    /// Serves the addresses of virtual machines on secondary networks by DNS.
    #[serde(rename = "kubeSecondaryDNS", skip_serializing_if = "Option::is_none")]
    pub kube_secondary_dns: Option<KubeSecondaryDNS>,
    /// Device plugin and CNI plugin for macvtap interfaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub macvtap: Option<Macvtap>,
    /// Keeps the IP addresses of virtual machines on secondary networks over restarts and migrations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubevirt_ipam_controller: Option<KubevirtIpamController>,
    /// How often the certificates that components sign themselves are renewed. All four intervals
    /// have to be given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_sign_configuration: Option<SelfSignConfiguration>,
    /// Where the components run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement_configuration: Option<PlacementConfiguration>,
    /// Directories of CNI on the nodes, where they are not those that the operator finds out by itself.
    /// Each is an absolute path of letters, digits and `.`, `_`, `+`, `-`, without `..`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cni_directories: Option<CniDirectories>,
    /// TLS versions and ciphers that the servers of the components accept. Without it they accept
    /// what the Modern profile does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_security_profile: Option<TlsSecurityProfile>,
}

/// Attaches pods to more networks than the cluster's own. It has no settings.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Multus {}

/// Attaches running pods to networks and detaches them.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct MultusDynamicNetworks {
    /// Socket of the container runtime on the nodes: /run/crio/crio.sock, /run/containerd/containerd.sock,
    /// /run/k3s/containerd/containerd.sock or /var/snap/microk8s/common/run/containerd.sock. Without it, it is
    /// the one that was used before, else the one of the runtime of the operator's own node.
    #[serde(rename = "hostCRISocketPath", skip_serializing_if = "String::is_empty")]
    pub host_cri_socket_path: String,
}

/// CNI plugins for Linux bridges and interface tuning.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LinuxBridge {
    /// Whether a port in VLANs also stays in the default VLAN of its bridge when its network does not say
    /// `preserveDefaultVlan` itself. False by default; true is how plugins up to 1.5 behaved. It has no
    /// effect on plugins of another image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preserve_default_vlan: Option<bool>,
    /// Whether pods may get their addresses by DHCP: installs the IPAM plugin `dhcp`, and runs its daemon on
    /// each node. False by default. It has no effect on plugins of another image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dhcp: Option<bool>,
}

/// CNI plugin for Open vSwitch bridges. It has no settings.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Ovs {}

/// Gives virtual machines and pods MAC addresses from a pool.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeMacPool {
    /// First address of the pool. Both ends or none are given; without them a random range is
    /// chosen once and kept.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub range_start: String,
    /// Last address of the pool.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub range_end: String,
}

/// Configures the network interfaces of nodes by policies. It has no settings.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct NMState {}

/// Serves the addresses of virtual machines on secondary networks by DNS.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct KubeSecondaryDNS {
    /// Domain that is put behind the names that are served.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Address under which the name server is reached from outside of the cluster.
    #[serde(rename = "nameServerIP", skip_serializing_if = "String::is_empty")]
    pub name_server_ip: String,
    /// Seconds that answers may be cached, from 0 to 86400. Without it, an hour. Weft's own programs use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<i32>,
    /// Prefixes such as 10.10.0.0/16: addresses in one of them are published, and no others. Without them, all are. Weft's own
    /// programs use them.
    #[serde(rename = "allowedPrefixes", skip_serializing_if = "Vec::is_empty")]
    pub allowed_prefixes: Vec<String>,
    /// One process of Weft for both watching machines and answering, in place of two. It does not log queries.
    #[serde(rename = "singleProcess", skip_serializing_if = "std::ops::Not::not")]
    pub single_process: bool,
    /// Changes of domain, nameServerIP, ttl and allowedPrefixes are followed by running pods of Weft, within two minutes,
    /// in place of new pods.
    #[serde(rename = "followSettings", skip_serializing_if = "std::ops::Not::not")]
    pub follow_settings: bool,
    /// A Service named secondary-dns in front of the name server, on port 53 over UDP and TCP. Without it there is none,
    /// and the administrator makes one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<KubeSecondaryDNSService>,
}

/// A Service in front of the name server.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeSecondaryDNSService {
    /// How the name server is reached: only from within the cluster, which is the default, by a port of every node, or by
    /// an address of its own.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<KubeSecondaryDNSServiceType>,
    /// Port of the nodes, over UDP and TCP. The cluster chooses one where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_port: Option<i32>,
}

/// How a name server is reached.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum KubeSecondaryDNSServiceType {
    /// From within the cluster.
    ClusterIP,
    /// By a port of every node.
    NodePort,
    /// By an address of its own.
    LoadBalancer,
}

/// Device plugin and CNI plugin for macvtap interfaces.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Macvtap {
    /// Name of the ConfigMap that tells the device plugin which interfaces to offer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub device_plugin_config: String,
}

/// Keeps the IP addresses of virtual machines on secondary networks.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct KubevirtIpamController {
    /// Namespace of the NetworkAttachmentDefinition that stands for the cluster's own network.
    #[serde(
        rename = "defaultNetworkNADNamespace",
        skip_serializing_if = "String::is_empty"
    )]
    pub default_network_nad_namespace: String,
}

/// How often self-signed certificates are renewed. Intervals are written like `48h0m0s`.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SelfSignConfiguration {
    /// For how long a certificate authority is used.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ca_rotate_interval: String,
    /// For how long before its end a certificate authority overlaps with the next one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ca_overlap_interval: String,
    /// For how long a server certificate is used.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cert_rotate_interval: String,
    /// For how long before its end a server certificate overlaps with the next one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cert_overlap_interval: String,
}

/// Where the components run.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct PlacementConfiguration {
    /// Placement of what runs once for the cluster. By default control plane nodes are preferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infra: Option<Placement>,
    /// Placement of what runs on every node with workloads. By default these are all Linux nodes,
    /// cordoned ones included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workloads: Option<Placement>,
}

/// Directories of CNI on the nodes.
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

/// TLS versions and ciphers that servers accept, in the form of OpenShift's API.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct TlsSecurityProfile {
    /// Which profile is used: Old, Intermediate, Modern or Custom.
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
    /// A profile of one's own. Once given it is used whatever the type says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom: Option<CustomTlsProfile>,
}

/// Stands for a profile without settings.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct NoSettings {}

/// A TLS profile of one's own.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct CustomTlsProfile {
    /// Ciphers that are accepted, by OpenSSL's names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "ciphers")]
    pub ciphers: Vec<String>,
    /// The lowest TLS version that is accepted.
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

/// What is deployed, and how it is going (operator §1.2).
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkAddonsConfigStatus {
    /// Version of the operator that runs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operator_version: String,
    /// Version of the operator whose components were last seen to be available.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub observed_version: String,
    /// Version that the operator is bringing the components to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target_version: String,
    /// State of the deployment: Available, Progressing and Degraded, and for each component whether it alone is
    /// available, such as `MultusAvailable`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Containers of the deployed components, with the images that they are to run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<Container>,
}

/// One aspect of the state of the deployment.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Aspect: Available, Progressing or Degraded.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// Why, in one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Not written any more.
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
    /// Kind of the object that the container belongs to: DaemonSet or Deployment.
    pub parent_kind: String,
    /// Name of the object that the container belongs to.
    pub parent_name: String,
    /// Name of the container.
    pub name: String,
    /// Image of the container.
    pub image: String,
}

/// The definition of the resource in both versions, with one and the same schema.
///
/// # Errors
/// When the generated schema is not the one that Kubernetes' types can hold; a test rules it out.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    use kube::CustomResourceExt;
    let texts = [
        "Chooses and configures the add-ons.",
        "What is deployed, and how it is going.",
    ];
    let mut crd = schema::finish(NetworkAddonsConfig::crd(), &NULLABLE, &texts)?;
    // Written even though it is the default: it lets an API server clear a `true` that a definition
    // of the first generation left behind.
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

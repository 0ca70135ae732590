//! Observed state of the cluster, besides the two configurations.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{hosted::Management, ovn::observed::Observed, tls_profile::Profile};

/// The infrastructure provider of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Platform {
    /// A cluster without a provider.
    #[default]
    None,
    /// Physical machines.
    BareMetal,
    /// `vSphere`.
    VSphere,
    /// `OpenStack`.
    OpenStack,
    /// Virtual machines of another cluster.
    KubeVirt,
    /// Amazon.
    Aws,
    /// Microsoft.
    Azure,
    /// Google.
    Gcp,
    /// A provider without rules of its own, by its name.
    Other(String),
}

impl Platform {
    /// The platform of this name. An empty name means none.
    pub fn named(name: &str) -> Self {
        match name {
            "" | "None" => Self::None,
            "BareMetal" => Self::BareMetal,
            "VSphere" => Self::VSphere,
            "OpenStack" => Self::OpenStack,
            "KubeVirt" => Self::KubeVirt,
            "AWS" => Self::Aws,
            "Azure" => Self::Azure,
            "GCP" => Self::Gcp,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::BareMetal => "BareMetal",
            Self::VSphere => "VSphere",
            Self::OpenStack => "OpenStack",
            Self::KubeVirt => "KubeVirt",
            Self::Aws => "AWS",
            Self::Azure => "Azure",
            Self::Gcp => "GCP",
            Self::Other(name) => name,
        })
    }
}

/// CNI directories of the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniDirectories {
    /// Configurations for the container runtime.
    pub conf: String,
    /// Plugins.
    pub bin: String,
}

impl Default for CniDirectories {
    fn default() -> Self {
        Self {
            conf: "/etc/cni/net.d".to_owned(),
            bin: "/opt/cni/bin".to_owned(),
        }
    }
}

/// The cloud, for the controller of its private addresses (§18.5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cloud {
    /// Region of AWS or GCP.
    pub region: String,
    /// URL of the cloud's API. Empty for the default of the cloud.
    pub api_url: String,
    /// Name of the Azure cloud.
    pub azure_environment: String,
    /// Configuration of AWS or `OpenStack`, by file name.
    pub config: BTreeMap<String, String>,
}

/// Endpoint of the API server for pods of the host's network, while there are no services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiServer {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: String,
}

impl ApiServer {
    /// URL of the API server.
    pub fn url(&self) -> String {
        let Self { host, port } = self;
        if host.contains(':') {
            format!("https://[{host}]:{port}")
        } else {
            format!("https://{host}:{port}")
        }
    }
}

/// Observed state of the cluster, besides the two configurations.
#[allow(
    clippy::struct_excessive_bools,
    reason = "the flags are independent of each other"
)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The infrastructure provider.
    pub platform: Platform,
    /// The cloud.
    pub cloud: Cloud,
    /// Enabled feature gates.
    pub gates: BTreeSet<String>,
    /// MTU of the nodes in bytes, if available.
    pub host_mtu: Option<u32>,
    /// Default of `routingViaHost`: traffic leaves through the routing table of the node (§4.2).
    pub routing_via_host: bool,
    /// Number of nodes that run Linux.
    pub linux_nodes: usize,
    /// Number of control plane nodes. 0 if another cluster hosts the control plane.
    pub control_plane_nodes: usize,
    /// True if another cluster hosts the control plane.
    pub external_control_plane: bool,
    /// True if another cluster hosts the control plane, and a single node runs the workloads.
    pub single_hosted_node: bool,
    /// True if a single node runs the workloads.
    pub single_worker: bool,
    /// True if control plane nodes have the label `master`: the label of old Kubernetes versions and of OpenShift.
    pub labelled_master: bool,
    /// Endpoint of the API server.
    pub api_server: ApiServer,
    /// CNI directories of the nodes.
    pub cni: CniDirectories,
    /// True for OpenShift, with its namespaces and priorities.
    pub openshift: bool,
    /// True if the API server serves the kinds of Prometheus' operator.
    pub monitoring: bool,
    /// TLS profile that the cluster requires of all programs.
    pub tls_profile: Option<Profile>,
    /// True if a user switched iptables-alerter off.
    pub without_iptables_alerter: bool,
    /// True if the API server serves plugins of OpenShift's web console.
    pub console_plugins: bool,
    /// Certificate authorities of FRR's webhook on a plain cluster. Empty before the first one.
    pub frr_bundle: String,
    /// DaemonSet of another installer that runs kube-proxy, as `namespace/name`.
    pub foreign_kube_proxy: Option<String>,
    /// The state of OVN-Kubernetes.
    pub ovn: Observed,
    /// State of the node identity components.
    pub node_identity: NodeIdentity,
    /// Variables of the cluster-wide proxy.
    pub proxy: Vec<(&'static str, String)>,
    /// The cluster that hosts the control plane. `None` for a cluster with its own control plane.
    pub management: Option<Management>,
}

/// State of the node identity components, which give each node of OVN-Kubernetes its own user (§17.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeIdentity {
    /// True if the installation of the cluster is complete.
    pub is_bootstrapped: bool,
    /// Certificate authorities of the webhook's serving certificate. Empty before the first one.
    pub bundle: String,
    /// True if the workload is rolled out.
    pub is_rolled_out: bool,
}

impl Facts {
    /// True if a single instance of the control plane runs, so that nothing has to stay available.
    pub fn has_single_control_plane(&self) -> bool {
        match &self.management {
            Some(management) => management.control_plane.replicas == 1,
            None => self.control_plane_nodes == 1,
        }
    }

    /// True if a feature gate is enabled.
    pub fn gate(&self, name: &str) -> bool {
        self.gates.contains(name)
    }
}

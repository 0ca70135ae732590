//! What the operator knows about the cluster, apart from both configurations.

use std::{collections::BTreeSet, fmt};

use crate::ovn::observed::Observed;

/// What the machines of the cluster run on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Platform {
    /// None: a plain cluster.
    #[default]
    None,
    /// Machines of one's own.
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
    /// Another one, by its name.
    Other(String),
}

impl Platform {
    /// The platform of this name; none is named by an empty one.
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

/// Where nodes keep what CNI needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniDirectories {
    /// Configurations, which the container runtime reads.
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

/// The API server as pods of the host's network reach it before there are services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiServer {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: String,
}

/// What the operator knows about the cluster, apart from both configurations.
#[allow(
    clippy::struct_excessive_bools,
    reason = "none of them says anything about another"
)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// What the machines run on.
    pub platform: Platform,
    /// Feature gates that are on.
    pub gates: BTreeSet<String>,
    /// MTU of the nodes, where it is known.
    pub host_mtu: Option<u32>,
    /// Whether traffic leaves through the routing table of nodes, where the configuration does not say it (§4.2).
    pub routing_via_host: bool,
    /// How many nodes run Linux.
    pub linux_nodes: usize,
    /// How many nodes are of the control plane.
    pub control_plane_nodes: usize,
    /// Whether one node alone runs workloads of a cluster whose control plane is hosted by another one.
    pub single_hosted_node: bool,
    /// Whether such nodes are labelled `master`, as they were formerly, and on OpenShift still are.
    pub labelled_master: bool,
    /// How the API server is reached.
    pub api_server: ApiServer,
    /// Where nodes keep what CNI needs.
    pub cni: CniDirectories,
    /// Whether this is OpenShift, with its namespaces and priorities.
    pub openshift: bool,
    /// Whether the kinds of Prometheus' operator are served.
    pub monitoring: bool,
    /// Another DaemonSet that runs kube-proxy, as `namespace/name`.
    pub foreign_kube_proxy: Option<String>,
    /// The state of OVN-Kubernetes.
    pub ovn: Observed,
    /// How far the programs are that make each node a user.
    pub node_identity: NodeIdentity,
}

/// How far the programs are that make each node of OVN-Kubernetes a user (§17.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeIdentity {
    /// Whether the installation of the cluster is complete.
    pub is_bootstrapped: bool,
    /// Authorities of the certificate of their webhook; empty until there are any.
    pub bundle: String,
    /// Whether their `DaemonSet` is rolled out.
    pub is_rolled_out: bool,
}

impl Facts {
    /// Whether a feature gate is on.
    pub fn gate(&self, name: &str) -> bool {
        self.gates.contains(name)
    }
}

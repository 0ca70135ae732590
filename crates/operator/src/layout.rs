//! Paths of CNI plugins, CNI configurations and the socket of the container runtime on the nodes (operator §12).

use serde_json::Value;

/// Default directory of CNI plugins. Containers of upstream's images mount the node's directory here or below `/host`,
/// for any path on the node.
pub(crate) const CNI_BIN_DIR: &str = "/opt/cni/bin";
/// Default directory of CNI configurations.
const CNI_CONF_DIR: &str = "/etc/cni/net.d";

pub(crate) const CRIO_SOCKET: &str = "/run/crio/crio.sock";
pub(crate) const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";
/// Socket of the containerd of k3s and RKE2.
pub(crate) const K3S_SOCKET: &str = "/run/k3s/containerd/containerd.sock";
/// Socket of the containerd of microk8s.
pub(crate) const MICROK8S_SOCKET: &str = "/var/snap/microk8s/common/run/containerd.sock";

/// Label of microk8s' nodes.
const MICROK8S_LABEL: &str = "microk8s.io/cluster";

/// First releases of k3s, as minor version and patch, with the same directory of CNI plugins over upgrades. All higher
/// minor versions have it, no lower ones.
const K3S_STABLE_BIN_DIR: [(u32, u32); 4] = [(28, 15), (29, 10), (30, 6), (31, 2)];

/// Paths of CNI and of the container runtime on a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Layout {
    pub(crate) cni_bin_dir: &'static str,
    pub(crate) cni_conf_dir: &'static str,
    /// Socket of the container runtime, if it is known.
    pub(crate) cri_socket: Option<&'static str>,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            cni_bin_dir: CNI_BIN_DIR,
            cni_conf_dir: CNI_CONF_DIR,
            cri_socket: None,
        }
    }
}

impl Layout {
    /// Derives the layout from the node's kubelet version, runtime version and labels. An unknown distribution has the
    /// default layout.
    pub(crate) fn of(node: &Value) -> Self {
        let info = |key: &str| {
            let text = node.pointer("/status/nodeInfo").and_then(|info| info.get(key));
            text.and_then(Value::as_str).unwrap_or_default()
        };
        let (kubelet, runtime) = (info("kubeletVersion"), info("containerRuntimeVersion"));
        let labels = node.pointer("/metadata/labels");
        let microk8s = labels.is_some_and(|labels| labels.get(MICROK8S_LABEL).is_some());
        let (directories, containerd) = if kubelet.contains("+k3s") {
            (k3s(kubelet), K3S_SOCKET)
        } else if kubelet.contains("+rke2") {
            (Self::default(), K3S_SOCKET)
        } else if microk8s {
            let snap = Self {
                cni_bin_dir: "/var/snap/microk8s/current/opt/cni/bin",
                cni_conf_dir: "/var/snap/microk8s/current/args/cni-network",
                cri_socket: None,
            };
            (snap, MICROK8S_SOCKET)
        } else {
            (Self::default(), CONTAINERD_SOCKET)
        };
        let cri_socket = match runtime.split_once("://") {
            Some(("cri-o", _)) => Some(CRIO_SOCKET),
            Some(("containerd", _)) => Some(containerd),
            _ => None,
        };
        Self {
            cri_socket,
            ..directories
        }
    }
}

fn k3s(kubelet: &str) -> Layout {
    let mut numbers = kubelet.trim_start_matches('v').split(['.', '+']);
    let mut number = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    let (_, minor, patch) = (number(), number(), number());
    let stable = match (minor, patch) {
        (Some(minor), Some(patch)) => {
            let first = K3S_STABLE_BIN_DIR.iter().find(|(known, _)| *known == minor);
            first.map_or(minor > 31, |(_, first)| patch >= *first)
        }
        // A version in an unknown form is newer.
        _ => true,
    };
    Layout {
        cni_bin_dir: if stable {
            "/var/lib/rancher/k3s/data/cni"
        } else {
            "/var/lib/rancher/k3s/data/current/bin"
        },
        cni_conf_dir: "/var/lib/rancher/k3s/agent/etc/cni/net.d",
        cri_socket: None,
    }
}

#[cfg(test)]
mod tests;

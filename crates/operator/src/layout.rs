//! Paths of CNI plugins, CNI configurations and the socket of the container runtime on the nodes (operator §12).
//!
//! ```text
//! Node of the operator's pod ──> Layout ──┐
//! spec.cniDirectories ────────────────────┴──> Directories ──> volumes, mounts, multus' configuration
//! ```

use api::network_addons::NetworkAddonsConfigSpec;
use serde_json::Value;

use crate::{cluster_facts::Platform, messages::specification};

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

/// Directory of k3s' unpacked files. The links in its directories of CNI plugins point into it.
const K3S_DATA: &str = "/var/lib/rancher/k3s/data";

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

/// The directories of CNI on the nodes in use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Directories<'a> {
    /// Directory of CNI plugins.
    pub(crate) bin: &'a str,
    /// Directory of CNI configurations.
    pub(crate) conf: &'a str,
    /// Whether multus needs the directory of plugins in its configuration: it is neither the default directory nor
    /// OpenShift's, which needs upstream's configuration.
    pub(crate) moved: bool,
}

impl<'a> Directories<'a> {
    /// The directories of the specification, otherwise OpenShift's, otherwise the detected ones.
    pub(crate) fn of(spec: &'a NetworkAddonsConfigSpec, platform: Platform) -> Self {
        let layout = if platform.openshift4 {
            Layout {
                cni_bin_dir: "/var/lib/cni/bin",
                cni_conf_dir: "/etc/kubernetes/cni/net.d",
                ..platform.layout
            }
        } else {
            platform.layout
        };
        let asked = spec.cni_directories.as_ref();
        let bin = asked.and_then(|directories| directories.bin.as_deref());
        let conf = asked.and_then(|directories| directories.conf.as_deref());
        let bin = bin.map_or(layout.cni_bin_dir, |path| path.trim_end_matches('/'));
        let of_openshift = platform.openshift4 && bin == layout.cni_bin_dir;
        Self {
            bin,
            conf: conf.map_or(layout.cni_conf_dir, |path| path.trim_end_matches('/')),
            moved: bin != CNI_BIN_DIR && !of_openshift,
        }
    }

    /// A second directory that needs the same mount path as on the node, because the links in [`bin`](Self::bin) point
    /// into it.
    pub(crate) fn bin_targets(self) -> Option<&'static str> {
        let inside = self.bin.strip_prefix(K3S_DATA);
        inside
            .is_some_and(|rest| rest.starts_with('/'))
            .then_some(K3S_DATA)
    }
}

/// Allowed prefixes of `spec.cniDirectories`: the programs there run as root on the nodes. Container runtimes keep the
/// files of pods elsewhere. Another directory can be mounted or linked at `/srv/cni`.
pub(crate) const PLACES: [&str; 14] = [
    "/etc/cni",
    "/etc/kubernetes/cni",
    "/home/kubernetes",
    "/opt/cni",
    "/srv/cni",
    "/usr/lib/cni",
    "/usr/libexec/cni",
    "/usr/local/lib/cni",
    "/usr/local/libexec/cni",
    "/var/lib/cni",
    "/var/lib/rancher/k3s/agent/etc/cni",
    K3S_DATA,
    "/var/snap/microk8s/current/args",
    "/var/snap/microk8s/current/opt/cni",
];

/// Characters of a path besides letters and digits. Neither a shell nor a mount gives them a meaning.
const PUNCTUATION: &str = "._+-";

pub(crate) fn validate(spec: &NetworkAddonsConfigSpec) -> Vec<String> {
    let Some(directories) = &spec.cni_directories else {
        return Vec::new();
    };
    [("bin", &directories.bin), ("conf", &directories.conf)]
        .into_iter()
        .filter_map(|(field, path)| match path.as_deref()? {
            path if !is_directory(path) => Some(specification::cni_directory(field, path)),
            path if !is_in_place(path) => Some(specification::cni_place(field, path, &PLACES)),
            _ => None,
        })
        .collect()
}

/// Whether this is an absolute path except `/`, of harmless characters, without `.` and `..`.
fn is_directory(path: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty()
            && name != "."
            && name != ".."
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || PUNCTUATION.contains(c))
    };
    let path = path.strip_suffix('/').unwrap_or(path);
    path.strip_prefix('/')
        .is_some_and(|path| path.split('/').all(is_name))
}

/// Whether a directory is one of [`PLACES`] or below one.
fn is_in_place(path: &str) -> bool {
    PLACES.iter().any(|place| {
        path.strip_prefix(place)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

#[cfg(test)]
mod tests;

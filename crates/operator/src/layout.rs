//! Where nodes keep CNI plugins, CNI configurations and the socket of the container runtime (operator §12).
//!
//! ```text
//! Node of the operator's pod ──> Layout ──┐
//! spec.cniDirectories ────────────────────┴──> Directories ──> volumes, mounts, multus' configuration
//! ```

use api::network_addons::NetworkAddonsConfigSpec;
use serde_json::Value;

use crate::{cluster_facts::Platform, messages::specification};

/// Directory of CNI plugins where nothing says otherwise. Containers of the established images have the
/// directory mounted here, or below `/host`, wherever the host has it.
pub const CNI_BIN_DIR: &str = "/opt/cni/bin";
/// Directory of CNI configurations where nothing says otherwise.
const CNI_CONF_DIR: &str = "/etc/cni/net.d";

/// Socket of cri-o.
pub const CRIO_SOCKET: &str = "/run/crio/crio.sock";
/// Socket of containerd.
pub const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";
/// Socket of the containerd that is part of k3s and of RKE2.
pub const K3S_SOCKET: &str = "/run/k3s/containerd/containerd.sock";
/// Socket of the containerd that is part of microk8s.
pub const MICROK8S_SOCKET: &str = "/var/snap/microk8s/common/run/containerd.sock";

/// What k3s unpacks: its directories of CNI plugins have links that lead elsewhere in here.
const K3S_DATA: &str = "/var/lib/rancher/k3s/data";

/// Label by which microk8s marks its nodes.
const MICROK8S_LABEL: &str = "microk8s.io/cluster";

/// First releases of k3s, as minor version and patch, with a directory of CNI plugins that stays the same
/// over upgrades; all minor versions above have one, none below.
const K3S_STABLE_BIN_DIR: [(u32, u32); 4] = [(28, 15), (29, 10), (30, 6), (31, 2)];

/// Where a node keeps what belongs to CNI and to the container runtime.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Layout {
    /// Directory of CNI plugins.
    pub cni_bin_dir: &'static str,
    /// Directory of CNI configurations.
    pub cni_conf_dir: &'static str,
    /// Socket of the container runtime, where it is known.
    pub cri_socket: Option<&'static str>,
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
    /// The layout of a distribution of Kubernetes, recognised by what its nodes say of themselves. What is not
    /// recognised has the usual one.
    pub fn of(node: &Value) -> Self {
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
        // Whatever it is, it is new.
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

/// Directories of CNI on the host, as they are used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Directories<'a> {
    /// Directory of CNI plugins.
    pub bin: &'a str,
    /// Directory of CNI configurations.
    pub conf: &'a str,
    /// Whether multus has to be told about the directory of plugins: it is neither the usual one nor that of
    /// OpenShift, for which multus is set up as established.
    pub moved: bool,
}

impl<'a> Directories<'a> {
    /// What the specification says, else what OpenShift has, else what was found out.
    pub fn of(spec: &'a NetworkAddonsConfigSpec, platform: Platform) -> Self {
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

    /// A directory that has to be seen under the host's own name besides [`bin`](Self::bin), because links in there
    /// lead to it.
    pub fn bin_targets(self) -> Option<&'static str> {
        let inside = self.bin.strip_prefix(K3S_DATA);
        inside
            .is_some_and(|rest| rest.starts_with('/'))
            .then_some(K3S_DATA)
    }
}

/// Where `spec.cniDirectories` may lead: programs in there run as root on the nodes. Container runtimes keep what pods
/// write elsewhere. Another directory can be mounted or linked at `/srv/cni`.
pub const PLACES: [&str; 14] = [
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

/// Characters of a path besides letters and digits: none that a shell or a mount understands.
const PUNCTUATION: &str = "._+-";

/// Checks the directories of the specification.
pub fn validate(spec: &NetworkAddonsConfigSpec) -> Vec<String> {
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

/// Whether this is an absolute path, not that of the root, of harmless characters, that does not lead upwards.
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

/// Whether a directory is one of [`PLACES`] or below.
fn is_in_place(path: &str) -> bool {
    PLACES.iter().any(|place| {
        path.strip_prefix(place)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

#[cfg(test)]
mod tests;

//! Directories of CNI on the nodes: the user's, or the platform's (operator §5.1, §12).
//!
//! ```text
//! Node of the operator's pod ──> Layout ──┐
//! spec.cniDirectories ────────────────────┴──> Directories ──> volumes, mounts, multus' configuration
//! ```

use api::network_addons::NetworkAddonsConfigSpec;

use crate::{
    cluster_facts::Platform,
    layout::{CNI_BIN_DIR, Layout},
    messages::specification,
};

/// Directory of k3s' unpacked files. The links in its directories of CNI plugins point into it.
const K3S_DATA: &str = "/var/lib/rancher/k3s/data";

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

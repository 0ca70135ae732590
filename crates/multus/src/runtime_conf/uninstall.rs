//! Decides at the daemon's end whether multus is uninstalled from the cluster or the node, and leaves a note for the
//! shim in case no daemon returns (multus.md §7.6).

use crate::cluster::{Access, Cluster, ClusterView as _, LookupError, ReadError};
use crate::config::DaemonConfig;
use crate::names;
use crate::runtime_conf::own_pod::OwnPod;
use crate::runtime_conf::placement::{DaemonSet, Node};
use crate::server::socket::SocketOwnership;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_kit::client::chain;
use kube_kit::object::{DAEMON_SET, NODE};
use kube_kit::watch::Name;
use kube_kit::{path, pod};
use linux::files::identity;
use plugins::multus_shim::ended;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Timeout of the request that tests this process' access.
const REFUSAL_WAIT: Duration = Duration::from_secs(2);
/// How long to wait for the watch to report the deletion of the own pod, and the poll interval. A force-deleted pod
/// has two seconds before SIGKILL.
const END_WAIT: Duration = Duration::from_millis(1500);
const END_PAUSE: Duration = Duration::from_millis(20);
/// Timeout of the requests whether the own DaemonSet still places a pod on this node: less than the pod's grace period
/// of 10 s.
const PLACEMENT_WAIT: Duration = Duration::from_secs(7);
/// Delay before a second check confirms that it does not.
const CONFIRM_DELAY: Duration = Duration::from_secs(1);
/// Usual directories of CNI configurations on nodes.
const USUAL_DIRS: [&str; 2] = [names::CNI_CONFIG_DIR, "/etc/kubernetes/cni/net.d"];
const MOUNTS: &str = "/proc/self/mountinfo";

/// Whether multus was uninstalled from the cluster: the objects that grant access are removed before the daemon, so
/// the API server then refuses this process. `own` is the own pod, if the process authenticates by that pod's token.
pub(crate) async fn is_uninstalled(cluster: &Cluster, own: Option<&OwnPod>) -> bool {
    match cluster.access(REFUSAL_WAIT).await {
        Access::Kept => false,
        Access::Forbidden => true,
        // An expired certificate is no sign of an uninstallation.
        Access::Unknown => match own {
            Some(own) => is_deleted_gracefully(cluster, own).await,
            None => false,
        },
    }
}

/// Whether the own pod is being deleted gracefully. A token becomes invalid with its service account or with its pod.
/// A force-deleted pod is gone at once, so its daemon may only be replaced; a gracefully deleted pod exists until its
/// containers end, so its token's end means that the account was deleted. The watch continues without a valid token.
async fn is_deleted_gracefully(cluster: &Cluster, own: &OwnPod) -> bool {
    let pods = cluster.pods();
    let deadline = Instant::now() + END_WAIT;
    loop {
        match pods.get(&own.name) {
            Some(pod) if pod.uid == own.uid && pod.is_ending => return true,
            Some(pod) if pod.uid == own.uid && Instant::now() < deadline => sleep(END_PAUSE).await,
            _ => return false,
        }
    }
}

/// The fields of the own pod that name its controller.
#[derive(Debug, Deserialize)]
struct ManagedPod {
    metadata: ObjectMeta,
}

impl ManagedPod {
    /// The name of the DaemonSet that controls it, if it has this UID.
    fn daemon_set(&self, uid: &str) -> Option<&str> {
        let owners = self.metadata.owner_references.iter().flatten();
        let mut controllers = owners.filter(|owner| owner.controller == Some(true));
        let owner = controllers.find(|owner| owner.kind == DAEMON_SET.kind)?;
        (self.metadata.uid.as_deref() == Some(uid)).then_some(owner.name.as_str())
    }
}

/// Whether no other daemon will come to this node: the own DaemonSet is deleted, or no longer places a pod here. False
/// for a rolling update, and whenever the API server does not answer in time.
pub(crate) async fn is_leaving_node(cluster: &Cluster, node: Option<&str>, own: Option<&OwnPod>) -> bool {
    let (Some(node), Some(own)) = (node, own) else {
        return false;
    };
    match timeout(PLACEMENT_WAIT, is_unscheduled(cluster, node, own)).await {
        Ok(Ok(unwanted)) => unwanted,
        Ok(Err(error)) => {
            tracing::info!(%error, "cannot determine whether the DaemonSet still places a pod on this node");
            false
        }
        Err(_) => {
            tracing::info!("cannot determine in time whether the DaemonSet still places a pod on this node");
            false
        }
    }
}

async fn is_unscheduled(cluster: &Cluster, node: &str, own: &OwnPod) -> Result<bool, LookupError> {
    let pod: ManagedPod = parse(&cluster.read(&pod::path(&own.name)?).await?)?;
    let Some(name) = pod.daemon_set(&own.uid) else {
        return Ok(false);
    };
    let daemon_set = DAEMON_SET.path_of(&Name::new(own.name.namespace.as_str(), name))?;
    let node = format!("{}/{}", NODE.path(None), path::segment(node)?);
    if !places_none(cluster, &daemon_set, &node).await? {
        return Ok(false);
    }
    // A DaemonSet may be deleted and created again.
    sleep(CONFIRM_DELAY).await;
    places_none(cluster, &daemon_set, &node).await
}

/// Whether the DaemonSet (an API path) is gone, or places no pod on the node (an API path).
async fn places_none(cluster: &Cluster, daemon_set: &str, node: &str) -> Result<bool, LookupError> {
    let (daemon_set, node) = tokio::join!(cluster.read(daemon_set), cluster.read(node));
    let daemon_set: DaemonSet = match daemon_set {
        Ok(text) => parse(&text)?,
        Err(ReadError::NotFound(_)) => return Ok(true),
        Err(error) => return Err(error.into()),
    };
    let node: Node = parse(&node?)?;
    Ok(!daemon_set.wants(&node))
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, LookupError> {
    serde_json::from_str(text).map_err(|error| LookupError(error.to_string()))
}

/// Writes the note that this daemon ended in order and kept `00-multus.conf`, if the file exists.
pub(crate) fn leave_note(config: &DaemonConfig, ownership: &SocketOwnership) {
    // If another daemon took over, the file is its own.
    if !config.conf_file().exists() || !ownership.is_ours() {
        return;
    }
    let Some(dir) = host_dir(config) else {
        tracing::warn!(
            dir = %config.cni_config_dir.display(),
            "cannot find this directory on the host: 00-multus.conf will not be removed if multus is uninstalled from this node"
        );
        return;
    };
    let file = dir.join(names::CONF_FILE);
    if let Err(error) = ended::leave(&config.socket_dir, &file, ended::since_boot()) {
        tracing::error!(%error, "cannot write the end note: 00-multus.conf will not be removed if multus is uninstalled from this node");
    }
}

/// Removes the note of an earlier daemon.
pub(crate) fn remove_note(config: &DaemonConfig) {
    if let Err(error) = ended::remove(&config.socket_dir) {
        tracing::error!(error = %chain(&error), "cannot remove the end note of an earlier daemon");
    }
}

/// The host's path of `cniConfigDir`: the candidate that is the same directory.
fn host_dir(config: &DaemonConfig) -> Option<PathBuf> {
    let root = config.chroot_dir.as_deref().unwrap_or(Path::new("/"));
    let dir = fs::canonicalize(&config.cni_config_dir).ok()?;
    let mounts = fs::read_to_string(MOUNTS).unwrap_or_default();
    // Without a container, the path is the same.
    let candidates = [mounted_dir(&mounts, &dir), Some(dir.as_path())];
    let candidates = USUAL_DIRS
        .iter()
        .map(Path::new)
        .chain(candidates.into_iter().flatten());
    same_dir(root, &dir, candidates)
}

fn same_dir<'a>(root: &Path, dir: &Path, mut candidates: impl Iterator<Item = &'a Path>) -> Option<PathBuf> {
    let wanted = identity(dir)?;
    let found = candidates.find(|candidate| {
        let below = candidate.strip_prefix("/").unwrap_or(candidate);
        identity(&root.join(below)) == Some(wanted)
    });
    found.map(Path::to_owned)
}

/// The directory of its file system that is mounted at `dir`, often its path on the host (`proc_pid_mountinfo(5)`,
/// fields 4 and 5). Names with spaces are escaped there and not found.
fn mounted_dir<'a>(mounts: &'a str, dir: &Path) -> Option<&'a Path> {
    let mut mounted = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(3);
        Some((fields.next()?, fields.next()?))
    });
    // The last mount hides earlier ones.
    let root = mounted.rfind(|(_, point)| Path::new(point) == dir);
    root.map(|(root, _)| Path::new(root))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const MOUNTINFO: &str = "\
        22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\
        610 22 254:1 /first /host/etc/cni/net.d rw - ext4 /dev/vda1 rw\n\
        611 22 254:1 /opt/cni/net.d /host/etc/cni/net.d rw,relatime master:1 - ext4 /dev/vda1 rw\n\
        short\n";

    #[test]
    fn daemon_set_is_controller_of_pod() {
        // multus#114
        let name = |owners: serde_json::Value, uid: &str| {
            let pod = json!({"metadata": {"uid": "u", "ownerReferences": owners}});
            let pod: ManagedPod = serde_json::from_value(pod).unwrap();
            pod.daemon_set(uid).map(str::to_owned)
        };
        let owner = |kind: &str, controller: bool| json!({"apiVersion": "apps/v1", "kind": kind, "name": "multus", "uid": "s", "controller": controller});
        let daemon_set = || json!([owner("ConfigMap", false), owner("DaemonSet", true)]);
        assert_eq!(name(daemon_set(), "u").as_deref(), Some("multus"));
        assert_eq!(name(daemon_set(), "another pod"), None);
        assert_eq!(name(json!([owner("DaemonSet", false)]), "u"), None);
        assert_eq!(name(json!([owner("ReplicaSet", true)]), "u"), None);
        assert_eq!(name(json!([]), "u"), None);
    }

    #[test]
    fn mounted_directory_is_found() {
        let dir = |path: &str| mounted_dir(MOUNTINFO, Path::new(path)).map(Path::to_owned);
        assert_eq!(dir("/host/etc/cni/net.d"), Some("/opt/cni/net.d".into()));
        assert_eq!(dir("/"), Some("/".into()));
        assert_eq!(dir("/host/etc/cni"), None);
    }

    #[test]
    fn host_path_is_same_directory() {
        let host = tempfile::tempdir().unwrap();
        let (usual, other) = (
            host.path().join("etc/cni/net.d"),
            host.path().join("etc/kubernetes/cni/net.d"),
        );
        fs::create_dir_all(&usual).unwrap();
        fs::create_dir_all(&other).unwrap();
        let config = |dir: &Path| {
            let text = json!({"chrootDir": host.path(), "cniConfigDir": dir}).to_string();
            DaemonConfig::parse(text.as_bytes()).unwrap()
        };
        assert_eq!(host_dir(&config(&usual)), Some("/etc/cni/net.d".into()));
        assert_eq!(
            host_dir(&config(&other)),
            Some("/etc/kubernetes/cni/net.d".into())
        );
        let elsewhere = tempfile::tempdir().unwrap();
        assert_eq!(host_dir(&config(elsewhere.path())), None);
        assert_eq!(host_dir(&config(&host.path().join("no"))), None);
        // Found by its mount.
        let dir = host.path().join("opt/cni/net.d");
        fs::create_dir_all(&dir).unwrap();
        let mounted = mounted_dir(MOUNTINFO, Path::new("/host/etc/cni/net.d"));
        assert_eq!(
            same_dir(host.path(), &dir, mounted.into_iter()),
            Some("/opt/cni/net.d".into())
        );
    }
}

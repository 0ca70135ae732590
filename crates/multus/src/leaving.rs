//! The end of a daemon: whether multus was removed from the cluster or leaves the node, and what is left for the shim,
//! should the daemon never come back (multus.md §7.6).

use crate::cluster::{Access, Cluster, ClusterView as _, LookupError, ReadError};
use crate::daemon_config::DaemonConfig;
use crate::names;
use crate::own_pod::OwnPod;
use crate::placement::{DaemonSet, Node};
use crate::socket::{Place, identity};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_kit::client::chain;
use kube_kit::object::{DAEMON_SET, NODE};
use kube_kit::watch::Name;
use kube_kit::{path, pod};
use plugins::multus_shim::ended;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How long the API server may take to say that we have no access any more: only then multus was removed.
const REFUSAL_WAIT: Duration = Duration::from_secs(2);
/// How long the watch may take to say that our pod ends, or has ended, and how often it is looked at. Whose pod is
/// deleted by force has two seconds in all.
const END_WAIT: Duration = Duration::from_millis(1500);
const END_PAUSE: Duration = Duration::from_millis(20);
/// How long the API server may take to say whether our DaemonSet still wants a pod on this node: less than the pod's
/// grace period of 10 s.
const PLACEMENT_WAIT: Duration = Duration::from_secs(7);
/// How long after the first look a second one confirms that it does not.
const SECOND_LOOK: Duration = Duration::from_secs(1);
/// Where nodes have their CNI configurations.
const USUAL_DIRS: [&str; 2] = [names::CNI_CONFIG_DIR, "/etc/kubernetes/cni/net.d"];
const MOUNTS: &str = "/proc/self/mountinfo";

/// Whether multus was removed from the cluster, and not only this daemon from its node: the API server refuses us once
/// the objects are gone that gave us access, and they go before the daemon. `own` is our pod where we are known by its
/// token.
pub(crate) async fn is_removed(cluster: &Cluster, own: Option<&OwnPod>) -> bool {
    match cluster.access(REFUSAL_WAIT).await {
        Access::Kept => false,
        Access::Forbidden => true,
        // The end of a certificate says nothing about multus.
        Access::Unknown => match own {
            Some(own) => ends_in_order(cluster, own).await,
            None => false,
        },
    }
}

/// Whether our pod was deleted and is still there. A token ends with its account, and with its pod: whoever deletes a pod
/// by force takes the token from a daemon that is only replaced. A pod that is deleted in order stays until its
/// containers have ended, so that the end of its token is that of the account. The watch goes on without a token.
async fn ends_in_order(cluster: &Cluster, own: &OwnPod) -> bool {
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

/// Our pod, as far as it says who manages it.
#[derive(Debug, Deserialize)]
struct ManagedPod {
    metadata: ObjectMeta,
}

impl ManagedPod {
    /// The name of the DaemonSet that manages it, if it is the pod with this UID.
    fn daemon_set(&self, uid: &str) -> Option<&str> {
        let owners = self.metadata.owner_references.iter().flatten();
        let mut controllers = owners.filter(|owner| owner.controller == Some(true));
        let owner = controllers.find(|owner| owner.kind == DAEMON_SET.kind)?;
        (self.metadata.uid.as_deref() == Some(uid)).then_some(owner.name.as_str())
    }
}

/// Whether no other daemon comes to this node: our DaemonSet is deleted, or does not want a pod here any more. A rolling
/// update is neither. No whenever the API server does not say so in time.
pub(crate) async fn is_unwanted(cluster: &Cluster, node: Option<&str>, own: Option<&OwnPod>) -> bool {
    let (Some(node), Some(own)) = (node, own) else {
        return false;
    };
    match timeout(PLACEMENT_WAIT, has_no_place(cluster, node, own)).await {
        Ok(Ok(unwanted)) => unwanted,
        Ok(Err(error)) => {
            tracing::info!(%error, "cannot read whether the DaemonSet still wants a pod on this node");
            false
        }
        Err(_) => {
            tracing::info!("no answer in time whether the DaemonSet still wants a pod on this node");
            false
        }
    }
}

async fn has_no_place(cluster: &Cluster, node: &str, own: &OwnPod) -> Result<bool, LookupError> {
    let pod: ManagedPod = parse(&cluster.read(&pod::path(&own.name)?).await?)?;
    let Some(name) = pod.daemon_set(&own.uid) else {
        return Ok(false);
    };
    let daemon_set = DAEMON_SET.path_of(&Name::new(own.name.namespace.as_str(), name))?;
    let node = format!("{}/{}", NODE.path(None), path::segment(node)?);
    if !wants_none(cluster, &daemon_set, &node).await? {
        return Ok(false);
    }
    // A DaemonSet may be deleted to be created again.
    sleep(SECOND_LOOK).await;
    wants_none(cluster, &daemon_set, &node).await
}

/// Whether the DaemonSet at a path of the API server is gone, or wants no pod on the node at the other path.
async fn wants_none(cluster: &Cluster, daemon_set: &str, node: &str) -> Result<bool, LookupError> {
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

/// Leaves the note that the daemon of this place ends orderly and keeps `00-multus.conf`, if it is there.
pub(crate) fn leave_note(config: &DaemonConfig, place: &Place) {
    // A daemon that took our place in the meantime keeps the file.
    if !config.conf_file().exists() || !place.is_ours() {
        return;
    }
    let Some(dir) = host_dir(config) else {
        tracing::warn!(
            dir = %config.cni_config_dir.display(),
            "not known where the host has this directory: 00-multus.conf stays if multus leaves this node"
        );
        return;
    };
    let file = dir.join(names::CONF_FILE);
    if let Err(error) = ended::leave(&config.socket_dir, &file, ended::since_boot()) {
        tracing::error!(%error, "cannot note the end: 00-multus.conf stays if multus leaves this node");
    }
}

/// Removes the note of an earlier daemon.
pub(crate) fn remove_note(config: &DaemonConfig) {
    if let Err(error) = ended::remove(&config.socket_dir) {
        tracing::error!(error = %chain(&error), "cannot remove the note of an earlier daemon");
    }
}

/// `cniConfigDir` as the host sees it: of the paths that it may have the one that is the same directory.
fn host_dir(config: &DaemonConfig) -> Option<PathBuf> {
    let root = config.chroot_dir.as_deref().unwrap_or(Path::new("/"));
    let dir = fs::canonicalize(&config.cni_config_dir).ok()?;
    let mounts = fs::read_to_string(MOUNTS).unwrap_or_default();
    // Without a container it is simply there.
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

/// Which directory of its file system is mounted at `dir`: often its path on the host (`proc_pid_mountinfo(5)`, fields
/// 4 and 5). Names with blanks are written otherwise there and not found.
fn mounted_dir<'a>(mounts: &'a str, dir: &Path) -> Option<&'a Path> {
    let mut mounted = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(3);
        Some((fields.next()?, fields.next()?))
    });
    // The last one hides those before it.
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
    fn the_daemon_set_of_a_pod_is_its_controller() {
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
    fn what_is_mounted_where() {
        let dir = |path: &str| mounted_dir(MOUNTINFO, Path::new(path)).map(Path::to_owned);
        assert_eq!(dir("/host/etc/cni/net.d"), Some("/opt/cni/net.d".into()));
        assert_eq!(dir("/"), Some("/".into()));
        assert_eq!(dir("/host/etc/cni"), None);
    }

    #[test]
    fn the_hosts_path_is_the_one_that_is_the_same_directory() {
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

//! `00-multus.conf`, the CNI configuration that makes the runtime call the shim.
//!
//! ```text
//! primary CNI configuration ──inotify──> conf_keeper ──> conf_file ──> 00-multus.conf
//! SIGTERM ──> uninstall <── access (own_pod), placement ──> remove the file, or leave a note for the shim
//! ```
//!
//! # Lifetime of `00-multus.conf`
//!
//! The file makes the runtime call the shim, so it is written once the API serves. It is kept when the daemon ends: during
//! a restart or a rolling update the shim waits, whereas without the file pods would become ready without their secondary
//! networks. It is removed when multus is uninstalled from the cluster or from the node. At SIGTERM the daemon checks
//! both with the API server:
//!
//! - Access. The objects that grant access (binding, service account) are removed before the DaemonSet, so 401 or 403
//!   means that multus was uninstalled from the cluster.
//! - Placement. The DaemonSet is gone, or would create no pod on this node.
//!
//! In every other case, including no answer, the file is kept, although multus may have been uninstalled. So the daemon
//! leaves a note beside the socket, with the time and the file's path on the host, and the shim removes note and file when
//! no daemon has answered for long after that time ([`plugins::multus_shim::ended`]). A starting daemon listens, then
//! removes the note, then writes the file: a shim that decided earlier either finds the socket answering, or removes a file
//! that is written again. A killed daemon leaves no note, and the file is kept.

pub(crate) mod conf_file;
pub(crate) mod conf_keeper;
mod own_pod;
mod placement;
pub(crate) mod uninstall;

pub use own_pod::OwnPod;

use crate::Stop;
use crate::cluster::Cluster;
use crate::config::{ConfSource, DaemonConfig};
use crate::names;
use crate::server::Phase;
use crate::server::socket::SocketOwnership;
use conf_keeper::{ConfKeeper, Ended};
use std::sync::Arc;
use tokio::sync::watch;

/// Starts to serve ADD once the default network is ready, and keeps the runtime's configuration. Returns only errors.
pub(crate) async fn keep(
    config: &Arc<DaemonConfig>,
    phase: &watch::Sender<Phase>,
    ownership: &SocketOwnership,
) -> Result<(), Stop> {
    if config.conf_source != ConfSource::Auto {
        if let Err(error) = conf_keeper::copy_provided(config) {
            tracing::error!(error = %kube_kit::client::chain(&error), "cannot copy the provided configuration");
        }
        phase.send_replace(Phase::Serving);
        return futures::future::pending().await;
    }
    let found = ConfKeeper::find(Arc::clone(config)).await;
    let mut keeper = found.map_err(|error| Stop {
        code: error.exit_code(),
        cause: error.into(),
    })?;
    phase.send_replace(Phase::Serving);
    keeper.write().map_err(|error| Stop {
        code: 3,
        cause: error.into(),
    })?;
    match keeper.keep().await {
        Ended::ReadinessLost => {
            if !ownership.is_taken() {
                remove_conf(config);
            }
            Err(Stop {
                code: 2,
                cause: anyhow::anyhow!("the default network is no longer ready"),
            })
        }
    }
}

fn remove_conf(config: &DaemonConfig) {
    if let Err(error) = conf_keeper::remove(config) {
        tracing::error!(error = %kube_kit::client::chain(&error), "cannot remove 00-multus.conf");
    }
}

/// Removes `00-multus.conf` if no other daemon will come, else leaves a note for the shim.
pub(crate) async fn leave(
    config: &DaemonConfig,
    cluster: &Cluster,
    node: Option<&str>,
    own: Option<&OwnPod>,
    ownership: &SocketOwnership,
) {
    let (removed, unwanted) = if ownership.is_taken() {
        (false, false)
    } else {
        tokio::join!(
            uninstall::is_uninstalled(cluster, own),
            uninstall::is_leaving_node(cluster, node, own)
        )
    };
    // Another daemon may have taken over in the meantime.
    if ownership.is_taken() {
        tracing::info!("another daemon took over: keeping {}", names::CONF_FILE);
    } else if removed {
        tracing::info!(
            "multus was uninstalled from the cluster: removing {}",
            names::CONF_FILE
        );
        remove_conf(config);
    } else if unwanted {
        tracing::info!(
            "multus is uninstalled from this node: removing {}",
            names::CONF_FILE
        );
        remove_conf(config);
    } else {
        tracing::info!("keeping {} for the next daemon", names::CONF_FILE);
        uninstall::leave_note(config, ownership);
    }
}

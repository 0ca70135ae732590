//! `weft macvtap-device-plugin`: offers macvtaps on the node's links as devices of kubelet, which pods request
//! (cni-plugins.md §11.1).
//!
//! ```text
//! DP_MACVTAP_CONF ──> resources ──┐
//! link events ──> lower devices ──┼─ keeper ──> one plugin per resource, on its own socket
//! inotify ──> kubelet.sock ───────┘                │ register, ListAndWatch          ↑ Allocate
//!                                                  └──────────> kubelet ─────────────┘
//! Allocate ──> link mvt… on the lower device ──> /dev/tapN ──> container
//! ```
//!
//! The CNI plugin `macvtap` moves the link into the pod. At its start, the device plugin deletes leftover macvtaps that
//! no pod uses.

pub mod api;
mod config;
mod device;
mod keeper;
mod links;
mod names;
mod plugin;
mod resource;
mod service;
mod socket;
mod sweep;

pub use config::{Config, Error as InvalidConfig};
pub use plugin::Directories;
pub use resource::{Resource, UnknownMode};

use anyhow::Context;
use clap::Args as ClapArgs;
use keeper::Keeper;
use kube_kit::shutdown::Shutdown;
use links::Links;
use program::glog;
use std::path::PathBuf;
use tokio::signal::unix::{SignalKind, signal};

/// Offer macvtaps on the links of this node as devices of kubelet
///
/// The environment variable DP_MACVTAP_CONF names the resources:
///
///   [{"name": "dataplane", "lowerDevice": "eth1", "mode": "bridge", "capacity": 50}]
///
/// With an empty list, each network card and each bond becomes a resource with its name.
/// Pods request macvtap.network.kubevirt.io/<name>.
#[derive(Debug, Clone, ClapArgs)]
#[command(verbatim_doc_comment)]
#[allow(clippy::doc_markdown, reason = "clap prints the text verbatim")]
pub struct Args {
    /// Directory of kubelet's socket kubelet.sock
    #[arg(long, value_name = "DIR", default_value = names::KUBELET_DIR)]
    pub kubelet_dir: PathBuf,

    /// Directory of the node's devices
    #[arg(long, value_name = "DIR", default_value = names::DEVICE_DIR)]
    pub device_dir: PathBuf,

    #[command(flatten)]
    #[allow(missing_docs, reason = "accepted and ignored")]
    pub log_flags: glog::Flags,
}

/// Serves until SIGTERM, SIGINT or SIGQUIT, and then removes the sockets.
///
/// # Errors
/// If the configuration is missing or invalid, or the kernel refuses a subscription. A missing kubelet is no error: the
/// plugin waits.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        kubelet_dir,
        device_dir,
        log_flags: _,
    } = args;
    let config = Config::parse(std::env::var_os(names::CONFIG).as_deref())?;
    let directories = Directories {
        kubelet_dir,
        device_dir,
    };
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    let mut quit = signal(SignalKind::quit()).context("cannot listen for signals")?;
    let flag = shutdown.clone();
    tokio::spawn(async move {
        quit.recv().await;
        flag.trigger();
    });
    serve(config, directories, &shutdown).await
}

/// Serves the resources of a configuration on the links in the network namespace of the calling thread, until
/// `shutdown`.
///
/// # Errors
/// If the kernel refuses a subscription.
pub async fn serve(config: Config, directories: Directories, shutdown: &Shutdown) -> anyhow::Result<()> {
    let links = Links::open(&config)?;
    sweep::sweep(&directories);
    let mut keeper = Keeper::new(config, directories, links);
    let outcome = tokio::select! {
        outcome = keeper.run() => outcome,
        () = shutdown.wait() => Ok(()),
    };
    keeper.stop().await;
    outcome
}

//! `weft macvtap-device-plugin`: offers macvtaps on the node's links as devices, so that pods request them and kubelet
//! hands out their files (cni-plugins.md §11.1).
//!
//! ```text
//! DP_MACVTAP_CONF ──> resources ──┐
//! link events ──> lower devices ──┼─ keeper ──> one plugin per resource, on a socket of its own
//! inotify ──> kubelet.sock ───────┘                │ register, ListAndWatch          ↑ Allocate
//!                                                  └──────────> kubelet ─────────────┘
//! Allocate ──> link mvt… on the lower device ──> /dev/tapN ──> container
//! ```
//!
//! The CNI plugin `macvtap` moves the link into the pod. Macvtaps that no pod got are deleted at the start.

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
pub use plugin::Places;
pub use resource::{Resource, UnknownMode};

use anyhow::Context;
use clap::Args as ClapArgs;
use keeper::Keeper;
use kube_kit::shutdown::Shutdown;
use links::Links;
use program::glog;
use std::path::PathBuf;
use tokio::signal::unix::{SignalKind, signal};

/// Offer macvtaps on the links of this node to pods, as devices of kubelet
///
/// The environment variable DP_MACVTAP_CONF names the resources:
///
///   [{"name": "dataplane", "lowerDevice": "eth1", "mode": "bridge", "capacity": 50}]
///
/// With an empty list, each network card and bond becomes a resource of its name.
/// Pods request macvtap.network.kubevirt.io/<name>.
#[derive(Debug, Clone, ClapArgs)]
#[command(verbatim_doc_comment)]
#[allow(clippy::doc_markdown, reason = "the text is shown as it is")]
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

/// Serves until SIGTERM, SIGINT or SIGQUIT. The sockets are gone afterwards.
///
/// # Errors
/// When the configuration is missing or broken, or the kernel refuses events. A missing kubelet is no error: the plugin
/// waits for it.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        kubelet_dir,
        device_dir,
        log_flags: _,
    } = args;
    let config = Config::parse(std::env::var_os(names::CONFIG).as_deref())?;
    let places = Places {
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
    serve(config, places, &shutdown).await
}

/// Serves the resources of a configuration on the links of the calling thread's network namespace until `shutdown`.
///
/// # Errors
/// When the kernel refuses events.
pub async fn serve(config: Config, places: Places, shutdown: &Shutdown) -> anyhow::Result<()> {
    let links = Links::open(&config)?;
    sweep::sweep(&places.kubelet_dir);
    let mut keeper = Keeper::new(config, places, links);
    let outcome = tokio::select! {
        outcome = keeper.run() => outcome,
        () = shutdown.wait() => Ok(()),
    };
    keeper.stop().await;
    outcome
}

//! `weft ovs-marker`: one resource `ovs-cni.network.kubevirt.io/<bridge>` per bridge of Open vSwitch on the node
//! (cni-plugins.md §10.9).
//!
//! ```text
//! ovsdb-server ──updates──> thread ──names──> marker ──> PATCH nodes/<name>/status
//!                                     └─ every health interval ──> /tmp/healthy
//! ```
//!
//! The database server reports changes of its table of bridges, and each one causes a patch at once. While the server
//! is away, the node keeps what it advertises, and the thread connects again with back-off. Once the directory of the
//! server's socket was deleted, the program ends: only a new container sees the directory in its place.

mod bridges;
mod health;
mod names;
mod settings;

pub use bridges::Bridges;
pub use settings::{InvalidSettings, Settings};

use crate::marker::{Marker, Target};
use crate::names::{RECONCILE_INTERVAL, UPDATE_INTERVAL};
use anyhow::Context;
use clap::Args as ClapArgs;
use kube_kit::client;
use kube_kit::kube::Client;
use kube_kit::shutdown::Shutdown;
use program::glog;
use std::path::{Path, PathBuf};

/// Advertise the bridges of Open vSwitch on this node, so that pods are scheduled where their network is
///
/// Each bridge becomes a resource ovs-cni.network.kubevirt.io/<bridge> in the node's capacity. Pods that ask for it run
/// only on nodes that have the bridge.
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// Name of the node that this runs on
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,

    /// Socket of the database of Open vSwitch: unix:<path>, a path, or tcp:<ip>:<port>
    #[arg(long, value_name = "ADDRESS")]
    pub ovs_socket: Option<String>,

    /// Maximum back-off of failed requests and connections, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = UPDATE_INTERVAL)]
    pub update_interval: u64,

    /// Maximum time until a change of the node's capacity by another client is repaired, in minutes
    #[arg(long, value_name = "MINUTES", default_value_t = RECONCILE_INTERVAL)]
    pub reconcile_interval: u64,

    /// Interval of touching /tmp/healthy, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = names::HEALTH_INTERVAL)]
    pub healthcheck_interval: u64,

    /// Fail unless /tmp/healthy is younger than two minutes, and do nothing else: for the liveness probe
    #[arg(long)]
    pub check: bool,

    /// Kubeconfig file, outside a pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    #[allow(missing_docs, reason = "accepted and ignored")]
    pub log_flags: glog::Flags,
}

/// Marks the node until SIGTERM. The advertised resources stay afterwards. With `check`, it checks the file of a
/// running marker instead.
///
/// # Errors
/// If a flag is invalid, the file of the probes cannot be written, or there is no cluster configuration. A failing API
/// server or database server is not an error: the marker retries with back-off. A deleted directory of the database's
/// socket is one. With `check`, if the file is too old.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let file = Path::new(names::HEALTH_FILE);
    if args.check {
        return Ok(health::check(file)?);
    }
    let kubeconfig = args.kubeconfig.clone();
    let settings = Settings::try_from(args)?;
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    health::touch(file)?;
    let client = client::client_from(names::COMPONENT, kubeconfig.as_deref()).await?;
    let bridges = Bridges::follow(&settings)?;
    tokio::select! {
        outcome = mark(&settings, client, bridges) => outcome,
        error = health::keep(file, settings.health_interval) => Err(error.into()),
        () = shutdown.wait() => Ok(()),
    }
}

/// Keeps the node's capacity equal to the bridges, for ever.
///
/// # Errors
/// Only if the thread that follows the bridges has ended.
pub async fn mark(settings: &Settings, client: Client, bridges: Bridges) -> anyhow::Result<()> {
    let target = Target {
        node: &settings.node,
        prefix: names::RESOURCE_PREFIX,
        update_interval: settings.update_interval,
        reconcile_interval: settings.reconcile_interval,
    };
    Marker::new(target, client).run(bridges).await
}

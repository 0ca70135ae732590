//! `weft bridge-marker`: one resource `bridge.network.kubevirt.io/<bridge>` per Linux bridge of the node's network
//! namespace (cni-plugins.md §12).
//!
//! A link event of the kernel causes a patch at once; the node is read at the start and at every reconcile interval, to
//! repair changes by other clients. Without a difference nothing is sent.

mod bridges;
mod names;
mod settings;

pub use bridges::Bridges;
pub use settings::{InvalidSettings, Settings};

use crate::marker::{Marker, Target};
use crate::names::{RECONCILE_INTERVAL, UPDATE_INTERVAL};
use anyhow::Context;
use bridges::Following;
use clap::Args as ClapArgs;
use kube_kit::client;
use kube_kit::kube::Client;
use kube_kit::serve::{self, Readiness, Server};
use kube_kit::shutdown::Shutdown;
use program::glog;
use std::path::PathBuf;

/// Advertise the Linux bridges of this node, so that pods are scheduled where their network is
///
/// Each bridge becomes a resource bridge.network.kubevirt.io/<bridge> in the node's capacity. Pods that ask for it run
/// only on nodes that have the bridge.
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// Name of the node that this runs on
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,

    /// Maximum back-off of failed requests, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = UPDATE_INTERVAL)]
    pub update_interval: u64,

    /// Maximum time until a change of the node's capacity by another client is repaired, in minutes
    #[arg(long, value_name = "MINUTES", default_value_t = RECONCILE_INTERVAL)]
    pub reconcile_interval: u64,

    /// Port of GET /healthz, 1 to 65535
    #[arg(long, value_name = "PORT", default_value_t = names::HEALTH_PORT, allow_negative_numbers = true)]
    pub health_probe_port: i64,

    /// Kubeconfig file, outside a pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    #[allow(missing_docs, reason = "accepted and ignored")]
    pub log_flags: glog::Flags,
}

/// Marks the node until SIGTERM. The advertised resources stay afterwards.
///
/// # Errors
/// If a flag is invalid, the port cannot be opened, there is no cluster configuration, or the kernel refuses link
/// events. A failing API server is not an error: requests are retried.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let kubeconfig = args.kubeconfig.clone();
    let settings = Settings::try_from(args)?;
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    // Both probes succeed while the process works: a restart does not help against a failing API server.
    let readiness = Readiness::new();
    readiness.set(true);
    let server = Server::on_port(settings.health_port.get(), serve::probes(readiness)).await?;
    let client = client::client_from(names::COMPONENT, kubeconfig.as_deref()).await?;
    let bridges = Bridges::open()?;
    let outcome = tokio::select! {
        outcome = mark(&settings, client, bridges) => outcome,
        () = shutdown.wait() => Ok(()),
    };
    server.stop().await;
    outcome
}

/// Keeps the node's capacity equal to the bridges, for ever.
///
/// # Errors
/// Only if the kernel refuses link events.
pub async fn mark(settings: &Settings, client: Client, bridges: Bridges) -> anyhow::Result<()> {
    let target = Target {
        node: &settings.node,
        prefix: names::RESOURCE_PREFIX,
        update_interval: settings.update_interval,
        reconcile_interval: settings.reconcile_interval,
    };
    Marker::new(target, client)
        .run(Following::try_from(bridges)?)
        .await
}

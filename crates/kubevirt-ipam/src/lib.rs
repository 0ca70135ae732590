//! `weft kubevirt-ipam`: addresses that virtual machines keep (`docs/behaviour/kubevirt-ipam.md`).
//!
//! ```text
//! VirtualMachines, instances ─┐           ┌─> controller: plan ──> reconcile ──> IPAMClaims, events    (one replica)
//! NetworkAttachmentDefinitions┼─> State ──┤       ▲
//! IPAMClaims ─────────────────┘           │       └── election: Lease
//!                                         └─> reviews: mutate ──> patch of a launcher pod              (every replica)
//! API server ── AdmissionReview ──────────────────┘
//! ```
//!
//! The CNI plugin of a network gives the addresses and writes them into the claim's status. A claim outlives the pods of its
//! virtual machine by its owner, and its owner by a finalizer, as long as a pod may use the addresses.

pub mod cli;
mod cluster;
mod controller;
pub mod election;
mod intern;
mod ip_request;
pub mod manager;
mod messages;
mod metrics;
pub mod mutate;
pub mod names;
pub mod network;
pub mod objects;
pub mod plan;
pub mod pool;
mod reconcile;
mod reviews;
pub mod selection;
pub mod settings;
pub mod state;
pub mod uid;
mod watches;

pub use settings::Args;

use std::fs;

use anyhow::Context as _;
use kube_kit::shutdown::Shutdown;
use kube_kit::{client, process};

use manager::Manager;
use settings::Settings;

/// Runs the controller until SIGTERM or SIGINT.
///
/// # Errors
/// When flags make no sense, an address can't be listened on, there is no way to the cluster, or another replica writes from
/// now on. A failing API server is no error: it is tried again.
pub async fn run(args: Args) -> anyhow::Result<()> {
    process::end_on_panic();
    let settings = Settings::read(&args)?;
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    let manager = Manager::new(settings);
    let kubeconfig = args.kubeconfig.as_deref();
    let client = client::counted_client_from(names::COMPONENT, kubeconfig, manager.requests()).await?;
    tracing::info!("starting manager");
    let running = manager.start(client, &identity()?).await?;
    Box::pin(running.run(&shutdown)).await
}

/// Name of this replica in elections, which no other process ever has.
fn identity() -> anyhow::Result<String> {
    const RANDOM: &str = "/proc/sys/kernel/random/uuid";
    let random = fs::read_to_string(RANDOM).with_context(|| format!("cannot read {RANDOM}"))?;
    let host = rustix::system::uname();
    Ok(format!("{}_{}", host.nodename().to_string_lossy(), random.trim()))
}

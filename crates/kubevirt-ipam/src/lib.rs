//! `weft kubevirt-ipam`: keeps the addresses of virtual machines across restarts and migrations
//! (`docs/behaviour/kubevirt-ipam.md`).
//!
//! ```text
//! VirtualMachines, instances ─┐           ┌─> controller: plan ──> reconcile ──> IPAMClaims, events    (one replica)
//! NetworkAttachmentDefinitions┼─> State ──┤       ▲
//! IPAMClaims ─────────────────┘           │       └── election: Lease
//!                                         └─> reviews: mutate ──> patch of a launcher pod              (every replica)
//! API server ── AdmissionReview ──────────────────┘
//! ```
//!
//! `objects` reads API objects, and `network` the configuration of a network. The CNI plugin of a network allocates the addresses and writes them into the claim's status. The owner reference
//! keeps a claim longer than the pods of its virtual machine. A finalizer keeps the claim longer than its owner, as
//! long as a pod may use the addresses.

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
/// If a flag is invalid, an address cannot be listened on, the configuration of the client is missing, or another
/// replica takes the Lease. A failing API server is no error: the controller retries.
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

/// Name of this replica in elections. No other process ever has the same name.
fn identity() -> anyhow::Result<String> {
    const RANDOM: &str = "/proc/sys/kernel/random/uuid";
    let random = fs::read_to_string(RANDOM).with_context(|| format!("cannot read {RANDOM}"))?;
    let host = rustix::system::uname();
    Ok(format!("{}_{}", host.nodename().to_string_lossy(), random.trim()))
}

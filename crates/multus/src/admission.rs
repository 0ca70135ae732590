//! `weft nad-webhook`: says what is wrong with a network when it is defined, not when the first pod needs it; and, where
//! that is wanted, requests the resources that the networks of a pod need (multus.md §16).
//!
//! ```text
//! API server ── AdmissionReview ──> check: NetworkAttachmentDefinition ──> admitted, with warnings, or refused
//!     │                        └──> inject: pod ──> its networks' resources ──> requests and limits, a JSON patch
//!     ├── definitions' metadata ──────────────┘
//!     ├── Secret of the server ──> TLS
//!     └── webhook configurations <── certificates (`webhook::manager`)
//! ```
//!
//! One process does all of it, and any number of them may run beside each other. Nothing depends on it: the webhooks'
//! failure policy is `Ignore`.

pub mod check;
pub mod inject;
pub mod messages;
mod server;

use crate::names::admission as names;
use anyhow::Context as _;
use clap::Args as ClapArgs;
use kube_kit::process;
use kube_kit::shutdown::Shutdown;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use webhook::certificates::Intervals;
use webhook::manager;

pub use server::{NoServer, Running, Settings, start};

/// Lives of the authority and of the server's certificate, and how long before their ends they are renewed.
const INTERVALS: Intervals = Intervals {
    ca_rotate: Duration::from_hours(365 * 24),
    ca_overlap: Duration::from_hours(30 * 24),
    cert_rotate: Duration::from_hours(90 * 24),
    cert_overlap: Duration::from_hours(15 * 24),
};

/// The command line of `weft nad-webhook`.
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// Port of the webhooks and probes, over TLS
    #[arg(long, value_name = "PORT", default_value_t = 8443)]
    pub port: u16,
    /// Namespace of the Service and of the Secrets
    #[arg(long, value_name = "NAMESPACE", env = names::POD_NAMESPACE)]
    pub namespace: String,
    /// Also request the resources that the networks of pods need
    #[arg(long)]
    pub inject_resources: bool,
    /// Namespace of the networks that annotation v1.multus-cni.io/default-network names without one
    #[arg(long, value_name = "NAMESPACE", default_value = crate::names::KUBE_SYSTEM)]
    pub multus_namespace: String,
    /// Kubeconfig file, outside a pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// When it can't listen, or there is no way to the cluster. A failing API server is no error: it is tried again.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        port,
        namespace,
        inject_resources,
        multus_namespace,
        kubeconfig,
    } = args;
    process::end_on_panic();
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    let client = kube_kit::client::client_from(names::COMPONENT, kubeconfig.as_deref()).await?;
    let settings = Settings {
        port,
        namespace: namespace.clone(),
        inject_resources,
        multus_namespace,
    };
    let running = start(settings, client.clone()).await?;
    keep_certificates(&namespace, client, &shutdown).await;
    running.stop().await;
    Ok(())
}

/// Keeps the server's certificate, and what the API server trusts it by, until the end is wished for.
pub async fn keep_certificates(namespace: &str, client: kube::Client, shutdown: &Shutdown) {
    let settings = manager::Settings {
        namespace: namespace.to_owned(),
        intervals: INTERVALS,
        labels: BTreeMap::new(),
    };
    manager::run(names::OBJECTS, &settings, client, shutdown).await;
}

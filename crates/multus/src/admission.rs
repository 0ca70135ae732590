//! `weft nad-webhook`: validates networks when they are defined, not when the first pod needs them, and optionally
//! requests the resources that a pod's networks need (multus.md §16).
//!
//! ```text
//! API server ── AdmissionReview ──> check: NetworkAttachmentDefinition ──> admitted, with warnings, or refused
//!     │                        └──> inject: pod ──> its networks' resources ──> requests and limits, a JSON patch
//!     ├── definitions' metadata ──────────────┘
//!     ├── Secret of the server ──> TLS
//!     └── webhook configurations <── certificates (`webhook::manager`)
//! ```
//!
//! One process serves both webhooks, and any number of replicas may run. Nothing depends on them: the failure policy
//! is `Ignore`.

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

/// Lifetimes of the certificate authority and of the serving certificate, and how long before expiry each is renewed.
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
    /// Namespace of networks that annotation v1.multus-cni.io/default-network names without a namespace
    #[arg(long, value_name = "NAMESPACE", default_value = crate::names::KUBE_SYSTEM)]
    pub multus_namespace: String,
    /// Kubeconfig file, for a process outside a pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// The port is taken, or no cluster is configured. A failing API server is no error: requests to it are retried.
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

/// Renews the serving certificate and the CA bundle of the webhook configurations until the shutdown.
pub async fn keep_certificates(namespace: &str, client: kube::Client, shutdown: &Shutdown) {
    let settings = manager::Settings {
        namespace: namespace.to_owned(),
        intervals: INTERVALS,
        labels: BTreeMap::new(),
    };
    manager::run(names::OBJECTS, &settings, client, shutdown).await;
}

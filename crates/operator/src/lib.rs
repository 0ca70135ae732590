//! The cluster network add-ons operator: deploys what the one `NetworkAddonsConfig` asks for.
//!
//! ```text
//!     watches, detect: NetworkAddonsConfig, record, facts about the cluster
//!                                 │ observations
//!   configuration, render ──> plan: objects in order, with labels and owners ──> cli: diff, render, status
//!                                 │
//!           reconcile: clean up ──> apply ──> prune ──> certificates ──> status, events, metrics
//! ```
//!
//! Everything above `reconcile` is pure. What is there is compared with what the watches know, so that
//! the operator asks for nothing and writes nothing while nothing changes, and restores at once what
//! somebody else changed. [`manifests`] renders what installs the operator itself, and [`admission_policy`]
//! puts the rules of `configuration` into a policy for the API server, with the same texts.

pub mod admission_policy;
pub mod applied;
pub mod cli;
pub mod cluster_facts;
pub mod components;
pub mod configuration;
pub mod controller;
pub mod detect;
pub mod failures;
pub mod general;
pub mod images;
pub mod labels;
pub mod layout;
pub mod mac;
pub mod manifest;
pub mod manifests;
pub mod messages;
pub mod metrics;
pub mod names;
mod plan;
pub mod rbac;
pub mod reconcile;
pub mod render;
pub mod resource;
pub mod settings;
pub mod status;
pub mod tls;
pub mod watches;
pub mod workloads;

use std::path::PathBuf;

use anyhow::Context as _;
use kube_kit::{client, process, serve, shutdown::Shutdown};

use controller::Operator;
use metrics::Metrics;
use settings::Settings;

/// Port of the probes.
const HEALTH_PORT: u16 = 8081;

/// What `weft operator --help` says last.
const ENVIRONMENT: &str = "\
Images, namespaces and the rest come from environment variables, as in the
Deployment that `weft manifests --image REF` prints.";

/// Arguments of `weft operator`: those of the established operator.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = ENVIRONMENT)]
pub struct Args {
    /// Kubeconfig to use instead of the service account of the pod.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// What is logged, and how.
    #[command(flatten)]
    pub zap: program::zap::Flags,
}

impl Args {
    /// The log level that flags and environment ask for, for whoever sets up the log.
    pub fn log_level(&self) -> &'static str {
        self.zap
            .level(std::env::var(names::env::LOG_LEVEL).ok().as_deref())
    }
}

/// Runs the operator until SIGTERM or SIGINT.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Args { kubeconfig, zap: _ } = args;
    process::end_on_panic();
    let settings = Settings::read(|name| std::env::var(name).ok())?;
    tracing::info!(
        version = settings.operator_version,
        "cluster-network-addons-operator version"
    );
    let shutdown = Shutdown::on_signals().context("signal handlers")?;
    let metrics = Metrics::new(&settings).context("the certificate of the metrics")?;
    let client = client::counted_client_from("operator", kubeconfig.as_deref(), metrics.requests()).await?;

    let readiness = serve::Readiness::new();
    let probes = serve::Server::on_port(HEALTH_PORT, serve::probes(readiness.clone())).await?;

    let scrapes = metrics
        .serve(client.clone(), metrics::PORT)
        .await
        .context("the metrics")?;

    let work = async {
        let operator = Operator::start(client, settings, metrics).await?;
        operator.run(&shutdown, &readiness).await;
        anyhow::Ok(())
    };
    tokio::select! {
        ended = work => ended?,
        () = shutdown.wait() => {}
    }
    scrapes.stop().await;
    probes.stop().await;
    Ok(())
}

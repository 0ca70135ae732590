//! The cluster network add-ons operator: deploys the components that the one `NetworkAddonsConfig` requests.
//!
//! ```text
//!     watches, detect: NetworkAddonsConfig, record, facts about the cluster
//!                                 │ observed state
//!   configuration, render: components ──> plan: objects in order, with labels and owners ──> the crate cli
//!                                 │
//!           reconcile: clean up ──> apply ──> prune ──> certificates ──> status, events, metrics
//! ```
//!
//! The modules above `reconcile` are pure. The plan is compared with the caches of the watches: while nothing changes,
//! the operator sends no request, and drift is corrected at once. The crate `manifests` renders the installation of the
//! operator itself. `admission_policy` turns the rules of `configuration` into a policy for the API server, with the
//! same texts. `components/<name>.rs` renders one component from the YAML in `components/<name>/`.

pub mod admission_policy;
pub mod cluster_facts;
mod cni_directories;
pub mod components;
pub mod configuration;
pub mod controller;
pub mod detect;
mod failures;
mod general;
pub mod images;
pub mod labels;
mod layout;
mod mac;
pub mod manifest;
pub mod messages;
pub mod metrics;
pub mod names;
pub mod plan;
pub mod rbac;
mod reconcile;
pub mod record;
pub mod render;
pub mod resource;
pub mod settings;
mod status;
mod tls;
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

/// End of the text of `weft operator --help`.
const ENVIRONMENT: &str = "\
Images, namespaces and the rest come from environment variables, as in the
Deployment that `weft manifests --image REF` prints.";

/// Arguments of `weft operator`: the same as upstream's.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = ENVIRONMENT)]
pub struct Args {
    /// Kubeconfig to use instead of the service account of the pod.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Verbosity and format of the log.
    #[command(flatten)]
    pub zap: program::zap::Flags,
}

impl Args {
    /// The log level from the flags and the environment.
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
    let metrics = Metrics::new(&settings).context("certificate of the metrics server")?;
    let client =
        client::counted_client_from("operator", kubeconfig.as_deref(), &metrics.controller().requests)
            .await?;

    let readiness = serve::Readiness::new();
    let probes = serve::Server::on_port(HEALTH_PORT, serve::probes(readiness.clone())).await?;

    let scrapes = metrics
        .serve(client.clone(), metrics::PORT)
        .await
        .context("metrics server")?;

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

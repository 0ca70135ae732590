//! `weft cluster-network-operator`: installs and configures the network of a cluster
//! (`docs/behaviour/cluster-network.md`).
//!
//! ```text
//! Network.config ── cluster_config: validate, translate ──> Network.operator
//!                                                               │
//!      operator_config: validate ──> defaults ──> safety ──> render ──> plan: errors, filled, objects
//!                                                               │
//!              reconcile: observe ──> plan ──> apply ──> prune ──> status
//! ```
//!
//! All steps before `reconcile` are pure: values in, a plan out.

pub mod additional_networks;
pub mod beside;
pub mod canonical;
pub mod cidr;
pub mod cli;
pub mod cluster_config;
pub mod conditions;
pub mod console;
pub mod controller;
pub mod defaults;
pub mod egress_router;
pub mod facts;
pub mod failures;
pub mod hosted;
pub mod infrastructure;
pub mod ingress;
pub mod kube_proxy;
pub mod leader;
pub mod manifests;
pub mod messages;
pub mod metrics;
pub mod mtu_migration;
pub mod names;
pub mod objects;
pub mod observability;
pub mod observe;
pub mod operator_config;
pub mod ovn;
pub mod pki;
pub mod plan;
pub mod pools;
pub mod probe;
pub mod proxy;
pub mod reconcile;
pub mod render;
pub mod report;
pub mod safety;
pub mod settings;
pub mod signer;
pub mod tls_profile;
pub mod trust;
pub mod watches;
pub mod workloads;

use std::{net::SocketAddr, path::PathBuf};

use anyhow::Context as _;
use kube_kit::{
    client, process,
    serve::{Bind, Readiness, Serving},
    shutdown::Shutdown,
};

use controller::Operator;
use leader::{Candidate, Timing};
use metrics::Metrics;
use settings::Settings;

/// File with the namespace of a pod.
const OWN_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Last text of `weft cluster-network-operator start --help`.
const ENVIRONMENT: &str = "\
Environment variables:
NETWORK_OPERATOR_IMAGE is the image of this operator, which it deploys on the
nodes, and KUBE_PROXY_IMAGE is the image of kube-proxy. APISERVER_OVERRIDE_HOST
and APISERVER_OVERRIDE_PORT are the address of the API server for nodes whose
services do not work yet. CNI_CONF_DIR and CNI_BIN_DIR are the directories of CNI
on the nodes. RELEASE_VERSION is the version in annotations and statuses. Optional
parts have variables for their images: see `weft network manifests --help`.";

/// Install and configure the network of the cluster
#[derive(Clone, Debug, clap::Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Command {
    /// Run the operator
    Start(Start),
    /// Write the MTU of this node into a ConfigMap, and end
    ProbeMtu(probe::Args),
    /// Wait for SIGTERM, in the pod of an egress router
    EgressRouter,
}

/// How the operator is run.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = ENVIRONMENT)]
struct Start {
    /// Kubeconfig to use instead of the service account of the pod
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the operator; that of the pod by default
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Kubeconfig of another cluster: that of the management cluster, if it
    /// hosts the control plane (environment variable HYPERSHIFT)
    #[arg(long, value_name = "management=FILE", value_parser = extra_cluster)]
    extra_clusters: Option<PathBuf>,
    /// Where probes and metrics are served over TLS
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:9104")]
    listen: SocketAddr,
    /// Accepted for compatibility with upstream manifests, without effect
    #[arg(long, value_name = "FILE", hide = true)]
    config: Option<PathBuf>,
}

/// Runs a subcommand: the operator until SIGTERM or SIGINT, or one probe of the MTU.
///
/// # Errors
/// If the environment names no image, the listen address cannot be opened, or the configuration of the client is
/// missing. A failing API server is no error: the operator retries.
pub async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Start(start) => operate(start).await,
        Command::ProbeMtu(args) => probe::run(args).await,
        // The CNI plugin configured the network of the pod, which redirects without a program.
        Command::EgressRouter => {
            Shutdown::on_signals()
                .context("cannot listen for signals")?
                .wait()
                .await;
            Ok(())
        }
    }
}

async fn operate(start: Start) -> anyhow::Result<()> {
    let Start {
        kubeconfig,
        namespace,
        extra_clusters,
        listen,
        config: _,
    } = start;
    process::end_on_panic();
    let namespace = namespace.or_else(own_namespace);
    let namespace = namespace.unwrap_or_else(|| names::OPERATOR_NAMESPACE.to_owned());
    let mut settings = Settings::read(&namespace, |name| std::env::var(name).ok())?;
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    let metrics = Metrics::default();
    let requests = &metrics.controller().requests;
    let config = client::configuration(names::COMPONENT, kubeconfig.as_deref()).await?;
    let management = match &mut settings.hosted {
        Some(hosted) => {
            let url = config.cluster_url.to_string();
            url.trim_end_matches('/').clone_into(&mut hosted.api_server);
            let file = extra_clusters.context(
                "HYPERSHIFT is true, and the cluster that hosts the control plane is not known: add --extra-clusters \
                 management=FILE",
            )?;
            Some(client::counted_client_from(names::COMPONENT, Some(&file), requests).await?)
        }
        None => None,
    };
    let client = client::counted(config, requests)?;
    let readiness = Readiness::new();
    let server = metrics
        .serve(Bind::from(listen), &namespace, client.clone(), readiness.clone())
        .await?;
    let mut candidate = Candidate::new(client.clone(), &namespace, &identity(), Timing::default());
    // An operator that waits for the Lease is ready.
    readiness.set(true);
    if !candidate.elected(&shutdown).await {
        stop(server).await;
        return Ok(());
    }
    readiness.set(false);
    let work = async {
        let api_server = controller::awaited_api_server(&client, &settings).await;
        let operator = Operator::start(
            client.clone(),
            management.clone(),
            settings.clone(),
            api_server,
            metrics,
        );
        let reports = operator.reports();
        // The main loop and the other controllers run concurrently in one thread.
        tokio::join!(
            Box::pin(operator.run(&shutdown, &readiness)),
            beside::run(&client, &settings, &reports, &shutdown),
        );
    };
    let is_leader = tokio::select! {
        () = work => true,
        () = shutdown.wait() => true,
        () = candidate.lost() => false,
    };
    anyhow::ensure!(
        is_leader,
        "another operator is the leader, or the Lease could not be renewed"
    );
    candidate.release().await;
    stop(server).await;
    Ok(())
}

/// Parses `management=FILE`. Upstream knows no other cluster than that.
fn extra_cluster(text: &str) -> Result<PathBuf, String> {
    match text.split_once('=') {
        Some((names::MANAGEMENT, file)) if !file.is_empty() => Ok(file.into()),
        _ => Err(format!(
            "{text:?} is not {}=FILE, the kubeconfig of the management cluster",
            names::MANAGEMENT
        )),
    }
}

async fn stop(server: Option<Serving>) {
    if let Some(server) = server {
        server.stop().await;
    }
}

/// The identity of this operator: the name of its pod. Outside a pod, the component and the process id.
fn identity() -> String {
    let pod = std::env::var(names::env::POD_NAME)
        .ok()
        .filter(|name| !name.is_empty());
    pod.unwrap_or_else(|| format!("{}-{}", names::COMPONENT, std::process::id()))
}

fn own_namespace() -> Option<String> {
    let namespace = std::fs::read_to_string(OWN_NAMESPACE).ok()?;
    Some(namespace.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod base;

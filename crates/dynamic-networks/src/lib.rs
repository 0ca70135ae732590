//! The dynamic networks controller: plugs networks into running pods, and out of them, as their annotation changes.
//!
//! ```text
//! pods of the node (watch) ──> controller: queue, one worker per pod ──> reconcile ──> plan (pure)
//!                                                                        │  │  │
//!       container runtime <── cri: newest ready sandbox, its namespace ──┘  │  └──> status annotation, events
//!       multus daemon <────── daemon: POST /delegate on its socket ─────────┘
//! ```
//!
//! The multus daemon records plugged networks, so it unplugs them as they were plugged and detaches them with the
//! pod. The controller itself is stateless: changes during its downtime are found by comparing annotation and status.

use anyhow::Context as _;
use clap::Args as ClapArgs;
use kube_kit::shutdown::Shutdown;
use program::{glog, logging};
use std::env;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

mod cluster;
pub mod config;
mod controller;
pub mod curl;
mod daemon;
mod health;
mod messages;
mod names;
mod plan;
mod reconcile;

use cluster::Cluster;
use config::Config;
use daemon::Daemon;
use health::Probe;
use kube_kit::cri::Cri;
use reconcile::Reconciler;

/// How long running workers may take after SIGTERM: less than the pod's grace period.
const GRACE: Duration = Duration::from_secs(8);
/// Exit codes without a configuration, and when the controller cannot start.
const NO_CONFIG: i32 = 1;
const NO_CONTROLLER: i32 = 2;

/// Plug networks into running pods of this node, and out of them, as their annotation changes
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// Configuration file: sockets of the container runtime and of the multus daemon
    #[arg(long, value_name = "FILE", default_value = names::CONFIG)]
    pub config: PathBuf,
    /// Exit with 0 if the controller of this container is alive or ready
    #[arg(long, value_name = "PROBE", num_args = 0..=1, require_equals = true, default_missing_value = "live")]
    pub check: Option<Probe>,
    /// Socket of the probes
    #[arg(long, value_name = "SOCKET", default_value = names::HEALTH_SOCKET)]
    pub health_socket: PathBuf,
    /// Kubeconfig file, for a process outside a pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    #[allow(missing_docs, reason = "the flags of klog")]
    pub log_flags: glog::Flags,
}

impl Args {
    /// The log filter: `-v` of 4 and more adds the controller's decisions.
    pub fn log_level(&self) -> &'static str {
        if self.log_flags.is_verbose() {
            names::VERBOSE_LOG
        } else {
            logging::DEFAULT
        }
    }
}

/// Runs the controller until SIGTERM or SIGINT. Exits the process itself with the codes of multus.md §13.
///
/// # Errors
/// A probe fails.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        config,
        check,
        health_socket,
        kubeconfig,
        log_flags: _,
    } = args;
    if let Some(what) = check {
        return health::check(&health_socket, what).await;
    }
    let commit = env::var(names::COMMIT).unwrap_or_else(|_| "SHA-NOT-FOUND".into());
    tracing::info!("dynamic-networks-controller: built from [{commit}]");
    let config = match Config::load(&config) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!("{error}");
            exit(NO_CONFIG);
        }
    };
    if let Err(error) = start(config, &health_socket, kubeconfig.as_deref()).await {
        tracing::error!("{error:#}");
        exit(NO_CONTROLLER);
    }
    Ok(())
}

async fn start(config: Config, health_socket: &Path, kubeconfig: Option<&Path>) -> anyhow::Result<()> {
    kube_kit::process::end_on_panic();
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    let node = env::var(names::NODE_NAME).ok().filter(|node| !node.is_empty());
    let node = node.with_context(|| format!("the environment variable {} is not set", names::NODE_NAME))?;
    let client = kube_kit::client::client_from(names::COMPONENT, kubeconfig)
        .await
        .context("Kubernetes client")?;
    serve(config, client, &node, health_socket, shutdown).await
}

/// [`run`], with its inputs as arguments.
///
/// # Errors
/// The socket of the probes cannot be created.
pub async fn serve(
    config: Config,
    client: kube::Client,
    node: &str,
    health_socket: &Path,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let Config {
        cri_socket,
        multus_socket,
        timeouts,
    } = config;
    let (synced, known) = watch::channel(false);
    let probes = health::serve(health_socket, cri_socket.clone(), multus_socket.clone(), known)
        .with_context(|| format!("cannot listen at {}", health_socket.display()))?;
    let cluster = Cluster::new(client, node);
    let pods = cluster.watch(node);
    let cri = Cri { socket: cri_socket };
    let daemon = Daemon {
        socket: multus_socket,
        timeouts,
    };
    let reconciler = Arc::new(Reconciler {
        cluster,
        cri,
        daemon,
        status_timeout: timeouts.status,
    });
    let work = controller::run(pods, reconciler, &synced, &shutdown);
    let grace_over = async {
        shutdown.wait().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        () = work => {}
        // The next controller finds interrupted work by comparison.
        () = grace_over => tracing::warn!("workers are still running at the end of the grace period, exiting"),
    }
    probes.abort();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches as _;

    #[test]
    fn verbosity_four_logs_decisions() {
        // multus#123
        for (flags, level) in [
            (&[][..], logging::DEFAULT),
            (&["-v", "3"], logging::DEFAULT),
            (&["-v", "5"], names::VERBOSE_LOG),
        ] {
            let command = Args::augment_args(clap::Command::new("dynamic-networks"));
            let matches = command.try_get_matches_from([&["dynamic-networks"], flags].concat());
            let args = Args::from_arg_matches(&matches.unwrap()).unwrap();
            assert_eq!(args.log_level(), level, "{flags:?}");
        }
    }
}

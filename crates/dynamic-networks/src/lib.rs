//! The dynamic networks controller: plugs networks into running pods, and out of them, as their annotation changes.
//!
//! ```text
//! pods of the node (watch) ──> controller: queue, one worker a pod ──> reconcile ──> plan (pure)
//!                                                                        │ │ │
//!      container runtime <── cri: newest ready sandbox, its namespace ───┘ │ └──> status annotation, events
//!      multus daemon <────── daemon: POST /delegate on its socket ─────────┘
//! ```
//!
//! What was plugged in is recorded by the multus daemon, so that it is unplugged as it was plugged in and goes with the
//! pod; this controller keeps nothing. Whatever it misses while it is away it finds when it compares annotation and
//! status again.

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

pub mod cluster;
pub mod config;
pub mod controller;
pub mod curl;
pub mod daemon;
pub mod health;
pub mod messages;
pub mod names;
pub mod plan;
pub mod reconcile;

use cluster::Cluster;
use config::Config;
use daemon::Daemon;
use health::Probe;
use kube_kit::cri::Cri;
use reconcile::Reconciler;

/// How long work may take that was begun when the controller is asked to end: less than the pod's grace period.
const GRACE: Duration = Duration::from_secs(8);
/// What the process exits with when there is no configuration, and when the controller can't be built.
const NO_CONFIG: i32 = 1;
const NO_CONTROLLER: i32 = 2;

/// Plug networks into running pods of this node, and out of them, as their annotation changes
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// The configuration: sockets of the container runtime and of the multus daemon
    #[arg(long, value_name = "FILE", default_value = names::CONFIG)]
    pub config: PathBuf,
    /// Exit with 0 if the controller of this container works; with `ready`, if it is of use too
    #[arg(long, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "live")]
    pub check: Option<Probe>,
    /// Where probes are answered
    #[arg(long, value_name = "SOCKET", default_value = names::HEALTH_SOCKET)]
    pub health_socket: PathBuf,
    /// Kubeconfig file, outside a pod
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

/// Runs the controller until it is asked to end. Exits the process itself where the code has a meaning (multus.md §13).
///
/// # Errors
/// When a check says no.
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

/// The controller with everything given from outside: what [`run`] runs, and tests.
///
/// # Errors
/// When probes can't be answered at the socket.
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
        patience,
    } = config;
    let (synced, known) = watch::channel(false);
    let probes = health::serve(health_socket, cri_socket.clone(), multus_socket.clone(), known)
        .with_context(|| format!("cannot listen at {}", health_socket.display()))?;
    let cluster = Cluster::new(client, node);
    let pods = cluster.watch(node);
    let cri = Cri { socket: cri_socket };
    let daemon = Daemon {
        socket: multus_socket,
        patience,
    };
    let reconciler = Arc::new(Reconciler {
        cluster,
        cri,
        daemon,
        patience: patience.status,
    });
    let work = controller::run(pods, reconciler, &synced, &shutdown);
    let patient = async {
        shutdown.wait().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        () = work => {}
        // What is cut off here is found again by the next controller.
        () = patient => tracing::warn!("pods are still being worked on, ending nevertheless"),
    }
    probes.abort();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches as _;

    #[test]
    fn v_of_four_and_more_logs_decisions() {
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

//! The multus daemon: attaches the pods of its node to several networks by calling other CNI plugins.
//!
//! ```text
//! runtime ──> multus-shim ──unix socket──> socket, server ──> request ──> daemon ──> resolve <── cluster: NADs, pods
//!                                                                          │   │
//!                        API server <── network-status, events ────────────┘   v
//!                                                                   workers: attach, one delegate after the other
//!                                                                       │                      │
//!                             scratch, records: state for DEL and GC <──┘                      v
//!                                                                       in_process: our plugins on this thread,
//!                                                                                   others as programs
//!
//! primary CNI configuration ──inotify──> conf_keeper ──> 00-multus.conf
//! ```
//!
//! Other programs of this crate: [`thin`] (multus without a daemon), [`certificate`] (per-node certificates and their
//! approver), [`admission`] (webhooks), [`explain`] and [`doctor`] (commands for users).
//!
//! # Lifetime of `00-multus.conf`
//!
//! The file makes the runtime call the shim, so it is written once the API serves. It is kept when the daemon ends: during
//! a restart or a rolling update the shim waits, whereas without the file pods would become ready without their secondary
//! networks. It is removed when multus is uninstalled from the cluster or from the node. At SIGTERM the daemon asks the API
//! server about both:
//!
//! - Access. The objects that grant access (binding, service account) are removed before the DaemonSet, so 401 or 403
//!   means that multus was uninstalled from the cluster.
//! - Placement. The DaemonSet is gone, or would create no pod on this node.
//!
//! In every other case, including no answer, the file is kept, although multus may have been uninstalled. So the daemon
//! leaves a note beside the socket, with the time and the file's path on the host, and the shim removes note and file when
//! no daemon has answered for long after that time ([`plugins::multus_shim::ended`]). A starting daemon listens, then
//! removes the note, then writes the file: a shim that decided earlier either finds the socket answering, or removes a file
//! that is written again. A killed daemon leaves no note, and the file is kept.

use anyhow::Context as _;
use clap::Args as ClapArgs;
use kube_kit::metrics::Process;
use kube_kit::shutdown::Shutdown;
use prometheus_client::registry::Registry;
use std::env;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub mod admission;
mod attach;
pub mod certificate;
mod cluster;
mod conf_file;
mod conf_keeper;
mod daemon;
pub mod daemon_config;
pub mod default_route;
pub mod delegate;
pub mod device_info;
mod devices;
pub mod doctor;
pub mod explain;
mod host_root;
pub mod in_process;
mod locks;
mod log;
mod memory_limit;
mod messages;
mod metrics;
mod names;
mod net_conf;
pub mod netns;
pub mod own_pod;
mod placement;
mod pod_claims;
mod records;
pub mod request;
mod resolve;
mod runtime;
mod scratch;
mod server;
mod socket;
pub mod thin;
mod uninstall;
mod workers;

pub use names::CRI_SOCKETS;
pub use workers::JOB_TIMEOUT;

use cluster::Cluster;
use conf_keeper::{ConfKeeper, Ended};
use daemon::Daemon;
use daemon_config::{ConfSource, DaemonConfig};
use log::Log;
use metrics::{Count, Metrics, Sizes};
use own_pod::OwnPod;
use server::{Api, Phase};
use socket::{Socket, SocketOwnership};

/// How long calls in flight may take after SIGTERM: less than the pod's grace period.
const GRACE: Duration = Duration::from_secs(8);
/// How long the last answers may take to be sent.
const LINGER: Duration = Duration::from_secs(1);
/// Exit code of the upstream daemon after it printed its version.
const VERSION_EXIT: i32 = 4;

/// The command line of `weft multus-daemon`.
#[derive(Debug, Clone, ClapArgs)]
#[command(disable_version_flag = true)]
pub struct Args {
    /// Configuration file of the daemon
    #[arg(long, default_value = names::DAEMON_CONFIG)]
    pub config: PathBuf,
    /// Print the version and exit with 4
    #[arg(long, short = 'v')]
    pub version: bool,
    /// Exit with 0 if the daemon of this node is ready and its CNI configuration is installed
    #[arg(long)]
    pub check: bool,
}

/// The daemon ended by an error.
#[derive(Debug, thiserror::Error)]
#[error("{cause:#}")]
pub struct Stop {
    /// Exit code of the process.
    pub code: i32,
    /// The cause.
    pub cause: anyhow::Error,
}

impl Stop {
    fn with(code: i32) -> impl FnOnce(anyhow::Error) -> Self {
        move |cause| Self { code, cause }
    }
}

/// Runs the daemon until SIGTERM or SIGINT. Exits the process itself with the codes of multus.md §7.6.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        config,
        version,
        check,
    } = args;
    if version {
        println!("multus-daemon: version:{}", env!("CARGO_PKG_VERSION"));
        exit(VERSION_EXIT);
    }
    let config = DaemonConfig::load(&config).with_context(|| format!("configuration {}", config.display()));
    if check {
        return is_serving(&config?);
    }
    let log = match &config {
        Ok(config) => config.log.clone(),
        Err(_) => Log::default(),
    };
    log.start();
    let outcome = match config {
        Ok(config) => start(config).await,
        Err(cause) => Err(Stop { code: 1, cause }),
    };
    if let Err(stop) = outcome {
        log.fatal(&stop);
        exit(stop.code);
    }
    Ok(())
}

/// The probe: the API is ready, and the runtime's configuration exists.
fn is_serving(config: &DaemonConfig) -> anyhow::Result<()> {
    plugins::multus_shim::probe(&config.socket())?;
    let file = config.runtime_conf();
    anyhow::ensure!(file.exists(), "{} does not exist", file.display());
    Ok(())
}

async fn start(config: DaemonConfig) -> Result<(), Stop> {
    // Only panics of calls and plugins are contained.
    kube_kit::process::end_on_panic();
    let uid = rustix::process::geteuid();
    if !uid.is_root() {
        let uid = uid.as_raw();
        let text = format!("failed to run multus-daemon with root: not root, now running in uid: {uid}");
        return Err(Stop {
            code: 1,
            cause: anyhow::anyhow!(text),
        });
    }
    let config = host_root::completed(config, Path::new(host_root::FIRST_ROOT));
    let node = env::var(names::NODE_NAME).ok().filter(|node| !node.is_empty());
    let shutdown = Shutdown::on_signals()
        .context("signal handlers")
        .map_err(Stop::with(3))?;
    let client = client(&config, node.as_deref())
        .await
        .context("Kubernetes client")
        .map_err(Stop::with(3))?;
    let is_known_by_token = config.per_node_certificate.is_none();
    let own = is_known_by_token.then(OwnPod::read).flatten();
    serve(config, client, node.as_deref(), own.as_ref(), shutdown).await
}

/// A client with the node's certificate if configured, else with the service account.
async fn client(config: &DaemonConfig, node: Option<&str>) -> anyhow::Result<kube::Client> {
    let Some(wanted) = &config.per_node_certificate else {
        return Ok(kube_kit::client::client(names::COMPONENT).await?);
    };
    let settings = wanted.settings(node)?;
    let rotator = certificate::Rotator::start(settings).await?;
    let client = rotator.client();
    tokio::spawn(rotator.keep());
    Ok(client)
}

/// [`run`], with its inputs as arguments. `own` is the own pod, if the process authenticates by that pod's token.
pub async fn serve(
    config: DaemonConfig,
    client: kube::Client,
    node: Option<&str>,
    own: Option<&OwnPod>,
    shutdown: Shutdown,
) -> Result<(), Stop> {
    let config = Arc::new(config);
    let metrics = Metrics::default();
    let cluster = Arc::new(Cluster::start(client, node));
    let _metrics_server = serve_metrics(&config, &metrics, &cluster).await?;
    let daemon = Daemon::new(Arc::clone(&config), Arc::clone(&cluster), metrics.clone());
    let daemon = Arc::new(daemon);
    let (phase, phases) = watch::channel(Phase::Starting);
    let api = Api::new(Arc::clone(&daemon), phases, metrics);
    let socket = config.socket();
    let listener = Socket::at(&socket)
        .with_context(|| format!("cannot listen at {}", socket.display()))
        .map_err(Stop::with(3))?;
    // After the socket listens, and before the file is written: a shim that removes the file checks in the reverse
    // order.
    uninstall::remove_note(&config);
    let ownership = listener.ownership();
    let closing = Shutdown::new();
    let server = spawn_server(listener, &api, &closing);
    start_background_tasks(&daemon, phase.subscribe());
    let refusable = Arc::clone(&cluster);
    tokio::spawn(async move { refusable.recover_from_refusals().await });
    tracing::info!("multus-daemon started");

    let ended = tokio::select! {
        ended = keep_conf(&config, &phase, &ownership) => ended,
        () = shutdown.wait() => Ok(()),
    };
    phase.send_replace(Phase::Draining);
    let leave = async {
        if ended.is_ok() && config.conf_source == ConfSource::Auto {
            leave(&config, &cluster, node, own, &ownership).await;
        }
    };
    // Concurrently, to fit into the pod's grace period.
    let (drained, ()) = tokio::join!(timeout(GRACE, api.idle()), leave);
    if drained.is_err() {
        tracing::warn!("calls are still in flight at the end of the grace period, exiting");
    }
    closing.trigger();
    // Connections without a request end with the process.
    let _ = timeout(LINGER, server).await;
    ended
}

/// Removes `00-multus.conf` if no other daemon will come, else leaves a note for the shim.
async fn leave(
    config: &DaemonConfig,
    cluster: &Cluster,
    node: Option<&str>,
    own: Option<&OwnPod>,
    ownership: &SocketOwnership,
) {
    let (removed, unwanted) = if ownership.is_taken() {
        (false, false)
    } else {
        tokio::join!(
            uninstall::is_uninstalled(cluster, own),
            uninstall::is_leaving_node(cluster, node, own)
        )
    };
    // Another daemon may have taken over in the meantime.
    if ownership.is_taken() {
        tracing::info!("another daemon took over: keeping {}", names::CONF_FILE);
    } else if removed {
        tracing::info!(
            "multus was uninstalled from the cluster: removing {}",
            names::CONF_FILE
        );
        remove_conf(config);
    } else if unwanted {
        tracing::info!(
            "multus is uninstalled from this node: removing {}",
            names::CONF_FILE
        );
        remove_conf(config);
    } else {
        tracing::info!("keeping {} for the next daemon", names::CONF_FILE);
        uninstall::leave_note(config, ownership);
    }
}

fn spawn_server(listener: Socket, api: &Arc<Api<Cluster>>, closing: &Shutdown) -> JoinHandle<()> {
    let router = server::router(Arc::clone(api));
    let closed = closing.clone();
    let serving = axum::serve(listener, router).with_graceful_shutdown(async move { closed.wait().await });
    tokio::spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the HTTP API failed");
        }
    })
}

/// Starts the background tasks: the replay of kept DELs, and the clean-up of stale sandboxes.
fn start_background_tasks(daemon: &Arc<Daemon<Cluster>>, mut phase: watch::Receiver<Phase>) {
    let replaying = Arc::clone(daemon);
    tokio::spawn(async move { replaying.replay_kept_dels().await });
    let daemon = Arc::clone(daemon);
    tokio::spawn(async move {
        // By then multus' own configuration exists, or is about to be written.
        if phase.wait_for(|phase| *phase == Phase::Serving).await.is_ok() {
            daemon.clean_up_stale().await;
        }
    });
}

async fn serve_metrics(
    config: &DaemonConfig,
    metrics: &Metrics,
    cluster: &Cluster,
) -> Result<Option<kube_kit::serve::Server>, Stop> {
    let Some(port) = config.metrics_port else {
        return Ok(None);
    };
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let (pods, nads) = (cluster.pods(), cluster.nads());
    let caches: Vec<(&'static str, Count)> = vec![
        ("pods", Box::new(move || pods.len())),
        ("networks", Box::new(move || nads.len())),
    ];
    Sizes::of(config.cni_dir(), caches).register(&mut registry);
    Process.register(&mut registry);
    let router = kube_kit::serve::metrics(Arc::new(registry));
    let server = kube_kit::serve::Server::on_port(port, router).await;
    server.map(Some).context("metrics").map_err(Stop::with(3))
}

/// Starts to serve ADD once the default network is ready, and keeps the runtime's configuration. Returns only errors.
async fn keep_conf(
    config: &Arc<DaemonConfig>,
    phase: &watch::Sender<Phase>,
    ownership: &SocketOwnership,
) -> Result<(), Stop> {
    if config.conf_source != ConfSource::Auto {
        if let Err(error) = conf_keeper::copy_provided(config) {
            tracing::error!(error = %kube_kit::client::chain(&error), "cannot copy the provided configuration");
        }
        phase.send_replace(Phase::Serving);
        return futures::future::pending().await;
    }
    let found = ConfKeeper::find(Arc::clone(config)).await;
    let mut keeper = found.map_err(|error| Stop {
        code: error.exit_code(),
        cause: error.into(),
    })?;
    phase.send_replace(Phase::Serving);
    keeper.write().map_err(|error| Stop {
        code: 3,
        cause: error.into(),
    })?;
    match keeper.keep().await {
        Ended::ReadinessLost => {
            if !ownership.is_taken() {
                remove_conf(config);
            }
            Err(Stop {
                code: 2,
                cause: anyhow::anyhow!("the default network is no longer ready"),
            })
        }
    }
}

fn remove_conf(config: &DaemonConfig) {
    if let Err(error) = conf_keeper::remove(config) {
        tracing::error!(error = %kube_kit::client::chain(&error), "cannot remove 00-multus.conf");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    #[test]
    fn daemon_whose_task_panics_ends() {
        // multus#121: of the daemon as it starts
        const ROLE: &str = "WEFT_TEST_DAEMON_TO_END";
        if env::var_os(ROLE).is_some() {
            let daemon = async {
                let started = start(DaemonConfig::parse(b"{}").unwrap()).await;
                println!("started: {}", started.is_ok());
                let _ = tokio::spawn(async { panic!("of a watch") }).await;
                println!("survived");
            };
            kube_kit::process::run(daemon).unwrap();
            return;
        }
        let ended = Command::new(env::current_exe().unwrap())
            .args(["--exact", "tests::daemon_whose_task_panics_ends", "--nocapture"])
            .env(ROLE, "1")
            // Without an API server the start ends early.
            .env("KUBECONFIG", "/nonexistent/kubeconfig")
            .env("HOME", "/nonexistent")
            .env_remove("KUBERNETES_SERVICE_HOST")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&ended.stdout);
        assert!(told.contains("started: false"), "{ended:?}");
        assert!(!told.contains("survived"), "{told}");
        assert_eq!(ended.status.signal(), Some(6), "SIGABRT: {ended:?}");
    }
}

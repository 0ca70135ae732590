//! The multus daemon: attaches the pods of its node to several networks by calling other CNI plugins.
//!
//! ```text
//! shim ──unix socket──> server ──> request ──> daemon ──> networks <── cluster: pods, NADs
//!                                                │  │
//!        API server <── network-status, events ──┘  ├──> devices: of kubelet and of resource claims
//!                                                   v
//!                                  execution: a worker thread
//!                                                   v
//!                                  attach: one network after the other ──> store: records for DEL and GC
//!                                                   v
//!                                  execution: our plugins on this thread, others as programs
//!
//! primary CNI configuration ──inotify──> runtime_conf ──> 00-multus.conf
//! ```
//!
//! | folder | holds |
//! |---|---|
//! | `config` | `daemon-config.json`, the host's root directory, log settings |
//! | `server`, `request`, `sandbox` | the API on the unix socket; a call, and the sandbox that it is about |
//! | `daemon` | ADD, DEL, CHECK, GC, hot plug, replay of kept DELs: a file for each |
//! | `cluster` | watches and live reads of pods and NADs |
//! | `networks` | the networks of a pod and their configurations |
//! | `devices` | the devices of a pod, and their assignment to its networks |
//! | `execution` | worker threads and plugin calls |
//! | `attach` | the calls for the networks of one sandbox, with rollback; its network namespace |
//! | `store` | the node's records of attached sandboxes; `daemon/del.rs` decides about DEL without them |
//! | `runtime_conf` | `00-multus.conf`, from the daemon's start to the uninstallation |
//!
//! The crate `dynamic-networks` decides which networks of running pods change, and requests hot plug.
//!
//! Other programs of this crate: [`thin`] (multus without a daemon), [`certificate`] (per-node certificates and their
//! approver), [`admission`] (webhooks), [`explain`] and [`doctor`] (commands for users).

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
pub mod attach;
pub mod certificate;
mod cluster;
pub mod config;
mod daemon;
pub mod devices;
pub mod doctor;
pub mod execution;
pub mod explain;
mod messages;
mod metrics;
mod names;
pub mod networks;
pub mod request;
mod runtime_conf;
mod sandbox;
mod server;
mod store;
pub mod thin;

pub use execution::workers::JOB_TIMEOUT;
pub use names::CRI_SOCKETS;
pub use runtime_conf::OwnPod;

use cluster::Cluster;
use config::log::Log;
use config::{ConfSource, DaemonConfig, host_root};
use daemon::Daemon;
use metrics::{Count, Metrics, Sizes};
use runtime_conf::uninstall;
use server::socket::Socket;
use server::{Api, Phase};

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
        ended = runtime_conf::keep(&config, &phase, &ownership) => ended,
        () = shutdown.wait() => Ok(()),
    };
    phase.send_replace(Phase::Draining);
    let leave = async {
        if ended.is_ok() && config.conf_source == ConfSource::Auto {
            runtime_conf::leave(&config, &cluster, node, own, &ownership).await;
        }
    };
    // Concurrently, to fit into the pod's grace period.
    let (drained, ()) = tokio::join!(timeout(GRACE, api.idle()), leave);
    if drained.is_err() {
        tracing::warn!("calls are still in flight at the end of the grace period, exiting");
    }
    closing.trigger();
    // Connections without a request end with the process.
    let _ = timeout(LINGER, async { tokio::join!(server, cluster.flush_events()) }).await;
    ended
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
        let printed = String::from_utf8_lossy(&ended.stdout);
        assert!(printed.contains("started: false"), "{ended:?}");
        assert!(!printed.contains("survived"), "{printed}");
        assert_eq!(ended.status.signal(), Some(6), "SIGABRT: {ended:?}");
    }
}

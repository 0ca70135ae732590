//! The multus daemon: attaches the pods of its node to more than one network, by calling other CNI plugins.
//!
//! ```text
//! runtime ──> multus-shim ──unix socket──> server ──> daemon ──> resolve ── NADs, annotations ──┐
//!                                                        │                                      v
//! API server <── network-status, events ─────────────────┴── attach: delegates, chrooted to the host: our own on
//!      │                                                       │      threads, others by exec (in_process)
//!      │                                                       │
//!      └── watches: pods of the node, NADs (cluster)           └── scratch file, result cache (for DEL)
//!
//! primary CNI configuration ──inotify──> conf_keeper ──> 00-multus.conf
//! ```
//!
//! # The life of `00-multus.conf`
//!
//! The file sends the runtime to the shim, so it appears only when the API serves. It stays when the daemon ends: during
//! a restart or a rolling update the shim waits, while without the file pods would become ready without their secondary
//! networks. It goes when multus is removed from the cluster or leaves the node. A daemon that is asked to end asks the API
//! server about both:
//!
//! - Access. The objects that give it access (binding, service account) are removed before its DaemonSet, so 401 or 403
//!   means that multus is removed.
//! - Placement. Its DaemonSet is gone, or would create no pod on this node.
//!
//! Every other outcome, no answer included, keeps the file, and then the node may have been left all the same. So the
//! daemon leaves a note beside the socket, with the time and the file's path on the host, and the shim removes both when no
//! daemon has answered for long after it ([`plugins::multus_shim::ended`]). A daemon that starts listens, then removes the
//! note, then writes the file: a shim that decided before that either finds the socket answering or removes a file that
//! is put back. A daemon that was killed leaves no note, and the file stays.

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
pub mod cluster;
pub mod conf_file;
pub mod conf_keeper;
pub mod daemon;
pub mod daemon_config;
pub mod default_route;
pub mod delegate;
pub mod device_info;
pub mod devices;
pub mod doctor;
pub mod explain;
mod host_root;
pub mod in_process;
mod leaving;
pub mod locks;
pub mod log;
mod memory_limit;
pub mod messages;
pub mod metrics;
pub mod names;
pub mod net_conf;
pub mod netns;
pub mod own_pod;
mod placement;
pub mod records;
pub mod request;
pub mod resolve;
mod runtime;
pub mod scratch;
pub mod server;
pub mod socket;
pub mod thin;
pub mod workers;

use cluster::Cluster;
use conf_keeper::{ConfKeeper, Ended};
use daemon::Daemon;
use daemon_config::{ConfSource, DaemonConfig};
use log::Log;
use metrics::{Count, Metrics, Sizes};
use own_pod::OwnPod;
use server::{Api, Phase};
use socket::{Place, Socket};

/// How long calls may take that are being worked on when the daemon is asked to end: less than the pod's grace period.
const GRACE: Duration = Duration::from_secs(8);
/// How long the last answers may take to be sent.
const LINGER: Duration = Duration::from_secs(1);
/// What the established daemon exits with after it printed its version.
const VERSION_EXIT: i32 = 4;

/// The command line of `weft multus-daemon`.
#[derive(Debug, Clone, ClapArgs)]
#[command(disable_version_flag = true)]
pub struct Args {
    /// The daemon's configuration
    #[arg(long, default_value = names::DAEMON_CONFIG)]
    pub config: PathBuf,
    /// Print the version and exit with 4
    #[arg(long, short = 'v')]
    pub version: bool,
    /// Exit with 0 if the daemon of this node serves and runtimes are sent to it
    #[arg(long)]
    pub check: bool,
}

/// Why the daemon ended, other than by being asked to.
#[derive(Debug, thiserror::Error)]
#[error("{cause:#}")]
pub struct Stop {
    /// What the process exits with.
    pub code: i32,
    /// Why.
    pub cause: anyhow::Error,
}

impl Stop {
    fn with(code: i32) -> impl FnOnce(anyhow::Error) -> Self {
        move |cause| Self { code, cause }
    }
}

/// Runs the daemon until it is asked to end. Exits the process itself where the code has a meaning (multus.md §7.6).
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

/// The probe: the API says that it is ready, and the runtime's configuration is there.
fn is_serving(config: &DaemonConfig) -> anyhow::Result<()> {
    plugins::multus_shim::probe(&config.socket())?;
    let file = config.runtime_conf();
    anyhow::ensure!(file.exists(), "{} is not there", file.display());
    Ok(())
}

async fn start(config: DaemonConfig) -> Result<(), Stop> {
    // Panics of calls and of plugins are contained.
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

/// By a certificate of the node where the configuration says so, else by the service account.
async fn client(config: &DaemonConfig, node: Option<&str>) -> anyhow::Result<kube::Client> {
    let Some(wanted) = &config.per_node_certificate else {
        return Ok(kube_kit::client::client(names::COMPONENT).await?);
    };
    let settings = wanted.settings(node)?;
    let keeper = certificate::Keeper::start(settings).await?;
    let client = keeper.client();
    tokio::spawn(keeper.keep());
    Ok(client)
}

/// The daemon with everything given from outside: what [`run`] runs, and tests. `own` is its pod, where it is known to the
/// API server by that pod's token.
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
    let _figures = figures(&config, &metrics, &cluster).await?;
    let daemon = Daemon::new(Arc::clone(&config), Arc::clone(&cluster), metrics.clone());
    let daemon = Arc::new(daemon);
    let (phase, phases) = watch::channel(Phase::Starting);
    let api = Api::new(Arc::clone(&daemon), phases, metrics);
    let socket = config.socket();
    let listener = Socket::at(&socket)
        .with_context(|| format!("cannot listen at {}", socket.display()))
        .map_err(Stop::with(3))?;
    // Not before somebody listens, and before the file is written: a shim that withdraws it looks in the other order.
    leaving::remove_note(&config);
    let place = listener.place();
    let closing = Shutdown::new();
    let server = spawn_server(listener, &api, &closing);
    look_after(&daemon, phase.subscribe());
    let refusable = Arc::clone(&cluster);
    tokio::spawn(async move { refusable.outlast_refusals().await });
    tracing::info!("multus-daemon started");

    let ended = tokio::select! {
        ended = keep_conf(&config, &phase, &place) => ended,
        () = shutdown.wait() => Ok(()),
    };
    phase.send_replace(Phase::Draining);
    let leave = async {
        if ended.is_ok() && config.conf_source == ConfSource::Auto {
            leave(&config, &cluster, node, own, &place).await;
        }
    };
    // Beside each other: both together must fit into the pod's grace period.
    let (drained, ()) = tokio::join!(timeout(GRACE, api.idle()), leave);
    if drained.is_err() {
        tracing::warn!("calls are still being worked on, ending nevertheless");
    }
    closing.trigger();
    // Connections without a request end with the process.
    let _ = timeout(LINGER, server).await;
    ended
}

/// Takes `00-multus.conf` along where no daemon comes after this one, else leaves a note beside it.
async fn leave(
    config: &DaemonConfig,
    cluster: &Cluster,
    node: Option<&str>,
    own: Option<&OwnPod>,
    place: &Place,
) {
    let (removed, unwanted) = if place.is_taken() {
        (false, false)
    } else {
        tokio::join!(
            leaving::is_removed(cluster, own),
            leaving::is_unwanted(cluster, node, own)
        )
    };
    // It may have come meanwhile.
    if place.is_taken() {
        tracing::info!("another daemon took over: {} stays", names::CONF_FILE);
    } else if removed {
        tracing::info!(
            "multus was removed from the cluster: removing {}",
            names::CONF_FILE
        );
        remove_conf(config);
    } else if unwanted {
        tracing::info!("multus leaves this node: removing {}", names::CONF_FILE);
        remove_conf(config);
    } else {
        tracing::info!("{} stays for the next daemon", names::CONF_FILE);
        leaving::leave_note(config, place);
    }
}

fn spawn_server(listener: Socket, api: &Arc<Api<Cluster>>, closing: &Shutdown) -> JoinHandle<()> {
    let router = server::router(Arc::clone(api));
    let closed = closing.clone();
    let serving = axum::serve(listener, router).with_graceful_shutdown(async move { closed.wait().await });
    tokio::spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the API ended");
        }
    })
}

/// What the daemon does by itself, beside the calls: it makes up for what was missed while there was none.
fn look_after(daemon: &Arc<Daemon<Cluster>>, mut phase: watch::Receiver<Phase>) {
    let missing = Arc::clone(daemon);
    tokio::spawn(async move { missing.make_up().await });
    let daemon = Arc::clone(daemon);
    tokio::spawn(async move {
        // By then pods are attached again, and multus' own configuration is there or about to be.
        if phase.wait_for(|phase| *phase == Phase::Serving).await.is_ok() {
            daemon.bury_stale().await;
        }
    });
}

async fn figures(
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

/// Opens the daemon for ADD once the default network is there, and keeps the runtime's configuration. Ends only by an
/// error.
async fn keep_conf(
    config: &Arc<DaemonConfig>,
    phase: &watch::Sender<Phase>,
    place: &Place,
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
            if !place.is_taken() {
                remove_conf(config);
            }
            Err(Stop {
                code: 2,
                cause: anyhow::anyhow!("the default network is not ready any more"),
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

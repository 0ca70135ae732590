//! The handler: its parts, started in order (nmstate §5.1).
//!
//! ```text
//! node's lock ──> engine: what a predecessor left is undone ──> self-test ──> ready ──┬─> reporter <── changes
//!                                                                                    ├─> policies ─┬─> pipeline
//!                                                                                    ├─> legacy ───┤
//!                                                                                    └─> drift ────┘
//! ```

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube_kit::client;
use kube_kit::metrics::Requests;
use kube_kit::shutdown::Shutdown;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

pub use crate::settings::Settings;

use crate::apply::{self, Pipeline};
use crate::engine::Engine;
use crate::node_lock::{self, NodeLock};
use crate::settings::{self, ExecutionType, Missing};
use crate::{Args, changes, drift, legacy, names, policy, reporter};

/// How long the handler may take to undo a change when it is told to end: less than the kubelet's 30 s.
const GRACE: Duration = Duration::from_secs(20);
/// How long on-demand mode waits for another handler of the node to end: longer than the kubelet gives one.
const PATIENCE: Duration = Duration::from_mins(1);
/// Why on-demand mode can't work beside another handler.
const ALONE: &str =
    "--execution-type client works on nodes without a running handler: gave up after a minute";

/// What all parts of the handler share. Clones share it all.
#[derive(Clone)]
pub struct Shared {
    /// The node that this is.
    pub node: String,
    /// The way to the API server.
    pub client: kube::Client,
    /// The way to the host.
    pub engine: Engine,
    /// Asks the reporter for a new report, at once.
    pub refresh: Arc<Notify>,
    /// Tells the reporter that something on the host may have changed.
    pub changed: Arc<Notify>,
    /// How often `NetworkManager` was seen to start: what failed without it is tried again then.
    pub starts: Arc<watch::Sender<u64>>,
    /// What the environment says.
    pub settings: Arc<Settings>,
}

impl Shared {
    /// What the parts of the handler of `node` share.
    pub fn new(node: &str, client: kube::Client, engine: Engine, settings: Settings) -> Self {
        Self {
            node: node.to_owned(),
            client,
            engine,
            refresh: Arc::new(Notify::new()),
            changed: Arc::new(Notify::new()),
            starts: Arc::new(watch::Sender::new(0)),
            settings: Arc::new(settings),
        }
    }
}

/// A handler that has what it needs to work.
struct Started {
    shared: Shared,
    pipeline: Arc<Pipeline>,
    /// Held until the process ends.
    _lock: NodeLock,
}

/// Runs the handler until SIGTERM; once, where the flags say so.
///
/// # Errors
/// When the environment lacks something, there is no way to the cluster, or the host can't be read.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let is_once = args.execution_type == ExecutionType::Client;
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    let started = tokio::select! {
        started = start(&args) => started?,
        () = shutdown.wait() => return Ok(exit_code(!is_once)),
    };
    // The lock is held until this returns.
    let Started {
        shared,
        pipeline,
        _lock,
    } = started;
    let engine = shared.engine.clone();
    let worked = if is_once {
        tokio::select! {
            applied = work_once(shared, pipeline) => applied,
            () = shutdown.wait() => Ok(false),
        }
    } else {
        be_ready(&shared.settings.ready_file)?;
        let (changed, starts) = (Arc::clone(&shared.changed), Arc::clone(&shared.starts));
        let changes = changes::follow(changed, starts, shared.settings.backend);
        tokio::select! {
            _ = async { tokio::join!(changes, work(shared, pipeline)) } => {}
            () = shutdown.wait() => {}
        }
        Ok(true)
    };
    leave(&engine).await;
    Ok(exit_code(worked?))
}

fn exit_code(worked: bool) -> ExitCode {
    if worked {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Undoes a change that the end of the handler interrupts: there may be no successor that would.
async fn leave(engine: &Engine) {
    match timeout(GRACE, engine.leave()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::error!("Rolling back network configuration, manual intervention needed: {error}");
        }
        Err(_) => tracing::error!("no time left to roll back a change that is not committed"),
    }
}

/// Everything that a handler does when it is ready: reports, policies, what the node's state asks for. Ends never.
pub async fn work(shared: Shared, pipeline: Arc<Pipeline>) {
    tokio::join!(
        reporter::start(shared.clone()),
        policy::controller::start(shared.clone(), Arc::clone(&pipeline)),
        legacy::node_state::start(shared.clone(), Arc::clone(&pipeline)),
        drift::start(shared.clone(), Arc::clone(&pipeline)),
    );
}

/// Everything that a handler does, once (nmstate §3.2-9). `false` when something could not be applied.
///
/// # Errors
/// When the host can't be read, or what came of it can't be told.
pub async fn work_once(shared: Shared, pipeline: Arc<Pipeline>) -> anyhow::Result<bool> {
    reporter::once(shared.clone()).await?;
    let wish = legacy::node_state::once(shared.clone(), Arc::clone(&pipeline)).await?;
    let policies = policy::controller::once(shared.clone(), pipeline).await;
    // What was applied is part of what the node is like.
    reporter::once(shared).await?;
    Ok(wish && policies)
}

/// Takes the node's lock, undoes what a predecessor left, and looks whether the host can be read.
async fn start(args: &Args) -> anyhow::Result<Started> {
    let node = settings::node(settings::variable)?;
    let settings = Settings::read(settings::variable);
    if settings.lock_file.as_os_str().is_empty() {
        return Err(Missing::LockFile.into());
    }
    // A predecessor's word in the same container.
    if settings.ready_file.exists() {
        fs::remove_file(&settings.ready_file)
            .with_context(|| format!("cannot remove {}", settings.ready_file.display()))?;
    }
    let cluster = client::configuration(names::COMPONENT, args.kubeconfig.as_deref()).await?;
    let client = client::counted(cluster.clone(), &Requests::default())?;
    let (file, name) = (&settings.lock_file, node_lock::own_name(settings::variable));
    let lock = match args.execution_type {
        ExecutionType::Controller => node_lock::take(file, &name, node_lock::PAUSE).await,
        ExecutionType::Client => node_lock::take_within(file, &name, node_lock::PAUSE, PATIENCE)
            .await
            .context(ALONE)?,
    };
    // What outlives the handler lies beside the lock.
    let engine = match settings.lock_file.parent() {
        Some(directory) => Engine::start_in(settings.backend, directory),
        None => Engine::start(settings.backend),
    };
    let engine = engine.context("cannot start the engine")?;
    engine
        .report()
        .await
        .context("cannot read the state of the host")?;
    let shared = Shared::new(&node, client, engine, settings);
    let pipeline = pipeline(&shared, Some(cluster));
    Ok(Started {
        shared,
        pipeline,
        _lock: lock,
    })
}

/// The way in which the handler changes its host. `cluster` leads to the API server by connections of its own, for
/// the probe.
pub fn pipeline(shared: &Shared, cluster: Option<kube::Config>) -> Arc<Pipeline> {
    let settings = apply::Settings {
        dns_host: shared.settings.probe_host.clone(),
        backend: shared.settings.backend,
        cluster,
        ..apply::Settings::default()
    };
    Arc::new(Pipeline::new(
        shared.engine.clone(),
        shared.client.clone(),
        shared.node.clone(),
        settings,
    ))
}

/// Tells the kubelet that the handler is ready: by a file, because no port is opened on the host's network.
fn be_ready(file: &Path) -> anyhow::Result<()> {
    let touch = || {
        if let Some(directory) = file.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::File::create(file).map(drop)
    };
    touch().with_context(|| format!("cannot create {}", file.display()))
}

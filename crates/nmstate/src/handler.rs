//! The handler: starts its parts in order (nmstate §5.1).
//!
//! ```text
//! node lock ──> engine: uncommitted change rolled back ──> self-test ──> ready ──┬─> reporter <── changes
//!                                                                               ├─> policies ─┬─> pipeline
//!                                                                               ├─> legacy ───┤
//!                                                                               └─> drift ────┘
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
use tokio::time::timeout;

pub use crate::settings::Settings;
pub use crate::shared::Shared;

use crate::apply::{self, Pipeline};
use crate::engine::Engine;
use crate::node_lock::{self, NodeLock};
use crate::settings::{self, ExecutionType, Missing};
use crate::{Args, changes, drift, legacy, names, policy, reporter};

/// Time for the roll-back of an uncommitted change after SIGTERM: less than the kubelet's 30 s.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(20);
/// How long client mode waits for the end of another handler of the node: longer than the kubelet's grace period.
const LOCK_TIMEOUT: Duration = Duration::from_mins(1);
/// Why client mode fails beside another handler.
const NEEDS_NO_HANDLER: &str =
    "--execution-type client needs a node without a running handler: gave up after a minute";

/// A handler that is ready to work.
struct Started {
    shared: Shared,
    pipeline: Arc<Pipeline>,
    /// Held until the process ends.
    _lock: NodeLock,
}

/// Runs the handler until SIGTERM, or once in client mode.
///
/// # Errors
/// If a variable is missing, the client of the cluster cannot be created, or the host cannot be read.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let is_once = args.execution_type == ExecutionType::Client;
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    let started = tokio::select! {
        started = start(&args) => started?,
        () = shutdown.wait() => return Ok(exit_code(!is_once)),
    };
    // The lock is held until this function returns.
    let Started {
        shared,
        pipeline,
        _lock,
    } = started;
    let engine = shared.engine.clone();
    let result = if is_once {
        tokio::select! {
            applied = work_once(shared, pipeline) => applied,
            () = shutdown.wait() => Ok(false),
        }
    } else {
        set_ready(&shared.settings.ready_file)?;
        let (changed, starts) = (Arc::clone(&shared.changed), Arc::clone(&shared.starts));
        let changes = changes::follow(changed, starts, shared.settings.backend);
        tokio::select! {
            _ = async { tokio::join!(changes, work(shared, pipeline)) } => {}
            () = shutdown.wait() => {}
        }
        Ok(true)
    };
    close(&engine).await;
    Ok(exit_code(result?))
}

fn exit_code(succeeded: bool) -> ExitCode {
    if succeeded {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Rolls back the change that the end of the handler interrupts: there may be no next handler to do it.
async fn close(engine: &Engine) {
    match timeout(ROLLBACK_TIMEOUT, engine.close()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::error!("Rolling back network configuration, manual intervention needed: {error}");
        }
        Err(_) => tracing::error!("timeout while rolling back an uncommitted change"),
    }
}

/// Runs the parts of a ready handler: reports, policies, the original design, drift. Never returns.
pub async fn work(shared: Shared, pipeline: Arc<Pipeline>) {
    tokio::join!(
        reporter::start(shared.clone()),
        policy::controller::start(shared.clone(), Arc::clone(&pipeline)),
        legacy::node_state::start(shared.clone(), Arc::clone(&pipeline)),
        drift::start(shared.clone(), Arc::clone(&pipeline)),
    );
}

/// Reports and applies everything once (nmstate §3.2-9). `false` if something could not be applied.
///
/// # Errors
/// If the host cannot be read, or the result cannot be written.
pub async fn work_once(shared: Shared, pipeline: Arc<Pipeline>) -> anyhow::Result<bool> {
    reporter::once(shared.clone()).await?;
    let node_state = legacy::node_state::once(shared.clone(), Arc::clone(&pipeline)).await?;
    let policies = policy::controller::once(shared.clone(), pipeline).await;
    // The report includes what was applied.
    reporter::once(shared).await?;
    Ok(node_state && policies)
}

/// Takes the node lock, rolls back an uncommitted change, and checks that the host can be read.
async fn start(args: &Args) -> anyhow::Result<Started> {
    let node = settings::node(settings::variable)?;
    let settings = Settings::read(settings::variable);
    if settings.lock_file.as_os_str().is_empty() {
        return Err(Missing::LockFile.into());
    }
    // A previous handler in this container created the file.
    if settings.ready_file.exists() {
        fs::remove_file(&settings.ready_file)
            .with_context(|| format!("cannot remove {}", settings.ready_file.display()))?;
    }
    let cluster = client::configuration(names::COMPONENT, args.kubeconfig.as_deref()).await?;
    let client = client::counted(cluster.clone(), &Requests::default())?;
    let (file, name) = (&settings.lock_file, node_lock::own_name(settings::variable));
    let lock = match args.execution_type {
        ExecutionType::Controller => node_lock::take(file, &name, node_lock::PAUSE).await,
        ExecutionType::Client => node_lock::take_within(file, &name, node_lock::PAUSE, LOCK_TIMEOUT)
            .await
            .context(NEEDS_NO_HANDLER)?,
    };
    // Files that outlive the handler are stored beside the lock.
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

/// Creates the handler's pipeline. `cluster` is the configuration of the API server, for the probe's own connections.
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

/// Reports readiness to the kubelet: by a file, because the handler opens no port on the host's network.
fn set_ready(file: &Path) -> anyhow::Result<()> {
    let touch = || {
        if let Some(directory) = file.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::File::create(file).map(drop)
    };
    touch().with_context(|| format!("cannot create {}", file.display()))
}

//! Handles one call: looks up the pod and its networks, runs the plugins on a worker thread, writes the network
//! status (multus.md §5).
//!
//! ```text
//! call ── one at a time for a sandbox ──> pod ──> networks ──> worker: plugins in order ──> status, events ──> answer
//!                                                                             └── watch or live ──┘          (attach.rs)
//! ```

mod add;
mod del;
mod devices;
mod gc;
mod kept_dels;
mod locks;
mod own_conf;
mod plug;
pub(crate) mod runtime;
mod stale;

use crate::attach::{Attacher, ScratchState};
use crate::cluster::ClusterView;
use crate::config::DaemonConfig;
use crate::daemon::locks::SandboxLocks;
use crate::execution::in_process::{OwnBinaries, Plugins};
use crate::execution::memory_limit;
use crate::execution::workers::{self, Slot, Workers};
use crate::messages::of_pod;
use crate::metrics::Metrics;
use crate::networks::delegate::Delegate;
use crate::networks::net_conf::{MultusConfig, ProcessSettings};
use crate::networks::resolve::Resolver;
use crate::request::{NodeVerb, Request};
use crate::sandbox::{PodVerb, Sandbox};
use crate::store::scratch::Scratch;
use cni::Error;
use cni::cache::Cache;
use cni::chain::Chain;
use cni::config::NetworkList;
use cni::error::internal;
use cni::exec::{self, Invoker};
use cni::names::CNI_PATH;
use del::DelRetry;
use kube_kit::events::Kind;
use linux::process::Door;
use own_conf::OwnFile;
use std::collections::BTreeSet;
use std::env;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{RwLock, RwLockReadGuard, watch};
use tokio::time::{Instant, sleep};

/// How long a call waits for the default network, and its poll interval.
const READINESS_WAIT: Duration = Duration::from_secs(45);
const READINESS_PAUSE: Duration = Duration::from_millis(250);

/// The slot owner of work that is for no pod. Not the name of a namespace.
const NODE_WORK: &str = "";

/// The caller of a request. It is closed once the caller no longer waits for the answer.
pub(crate) type Caller = watch::Sender<()>;

/// The daemon, without its socket.
pub(crate) struct Daemon<C> {
    config: Arc<DaemonConfig>,
    cluster: Arc<C>,
    locks: SandboxLocks,
    /// Shared by ADDs whose plugins run, exclusive for GC of the cluster network: such an attachment is on no list yet.
    /// It is taken last, after the sandbox's lock and the slot. Its holder waits for no lock and no slot. GC waits for
    /// it in a slot, an ADD does not.
    gate: RwLock<()>,
    /// Sandboxes that were attached since the start. `None` once the older ones were compared with the runtime's.
    since_start: Mutex<Option<BTreeSet<String>>>,
    workers: Workers,
    /// Separate, so that no DEL waits for ADDs.
    detachers: Workers,
    /// Separate, because GC waits for running ADDs in its slot.
    collectors: Workers,
    /// Recognises plugin files of this build, which run in this process.
    own_binaries: Arc<OwnBinaries>,
    own: ProcessSettings,
    own_file: OwnFile,
    /// The cgroup outside this process' memory limit, for plugins that run as programs.
    cgroup_exit: Option<Arc<Door>>,
}

impl<C: ClusterView + 'static> Daemon<C> {
    /// A daemon for this cluster that records these metrics.
    pub(crate) fn new(config: Arc<DaemonConfig>, cluster: Arc<C>, metrics: Metrics) -> Self {
        let workers = Workers::new(config.concurrency, config.call_timeout, metrics.overdue());
        let detachers = Workers::new(config.concurrency, config.call_timeout, metrics.overdue());
        let collectors = Workers::new(config.concurrency, config.call_timeout, metrics.overdue());
        let root = config.chroot_dir.as_deref().unwrap_or(Path::new("/"));
        let cgroup_exit = memory_limit::cgroup_exit(root).map(Arc::new);
        let own = ProcessSettings {
            device_info: config.device_info.clone(),
            args: config.one_shot.clone().unwrap_or_default(),
            metrics,
            repeats_dels: config.one_shot.is_none(),
        };
        Self {
            config,
            cluster,
            locks: SandboxLocks::default(),
            gate: RwLock::default(),
            since_start: Mutex::new(Some(BTreeSet::new())),
            workers,
            detachers,
            collectors,
            own_binaries: Arc::default(),
            own,
            own_file: OwnFile::default(),
            cgroup_exit,
        }
    }

    /// Handles one call. The answer to ADD is the master's result as JSON, CNI version 1.1.0.
    pub(crate) async fn handle(&self, request: Request, caller: &Caller) -> Result<Option<String>, Error> {
        match request {
            Request::Pod {
                verb,
                sandbox,
                config,
            } => {
                let about = (verb, sandbox.clone());
                self.exclusively(&about, self.pod_call(verb, sandbox, &config, caller))
                    .await
            }
            Request::Network {
                verb,
                sandbox,
                config,
                attributes,
            } => {
                let about = (verb, sandbox.clone());
                self.exclusively(&about, self.network_call(verb, sandbox, &config, &attributes))
                    .await
            }
            Request::NetworkStatus { config, attributes } => {
                self.network_status(&config, &attributes).await.map(|()| None)
            }
            Request::Node { verb, config } => self.node_call(verb, &config).await.map(|()| None),
        }
    }

    async fn pod_call(
        &self,
        verb: PodVerb,
        sandbox: Sandbox,
        config: &[u8],
        caller: &Caller,
    ) -> Result<Option<String>, Error> {
        match verb {
            PodVerb::Add => {
                let added = self.add(sandbox.clone(), config, caller).await;
                if added.is_err() && self.is_refused() {
                    self.undo_refused(&sandbox, config).await;
                }
                let result = added?;
                if caller.is_closed() {
                    self.undo(&sandbox, config).await?;
                }
                Ok(Some(result))
            }
            PodVerb::Del => self.del(&sandbox, config, DelRetry::Once).await.map(|()| None),
            PodVerb::Check => self.check(sandbox, config).await.map(|()| None),
        }
    }

    /// Rolls back an ADD whose caller is gone: a runtime that gave up calls DEL, one that was killed does not.
    async fn undo(&self, sandbox: &Sandbox, config: &[u8]) -> Result<(), Error> {
        tracing::warn!("rolling back an ADD whose caller closed the connection: {sandbox}");
        self.del(sandbox, config, DelRetry::UntilDone).await?;
        Err(of_pod(
            sandbox,
            "the caller closed the connection, the attachment was rolled back",
        ))
    }

    /// Rolls back an ADD that the API server's refusal interrupted: the shim repeats the call, and the next daemon
    /// must not find the interfaces.
    async fn undo_refused(&self, sandbox: &Sandbox, config: &[u8]) {
        let own_binaries = self.net_conf(config).ok();
        let scratch = own_binaries.and_then(|config| Scratch::new(&config.cni_dir, &sandbox.container_id));
        if scratch.is_some_and(|scratch| scratch.path().exists())
            && let Err(error) = self.del(sandbox, config, DelRetry::UntilDone).await
        {
            tracing::error!(%sandbox, %error, "cannot roll back an attachment that the API server refused");
        }
    }

    /// Whether the API server refuses the daemon (401). Callers then wait for another daemon.
    pub(crate) fn is_refused(&self) -> bool {
        self.cluster.is_refused()
    }

    /// Runs work under the sandbox's lock, and logs its begin and end.
    async fn exclusively(
        &self,
        (verb, sandbox): &(PodVerb, Sandbox),
        work: impl Future<Output = Result<Option<String>, Error>>,
    ) -> Result<Option<String>, Error> {
        let about = sandbox.to_string();
        tracing::info!("{verb} starting CNI request {about}");
        let _lock = self.locks.lock(&sandbox.container_id).await;
        if *verb == PodVerb::Add
            && let Some(since_start) = &mut *kube_kit::lock(&self.since_start)
        {
            since_start.insert(sandbox.container_id.clone());
        }
        let begun = Instant::now();
        let answer = work.await;
        let took = begun.elapsed();
        match &answer {
            Ok(result) => tracing::info!(
                ?took,
                "{verb} finished CNI request {about}, result: \"{}\", err: <nil>",
                result.as_deref().unwrap_or_default()
            ),
            Err(error) => tracing::error!(
                ?took,
                "{verb} finished CNI request {about}, result: \"\", err: {error}"
            ),
        }
        answer
    }

    async fn check(&self, sandbox: Sandbox, config: &[u8]) -> Result<(), Error> {
        let config = self.net_conf(config)?;
        self.on_sandbox(&self.workers, sandbox, config, |attacher| {
            match attacher.scratch_delegates()? {
                ScratchState::Delegates(delegates) => attacher.check(&delegates),
                ScratchState::Missing | ScratchState::Corrupt => {
                    let inline = attacher.config.delegates.iter();
                    let inline = inline.map(|text| Delegate::inline(text));
                    attacher.check(&inline.collect::<Result<Vec<_>, _>>().map_err(internal)?)
                }
            }
        })
        .await?
    }

    /// Waits for a slot of the workers, and keeps GC of the cluster network away. Waits for GC without a slot, so that
    /// other calls go on meanwhile. GC waits for no call that is queued.
    async fn turn(&self, owner: &str) -> (Slot, RwLockReadGuard<'_, ()>) {
        loop {
            drop(self.gate.read().await);
            let slot = self.workers.slot(owner).await;
            if let Ok(gate) = self.gate.try_read() {
                return (slot, gate);
            }
        }
    }

    /// Runs blocking work on a sandbox, on a thread of these workers.
    async fn on_sandbox<T: Send + 'static>(
        &self,
        workers: &Workers,
        sandbox: impl Into<Arc<Sandbox>>,
        config: impl Into<Arc<MultusConfig>>,
        work: impl FnOnce(&Attacher<'_, Plugins>) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let sandbox = sandbox.into();
        let slot = workers.slot(&sandbox.pod.namespace).await;
        self.on_sandbox_in(slot, workers, sandbox, config, work).await
    }

    /// [`Daemon::on_sandbox`] in a slot that is already held.
    async fn on_sandbox_in<T: Send + 'static>(
        &self,
        slot: Slot,
        workers: &Workers,
        sandbox: impl Into<Arc<Sandbox>>,
        config: impl Into<Arc<MultusConfig>>,
        work: impl FnOnce(&Attacher<'_, Plugins>) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (sandbox, config) = (sandbox.into(), config.into());
        let runner = self.invoker(&config);
        let given_up = Arc::clone(&runner.given_up);
        let work = move || {
            work(&Attacher {
                runner: &runner,
                config: &config,
                sandbox: &sandbox,
            })
        };
        let outcome = workers.run_in(slot, work).await;
        given_up.store(outcome.is_err(), Ordering::Relaxed);
        outcome.map_err(failed)
    }

    async fn node_call(&self, verb: NodeVerb, request: &[u8]) -> Result<(), Error> {
        let config = self.net_conf(request)?;
        match verb {
            NodeVerb::Status => {
                self.wait_ready(&config, None).await?;
                let Some(network) = self.cluster_network(&config).await? else {
                    return Ok(());
                };
                let invoker = self.invoker(&config);
                let work = move || {
                    on_chain(&network, &invoker, &config.cni_dir, |network, chain| {
                        chain.status(network)
                    })
                };
                self.workers.run(NODE_WORK, work).await.map_err(failed)?
            }
            NodeVerb::Gc => self.gc(config, request).await,
        }
    }

    /// The network that every pod gets, if there is one.
    async fn cluster_network(&self, config: &MultusConfig) -> Result<Option<Delegate>, Error> {
        let resolver = Resolver {
            cluster: &*self.cluster,
            config,
        };
        let defaults = resolver.defaults(None).await;
        let defaults = defaults.map_err(|error| {
            Error::internal(format!(
                "Multus: failed to get clusterNetwork/defaultNetworks: {error}"
            ))
        })?;
        Ok(defaults.into_iter().next())
    }

    async fn wait_ready(&self, config: &MultusConfig, sandbox: Option<&Sandbox>) -> Result<(), Error> {
        let Some(file) = &config.readiness_indicator else {
            return Ok(());
        };
        let deadline = Instant::now() + READINESS_WAIT;
        while !file.exists() {
            if Instant::now() >= deadline {
                let text = format!(
                    "have you checked that your default network is ready? still waiting for readinessindicatorfile @ {}. pollimmediate error: timed out waiting for the condition",
                    file.display()
                );
                return Err(sandbox.map_or_else(
                    || Error::internal(format!("Multus: {text}")),
                    |sandbox| of_pod(sandbox, &text),
                ));
            }
            // Polled: the file may be anywhere, in directories that are removed and created.
            sleep(READINESS_PAUSE).await;
        }
        Ok(())
    }

    fn invoker(&self, config: &MultusConfig) -> Plugins {
        let path = env::var_os(CNI_PATH).unwrap_or_default();
        let mut dirs = vec![config.bin_dir.clone()];
        dirs.extend(env::split_paths(&path).filter(|dir| dir != Path::new("")));
        let prepare = self
            .cgroup_exit
            .clone()
            .map(|cgroup_exit| -> exec::Prepare { Arc::new(move |command| cgroup_exit.lead(command)) });
        Plugins {
            invoker: Invoker {
                dirs,
                base: cni::env::variables(),
                prepare,
                limit: Some(exec::RESIDENT_LIMIT),
            },
            root: self.config.chroot_dir.clone(),
            given_up: Arc::default(),
            repeats_dels: self.own.repeats_dels,
            own_binaries: Arc::clone(&self.own_binaries),
        }
    }

    fn warn(&self, sandbox: &Sandbox, reason: &'static str, text: String) {
        self.cluster.event(&sandbox.pod, Kind::Warning, reason, text);
    }
}

/// Calls the plugins of a network, for no sandbox.
fn on_chain(
    network: &Delegate,
    runner: &Plugins,
    cni_dir: &Path,
    work: impl FnOnce(&NetworkList, &Chain<'_, Plugins>) -> Result<(), Error>,
) -> Result<(), Error> {
    let network = network.config.network().map_err(internal)?;
    let cache = Cache::new(cni_dir);
    let chain = Chain {
        runner,
        cache: &cache,
    };
    work(&network, &chain)
}

/// A file's path and its error, in one line.
fn in_file(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

fn failed(error: workers::Error) -> Error {
    Error::internal(format!("Multus: {error}"))
}

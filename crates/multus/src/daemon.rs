//! What the daemon does with a call: reads the cluster, has the blocking part done on a worker, writes the result back
//! (multus.md §5).
//!
//! ```text
//! call ── one at a time a sandbox ──> pod ──> networks ──> worker: plugins in order ──> status, events ──> answer
//!                                     └── watch or live ──┘          (attach.rs)
//! ```

mod add;
mod del;
mod devices;
mod gc;
mod missed;
mod own_conf;
mod plug;
mod stale;

use crate::attach::{Attacher, Stored};
use crate::cluster::ClusterView;
use crate::daemon_config::DaemonConfig;
use crate::delegate::Delegate;
use crate::in_process::{Known, Plugins};
use crate::locks::SandboxLocks;
use crate::memory_limit;
use crate::messages::of_pod;
use crate::metrics::Metrics;
use crate::net_conf::{MultusConfig, Own};
use crate::request::{NodeVerb, PodVerb, Request, Sandbox};
use crate::resolve::Resolver;
use crate::scratch::Scratch;
use crate::workers::{self, Place, Workers};
use cni::Error;
use cni::cache::Cache;
use cni::chain::Chain;
use cni::config::NetworkList;
use cni::error::internal;
use cni::exec::{self, Invoker};
use cni::names::CNI_PATH;
use del::Manner;
use kube_kit::events::Kind;
use linux::process::Door;
use own_conf::OwnFile;
use std::collections::BTreeSet;
use std::env;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::RwLock;
use tokio::time::{Instant, sleep};

/// How long a call waits for the default network, and how often it looks.
const READINESS_WAIT: Duration = Duration::from_secs(45);
const READINESS_PAUSE: Duration = Duration::from_millis(250);

/// Whose work it is that is for no pod: no namespace is called so.
const OF_THE_NODE: &str = "";

/// The daemon, without its socket.
pub struct Daemon<C> {
    config: Arc<DaemonConfig>,
    cluster: Arc<C>,
    locks: SandboxLocks,
    /// ADDs go in together, GC alone: what is being attached is on no list yet.
    gate: RwLock<()>,
    /// Sandboxes that were attached since the start, as long as those before it are compared with the runtime's.
    since_start: Mutex<Option<BTreeSet<String>>>,
    workers: Workers,
    /// Apart, so that no pod's end waits for others' beginnings.
    detachers: Workers,
    /// Plugins that need no process.
    known: Arc<Known>,
    own: Own,
    own_file: OwnFile,
    /// Where those that need one are not limited with this one.
    way_out: Option<Arc<Door>>,
}

impl<C: ClusterView + 'static> Daemon<C> {
    /// A daemon that works on this cluster, and counts with these figures.
    pub fn new(config: Arc<DaemonConfig>, cluster: Arc<C>, metrics: Metrics) -> Self {
        let workers = Workers::new(config.concurrency, config.patience, metrics.overdue());
        let detachers = Workers::new(config.concurrency, config.patience, metrics.overdue());
        let root = config.chroot_dir.as_deref().unwrap_or(Path::new("/"));
        let way_out = memory_limit::way_out(root).map(Arc::new);
        let own = Own {
            device_info: config.device_info.clone(),
            args: config.one_shot.clone().unwrap_or_default(),
            metrics,
        };
        Self {
            config,
            cluster,
            locks: SandboxLocks::default(),
            gate: RwLock::default(),
            since_start: Mutex::new(Some(BTreeSet::new())),
            workers,
            detachers,
            known: Arc::default(),
            own,
            own_file: OwnFile::default(),
            way_out,
        }
    }

    /// Works on one call to its end. The answer to ADD is the master's result as JSON, CNI version 1.1.0.
    /// `is_gone` says whether nobody waits for the answer any more.
    pub async fn handle(
        &self,
        request: Request,
        is_gone: impl Fn() -> bool,
    ) -> Result<Option<String>, Error> {
        match request {
            Request::Pod {
                verb,
                sandbox,
                config,
            } => {
                let about = (verb, sandbox.clone());
                self.alone(&about, self.pod_call(verb, sandbox, &config, is_gone))
                    .await
            }
            Request::Network {
                verb,
                sandbox,
                config,
                wishes,
            } => {
                let about = (verb, sandbox.clone());
                self.alone(&about, self.network_call(verb, sandbox, &config, &wishes))
                    .await
            }
            Request::NetworkStatus { config, wishes } => {
                self.network_status(&config, &wishes).await.map(|()| None)
            }
            Request::Node { verb, config } => self.node_call(verb, &config).await.map(|()| None),
        }
    }

    async fn pod_call(
        &self,
        verb: PodVerb,
        sandbox: Sandbox,
        config: &[u8],
        is_gone: impl Fn() -> bool,
    ) -> Result<Option<String>, Error> {
        match verb {
            PodVerb::Add => {
                let added = self.add(sandbox.clone(), config, &is_gone).await;
                if added.is_err() && self.is_refused() {
                    self.undo_refused(&sandbox, config).await;
                }
                let result = added?;
                if is_gone() {
                    self.undo(&sandbox, config).await?;
                }
                Ok(Some(result))
            }
            PodVerb::Del => self.del(&sandbox, config, Manner::Once).await.map(|()| None),
            PodVerb::Check => self.check(sandbox, config).await.map(|()| None),
        }
    }

    /// Detaches again what nobody will hear of: a runtime that gave up calls DEL, one that was killed does not.
    async fn undo(&self, sandbox: &Sandbox, config: &[u8]) -> Result<(), Error> {
        tracing::warn!("nobody waits for the answer any more, detaching again: {sandbox}");
        self.del(sandbox, config, Manner::UntilDone).await?;
        Err(of_pod(sandbox, "nobody waited for the answer, detached again"))
    }

    /// Detaches what an ADD attached before the API server refused the daemon: the shim repeats the call, and the next
    /// daemon would find the interfaces there.
    async fn undo_refused(&self, sandbox: &Sandbox, config: &[u8]) {
        let known = self.net_conf(config).ok();
        let scratch = known.and_then(|config| Scratch::new(&config.cni_dir, &sandbox.container_id));
        if scratch.is_some_and(|scratch| scratch.path().exists())
            && let Err(error) = self.del(sandbox, config, Manner::UntilDone).await
        {
            tracing::error!(%sandbox, %error, "cannot undo an attachment that the API server did not take");
        }
    }

    /// Whether the API server refuses the daemon: another one is to do what it is asked for.
    pub fn is_refused(&self) -> bool {
        self.cluster.is_refused()
    }

    /// Works on a sandbox when nobody else does, and logs it.
    async fn alone(
        &self,
        (verb, sandbox): &(PodVerb, Sandbox),
        work: impl Future<Output = Result<Option<String>, Error>>,
    ) -> Result<Option<String>, Error> {
        let about = sandbox.to_string();
        tracing::info!("{verb} starting CNI request {about}");
        // Before the sandbox's own lock: GC takes them in this order too.
        let _gate = match verb {
            PodVerb::Add => Some(self.gate.read().await),
            PodVerb::Del | PodVerb::Check => None,
        };
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
                Stored::Delegates(delegates) => attacher.check(&delegates),
                Stored::Missing | Stored::Corrupt => {
                    let inline = attacher.config.delegates.iter();
                    let inline = inline.map(|text| Delegate::inline(text));
                    attacher.check(&inline.collect::<Result<Vec<_>, _>>().map_err(internal)?)
                }
            }
        })
        .await?
    }

    /// Works on a sandbox, on a thread of these: plugins are waited for.
    async fn on_sandbox<T: Send + 'static>(
        &self,
        workers: &Workers,
        sandbox: impl Into<Arc<Sandbox>>,
        config: impl Into<Arc<MultusConfig>>,
        work: impl FnOnce(&Attacher<'_, Plugins>) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let sandbox = sandbox.into();
        let place = workers.place(&sandbox.pod.namespace).await;
        self.on_sandbox_at(place, workers, sandbox, config, work).await
    }

    /// [`Daemon::on_sandbox`] at a place that was waited for.
    async fn on_sandbox_at<T: Send + 'static>(
        &self,
        place: Place,
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
        let outcome = workers.run_at(place, work).await;
        given_up.store(outcome.is_err(), Ordering::Relaxed);
        outcome.map_err(failed)
    }

    async fn node_call(&self, verb: NodeVerb, request: &[u8]) -> Result<(), Error> {
        let config = self.net_conf(request)?;
        match verb {
            NodeVerb::Status => {
                self.wait_ready(&config, None).await?;
                self.cluster_network(config, |network, chain| chain.status(network))
                    .await
            }
            NodeVerb::Gc => self.gc(config, request).await,
        }
    }

    /// Does something about the network that every pod gets, of which there may be none.
    async fn cluster_network(
        &self,
        config: MultusConfig,
        work: impl FnOnce(&NetworkList, &Chain<'_, Plugins>) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        let resolver = Resolver {
            cluster: &*self.cluster,
            config: &config,
        };
        let defaults = resolver.defaults(None).await;
        let defaults = defaults.map_err(|error| {
            Error::internal(format!(
                "Multus: failed to get clusterNetwork/defaultNetworks: {error}"
            ))
        })?;
        let Some(master) = defaults.into_iter().next() else {
            return Ok(());
        };
        let invoker = self.invoker(&config);
        let run = move || {
            let network = master.config.network().map_err(internal)?;
            let cache = Cache::new(&config.cni_dir);
            let chain = Chain {
                runner: &invoker,
                cache: &cache,
            };
            work(&network, &chain)
        };
        self.workers.run(OF_THE_NODE, run).await.map_err(failed)?
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
            // The file may lie anywhere, in directories that come and go.
            sleep(READINESS_PAUSE).await;
        }
        Ok(())
    }

    fn invoker(&self, config: &MultusConfig) -> Plugins {
        let path = env::var_os(CNI_PATH).unwrap_or_default();
        let mut dirs = vec![config.bin_dir.clone()];
        dirs.extend(env::split_paths(&path).filter(|dir| dir != Path::new("")));
        let prepare = self
            .way_out
            .clone()
            .map(|way_out| -> exec::Prepare { Arc::new(move |command| way_out.lead(command)) });
        Plugins {
            invoker: Invoker {
                dirs,
                base: cni::env::variables(),
                prepare,
                limit: Some(exec::RESIDENT_LIMIT),
            },
            root: self.config.chroot_dir.clone(),
            given_up: Arc::default(),
            known: Arc::clone(&self.known),
        }
    }

    fn warn(&self, sandbox: &Sandbox, reason: &'static str, text: String) {
        self.cluster.event(&sandbox.pod, Kind::Warning, reason, text);
    }
}

/// What is wrong with a file, in one line.
fn in_file(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

fn failed(error: workers::Error) -> Error {
    Error::internal(format!("Multus: {error}"))
}

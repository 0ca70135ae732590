//! What the daemon does with a call: reads the cluster, has the blocking part done on a worker, writes the result back
//! (multus.md §5).
//!
//! ```text
//! call ── one at a time a sandbox ──> pod ──> networks ──> worker: plugins in order ──> status, events ──> answer
//!                                     └── watch or live ──┘          (attach.rs)
//! ```

use crate::attach::{AddError, Attached, Attacher, NetworkFailure, Stored};
use crate::cluster::{ClusterView, LookupError, Pod};
use crate::daemon_config::DaemonConfig;
use crate::delegate::{Config, Delegate};
use crate::locks::SandboxLocks;
use crate::messages::{self, of_pod};
use crate::names;
use crate::net_conf::{self, MultusConfig};
use crate::netns::KernelNetns;
use crate::request::{NodeVerb, PodVerb, Request, Sandbox};
use crate::resolve::Resolver;
use crate::workers::{self, Workers};
use cni::Error;
use cni::cache::Cache;
use cni::chain::Chain;
use cni::config::ValidAttachment;
use cni::error::{code, internal};
use cni::exec::Invoker;
use cni::result::{CniResult, Interface, IpConfig};
use cni::status::{entries_for, render};
use cni::version::Version;
use ipnet::Ipv4Net;
use kube_kit::events::Kind;
use std::env;
use std::fmt::Display;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// How long a call waits for the default network, and how often it looks.
const READINESS_WAIT: Duration = Duration::from_secs(45);
const READINESS_PAUSE: Duration = Duration::from_millis(250);
/// How long a DEL without state of its own asks for the pod: its end must not depend on the API server.
const DEL_LOOKUP: Duration = Duration::from_millis(2500);

/// Says when an attachment's state is on disk.
type Synced = JoinHandle<Result<io::Result<()>, workers::Error>>;

/// The daemon, without its socket.
pub struct Daemon<C> {
    config: Arc<DaemonConfig>,
    cluster: Arc<C>,
    locks: SandboxLocks,
    workers: Workers,
}

impl<C: ClusterView + 'static> Daemon<C> {
    /// A daemon that works on this cluster.
    pub fn new(config: Arc<DaemonConfig>, cluster: Arc<C>) -> Self {
        let workers = Workers::new(config.concurrency);
        Self {
            config,
            cluster,
            locks: SandboxLocks::default(),
            workers,
        }
    }

    /// Works on one call to its end. The answer to ADD is the master's result as JSON, CNI version 1.1.0.
    pub async fn handle(&self, request: Request) -> Result<Option<String>, Error> {
        match request {
            Request::Pod {
                verb,
                sandbox,
                config,
            } => self.pod_call(verb, sandbox, &config).await,
            Request::Node { verb, config } => self.node_call(verb, &config).await.map(|()| None),
        }
    }

    async fn pod_call(
        &self,
        verb: PodVerb,
        sandbox: Sandbox,
        config: &[u8],
    ) -> Result<Option<String>, Error> {
        let about = sandbox.to_string();
        tracing::info!("{verb} starting CNI request {about}");
        let _lock = self.locks.lock(&sandbox.container_id).await;
        let begun = Instant::now();
        let answer = match verb {
            PodVerb::Add => self.add(sandbox, config).await.map(Some),
            PodVerb::Del => self.del(sandbox, config).await.map(|()| None),
            PodVerb::Check => self.check(sandbox, config).await.map(|()| None),
        };
        let result = answer.as_ref().ok().cloned().flatten().unwrap_or_default();
        let took = begun.elapsed();
        match &answer {
            Ok(_) => tracing::info!(
                ?took,
                "{verb} finished CNI request {about}, result: \"{result}\", err: <nil>"
            ),
            Err(error) => tracing::error!(
                ?took,
                "{verb} finished CNI request {about}, result: \"\", err: {error}"
            ),
        }
        answer
    }

    async fn add(&self, mut sandbox: Sandbox, config: &[u8]) -> Result<String, Error> {
        let pod_name = format!("[{}/{}]", sandbox.pod.namespace, sandbox.pod.name);
        let answer = async {
            let config = self.net_conf(config)?;
            self.wait_ready(&config, Some(&sandbox)).await?;
            let Some(pod) = self.pod(&mut sandbox).await? else {
                tracing::info!("pod {} is gone, nothing to attach", sandbox.pod);
                return Ok(nothing(&sandbox));
            };
            let networks = self.networks(&sandbox, &pod, &config).await?;
            let (attached, synced) = self.attach(&sandbox, config, networks).await?;
            self.tell(&sandbox, &pod, &attached).await?;
            let unsaved =
                |error: &dyn Display| of_pod(&sandbox, &format!("error saving the delegates: {error}"));
            match synced.await {
                Ok(Ok(synced)) => synced.map_err(|error| unsaved(&error))?,
                Ok(Err(error)) => return Err(unsaved(&error)),
                Err(error) => return Err(unsaved(&error)),
            }
            // The master's result is the pod's: secondary networks never leak into it.
            Ok(attached
                .first()
                .map(|master| master.result.clone())
                .unwrap_or_default())
        };
        let result: CniResult = answer.await.map_err(|error: Error| {
            error.prefixed(&format!("error configuring pod {pod_name} networking"))
        })?;
        Ok(result.to_json(Version::LATEST)?.to_string())
    }

    /// The pod of the sandbox; `None` when it is gone. Takes over its UID when the runtime sent none.
    async fn pod(&self, sandbox: &mut Sandbox) -> Result<Option<Pod>, Error> {
        let named = sandbox.pod.clone();
        let found = self
            .cluster
            .pod(&named.namespace, &named.name, named.uid.as_deref())
            .await;
        let Some(pod) = found.map_err(|error| of_pod(sandbox, &format!("error waiting for pod: {error}")))?
        else {
            return Ok(None);
        };
        match &named.uid {
            None => sandbox.pod.uid = Some(pod.uid.clone()),
            Some(uid) if *uid != pod.uid && !pod.is_static => {
                let text = format!("expected pod UID \"{uid}\" but got \"{}\" from Kube API", pod.uid);
                return Err(of_pod(sandbox, &text));
            }
            Some(_) => {}
        }
        Ok(Some(pod))
    }

    async fn networks(
        &self,
        sandbox: &Sandbox,
        pod: &Pod,
        config: &MultusConfig,
    ) -> Result<Vec<Delegate>, Error> {
        let resolver = Resolver {
            cluster: &*self.cluster,
            config,
        };
        resolver.networks_of(pod).await.map_err(|error| {
            match error.missing() {
                Some(missing) => self.warn(sandbox, names::REASON_NO_NETWORK, missing.to_string()),
                None => self.warn(sandbox, names::REASON_FAILED, error.to_string()),
            }
            of_pod(sandbox, &error.to_string())
        })
    }

    /// Attaches all networks. What comes back with them says when their state is on disk: the worker goes on to wait
    /// for that while the cluster is told.
    async fn attach(
        &self,
        sandbox: &Sandbox,
        config: MultusConfig,
        networks: Vec<Delegate>,
    ) -> Result<(Arc<Vec<Attached>>, Synced), Error> {
        let invoker = self.invoker(&config);
        let owned = sandbox.clone();
        let (report, reported) = oneshot::channel();
        let work = move || {
            let attacher = Attacher {
                runner: &invoker,
                config: &config,
                sandbox: &owned,
            };
            let outcome = attacher
                .add(&networks, &mut KernelNetns::new(&owned.netns))
                .map(Arc::new);
            let attached = outcome.as_ref().map(Arc::clone).unwrap_or_default();
            // Without anybody who waits the state is all the more needed.
            let _ = report.send(outcome);
            if attached.is_empty() {
                Ok(())
            } else {
                attacher.sync(&attached)
            }
        };
        let workers = self.workers.clone();
        let synced = tokio::spawn(async move { workers.run(work).await });
        match reported.await.map_err(|_| failed(workers::Error::Panicked))? {
            Ok(attached) => Ok((attached, synced)),
            Err(AddError::Network(failure)) => {
                let NetworkFailure {
                    display_name,
                    network,
                    ifname,
                    error,
                } = *failure;
                let text = messages::failed_adding(&ifname, &display_name, &error);
                self.warn(sandbox, names::REASON_FAILED, text);
                let prefix = format!(
                    "[{}:{network}]: error adding container to network \"{network}\"",
                    sandbox.pod
                );
                Err(error.prefixed(&prefix))
            }
            Err(AddError::Prepare(text) | AddError::Route(text)) => {
                self.warn(sandbox, names::REASON_FAILED, text.clone());
                Err(of_pod(sandbox, &text))
            }
        }
    }

    /// Events, the log, and the status annotation: one write for all networks.
    async fn tell(&self, sandbox: &Sandbox, pod: &Pod, attached: &[Attached]) -> Result<(), Error> {
        let mut entries = Vec::new();
        for (
            index,
            Attached {
                display_name,
                network,
                ifname,
                result,
            },
        ) in attached.iter().enumerate()
        {
            let json = result
                .to_json(Version::LATEST)
                .map(|json| json.to_string())
                .unwrap_or_default();
            tracing::info!(
                "Add: {}:{}:{}:{display_name}({network}):{ifname} {json}",
                pod.namespace,
                pod.name,
                sandbox.pod.uid.as_deref().unwrap_or_default()
            );
            if !result.interfaces.is_empty() || !result.ips.is_empty() {
                let text = messages::added(ifname, display_name, result);
                self.cluster
                    .event(&sandbox.pod, Kind::Normal, names::REASON_ADDED, text);
            }
            entries.extend(entries_for(display_name, result, index == 0, None));
        }
        if entries.is_empty() {
            return Ok(());
        }
        let written = self.cluster.write_status(pod, &render(&entries)).await;
        written.map_err(|error| of_pod(sandbox, &format!("error setting the networks status: {error}")))
    }

    async fn del(&self, sandbox: Sandbox, config: &[u8]) -> Result<(), Error> {
        let config = Arc::new(self.net_conf(config)?);
        if let Some(file) = &config.readiness_indicator {
            match file.try_exists() {
                Ok(true) => {}
                Ok(false) => tracing::warn!(file = %file.display(), "the default network is not ready"),
                Err(error) => {
                    let text = format!(
                        "error checking readinessindicatorfile on CNI DEL @ {}: {error}",
                        file.display()
                    );
                    return Err(of_pod(&sandbox, &text));
                }
            }
        }
        let sandbox = Arc::new(sandbox);
        let invoker = Arc::new(self.invoker(&config));
        let known = {
            let (sandbox, config, invoker) =
                (Arc::clone(&sandbox), Arc::clone(&config), Arc::clone(&invoker));
            let work = move || {
                let attacher = Attacher {
                    runner: &*invoker,
                    config: &config,
                    sandbox: &sandbox,
                };
                del_by_state(&attacher)
            };
            self.workers.run(work).await.map_err(failed)?
        };
        let delegates = match known {
            Known::Done(result) => return result,
            Known::Nothing { corrupt } => self.resolve_for_del(&sandbox, &config, corrupt).await?,
        };
        if delegates.is_empty() {
            return Ok(());
        }
        let work = move || {
            Attacher {
                runner: &*invoker,
                config: &config,
                sandbox: &sandbox,
            }
            .del(&delegates)
        };
        self.workers.run(work).await.map_err(failed)?
    }

    /// The networks of a sandbox that left no state behind: those that its pod would get now. Without the pod none,
    /// but after a loss at least the one that every pod gets.
    async fn resolve_for_del(
        &self,
        sandbox: &Sandbox,
        config: &MultusConfig,
        corrupt: bool,
    ) -> Result<Vec<Delegate>, Error> {
        let resolver = Resolver {
            cluster: &*self.cluster,
            config,
        };
        let pod = &sandbox.pod;
        let asked = timeout(
            DEL_LOOKUP,
            self.cluster.pod(&pod.namespace, &pod.name, pod.uid.as_deref()),
        )
        .await;
        let found = asked.unwrap_or_else(|_| Err(LookupError("no answer in time".into())));
        let ours = |found: &Pod| found.is_static || pod.uid.as_ref().is_none_or(|uid| *uid == found.uid);
        let found = match found {
            Ok(found) => found.filter(ours),
            Err(error) => {
                tracing::warn!("Multus: cannot look up pod {pod} on DEL: {error}");
                None
            }
        };
        let Some(found) = found else {
            tracing::warn!(
                "Multus: failed to get the cached delegates file of {sandbox}, cannot properly delete"
            );
            let defaults = if corrupt {
                resolver.defaults(None).await
            } else {
                Ok(Vec::new())
            };
            return Ok(defaults.unwrap_or_default());
        };
        match timeout(DEL_LOOKUP, resolver.networks_of(&found)).await {
            Ok(Ok(networks)) => Ok(networks),
            incomplete => {
                let cause = match incomplete {
                    Ok(Err(error)) => error.to_string(),
                    _ => "no answer in time".into(),
                };
                tracing::warn!("Multus: failed to get delegates of {sandbox}: {cause}");
                let defaults = resolver.defaults(None).await;
                defaults.map_err(|_| of_pod(sandbox, &format!("failed to get delegates: {cause}")))
            }
        }
    }

    async fn check(&self, sandbox: Sandbox, config: &[u8]) -> Result<(), Error> {
        let config = self.net_conf(config)?;
        let invoker = self.invoker(&config);
        let work = move || {
            let attacher = Attacher {
                runner: &invoker,
                config: &config,
                sandbox: &sandbox,
            };
            match attacher.scratch_delegates() {
                Stored::Delegates(delegates) => attacher.check(&delegates),
                Stored::Missing | Stored::Corrupt => attacher.check(&inline(&config)?),
            }
        };
        self.workers.run(work).await.map_err(failed)?
    }

    async fn node_call(&self, verb: NodeVerb, config: &[u8]) -> Result<(), Error> {
        let config = self.net_conf(config)?;
        self.wait_ready(&config, None).await?;
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
        let work = move || {
            let network = master.config.network().map_err(internal)?;
            let cache = Cache::new(&config.cni_dir);
            let chain = Chain {
                runner: &invoker,
                cache: &cache,
            };
            match verb {
                NodeVerb::Status => chain.status(&network),
                NodeVerb::Gc => chain.gc(&network, &attachments(&cache)),
            }
        };
        self.workers.run(work).await.map_err(failed)?
    }

    fn net_conf(&self, request: &[u8]) -> Result<MultusConfig, Error> {
        let unusable = |error: net_conf::Error| Error::new(code::INVALID_NETWORK_CONFIG, error.to_string());
        let object = net_conf::overlay(request, &self.config.object, self.config.manages_readiness())
            .map_err(unusable)?;
        MultusConfig::parse(&object).map_err(unusable)
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

    fn invoker(&self, config: &MultusConfig) -> Invoker {
        let path = env::var_os("CNI_PATH").unwrap_or_default();
        let mut dirs = vec![config.bin_dir.clone()];
        dirs.extend(env::split_paths(&path).filter(|dir| dir != Path::new("")));
        let prepare = self.config.chroot_dir.clone().map(|root| -> cni::exec::Prepare {
            Arc::new(move |command| {
                // Fails for a path with a zero byte only; such a root can't be configured in JSON and opened as well.
                if let Err(error) = linux::process::chroot(command, &root) {
                    tracing::error!(%error, "cannot change the root of a plugin");
                }
            })
        });
        Invoker {
            dirs,
            base: cni::env::variables(),
            prepare,
        }
    }

    fn warn(&self, sandbox: &Sandbox, reason: &'static str, text: String) {
        self.cluster.event(&sandbox.pod, Kind::Warning, reason, text);
    }
}

/// What the node itself knew about a sandbox.
enum Known {
    /// It was enough: detached.
    Done(Result<(), Error>),
    /// It knew nothing; `corrupt` when it once had.
    Nothing { corrupt: bool },
}

fn del_by_state(attacher: &Attacher<'_, Invoker>) -> Known {
    let corrupt = match attacher.scratch_delegates() {
        Stored::Delegates(delegates) => return Known::Done(attacher.del(&delegates)),
        Stored::Corrupt => true,
        Stored::Missing => false,
    };
    let cached = attacher.cached_delegates();
    if cached.is_empty() {
        Known::Nothing { corrupt }
    } else {
        Known::Done(attacher.del(&cached))
    }
}

fn inline(config: &MultusConfig) -> Result<Vec<Delegate>, Error> {
    let texts = config.delegates.iter().map(|text| text.get());
    let parse =
        |text: &str| Config::parse(text.as_bytes()).map(|config| Delegate::new(config.name(), config));
    texts.map(parse).collect::<Result<_, _>>().map_err(internal)
}

fn attachments(cache: &Cache) -> Vec<ValidAttachment> {
    let (entries, broken) = cache.entries();
    for error in broken {
        tracing::warn!(%error, "left out of the valid attachments");
    }
    let valid = |entry: cni::cache::Entry| ValidAttachment {
        container_id: entry.container_id,
        ifname: entry.ifname,
    };
    entries.into_iter().map(valid).collect()
}

/// The answer for a pod that is gone: something that runtimes take for an attachment.
fn nothing(sandbox: &Sandbox) -> CniResult {
    let interface = Interface {
        name: sandbox.ifname.clone(),
        sandbox: Some(sandbox.netns.clone()),
        ..Interface::default()
    };
    let address = IpConfig {
        address: Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 32).into(),
        gateway: Some(Ipv4Addr::UNSPECIFIED.into()),
        interface: None,
    };
    CniResult {
        interfaces: vec![interface],
        ips: vec![address],
        ..CniResult::default()
    }
}

fn failed(error: workers::Error) -> Error {
    Error::internal(format!("Multus: {error}"))
}

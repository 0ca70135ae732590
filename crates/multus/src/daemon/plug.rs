//! `/delegate`: one network of a pod that runs is attached, detached or checked (multus.md §7.4).

use super::{Daemon, failed};
use crate::attach::Attacher;
use crate::cluster::ClusterView;
use crate::delegate::{self, Config, Delegate};
use crate::messages::{self, of_pod};
use crate::names;
use crate::net_conf::MultusConfig;
use crate::netns::KernelNetns;
use crate::request::{PodVerb, Sandbox};
use crate::resolve::Resolver;
use cni::Error;
use cni::cache::Cache;
use cni::chain::Chain;
use cni::error::{code, internal};
use cni::json::Object;
use cni::names::key;
use cni::result::CniResult;
use cni::selection::NetworkSelection;
use cni::version::Version;
use kube_kit::events::Kind;
use std::fs;

impl<C: ClusterView + 'static> Daemon<C> {
    /// ADD, DEL or CHECK of one network.
    pub(super) async fn network_call(
        &self,
        verb: PodVerb,
        sandbox: Sandbox,
        config: &[u8],
        wishes: &NetworkSelection,
    ) -> Result<Option<String>, Error> {
        match verb {
            PodVerb::Add => {
                let pod_name = format!("[{}/{}]", sandbox.pod.namespace, sandbox.pod.name);
                let result = self.plug(sandbox, config, wishes).await.map_err(|error| {
                    error.prefixed(&format!("error configuring pod {pod_name} networking"))
                })?;
                Ok(Some(result.to_json(Version::LATEST)?.to_string()))
            }
            PodVerb::Del => self.unplug(sandbox, config, wishes).await.map(|()| None),
            PodVerb::Check => self.check_network(sandbox, config, wishes).await.map(|()| None),
        }
    }

    async fn plug(
        &self,
        mut sandbox: Sandbox,
        config: &[u8],
        wishes: &NetworkSelection,
    ) -> Result<CniResult, Error> {
        let multus = self.own_conf()?;
        let Some(_pod) = self.pod(&mut sandbox).await? else {
            return Err(of_pod(&sandbox, "the pod is gone"));
        };
        let delegate = network(config, wishes, &sandbox, &multus)?;
        let others = self.others(&sandbox, &multus).await?;
        let invoker = self.invoker(&multus);
        let (display_name, network) = (delegate.display_name.clone(), delegate.config.name());
        let owned = sandbox.clone();
        let work = move || {
            let attacher = Attacher {
                runner: &invoker,
                config: &multus,
                sandbox: &owned,
            };
            attacher.plug(&delegate, &others, &mut KernelNetns::new(&owned.netns))
        };
        let answer = self.workers.run(work).await.map_err(failed)?;
        match &answer {
            Ok(result) => {
                let text = messages::added(&sandbox.ifname, &display_name, result);
                self.cluster
                    .event(&sandbox.pod, Kind::Normal, names::REASON_ADDED, text);
            }
            Err(error) => {
                let text = messages::failed_adding(&sandbox.ifname, &display_name, error);
                self.warn(&sandbox, names::REASON_FAILED, text);
            }
        }
        answer.map_err(|error| {
            error.prefixed(&format!(
                "[{}:{network}]: error adding container to network \"{network}\"",
                sandbox.pod
            ))
        })
    }

    /// The networks of a sandbox that the node knows nothing of: the one that every pod gets. Nothing where the node
    /// knows better.
    async fn others(&self, sandbox: &Sandbox, multus: &MultusConfig) -> Result<Vec<Delegate>, Error> {
        let known = {
            let (invoker, multus) = (self.invoker(multus), multus.clone());
            // Its interface is the pod's, so that the order of what was attached is told from that.
            let whole = Sandbox {
                ifname: names::MASTER_INTERFACE.into(),
                ..sandbox.clone()
            };
            let work = move || {
                Attacher {
                    runner: &invoker,
                    config: &multus,
                    sandbox: &whole,
                }
                .known()
            };
            self.workers.run(work).await.map_err(failed)?
        };
        if let Some(known) = known {
            return Ok(known);
        }
        let resolver = Resolver {
            cluster: &*self.cluster,
            config: multus,
        };
        let defaults = resolver.defaults(None).await;
        defaults.map_err(|error| of_pod(sandbox, &error.to_string()))
    }

    async fn unplug(&self, sandbox: Sandbox, config: &[u8], wishes: &NetworkSelection) -> Result<(), Error> {
        let multus = self.own_conf()?;
        let asked = if config.is_empty() {
            None
        } else {
            Some(network(config, wishes, &sandbox, &multus)?)
        };
        let invoker = self.invoker(&multus);
        let prefix = format!("[{}]: error deleting interface {}", sandbox.pod, sandbox.ifname);
        let work = move || {
            Attacher {
                runner: &invoker,
                config: &multus,
                sandbox: &sandbox,
            }
            .unplug(asked.as_ref())
        };
        let done = self.detachers.run(work).await.map_err(failed)?;
        done.map_err(|error| error.prefixed(&prefix))
    }

    async fn check_network(
        &self,
        sandbox: Sandbox,
        config: &[u8],
        wishes: &NetworkSelection,
    ) -> Result<(), Error> {
        let multus = self.own_conf()?;
        let asked = network(config, wishes, &sandbox, &multus)?;
        let invoker = self.invoker(&multus);
        let work = move || {
            let attacher = Attacher {
                runner: &invoker,
                config: &multus,
                sandbox: &sandbox,
            };
            let recorded = attacher.network_of(&sandbox.ifname);
            attacher.check(&[recorded.map_or(asked, |(_, delegate)| delegate)])
        };
        self.workers.run(work).await.map_err(failed)?
    }

    /// STATUS of a network that is to be attached.
    pub(super) async fn network_status(&self, config: &[u8]) -> Result<(), Error> {
        let multus = self.own_conf()?;
        let config = Config::parse(config).map_err(|error| unusable(&error))?;
        let invoker = self.invoker(&multus);
        let work = move || {
            let network = config.network().map_err(internal)?;
            let cache = Cache::new(&multus.cni_dir);
            let chain = Chain {
                runner: &invoker,
                cache: &cache,
            };
            chain.status(&network)
        };
        self.workers.run(work).await.map_err(failed)?
    }

    /// Multus' configuration as it lies on the node, because a call about one network comes without. It says where the
    /// state is, and which network every pod gets.
    fn own_conf(&self) -> Result<MultusConfig, Error> {
        let file = self.config.runtime_conf();
        let missing = |cause: &dyn std::fmt::Display| {
            Error::new(
                code::TRY_AGAIN_LATER,
                format!("Multus: no usable configuration at {}: {cause}", file.display()),
            )
        };
        let text = fs::read(&file).map_err(|error| missing(&error))?;
        let object = Object::parse(&text).map_err(|error| missing(&error))?;
        let chain: Option<Vec<Object>> = object.read(key::PLUGINS).map_err(|error| missing(&error))?;
        let own = chain.and_then(|chain| chain.into_iter().next()).unwrap_or(object);
        self.net_conf(own.to_json().as_bytes())
    }
}

/// The network that a call is about, with what is asked of it. A configuration that names no version gets multus'.
fn network(
    config: &[u8],
    wishes: &NetworkSelection,
    sandbox: &Sandbox,
    multus: &MultusConfig,
) -> Result<Delegate, Error> {
    let mut config = Config::parse_named(config, &wishes.name).map_err(|error| unusable(&error))?;
    if config.cni_version().is_empty() && !multus.cni_version.is_empty() {
        config
            .set(key::CNI_VERSION, &multus.cni_version)
            .map_err(|error| unusable(&error))?;
    }
    let display_name = if wishes.name.is_empty() || wishes.namespace.is_empty() {
        config.name()
    } else {
        format!("{}/{}", wishes.namespace, wishes.name)
    };
    let mut delegate = Delegate::new(display_name, config);
    delegate.ask(wishes).map_err(|error| unusable(&error))?;
    delegate.requests.interface = Some(sandbox.ifname.clone());
    if delegate.requests.default_route.take().is_some() {
        tracing::warn!(%sandbox, "default-route is not changed while a pod runs: left as it is");
    }
    Ok(delegate)
}

fn unusable(error: &delegate::Error) -> Error {
    Error::new(code::INVALID_NETWORK_CONFIG, format!("Multus: {error}"))
}

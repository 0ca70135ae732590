//! DEL (multus.md §5.3): from what ADD left on the node, and only without it from what the cluster says.

use super::Daemon;
use crate::attach::{Attacher, Stored};
use crate::cluster::{ClusterView, LookupError, Pod};
use crate::delegate::Delegate;
use crate::messages::of_pod;
use crate::net_conf::MultusConfig;
use crate::request::Sandbox;
use crate::resolve::Resolver;
use cni::Error;
use cni::chain::Runner;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long a DEL without state of its own asks for the pod: its end must not depend on the API server.
const DEL_LOOKUP: Duration = Duration::from_millis(2500);
const NO_ANSWER: &str = "no answer in time";

/// How much a DEL insists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// It is called once: what fails is told, and left to GC.
    Once,
    /// It is called again until it succeeds: state is kept until then.
    UntilDone,
}

impl Manner {
    /// Goes on without something, unless there is another time for it.
    fn goes_on(self, sandbox: &Sandbox, missing: &str) -> Result<(), Error> {
        match self {
            Self::Once => {
                tracing::warn!("Multus: {sandbox}: {missing}");
                Ok(())
            }
            Self::UntilDone => Err(of_pod(sandbox, missing)),
        }
    }
}

impl<C: ClusterView + 'static> Daemon<C> {
    /// Detaches a sandbox. A success makes up for one that was missed.
    pub(super) async fn del(&self, sandbox: &Sandbox, config: &[u8], manner: Manner) -> Result<(), Error> {
        let mut config = self.net_conf(config)?;
        config.retry_delete_on_error |= manner == Manner::UntilDone;
        let config = Arc::new(config);
        self.detach(sandbox, &config, manner).await?;
        self.forget_missed(sandbox, &config);
        Ok(())
    }

    async fn detach(
        &self,
        sandbox: &Sandbox,
        config: &Arc<MultusConfig>,
        manner: Manner,
    ) -> Result<(), Error> {
        if let Some(file) = &config.readiness_indicator {
            match file.try_exists() {
                Ok(true) => {}
                Ok(false) => tracing::warn!(file = %file.display(), "the default network is not ready"),
                Err(error) => {
                    let text = format!(
                        "error checking readinessindicatorfile on CNI DEL @ {}: {error}",
                        file.display()
                    );
                    return Err(of_pod(sandbox, &text));
                }
            }
        }
        let sandbox = Arc::new(sandbox.clone());
        let (about, by) = (Arc::clone(&sandbox), Arc::clone(config));
        let known = self.on_sandbox(&self.detachers, about, by, del_by_state);
        let is_corrupt = match known.await? {
            Known::Done(result) => return result,
            Known::Nothing { corrupt } => corrupt,
        };
        let (delegates, is_guess) = match self.resolve_for_del(&sandbox, config, manner).await? {
            Resolved::Networks(delegates) => (delegates, false),
            Resolved::Defaults(delegates) if is_corrupt => (delegates, false),
            // A pod that was attached while multus was not on the node has this one, and one that was detached already
            // doesn't mind.
            Resolved::Defaults(delegates) => (delegates.into_iter().take(1).collect(), true),
        };
        if delegates.is_empty() {
            return Ok(());
        }
        let (about, by) = (Arc::clone(&sandbox), Arc::clone(config));
        let deleted = self.on_sandbox(&self.detachers, about, by, move |attacher| {
            attacher.del(&delegates)
        });
        match deleted.await? {
            Err(error) if is_guess && manner == Manner::Once => {
                tracing::warn!(
                    "Multus: nothing is known of {sandbox}, and its cluster network says: {error}"
                );
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// The networks of a sandbox that left no state behind: those that its pod would get now, without the pod those that
    /// every pod gets.
    async fn resolve_for_del(
        &self,
        sandbox: &Sandbox,
        config: &MultusConfig,
        manner: Manner,
    ) -> Result<Resolved, Error> {
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
        let found = asked.unwrap_or_else(|_| Err(LookupError(NO_ANSWER.into())));
        let ours = |found: &Pod| found.is_static || pod.uid.as_ref().is_none_or(|uid| *uid == found.uid);
        let found = match found {
            Ok(found) => found.filter(ours),
            Err(error) => {
                let text = format!("cannot look up pod {pod} on DEL: {error}");
                manner.goes_on(sandbox, &text)?;
                None
            }
        };
        let Some(found) = found else {
            tracing::info!(
                "Multus: failed to get the cached delegates file of {sandbox}, cannot properly delete"
            );
            let defaults = match defaults(&resolver).await {
                Ok(defaults) => defaults,
                Err(cause) => {
                    let text = format!("not even the default network is known: {cause}");
                    manner.goes_on(sandbox, &text)?;
                    Vec::new()
                }
            };
            return Ok(Resolved::Defaults(defaults));
        };
        match timeout(DEL_LOOKUP, resolver.networks_of(&found)).await {
            Ok(Ok(mut networks)) => {
                let given = self.give_devices(sandbox, &found, &mut networks, &self.detachers);
                let unknown = match timeout(DEL_LOOKUP, given).await {
                    Ok(given) => given.err().map(|error| error.to_string()),
                    Err(_) => Some(NO_ANSWER.into()),
                };
                // A device that is not named is worse than one that is, and better than an address that leaks.
                if let Some(cause) = unknown {
                    tracing::warn!("Multus: the devices of {sandbox} are not known: {cause}");
                }
                Ok(Resolved::Networks(networks))
            }
            incomplete => {
                let cause = match incomplete {
                    Ok(Err(error)) => error.to_string(),
                    _ => NO_ANSWER.into(),
                };
                tracing::warn!("Multus: failed to get delegates of {sandbox}: {cause}");
                let defaults = defaults(&resolver).await;
                defaults
                    .map(Resolved::Networks)
                    .map_err(|_| of_pod(sandbox, &format!("failed to get delegates: {cause}")))
            }
        }
    }
}

/// Networks of a sandbox that the node knows nothing of.
enum Resolved {
    /// Those of its pod.
    Networks(Vec<Delegate>),
    /// Those of every pod, because there is no such pod.
    Defaults(Vec<Delegate>),
}

/// The networks that every pod gets, or in one line why they aren't known.
pub(super) async fn defaults<C: ClusterView>(resolver: &Resolver<'_, C>) -> Result<Vec<Delegate>, String> {
    match timeout(DEL_LOOKUP, resolver.defaults(None)).await {
        Ok(found) => found.map_err(|error| error.to_string()),
        Err(_) => Err(NO_ANSWER.into()),
    }
}

/// What the node itself knew about a sandbox.
enum Known {
    /// It was enough: detached.
    Done(Result<(), Error>),
    /// It knew nothing; `corrupt` when it once had.
    Nothing { corrupt: bool },
}

fn del_by_state(attacher: &Attacher<'_, impl Runner>) -> Known {
    let corrupt = match attacher.scratch_delegates() {
        Err(error) => return Known::Done(Err(error)),
        Ok(Stored::Delegates(delegates)) => return Known::Done(attacher.del(&delegates)),
        Ok(Stored::Corrupt) => {
            attacher.set_scratch_aside();
            true
        }
        Ok(Stored::Missing) => false,
    };
    let cached = attacher.cached_delegates();
    if cached.is_empty() {
        return Known::Nothing { corrupt };
    }
    // Of a pod that is older than multus the established daemon caches what it plugged in, and nothing else.
    let own = &attacher.sandbox.ifname;
    let is_whole = cached
        .iter()
        .any(|delegate| delegate.requests.interface.as_ref() == Some(own));
    match attacher.del(&cached) {
        Ok(()) if !is_whole => Known::Nothing { corrupt },
        outcome => Known::Done(outcome),
    }
}

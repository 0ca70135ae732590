//! DEL (multus.md §5.3): by the node's own records of ADD, and by the cluster only for a sandbox without records.

use super::Daemon;
use crate::attach::{Attacher, ScratchState};
use crate::cluster::{ClusterView, LookupError, Pod};
use crate::messages::of_pod;
use crate::networks::delegate::Delegate;
use crate::networks::net_conf::MultusConfig;
use crate::networks::resolve::Resolver;
use crate::sandbox::Sandbox;
use cni::Error;
use cni::chain::Runner;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Timeout of each lookup of a DEL without records: the end of a pod must not depend on the API server.
const DEL_LOOKUP: Duration = Duration::from_millis(2500);
const NO_ANSWER: &str = "no answer in time";

/// Whether a failed DEL is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DelRetry {
    /// Called once: errors are returned, and leftovers are left to GC.
    Once,
    /// Repeated until it succeeds: records are kept until then.
    UntilDone,
}

impl DelRetry {
    /// Tolerates missing information in the last attempt; an error if the DEL is repeated.
    fn tolerate(self, sandbox: &Sandbox, missing: &str) -> Result<(), Error> {
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
    /// Detaches a sandbox. Success also removes a kept DEL of the same sandbox.
    pub(super) async fn del(&self, sandbox: &Sandbox, config: &[u8], retry: DelRetry) -> Result<(), Error> {
        let mut config = self.net_conf(config)?;
        config.retry_delete_on_error |= retry == DelRetry::UntilDone;
        let config = Arc::new(config);
        self.detach(sandbox, &config, retry).await?;
        self.forget_kept_del(sandbox, &config);
        Ok(())
    }

    async fn detach(
        &self,
        sandbox: &Sandbox,
        config: &Arc<MultusConfig>,
        retry: DelRetry,
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
            RecordsDel::Done(result) => return result,
            RecordsDel::Nothing { corrupt } => corrupt,
        };
        let (delegates, is_guess) = match self.resolve_for_del(&sandbox, config, retry).await? {
            Resolved::Networks(delegates) => (delegates, false),
            Resolved::Defaults(delegates) if is_corrupt => (delegates, false),
            // A pod that is older than multus on this node has only the cluster network, and a second DEL of a
            // detached pod is harmless.
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
            Err(error) if is_guess && retry == DelRetry::Once => {
                tracing::warn!(
                    "Multus: {sandbox} has no records, and DEL of the cluster network failed: {error}"
                );
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// The networks of a sandbox without records: those that its pod would get now, or without the pod those that
    /// every pod gets.
    async fn resolve_for_del(
        &self,
        sandbox: &Sandbox,
        config: &MultusConfig,
        retry: DelRetry,
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
                retry.tolerate(sandbox, &text)?;
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
                    let text = format!("the default network is unknown: {cause}");
                    retry.tolerate(sandbox, &text)?;
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
                // A DEL without the device IDs is better than a leaked address.
                if let Some(cause) = unknown {
                    tracing::warn!(
                        "Multus: the devices of {sandbox} are unknown, detaching without them: {cause}"
                    );
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

/// The networks of a sandbox without records.
enum Resolved {
    /// The networks of its pod.
    Networks(Vec<Delegate>),
    /// The networks of every pod, because the pod is gone.
    Defaults(Vec<Delegate>),
}

/// The networks that every pod gets, or the error in one line.
pub(super) async fn defaults<C: ClusterView>(resolver: &Resolver<'_, C>) -> Result<Vec<Delegate>, String> {
    match timeout(DEL_LOOKUP, resolver.defaults(None)).await {
        Ok(found) => found.map_err(|error| error.to_string()),
        Err(_) => Err(NO_ANSWER.into()),
    }
}

/// The outcome of a DEL by the node's own records.
enum RecordsDel {
    /// The records were sufficient; the result of the DEL.
    Done(Result<(), Error>),
    /// There are no usable records. `corrupt`: the scratch file was unusable.
    Nothing { corrupt: bool },
}

fn del_by_state(attacher: &Attacher<'_, impl Runner>) -> RecordsDel {
    let corrupt = match attacher.scratch_delegates() {
        Err(error) => return RecordsDel::Done(Err(error)),
        Ok(ScratchState::Delegates(delegates)) => return RecordsDel::Done(attacher.del(&delegates)),
        Ok(ScratchState::Corrupt) => {
            attacher.set_scratch_aside();
            true
        }
        Ok(ScratchState::Missing) => false,
    };
    let cached = attacher.cached_delegates();
    if cached.is_empty() {
        return RecordsDel::Nothing { corrupt };
    }
    // For a pod that is older than multus, the upstream daemon caches only plugged networks.
    let own = &attacher.sandbox.ifname;
    let is_whole = cached
        .iter()
        .any(|delegate| delegate.requests.interface.as_ref() == Some(own));
    match attacher.del(&cached) {
        Ok(()) if !is_whole => RecordsDel::Nothing { corrupt },
        outcome => RecordsDel::Done(outcome),
    }
}

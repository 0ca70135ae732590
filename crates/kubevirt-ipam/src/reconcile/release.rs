//! Releases the claims that a virtual machine does not need any more.

use kube_kit::events::Kind;
use kube_kit::watch::Name;

use super::{Error, Found, Reconciler};
use crate::cluster::{Error as ApiError, LiveClaim};
use crate::messages;
use crate::names::reason;
use crate::objects::Claim;
use crate::plan;
use crate::state;

/// The reason for the release of a claim.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Why {
    /// Virtual machine and instance are gone, or are being deleted.
    Unused,
    /// The claim is a leftover of an earlier virtual machine of the same name.
    LeftBehind,
    /// The virtual machine no longer has the claim's network.
    Unplugged,
}

impl Reconciler {
    /// Whether the cache has a claim that may need its release.
    pub(super) fn gives_up_any(&self, name: &Name, found: &Found) -> bool {
        let state = state::lock(&self.shared);
        state
            .claims_of(name)
            .any(|(id, claim)| found.gives_up(name, id, claim).is_some())
    }

    /// Releases claims that are no longer needed, after a fresh read of the API server.
    pub(super) async fn give_up(&self, name: &Name) -> Result<(), Error> {
        let release = |error: &dyn std::fmt::Display| Error::Release(error.to_string());
        let claims = self.cluster.claims_of(name).await;
        let claims = claims.map_err(|error| release(&messages::no_list(name, error)))?;
        let machine = self.cluster.machine(name).await;
        let machine = machine.map_err(|error| release(&messages::no_machine(name, error)))?;
        let instance = self
            .cluster
            .instance(name)
            .await
            .map_err(|error| release(&error))?;
        let found = Found { machine, instance };
        let (mut failed, mut given_up) = (None, false);
        for live in claims {
            let why = live
                .claim()
                .map(|claim| found.gives_up(name, live.name(), &claim));
            match why {
                Ok(Some(why)) => {
                    given_up = true;
                    if let Err(error) = self.give_up_one(name, &found, live, why).await {
                        failed = Some(error);
                    }
                }
                Ok(None) => {}
                Err(error) => failed = Some(release(&error)),
            }
        }
        match failed {
            Some(error) => Err(error),
            None if given_up => Ok(()),
            // The caches are stale: their next event requeues the virtual machine, and so does the back-off.
            None if self.gives_up_any(name, &self.seen(name)) => Err(Error::Changed),
            None => Ok(()),
        }
    }

    async fn give_up_one(&self, name: &Name, found: &Found, live: LiveClaim, why: Why) -> Result<(), Error> {
        self.may_write()?;
        let claim = live.name().to_owned();
        tracing::info!(vm = messages::object(name), claim, ?why, "releasing IPAMClaim");
        let done = match why {
            Why::Unused | Why::LeftBehind => self.cluster.release(&name.namespace, live).await,
            Why::Unplugged => match self.cluster.delete(&name.namespace, live).await {
                Err(ApiError::Forbidden(error)) => {
                    // The upstream role lacks this right: the claim stays until its owner is deleted, as with upstream.
                    tracing::warn!(
                        claim,
                        error,
                        "cannot release the claim of a network that was unplugged"
                    );
                    return Ok(());
                }
                done => done,
            },
        };
        done.map_err(|error| Error::Release(error.to_string()))?;
        if let (Why::Unplugged, Some(instance)) = (why, &found.instance) {
            let text = messages::event::released(&claim);
            self.publish(name, instance, Kind::Normal, reason::RELEASED, &text)
                .await;
        }
        Ok(())
    }
}

impl Found {
    /// The reason to release a claim, if there is one.
    fn gives_up(&self, name: &Name, id: &str, claim: &Claim) -> Option<Why> {
        let (machine, instance) = (self.machine.as_ref(), self.instance.as_ref());
        if !claim.held || *claim.machine != *name.name {
            return None;
        }
        if plan::may_release(machine, instance) {
            return Some(Why::Unused);
        }
        if plan::is_left_behind(claim, &name.name, machine, instance) {
            return Some(Why::LeftBehind);
        }
        let unplugged = plan::is_unplugged((id, claim), &name.name, machine, instance?);
        unplugged.then_some(Why::Unplugged)
    }
}

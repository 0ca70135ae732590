//! Addresses of networks with ranges in their configuration (kubevirt-ipam §16).

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use kube_kit::events::Kind;
use kube_kit::watch::{Name, Store};

use super::{Error, Reconciler};
use crate::cluster::{Error as ApiError, LiveClaim};
use crate::controller::WORKERS;
use crate::messages;
use crate::mutate::Lookup as _;
use crate::names::reason;
use crate::objects::{Claim, Instance};
use crate::plan::Wanted;
use crate::pool::Refused;
use crate::state;

/// Pause before a failed step is repeated.
const PAUSE: Duration = Duration::from_secs(1);

impl Reconciler {
    /// Allocates addresses of the network's range for our claim, if the claim has none. `made` is the claim if it was
    /// just created. Several workers of one replica allocate at a time: each reserves its addresses before the write.
    pub(super) async fn give(
        &self,
        name: &Name,
        instance: &Instance,
        wanted: &Wanted,
        made: Option<LiveClaim>,
    ) -> Result<(), Error> {
        let id = Name::new(&name.namespace, &wanted.name);
        let (known, odd) = {
            let state = state::lock(&self.shared);
            (state.claim(&id), state.oddities(&id, wanted))
        };
        for text in odd {
            self.publish(name, instance, Kind::Warning, reason::ODD_ADDRESS, &text)
                .await;
        }
        if known
            .as_ref()
            .is_some_and(|known| !known.ips.is_empty() || known.deleting)
        {
            return Ok(());
        }
        if !self.has_caught_up.load(Ordering::Relaxed) {
            // A claim that is not in the cache may have any address.
            return Err(Error::Changed);
        }
        let failed = |error: ApiError| Error::Give {
            claim: id.name.clone(),
            error: error.to_string(),
        };
        let live = match made {
            Some(made) => Some(made),
            None => self.cluster.claim(&id).await.map_err(failed)?,
        };
        let Some(mut live) = live else {
            return Err(Error::Changed);
        };
        let now = live.claim().map_err(failed)?;
        if !now.ips.is_empty() || now.deleting {
            self.know(&id, now);
            state::lock(&self.shared).settled(&id);
            return Ok(());
        }
        self.may_write()?;
        if *now.network != *wanted.network {
            // The claim's addresses count for the network that the claim names.
            let moved = self
                .cluster
                .set_network(&name.namespace, live, &wanted.network)
                .await;
            live = moved.map_err(failed)?;
        }
        let given = {
            let mut state = state::lock(&self.shared);
            let given = state.reserve(&id, wanted);
            if given.as_ref().is_err_and(Refused::is_temporary) {
                state.waits(name, &wanted.network);
            }
            given
        };
        let ips: Vec<_> = match given {
            Ok(given) => given.iter().map(ToString::to_string).collect(),
            Err(refused) => {
                let text = messages::event::no_address(&id.name, &wanted.network, &refused);
                self.publish(name, instance, Kind::Warning, reason::NO_ADDRESS, &text)
                    .await;
                let (claim, error) = (id.name, refused.to_string());
                return Err(Error::Give { claim, error });
            }
        };
        tracing::info!(
            vm = messages::object(name),
            claim = id.name,
            ?ips,
            "giving addresses"
        );
        let written = self.cluster.give(&name.namespace, live, &ips).await;
        match written.and_then(|written| written.claim()) {
            Ok(claim) => {
                self.know(&id, claim);
                state::lock(&self.shared).settled(&id);
                Ok(())
            }
            // The write may have succeeded, even if its retry failed. The addresses stay reserved until the claim is
            // observed with addresses, or is gone.
            Err(error) => Err(failed(error)),
        }
    }

    /// Puts a claim that was just read into the cache, unless the watch has a newer version.
    pub(super) fn know(&self, id: &Name, claim: Claim) {
        if let Some(watched) = &self.claims {
            watched.put(id.clone(), &claim.version.to_string(), ());
            if !watched.contains(id) {
                return;
            }
        }
        state::lock(&self.shared).claim_seen(id.clone(), claim);
    }

    /// Lists all claims, because the cache may lack addresses that the former leader allocated. Adds our finalizer to
    /// the claims that lack it. This happens before any release or allocation. Returns `false` if claims are not served or
    /// not watched yet: the cluster has none before their `CustomResourceDefinition`, and the list misses later ones.
    pub(crate) async fn catch_up(&self) -> bool {
        let is_watched = self.claims.as_ref().is_none_or(Store::is_synced);
        loop {
            match self.cluster.all_claims().await {
                Ok(claims) => {
                    for (id, claim) in claims {
                        self.know(&id, claim);
                    }
                    break;
                }
                Err(ApiError::NotServed(_)) => return false,
                Err(error) => tracing::warn!(%error, "cannot list IPAMClaims"),
            }
            tokio::time::sleep(PAUSE).await;
        }
        if is_watched {
            self.has_caught_up.store(true, Ordering::Relaxed);
        }
        self.hold_all().await;
        is_watched
    }

    /// [`Self::catch_up`] once claims are served and watched: a restored backup may bring claims with addresses.
    pub(crate) async fn catch_up_later(&self) {
        loop {
            if let Some(claims) = &self.claims {
                claims.synced().await;
            }
            if self.catch_up().await {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Adds our finalizer to the claims that lack it. A failed write does not block the other claims.
    async fn hold_all(&self) {
        const ATTEMPTS: usize = 5;
        for attempt in 1..=ATTEMPTS {
            let unheld = state::lock(&self.shared).unheld();
            let writes = unheld.into_iter().map(|id| async move {
                let done = self.hold(&id).await;
                (id, done)
            });
            let mut writes = stream::iter(writes).buffer_unordered(WORKERS);
            let mut has_failed = false;
            while let Some((id, done)) = writes.next().await {
                if let Err(error) = done {
                    has_failed = true;
                    let claim = messages::object(&id);
                    tracing::warn!(claim, %error, attempt, "cannot add the finalizer");
                }
            }
            if !has_failed {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
        tracing::error!(
            "IPAMClaims without the finalizer lose their addresses as soon as their virtual machine is deleted"
        );
    }

    /// Adds our finalizer to a claim that lacks it.
    async fn hold(&self, id: &Name) -> Result<(), Error> {
        let failed = |error: ApiError| Error::Hold {
            claim: id.name.clone(),
            error,
        };
        let Some(live) = self.cluster.claim(id).await.map_err(failed)? else {
            return Ok(());
        };
        let claim = live.claim().map_err(failed)?;
        if !state::lock(&self.shared).is_unheld(id, &claim) {
            self.know(id, claim);
            return Ok(());
        }
        self.may_write()?;
        tracing::info!(claim = messages::object(id), "adding the finalizer");
        let held = self.cluster.hold(&id.namespace, live).await.map_err(failed)?;
        self.know(id, held.claim().map_err(failed)?);
        Ok(())
    }
}

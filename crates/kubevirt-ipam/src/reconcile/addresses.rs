//! Addresses of networks that have a range of their own (kubevirt-ipam §16).

use std::time::Duration;

use kube_kit::events::Kind;
use kube_kit::watch::Name;

use super::{Error, Reconciler};
use crate::cluster::Error as ApiError;
use crate::messages;
use crate::mutate::Lookup as _;
use crate::names::reason;
use crate::objects::{Claim, Instance};
use crate::plan::Wanted;
use crate::state;

impl Reconciler {
    /// Gives a claim of ours addresses of the network's range, if it has none. There is one worker, and one replica that writes:
    /// no other writer gives addresses between the read of those that are taken and the write.
    pub(super) async fn give(&self, name: &Name, instance: &Instance, wanted: &Wanted) -> Result<(), Error> {
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
        let failed = |error: ApiError| Error::Give {
            claim: id.name.clone(),
            error: error.to_string(),
        };
        let live = self.cluster.claim(&id).await.map_err(failed)?;
        let Some(live) = live else {
            return Err(Error::Changed);
        };
        let now = live.claim().map_err(failed)?;
        if !now.ips.is_empty() || now.deleting {
            self.know(&id, now);
            return Ok(());
        }
        self.may_write()?;
        let mut live = live;
        if now.network != wanted.network {
            // Its addresses count among those of the network that it names.
            let moved = self
                .cluster
                .set_network(&name.namespace, live, &wanted.network)
                .await;
            live = moved.map_err(failed)?;
        }
        let given = state::lock(&self.shared).allocate(wanted);
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
                Ok(())
            }
            Err(error) => {
                // It may have been written: these addresses stay taken until that is clear.
                self.settle(&id, &ips).await;
                Err(failed(error))
            }
        }
    }

    /// Puts a claim that the API server had a moment ago into the cache, unless the watch has a newer one.
    fn know(&self, id: &Name, claim: Claim) {
        if let Some(watched) = &self.claims {
            watched.put(id.clone(), &claim.version.to_string(), ());
            if !watched.contains(id) {
                return;
            }
        }
        state::lock(&self.shared).claim_seen(id.clone(), claim);
    }

    /// Finds out what became of a write without an answer.
    async fn settle(&self, id: &Name, ips: &[String]) {
        const PAUSE: Duration = Duration::from_millis(500);
        while self.leadership.may_write() {
            match self.cluster.claim(id).await {
                Ok(Some(live)) => {
                    if let Ok(claim) = live.claim() {
                        self.know(id, claim);
                        return;
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    let claim = messages::object(id);
                    tracing::warn!(claim, ?ips, %error, "cannot find out whether addresses were given");
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Lists all claims: the former leader has given addresses that the cache may lack.
    pub(crate) async fn catch_up(&self) {
        const PAUSE: Duration = Duration::from_secs(1);
        loop {
            match self.cluster.all_claims().await {
                Ok(claims) => {
                    for (id, claim) in claims {
                        self.know(&id, claim);
                    }
                    return;
                }
                // There are no claims before their definition.
                Err(ApiError::NotServed(_)) => return,
                Err(error) => tracing::warn!(%error, "cannot list IPAMClaims"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

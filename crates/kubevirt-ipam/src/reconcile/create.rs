//! Creates the claims of a virtual machine, and adopts claims whose owner is gone.

use kube_kit::events::Kind;
use kube_kit::watch::Name;

use super::{Error, Found, Reconciler};
use crate::cluster::{Error as ApiError, LiveClaim, Owner, claim_object};
use crate::messages;
use crate::names::reason;
use crate::objects::{Claim, ClaimSpec, Instance};
use crate::plan::{Belongs, Wanted};
use crate::state;

impl Reconciler {
    /// Creates a claim, or checks the owner of the existing one. Returns a new claim.
    pub(super) async fn claim(
        &self,
        name: &Name,
        found: &Found,
        instance: &Instance,
        wanted: &Wanted,
    ) -> Result<Option<LiveClaim>, Error> {
        self.may_write()?;
        let owner = Owner::of(&name.name, found.machine.as_ref(), instance);
        let spec = ClaimSpec {
            network: wanted.network.clone(),
            interface: String::new(),
        };
        let vm = messages::object(name);
        tracing::info!(
            vm,
            claim = wanted.name,
            network = wanted.network,
            "requesting claim"
        );
        let object = claim_object(&name.namespace, &wanted.name, &spec, &name.name, &owner);
        match self.cluster.create(&name.namespace, object).await {
            Ok(made) => {
                if let Ok(claim) = made.claim() {
                    self.know(&Name::new(&name.namespace, &wanted.name), claim);
                }
                Ok(Some(made))
            }
            Err(ApiError::Exists(_)) => {
                let existing = self.existing(name, found, instance, wanted).await;
                existing.map(|()| None)
            }
            Err(error) => {
                let text = messages::event::failed(&wanted.name, &error);
                self.publish(name, instance, Kind::Warning, reason::FAILED, &text)
                    .await;
                let claim = wanted.name.clone();
                Err(Error::Create { claim, error })
            }
        }
    }

    async fn existing(
        &self,
        name: &Name,
        found: &Found,
        instance: &Instance,
        wanted: &Wanted,
    ) -> Result<(), Error> {
        let id = Name::new(&name.namespace, &wanted.name);
        let live = self.cluster.claim(&id).await.map_err(Error::Unreadable)?;
        let Some(live) = live else {
            // Another client deleted the claim between the two requests.
            return Err(Error::Existing(wanted.name.clone()));
        };
        let claim = live.claim().map_err(Error::Unreadable)?;
        match found.owns(name, &claim) {
            Belongs::Ours => Ok(()),
            Belongs::Orphaned => self.adopt(name, instance, live).await,
            Belongs::Foreign => {
                let whose = whose(&claim);
                tracing::error!(
                    vm = messages::object(name),
                    claim = id.name,
                    owners = ?claim.owners,
                    "leaked IPAMClaim found"
                );
                let text = messages::event::conflict(&id.name, whose);
                state::lock(&self.shared).stands_in_the_way(id.clone(), name.clone());
                self.publish(name, instance, Kind::Warning, reason::CONFLICT, &text)
                    .await;
                Err(Error::Existing(id.name))
            }
        }
    }

    /// Sets the present owner of an orphaned claim. The owner is read after the claim.
    async fn adopt(&self, name: &Name, instance: &Instance, live: LiveClaim) -> Result<(), Error> {
        self.may_write()?;
        let now = self.live(name).await?;
        let same = now
            .instance
            .as_ref()
            .filter(|now| now.uid == instance.uid && !now.deleting);
        let Some(same) = same else {
            return Err(Error::Changed);
        };
        let owner = Owner::of(&name.name, now.machine.as_ref(), same);
        let claim = live.name().to_owned();
        tracing::info!(
            vm = messages::object(name),
            claim,
            "adopting an orphaned IPAMClaim"
        );
        let adopted = self.cluster.adopt(&name.namespace, live, &owner).await;
        adopted.map_err(|error| Error::Adopt { claim, error })
    }
}

/// The owner of a claim in the message of an event.
fn whose(claim: &Claim) -> String {
    match (&*claim.machine, claim.owners.is_empty()) {
        ("", true) => "nobody".to_owned(),
        ("", false) => "another object".to_owned(),
        (machine, _) if claim.deleting => format!("a virtual machine {machine:?} that is being deleted"),
        (machine, _) => format!("another virtual machine {machine:?}"),
    }
}

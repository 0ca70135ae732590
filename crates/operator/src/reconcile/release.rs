//! Releases the addresses of virtual machines after KubeVirt IPAM was removed (kubevirt-ipam §11): without its controller
//! the finalizers of claims would hold up the deletion of virtual machines and namespaces.
//!
//! The Lease remains after the controller is removed, and shows that a controller ran in this namespace. The operator
//! waits until no pod renews the Lease, removes the finalizers, and deletes the Lease last: an interrupted release is
//! repeated.

use std::time::Duration;

use api::names::NETWORK_ADDONS_KIND;
use kube_kit::{
    client, finalizers,
    object::{self, ObjectId},
};
use serde_json::Value;
use tokio::time::Instant;

use super::Reconciler;
use crate::{
    components::kubevirt_ipam_controller::{FINALIZER, LEASE, NAME, WEBHOOK},
    failures::Failures,
    names::reason,
    plan::Plan,
    resource::Resource,
};

/// The duration of the Lease: a holder that has not renewed it for this time writes no claims.
const SILENCE: Duration = Duration::from_secs(15);

/// Interval of checks for another installation.
const OTHER_INSTALLATION: Duration = Duration::from_mins(5);

/// The state of the Lease of a removed controller.
#[derive(Debug, Default)]
pub(super) enum Abandoned {
    /// It was not read since the controller was removed.
    #[default]
    Unread,
    /// It has had this version since this time.
    Unchanged { version: String, since: Instant },
    /// A controller of another installation uses the claims. It is looked for again at this time, or for another
    /// generation of the configuration resource; `None` if there is no resource.
    UsedElsewhere { generation: Option<i64>, due: Instant },
    /// It does not exist.
    Gone,
}

/// The next step of the release.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// There is nothing to do.
    Nothing,
    /// Reads the Lease again at this time.
    Wait(Instant),
    /// Removes the finalizers.
    Release,
}

impl Abandoned {
    /// The step after the Lease was observed with this version; `None` if it does not exist.
    fn observe(&mut self, version: Option<&str>, now: Instant) -> Step {
        let Some(version) = version else {
            *self = Self::Gone;
            return Step::Nothing;
        };
        if let Self::Unchanged {
            version: known,
            since,
        } = self
            && known == version
        {
            let due = *since + SILENCE;
            return if now < due { Step::Wait(due) } else { Step::Release };
        }
        *self = Self::Unchanged {
            version: version.to_owned(),
            since: now,
        };
        Step::Wait(now + SILENCE)
    }

    /// Until when no read is necessary: another installation uses the claims.
    fn rests_until(&self, generation: Option<i64>, now: Instant) -> Option<Instant> {
        match self {
            Self::UsedElsewhere {
                generation: then,
                due,
            } if *then == generation && now < *due => Some(*due),
            _ => None,
        }
    }
}

impl Reconciler {
    /// Releases the claims if the specification no longer has the controller.
    pub(super) async fn release(&mut self, cr: &Resource, plan: &Plan, failures: &mut Failures) {
        if plan.deployed.iter().any(|(component, _)| *component == NAME) {
            self.abandoned = Abandoned::default();
            return;
        }
        let generation = cr.object.pointer("/metadata/generation").and_then(Value::as_i64);
        if let Err(error) = self.release_claims(generation).await {
            failures.add_general(reason::DELETE, error);
        }
    }

    /// Continues the release of claims. The caller has removed the controller, or its access. `generation` is that of
    /// the configuration resource.
    pub(super) async fn release_claims(&mut self, generation: Option<i64>) -> Result<(), String> {
        let now = Instant::now();
        if matches!(self.abandoned, Abandoned::Gone) {
            return Ok(());
        }
        if let Some(due) = self.abandoned.rests_until(generation, now) {
            self.release_due = Some(due);
            return Ok(());
        }
        let lease = object::LEASE.object(Some(&self.settings.operand_namespace), LEASE);
        let live = self.read(&lease).await?;
        let version = live
            .as_ref()
            .and_then(|live| live.pointer("/metadata/resourceVersion").and_then(Value::as_str));
        // A controller that another installation deploys needs the finalizers. No watch reports the end of its webhook.
        let webhook = object::MUTATING_WEBHOOK_CONFIGURATION.object(None, WEBHOOK);
        if version.is_some()
            && let Some(webhook) = self.read(&webhook).await?
        {
            if object::owned_by(&webhook, NETWORK_ADDONS_KIND) {
                // Our own, whose deletion failed and is retried.
                self.release_due = Some(now + SILENCE);
                return Ok(());
            }
            if !matches!(self.abandoned, Abandoned::UsedElsewhere { .. }) {
                tracing::warn!(
                    webhook = WEBHOOK,
                    "IPAMClaims keep their finalizer while this MutatingWebhookConfiguration of another installation exists"
                );
            }
            let due = now + OTHER_INSTALLATION;
            self.abandoned = Abandoned::UsedElsewhere { generation, due };
            self.release_due = Some(due);
            return Ok(());
        }
        match self.abandoned.observe(version, now) {
            Step::Nothing => return Ok(()),
            Step::Wait(due) => {
                self.release_due = Some(due);
                return Ok(());
            }
            Step::Release => {}
        }
        let removed = finalizers::remove(self.applier.client(), object::IPAM_CLAIM, FINALIZER).await;
        let removed =
            removed.map_err(|error| format!("cannot list IPAMClaims: {}", client::message(&error)))?;
        if let Some((claim, error)) = removed.failures.first() {
            return Err(format!(
                "cannot remove the finalizer of {} IPAMClaims, such as \"{}/{}\": {}",
                removed.failures.len(),
                claim.namespace,
                claim.name,
                client::message(error)
            ));
        }
        if removed.count > 0 {
            tracing::info!(
                claims = removed.count,
                "removed the finalizers of the removed KubeVirt IPAM controller"
            );
        }
        self.applier
            .delete(&lease)
            .await
            .map_err(|error| error.to_string())?;
        self.abandoned = Abandoned::Gone;
        Ok(())
    }

    async fn read(&self, id: &ObjectId) -> Result<Option<Value>, String> {
        self.applier.get(id).await.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewed_lease_is_waited_for() {
        let mut abandoned = Abandoned::default();
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(abandoned.observe(Some("1"), start), Step::Wait(later(15)));
        assert_eq!(abandoned.observe(Some("1"), later(14)), Step::Wait(later(15)));
        assert_eq!(abandoned.observe(Some("2"), later(15)), Step::Wait(later(30)));
        assert_eq!(abandoned.observe(Some("2"), later(30)), Step::Release);
        // The release failed, and is repeated.
        assert_eq!(abandoned.observe(Some("2"), later(31)), Step::Release);
    }

    #[test]
    fn another_installation_is_looked_for_again_after_a_while_or_a_change() {
        let now = Instant::now();
        let due = now + OTHER_INSTALLATION;
        let generation = Some(1);
        let abandoned = Abandoned::UsedElsewhere { generation, due };
        assert_eq!(abandoned.rests_until(generation, now), Some(due));
        for (generation, now) in [(Some(2), now), (None, now), (generation, due)] {
            assert_eq!(abandoned.rests_until(generation, now), None, "{generation:?}");
        }
        assert_eq!(Abandoned::Unread.rests_until(generation, now), None);
    }

    #[test]
    fn absent_lease_ends_the_release() {
        let mut abandoned = Abandoned::default();
        assert_eq!(abandoned.observe(None, Instant::now()), Step::Nothing);
        assert!(matches!(abandoned, Abandoned::Gone));
    }
}

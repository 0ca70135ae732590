//! The writing steps of a reconcile, apart from certificates.

use kube_kit::{
    apply::{self, Applied},
    cache::Lookup,
    inventory::{self, Ledger},
    object::{self, ObjectId},
};
use serde_json::{Map, Value, json};

use super::{Abort, Error, Reconciler};
use crate::{
    failures::Failures,
    messages,
    names::reason,
    plan::Plan,
    record,
    render::{self, Group},
    resource, watches,
};

impl Reconciler {
    /// Executes a plan in its order, up to the removals.
    pub(super) async fn execute(&mut self, plan: &Plan, failures: &mut Failures) -> Result<(), Abort> {
        self.clean_up(plan, failures).await;
        // The inventory is written first: a failed or interrupted removal stays on record.
        let recorded = self.apply_one(&plan.record).await;
        recorded.map_err(|error| Abort::retry(reason::APPLY, error.to_string()))?;
        self.apply(&plan.groups, failures).await;
        if failures.all().is_none() {
            // The definition has no owner any more, or was applied without one. No later step sets an owner.
            let networks = watches::definition(object::NETWORK_ATTACHMENT_DEFINITION);
            self.history.gone.insert(networks);
        }
        Ok(())
    }

    /// Deletes the leftovers that conflict with this version (operator §9.3). A component is not applied before its
    /// leftovers are gone.
    async fn clean_up(&mut self, plan: &Plan, failures: &mut Failures) {
        let invalid = |error: apply::Error| messages::invalid_configuration(&[error.to_string()]);
        for (component, id) in &plan.leftovers {
            if self.history.gone.contains(id) {
                continue;
            }
            match self.applier.delete(id).await {
                Ok(_) => drop(self.history.gone.insert(id.clone())),
                Err(error) => failures.add(component, reason::RENDER, invalid(error)),
            }
        }
        if let Err(error) = self.clear_own_namespace(&plan.own_labels).await {
            failures.add_general(reason::RENDER, invalid(error));
        }
        if let Some(definition) = &plan.freed
            && let Err(error) = self.applier.apply(definition).await
        {
            failures.add_general(reason::RENDER, invalid(error));
        }
    }

    async fn clear_own_namespace(&self, labels: &[String]) -> Result<(), apply::Error> {
        if labels.is_empty() {
            return Ok(());
        }
        let id = object::NAMESPACE.object(None, &self.settings.operator_namespace);
        let gone: Map<_, _> = labels.iter().map(|key| (key.clone(), Value::Null)).collect();
        let patch = json!({ "metadata": { "labels": gone } });
        self.applier.merge_patch(&id, None, &patch).await.map(drop)
    }

    /// Applies all components without an earlier failure. A component ends at its first object that fails, and does not
    /// block the others.
    async fn apply(&mut self, groups: &[Group], failures: &mut Failures) {
        for group in groups {
            if failures.has_none_of(group.component)
                && let Err(error) = self.apply_group(group).await
            {
                failures.add(group.component, reason::APPLY, error.to_string());
            }
        }
    }

    async fn apply_group(&mut self, group: &Group) -> Result<(), apply::Error> {
        let mut contested = Ok(());
        for object in &group.objects {
            match self.apply_one(object).await {
                // The remaining objects of the component are applied anyway.
                Err(error) if error.is_contested() => contested = contested.and(Err(error)),
                done => done?,
            }
        }
        contested
    }

    async fn apply_one(&mut self, object: &Value) -> Result<(), apply::Error> {
        let outcome = self.applier.apply(object).await?;
        if matches!(outcome, Applied::Created | Applied::Recreated)
            && render::is_workload(&ObjectId::of(object))
        {
            self.history.created_workload = true;
        }
        Ok(())
    }

    /// Deletes webhook configurations and access of a removed configuration resource. The garbage collector deletes the
    /// objects in any order, but a webhook configuration without its server would block all users. Webhook
    /// configurations are therefore deleted first. Access is deleted next: a daemon that receives SIGTERM while the API
    /// server refuses its requests is being removed and not restarted, and cleans up the node.
    pub(super) async fn withdraw(&mut self) -> Result<(), Error> {
        if !self.is_removed() {
            return Ok(());
        }
        let owner = api::names::NETWORK_ADDONS_KIND;
        let mut result = Ok(());
        for kind in [
            object::MUTATING_WEBHOOK_CONFIGURATION,
            object::CLUSTER_ROLE_BINDING,
        ] {
            for object in self.cache().list(kind) {
                if object::owned_by(&object, owner) {
                    let deleted = self.applier.delete_if_owned(&ObjectId::of(&object), owner).await;
                    // A failed deletion is retried, and does not block the others.
                    result = result.and(deleted.map(drop));
                }
            }
        }
        result.map_err(Error::Write)?;
        self.release_claims(None).await.map_err(Error::Failed)
    }

    /// Whether the garbage collector deletes the objects of the configuration resource: the resource is gone, or its
    /// deletion deletes them first.
    fn is_removed(&self) -> bool {
        match self.cache().lookup(&resource::id()) {
            Lookup::Absent => true,
            Lookup::Present(object) => resource::is_deleted_in_foreground(&object),
            Lookup::Unknown => false,
        }
    }

    /// Deletes the recorded objects that are no longer rendered and [due].
    pub(super) async fn prune(&mut self, plan: &Plan, in_order: bool, failures: &mut Failures) {
        let pruned = due(&plan.pruned, in_order);
        if pruned.is_empty() {
            return;
        }
        let ledger = Ledger::new(record::id(&self.settings.operator_namespace));
        let owner = api::names::NETWORK_ADDONS_KIND;
        let pruned = inventory::prune(&self.applier, &ledger, &plan.inventory, &pruned, owner).await;
        for error in pruned.failures {
            failures.add_general(reason::DELETE, error.to_string());
        }
    }
}

/// The objects to delete now. Certificates and issuers wait until the certificates are in order.
fn due(pruned: &[ObjectId], in_order: bool) -> Vec<ObjectId> {
    let is_due = |id: &&ObjectId| in_order || id.group != object::CERTIFICATE.group;
    pruned.iter().filter(is_due).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // operator#99
    #[test]
    fn former_issuer_stays_until_certificates_are_in_order() {
        let [certificate, issuer, service] = [object::CERTIFICATE, object::ISSUER, object::SERVICE]
            .map(|kind| kind.object(Some("ns"), "ipam"));
        let all = [certificate, service.clone(), issuer];
        assert_eq!(due(&all, true), all);
        assert_eq!(due(&all, false), [service]);
    }
}

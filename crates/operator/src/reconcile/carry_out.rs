//! The steps of a reconcile that write.

use kube_kit::{
    apply::{self, Applied as Outcome},
    cache::Lookup,
    inventory::{self, Ledger},
    object::{self, ObjectId},
};
use serde_json::{Map, Value, json};

use super::{Error, Reconciler, Stop};
use crate::{
    applied,
    failures::Failures,
    messages,
    names::reason,
    plan::Plan,
    render::{self, Group},
    resource, watches,
};

impl Reconciler {
    /// Carries a plan out in its order.
    pub(super) async fn carry_out(&mut self, plan: &Plan, failures: &mut Failures) -> Result<(), Stop> {
        self.clean_up(plan, failures).await;
        // Before anything else: a removal is not forgotten when it can't be carried out at once.
        let recorded = self.apply_one(&plan.record).await;
        recorded.map_err(|error| Stop::retry(reason::APPLY, error.to_string()))?;
        self.apply(&plan.groups, failures).await;
        if failures.all().is_none() {
            // Freed, or applied without an owner; nothing gives it one again.
            let networks = watches::definition(object::NETWORK_ATTACHMENT_DEFINITION);
            self.memory.gone.insert(networks);
        }
        self.prune(plan, failures).await;
        Ok(())
    }

    /// Removes what stands in the way of this version (operator §9.3). A component whose leftovers can't be removed
    /// waits for that.
    async fn clean_up(&mut self, plan: &Plan, failures: &mut Failures) {
        let invalid = |error: apply::Error| messages::invalid_configuration(&[error.to_string()]);
        for (component, id) in &plan.leftovers {
            if self.memory.gone.contains(id) {
                continue;
            }
            match self.applier.delete(id).await {
                Ok(_) => drop(self.memory.gone.insert(id.clone())),
                Err(error) => failures.note(component, reason::RENDER, invalid(error)),
            }
        }
        if let Err(error) = self.clear_own_namespace(&plan.own_labels).await {
            failures.note_general(reason::RENDER, invalid(error));
        }
        if let Some(definition) = &plan.freed
            && let Err(error) = self.applier.apply(definition).await
        {
            failures.note_general(reason::RENDER, invalid(error));
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

    /// Applies all components of which nothing failed before. One that fails, at its first object that does, does not
    /// keep the others from being applied.
    async fn apply(&mut self, groups: &[Group], failures: &mut Failures) {
        for group in groups {
            if failures.spare(group.component)
                && let Err(error) = self.apply_group(group).await
            {
                failures.note(group.component, reason::APPLY, error.to_string());
            }
        }
    }

    async fn apply_group(&mut self, group: &Group) -> Result<(), apply::Error> {
        let mut contested = Ok(());
        for object in &group.objects {
            match self.apply_one(object).await {
                // The other objects are applied all the same.
                Err(error) if error.is_contested() => contested = contested.and(Err(error)),
                done => done?,
            }
        }
        contested
    }

    async fn apply_one(&mut self, object: &Value) -> Result<(), apply::Error> {
        let outcome = self.applier.apply(object).await?;
        if matches!(outcome, Outcome::Created | Outcome::Recreated)
            && render::is_workload(&ObjectId::of(object))
        {
            self.memory.made = true;
        }
        Ok(())
    }

    /// What the configuration resource owned, the garbage collector removes, in any order. Before it gets there, webhook
    /// configurations go: without their servers they would block everybody. Then access goes: a daemon that is told to
    /// end and is refused by the API server knows that it is removed, not restarted, and gives the node back.
    pub(super) async fn withdraw(&self) -> Result<(), Error> {
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
                    // One that can't be withdrawn is tried again, and the others do not wait for it.
                    result = result.and(deleted.map(drop));
                }
            }
        }
        result.map_err(Error::Write)
    }

    /// Whether the garbage collector removes what the configuration resource owned: it is gone, or waits for that
    /// in order to go. One that waits for something else still needs what it owns.
    fn is_removed(&self) -> bool {
        match self.cache().lookup(&resource::id()) {
            Lookup::Absent => true,
            Lookup::Present(object) => resource::is_deleted_in_foreground(&object),
            Lookup::Unknown => false,
        }
    }

    /// Removes what is recorded and no longer rendered.
    async fn prune(&mut self, plan: &Plan, failures: &mut Failures) {
        if plan.pruned.is_empty() {
            return;
        }
        let ledger = Ledger::new(applied::id(&self.settings.operator_namespace));
        let owner = api::names::NETWORK_ADDONS_KIND;
        let pruned = inventory::prune(&self.applier, &ledger, &plan.inventory, &plan.pruned, owner).await;
        for error in pruned.failures {
            failures.note_general(reason::DELETE, error.to_string());
        }
    }
}

//! The steps of a reconcile that write.

use api::network_addons::NetworkAddonsConfigSpec;
use kube_kit::{
    apply::{self, Applied as Outcome},
    cache::Lookup,
    inventory::{self, Inventory, Ledger},
    object::{self, ObjectId},
};
use serde_json::{Value, json};

use super::{Error, Reconciler, Stop};
use crate::{
    applied::{self, Applied},
    components::Context,
    configuration,
    failures::Failures,
    labels::{NOT_ON_OWN_NAMESPACE, Stamp},
    manifest, messages,
    names::reason,
    render::{self, Group},
    resource, watches,
};

impl Reconciler {
    /// Removes what stands in the way of this version (operator §9.3). A component whose leftovers can't be removed
    /// waits for that.
    pub(super) async fn clean_up(
        &mut self,
        context: &Context<'_>,
        groups: &[Group],
        failures: &mut Failures,
    ) {
        let invalid = |error: String| messages::invalid_configuration(&[error]);
        for (component, id) in render::leftovers(context) {
            if self.memory.gone.contains(&id) {
                continue;
            }
            match self.applier.delete(&id).await {
                Ok(_) => drop(self.memory.gone.insert(id)),
                Err(error) => failures.note(component, reason::RENDER, invalid(error.to_string())),
            }
        }
        if let Err(error) = self.clear_own_namespace().await {
            failures.note_general(reason::RENDER, invalid(error));
        }
        if let Err(error) = self.release_networks(groups).await {
            failures.note_general(reason::RENDER, invalid(error.to_string()));
        }
    }

    /// Takes labels off the operator's own namespace that earlier versions put there.
    async fn clear_own_namespace(&self) -> Result<(), String> {
        let id = object::NAMESPACE.object(None, &self.settings.operator_namespace);
        let Lookup::Present(namespace) = self.cache().lookup(&id) else {
            return Err(format!("namespaces \"{}\" not found", id.name));
        };
        let labels = namespace.pointer("/metadata/labels").and_then(Value::as_object);
        let stale: serde_json::Map<_, _> = labels
            .into_iter()
            .flat_map(|labels| labels.keys())
            .filter(|key| NOT_ON_OWN_NAMESPACE.contains(&key.as_str()))
            .map(|key| (key.clone(), Value::Null))
            .collect();
        if stale.is_empty() {
            return Ok(());
        }
        let patch = json!({ "metadata": { "labels": stale } });
        let patched = self.applier.merge_patch(&id, None, &patch).await;
        patched.map(drop).map_err(|error| error.to_string())
    }

    /// In the first generation, the definition of networks belonged to the configuration resource and went with it, and
    /// all networks of all users with that. Where it is rendered, applying it sets it free; else it is looked at once.
    async fn release_networks(&mut self, groups: &[Group]) -> Result<(), apply::Error> {
        let id = watches::definition(object::NETWORK_ATTACHMENT_DEFINITION);
        let mut rendered = groups.iter().flat_map(|group| &group.objects);
        if self.memory.gone.contains(&id) || rendered.any(|object| ObjectId::of(object) == id) {
            return Ok(());
        }
        if let Some(definition) = self.applier.get(&id).await?
            && object::owned_by(&definition, api::names::NETWORK_ADDONS_KIND)
        {
            // As it is, without an owner: others' references are kept.
            let free = json!({
                "apiVersion": id.api_version(), "kind": id.kind,
                "metadata": { "name": id.name }, "spec": definition["spec"],
            });
            self.applier.apply(&free).await?;
        }
        self.memory.gone.insert(id);
        Ok(())
    }

    /// Writes down what is going to be there, before anything else: a removal is not forgotten when it
    /// can't be carried out at once.
    pub(super) async fn apply_record(
        &mut self,
        spec: &NetworkAddonsConfigSpec,
        planned: &Inventory,
        stamp: &Stamp,
    ) -> Result<(), Stop> {
        let failed = |error: String| Stop::retry(reason::APPLY, error);
        let mut record = applied::render(spec, planned, &self.settings.operator_namespace)
            .map_err(|error| failed(error.to_string()))?;
        stamp
            .put_on(&mut record)
            .map_err(|error| failed(error.to_string()))?;
        self.apply_one(&record.into_value())
            .await
            .map_err(|error| failed(error.to_string()))
    }

    /// Applies all components of which nothing failed before. One that fails, at its first object that does, does not
    /// keep the others from being applied.
    pub(super) async fn apply(&mut self, groups: &[Group], failures: &mut Failures) {
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
    pub(super) async fn prune(&mut self, planned: &Inventory, groups: &[Group], failures: &mut Failures) {
        let is_rendered = |component: &str| groups.iter().any(|group| group.component == component);
        let deployed = self.memory.deployed.iter().map(|(component, _)| *component);
        let unrendered: Vec<_> = deployed.filter(|component| !is_rendered(component)).collect();
        let gone = render::superfluous(planned, groups, &unrendered);
        if gone.is_empty() {
            return;
        }
        let ledger = Ledger::new(applied::id(&self.settings.operator_namespace));
        let owner = api::names::NETWORK_ADDONS_KIND;
        let pruned = inventory::prune(&self.applier, &ledger, planned, &gone, owner).await;
        for error in pruned.failures {
            failures.note_general(reason::DELETE, error.to_string());
        }
    }
}

/// The inventory, or what stands for it after an operator that kept none: the objects of the
/// specification that it applied, and what even earlier ones left.
pub(crate) fn recorded(
    applied: &Applied,
    context: &Context<'_>,
    stamp: &Stamp,
    random: [u8; 2],
) -> Result<Inventory, manifest::Error> {
    if let Some(inventory) = &applied.inventory {
        return Ok(inventory.clone());
    }
    let Some(previous) = &applied.spec else {
        return Ok(Inventory::default());
    };
    let previous = configuration::complete(previous, Some(previous), context.cluster.platform, random);
    let groups = render::render(
        &Context {
            spec: &previous,
            ..*context
        },
        stamp,
    )?;
    Ok(render::inventory(&groups).union(&Inventory::of(render::legacy(context))))
}

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
    labels::{NOT_ON_OWN_NAMESPACE, Stamp},
    manifest, messages,
    names::reason,
    render::{self, Group},
    resource,
};

impl Reconciler {
    /// Removes what stands in the way of this version (operator §9.3).
    pub(super) async fn clean_up(&mut self, context: &Context<'_>) -> Result<(), Stop> {
        let failed = |error: String| Stop::retry(reason::RENDER, messages::invalid_configuration(&[error]));
        for id in render::leftovers(context) {
            if !self.memory.gone.contains(&id) {
                self.applier
                    .delete(&id)
                    .await
                    .map_err(|error| failed(error.to_string()))?;
                self.memory.gone.insert(id);
            }
        }
        let id = object::NAMESPACE.object(None, &self.settings.operator_namespace);
        let Lookup::Present(namespace) = self.cache().lookup(&id) else {
            return Err(failed(format!("namespaces \"{}\" not found", id.name)));
        };
        let labels = namespace.pointer("/metadata/labels").and_then(Value::as_object);
        let stale: serde_json::Map<_, _> = labels
            .into_iter()
            .flat_map(|labels| labels.keys())
            .filter(|key| NOT_ON_OWN_NAMESPACE.contains(&key.as_str()))
            .map(|key| (key.clone(), Value::Null))
            .collect();
        if !stale.is_empty() {
            let patch = json!({ "metadata": { "labels": stale } });
            self.applier
                .merge_patch(&id, None, &patch)
                .await
                .map_err(|error| failed(error.to_string()))?;
        }
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

    /// Applies all components. One that fails, at its first object that does, does not keep the others
    /// from being applied.
    pub(super) async fn apply(&mut self, groups: &[Group]) -> Result<(), Stop> {
        let mut errors = Vec::new();
        for group in groups {
            for object in &group.objects {
                if let Err(error) = self.apply_one(object).await {
                    tracing::warn!(component = group.component, %error, "cannot apply");
                    errors.push(error.to_string());
                    break;
                }
            }
        }
        self.memory.tracked = render::workloads(groups);
        if errors.is_empty() {
            Ok(())
        } else {
            Err(Stop::retry(reason::APPLY, errors.join("\n")))
        }
    }

    async fn apply_one(&mut self, object: &Value) -> Result<(), apply::Error> {
        let outcome = self.applier.apply(object).await?;
        let id = ObjectId::of(object);
        if matches!(outcome, Outcome::Created | Outcome::Recreated) && render::is_workload(&id) {
            self.memory.made = true;
        }
        if outcome == Outcome::Created {
            // Until a watch tells about it, it seems not to be there.
            self.memory.unseen.insert(id);
        }
        Ok(())
    }

    /// What the configuration resource owned, the garbage collector removes, in any order. Access goes first: a
    /// daemon that is told to end and is refused by the API server knows that it is removed, not restarted, and
    /// gives the node back.
    pub(super) async fn withdraw_access(&self) -> Result<(), Error> {
        if !self.is_removed() {
            return Ok(());
        }
        let owner = api::names::NETWORK_ADDONS_KIND;
        for binding in self.cache().list(object::CLUSTER_ROLE_BINDING) {
            if object::owned_by(&binding, owner) {
                self.applier
                    .delete_if_owned(&ObjectId::of(&binding), owner)
                    .await?;
            }
        }
        Ok(())
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

    pub(super) async fn prune(&mut self, planned: &Inventory, rendered: &Inventory) -> Result<(), Stop> {
        let gone = planned.prune(rendered, render::is_kept);
        if gone.is_empty() {
            return Ok(());
        }
        let ledger = Ledger::new(applied::id(&self.settings.operator_namespace));
        let owner = api::names::NETWORK_ADDONS_KIND;
        let pruned = inventory::prune(&self.applier, &ledger, planned, &gone, owner).await;
        pruned
            .map(drop)
            .map_err(|error| Stop::retry(reason::DELETE, error.to_string()))
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

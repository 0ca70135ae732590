//! The record of the applied objects. It survives a crash, so that an object that is no longer rendered is deleted even
//! if the process died in between (operator.md §9.2, §17.2).
//!
//! ```text
//! before apply:  recorded := recorded ∪ rendered      (one write, only when something is new)
//! after apply:   prune := recorded − rendered − protected, webhooks first
//! after prune:   recorded := recorded − deleted       (one write, also after failures)
//! ```

use crate::apply::{Applier, Deleted, Error};
use crate::object::ObjectId;
use serde::{Deserialize, Serialize};
use serde_json::json;
use thiserror::Error;

/// Key of the inventory in the ConfigMap, beside the applied configuration.
pub const KEY: &str = "inventory";

/// Applied objects, in the order in which they were rendered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory(Vec<Entry>);

/// A recorded object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    id: ObjectId,
    /// The component that it was rendered for; `None` in records of versions that did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    component: Option<String>,
}

/// A recorded inventory that cannot be parsed.
#[derive(Debug, Error)]
#[error("cannot read the inventory")]
pub struct Malformed(#[source] serde_json::Error);

impl Inventory {
    /// The identities of these objects, without a component.
    pub fn of(objects: impl IntoIterator<Item = ObjectId>) -> Self {
        Self::collect(objects.into_iter().map(|id| Entry { id, component: None }))
    }

    /// The identities of these objects of a component.
    pub fn of_component(component: &str, objects: impl IntoIterator<Item = ObjectId>) -> Self {
        Self::collect(objects.into_iter().map(|id| Entry {
            id,
            component: Some(component.to_owned()),
        }))
    }

    fn collect(entries: impl Iterator<Item = Entry>) -> Self {
        let mut inventory = Self::default();
        for entry in entries {
            inventory.add(entry);
        }
        inventory
    }

    /// Parses the output of [`Inventory::to_json`].
    ///
    /// # Errors
    /// If it is not a JSON list of object identities. Unknown keys are ignored.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        serde_json::from_str::<Vec<Entry>>(text)
            .map(|entries| Self::collect(entries.into_iter()))
            .map_err(Malformed)
    }

    /// Compact JSON: a list of `{"group","version","kind","namespace","name","component"}`.
    pub fn to_json(&self) -> String {
        // These are strings in a list, whose serialization cannot fail.
        serde_json::to_string(&self.0).unwrap_or_default()
    }

    /// The objects in their order.
    pub fn objects(&self) -> impl Iterator<Item = &ObjectId> {
        self.0.iter().map(|entry| &entry.id)
    }

    /// Whether it has no objects.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn find(&self, id: &ObjectId) -> Option<&Entry> {
        self.0.iter().find(|known| known.id.same(id))
    }

    /// Whether it contains the object, in any version.
    pub fn contains(&self, id: &ObjectId) -> bool {
        self.find(id).is_some()
    }

    /// The component that an object was rendered for; `None` if the record does not have it.
    pub fn component(&self, id: &ObjectId) -> Option<&str> {
        self.find(id)?.component.as_deref()
    }

    fn add(&mut self, entry: Entry) {
        match self.0.iter_mut().find(|known| known.id.same(&entry.id)) {
            Some(known) => {
                // The version of the latest rendering.
                known.id = entry.id;
                // The component of a rendering takes precedence over that of the record.
                known.component = known.component.take().or(entry.component);
            }
            None => self.0.push(entry),
        }
    }

    /// All of these objects, then the additional ones of `other`. The union of the rendered and the recorded objects is
    /// written before they are applied. It has the same text for the same objects, so nothing is written if nothing is
    /// new.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self::collect(self.0.iter().chain(&other.0).cloned())
    }

    /// Without this object.
    #[must_use]
    pub fn without(&self, id: &ObjectId) -> Self {
        let others = self.0.iter().filter(|known| !known.id.same(id));
        Self(others.cloned().collect())
    }

    /// The objects to delete after applying: recorded, no longer rendered and not protected; webhook configurations
    /// first (without their server they would block all users), otherwise in the order in which they were rendered.
    pub fn prune(&self, rendered: &Self, protected: impl Fn(&ObjectId) -> bool) -> Vec<ObjectId> {
        let gone = self
            .objects()
            .filter(|id| !rendered.contains(id) && !protected(id));
        let (webhooks, others): (Vec<_>, Vec<_>) =
            gone.cloned().partition(ObjectId::is_webhook_configuration);
        webhooks.into_iter().chain(others).collect()
    }
}

/// The key of a ConfigMap that holds an inventory.
#[derive(Debug, Clone)]
pub struct Ledger {
    config_map: ObjectId,
    key: String,
}

impl Ledger {
    /// The key [`KEY`] of this ConfigMap, which must exist before something is recorded.
    pub fn new(config_map: ObjectId) -> Self {
        Self {
            config_map,
            key: KEY.to_owned(),
        }
    }

    /// Records an inventory.
    ///
    /// # Errors
    /// If the ConfigMap does not exist or cannot be written.
    pub async fn record(&self, applier: &Applier, inventory: &Inventory) -> Result<(), Error> {
        let patch = json!({"data": {self.key.as_str(): inventory.to_json()}});
        applier
            .merge_patch(&self.config_map, None, &patch)
            .await
            .map(|_| ())
    }
}

/// The outcome of a prune.
#[derive(Debug, Default)]
pub struct Pruned {
    /// The current record.
    pub recorded: Inventory,
    /// Deleted objects.
    pub deleted: Vec<ObjectId>,
    /// Objects that could not be deleted, or not be removed from the record: the next prune repeats them.
    pub failures: Vec<Error>,
}

/// Deletes the planned objects, and removes each from the record. A failed deletion stays on record, and does not block
/// the others, with one exception: while a webhook configuration cannot be deleted, only other webhook configurations
/// are deleted, because its server may be among the rest. After a crash, objects that are already gone are planned
/// again and found to be gone.
pub async fn prune(
    applier: &Applier,
    ledger: &Ledger,
    recorded: &Inventory,
    plan: &[ObjectId],
    owner_kind: &str,
) -> Pruned {
    let mut pruned = Pruned {
        recorded: recorded.clone(),
        ..Pruned::default()
    };
    let mut blocked = false;
    for id in plan {
        if blocked && !id.is_webhook_configuration() {
            break;
        }
        match applier.delete_if_owned(id, owner_kind).await {
            Ok(outcome) => {
                pruned.recorded = pruned.recorded.without(id);
                if outcome == Deleted::Deleted {
                    pruned.deleted.push(id.clone());
                }
            }
            Err(error) => {
                blocked |= id.is_webhook_configuration();
                pruned.failures.push(error);
            }
        }
    }
    if pruned.recorded != *recorded
        && let Err(error) = ledger.record(applier, &pruned.recorded).await
    {
        pruned.failures.push(error);
    }
    pruned
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{
        CLUSTER_ROLE, CONFIG_MAP, CUSTOM_RESOURCE_DEFINITION, DAEMON_SET, MUTATING_WEBHOOK_CONFIGURATION,
        SERVICE,
    };

    fn inventory(names: &[&str]) -> Inventory {
        Inventory::of(names.iter().map(|name| CONFIG_MAP.object(Some("ns"), name)))
    }

    #[test]
    fn parsed_inventory_equals_written_one() {
        let all = Inventory::of([CLUSTER_ROLE.object(None, "a"), DAEMON_SET.object(Some("ns"), "b")]);
        assert_eq!(
            all.to_json(),
            r#"[{"group":"rbac.authorization.k8s.io","version":"v1","kind":"ClusterRole","name":"a"},{"group":"apps","version":"v1","kind":"DaemonSet","namespace":"ns","name":"b"}]"#
        );
        assert_eq!(Inventory::parse(&all.to_json()).expect("an inventory"), all);
        let newer = r#"[{"version":"v1","kind":"Service","namespace":"ns","name":"s","component":"x"}]"#;
        let service = SERVICE.object(Some("ns"), "s");
        let newer = Inventory::parse(newer).expect("an inventory");
        assert_eq!(newer, Inventory::of_component("x", [service.clone()]));
        assert_eq!(newer.component(&service), Some("x"));
        assert!(Inventory::parse("{}").is_err());
    }

    // operator#88
    #[test]
    fn inventory_keeps_components_over_crash_and_upgrade() {
        let id = |name: &str| CONFIG_MAP.object(Some("ns"), name);
        let rendered = Inventory::of_component("multus", [id("a")]);
        let written = rendered.to_json();
        assert_eq!(
            written,
            r#"[{"group":"","version":"v1","kind":"ConfigMap","namespace":"ns","name":"a","component":"multus"}]"#
        );
        // An object that moved to another component belongs to the one that renders it.
        let recorded = Inventory::of_component("ovs", [id("a"), id("b")]).union(&Inventory::of([id("c")]));
        let planned = rendered.union(&recorded);
        let components = ["a", "b", "c"].map(|name| planned.component(&id(name)));
        assert_eq!(components, [Some("multus"), Some("ovs"), None]);
        assert_eq!(
            Inventory::parse(&planned.to_json()).expect("an inventory"),
            planned
        );
        // Entries of an earlier version get their component with the next rendering.
        let earlier = Inventory::of([id("a")]);
        assert_eq!(rendered.union(&earlier), rendered);
    }

    #[test]
    fn union_keeps_order_and_equals_record_without_news() {
        let recorded = inventory(&["a", "b", "c"]);
        assert_eq!(recorded.union(&inventory(&["c", "a"])), recorded);
        assert_eq!(
            recorded.union(&inventory(&["d", "a"])),
            inventory(&["a", "b", "c", "d"])
        );
    }

    #[test]
    fn prune_plans_unrendered_object_until_it_is_off_record() {
        let before = inventory(&["a", "b", "c"]);
        let rendered = inventory(&["b"]);
        // The process may die at any point after this write.
        let recorded = before.union(&rendered);
        let plan = recorded.prune(&rendered, |_| false);
        assert_eq!(plan, ["a", "c"].map(|name| CONFIG_MAP.object(Some("ns"), name)));
        let after_one = recorded.without(&plan[0]);
        assert_eq!(
            after_one.union(&rendered).prune(&rendered, |_| false),
            [plan[1].clone()]
        );
        assert!(after_one.without(&plan[1]).prune(&rendered, |_| false).is_empty());
    }

    #[test]
    fn prune_deletes_webhooks_first_and_keeps_protected_objects() {
        let recorded = Inventory::of([
            CUSTOM_RESOURCE_DEFINITION.object(None, "crd"),
            SERVICE.object(Some("ns"), "webhook"),
            MUTATING_WEBHOOK_CONFIGURATION.object(None, "webhook"),
            DAEMON_SET.object(Some("ns"), "d"),
        ]);
        let plan = recorded.prune(&Inventory::default(), |id| id.kind == "CustomResourceDefinition");
        let kinds: Vec<&str> = plan.iter().map(|id| id.kind.as_str()).collect();
        assert_eq!(kinds, ["MutatingWebhookConfiguration", "Service", "DaemonSet"]);
    }

    #[test]
    fn object_is_the_same_in_other_version() {
        let mut old = CONFIG_MAP.object(Some("ns"), "a");
        old.version = "v1beta1".to_owned();
        let recorded = Inventory::of([old]);
        let rendered = inventory(&["a"]);
        assert!(recorded.prune(&rendered, |_| false).is_empty());
        assert_eq!(recorded.union(&rendered), rendered);
    }
}

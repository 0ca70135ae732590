//! What users are told: the status, and events.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::network_addons::NetworkAddonsConfigStatus;
use k8s_openapi::jiff::Timestamp;
use kube_kit::{
    cache::Lookup,
    events::Kind,
    object::{self, ObjectId},
};
use serde_json::Value;
use tokio::time::Instant;

use super::{Error, Reconciler};
use crate::{
    components::{Component as _, nmstate::NMState},
    messages,
    names::reason,
    resource::{self, Resource},
    status::{self, Component, Finding},
    workloads::{Observation, Progress, Workload},
};

/// How long a status stands before it is written only because its messages differ.
const DETAILS: Duration = Duration::from_secs(1);

impl Reconciler {
    /// The deployed components, and how far their workloads are.
    pub(super) fn components(&mut self) -> Vec<Component> {
        let deployed = self.memory.deployed.iter();
        let component = |(name, ids): &(&'static str, Vec<ObjectId>)| {
            let second = self.memory.second_step.iter();
            let second = second.filter(|_| *name == NMState.name()).cloned();
            Component {
                name,
                workloads: ids.iter().map(|id| self.observe(id)).chain(second).collect(),
            }
        };
        let mut components: Vec<Component> = deployed.map(component).collect();
        let workloads = components
            .iter_mut()
            .flat_map(|component| &mut component.workloads);
        self.ready_at = self.memory.ready_since.mark(workloads, Instant::now());
        components
    }

    fn observe(&self, id: &ObjectId) -> Workload {
        let namespace = || {
            let namespace = object::NAMESPACE.object(None, id.namespace.as_deref().unwrap_or_default());
            self.cache().lookup(&namespace) != Lookup::Absent
        };
        let lookup = self.cache().lookup(id);
        let observation = match &lookup {
            Lookup::Present(object) => Observation::Seen(object),
            Lookup::Absent | Lookup::Unknown => Observation::Gone {
                namespace: namespace(),
            },
        };
        Workload::observed(id.clone(), &observation)
    }

    /// Says in the status that a workload is gone, before it is restored. A failure of the configuration outranks it.
    /// What goes wrong with telling it does not keep it from being restored.
    pub(super) async fn report_losses(&mut self, cr: &Resource) {
        if self.memory.failed {
            return;
        }
        let components = self.components();
        if let Progress::Failed(failure) = status::progress(&components) {
            let (reason, error) = (failure.reason, &failure.message);
            tracing::warn!(reason, error, "a workload is gone");
            let finding = Finding::Lost { failure, components };
            if let Err(error) = self.write_status(cr, &finding).await {
                tracing::warn!(%error, "cannot tell about it");
            }
        }
    }

    /// Tells about workloads that were made, or whose specification changed, whoever changed it. What was
    /// there before the first reconcile is no news.
    pub(super) async fn report_modifications(&mut self, cr: &Resource) {
        let generation = |id: &ObjectId| match self.cache().lookup(id) {
            Lookup::Present(object) => object.pointer("/metadata/generation").and_then(Value::as_i64),
            _ => None,
        };
        let workloads = self.memory.deployed.iter().flat_map(|(_, workloads)| workloads);
        let now: BTreeMap<_, _> = workloads
            .filter_map(|id| Some((id.clone(), generation(id)?)))
            .collect();
        let before = std::mem::replace(&mut self.memory.generations, now);
        let changed = self
            .memory
            .generations
            .iter()
            .any(|(id, generation)| before.get(id).is_some_and(|before| before != generation));
        if std::mem::take(&mut self.memory.made) || changed {
            let regarding = cr.reference();
            self.recorder
                .publish(&regarding, Kind::Normal, reason::MODIFIED, messages::MODIFIED)
                .await;
        }
    }

    /// Tells the metrics what the status says.
    fn measure(&self, cr: &Resource, status: &NetworkAddonsConfigStatus) {
        self.metrics.set_ready(status::is_available(status));
        self.metrics.set_mac_pool(cr.wants_mac_pool());
    }

    /// Tells the metrics that there is no configuration resource.
    pub(super) fn measure_nothing(&self) {
        self.metrics.set_ready(false);
        self.metrics.set_mac_pool(false);
    }

    /// When to look at the status again: messages were held back, or workloads will have stayed ready for long enough.
    pub fn held_back_until(&self) -> Option<Instant> {
        self.held_back.into_iter().chain(self.ready_at).min()
    }

    /// A roll-out over many nodes changes messages many times a second: so often nobody reads them.
    fn may_tell_details(&mut self) -> bool {
        let next = self.told.map(|told| told + DETAILS);
        self.held_back = next.filter(|next| *next > Instant::now());
        self.held_back.is_none()
    }

    /// Writes the status if it differs, then tells the events that belong to the change.
    pub(super) async fn write_status(&mut self, cr: &Resource, finding: &Finding) -> Result<(), Error> {
        self.held_back = None;
        let id = ObjectId::of(&cr.object);
        // The cache has what was written earlier in the same reconcile.
        let object = match self.cache().lookup(&id) {
            Lookup::Present(object) => object,
            _ => Arc::clone(&cr.object),
        };
        let live = object.get("status").cloned().unwrap_or_default();
        let before = resource::read_status(live.clone());
        let (after, events) = status::next(
            &before,
            finding,
            &self.settings.operator_version,
            Timestamp::now(),
        );
        if events.is_empty() && status::differ_in_messages_alone(&before, &after) && !self.may_tell_details()
        {
            return Ok(());
        }
        if after != before {
            self.told = Some(Instant::now());
            match self
                .applier
                .merge_patch(
                    &id,
                    Some("status"),
                    &resource::status_patch(&cr.uid, &live, &after),
                )
                .await
            {
                Ok(_) => {}
                Err(error) if error.is_not_found() => {
                    self.measure_nothing();
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.measure(cr, &after);
        let regarding = cr.reference();
        for event in events {
            self.recorder
                .publish(&regarding, event.kind, &event.reason, &event.message)
                .await;
        }
        Ok(())
    }
}

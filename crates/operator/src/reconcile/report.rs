//! Reports in the status and in events.

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
    components::nmstate,
    messages,
    names::reason,
    resource::{self, Resource},
    status::{self, Component, Finding},
    workloads::{Observation, Progress, Workload},
};

/// Minimum age of a status before a rewrite for its messages alone.
const DETAILS: Duration = Duration::from_secs(1);

impl Reconciler {
    /// The deployed components with the states of their workloads.
    pub(super) fn components(&mut self) -> Vec<Component> {
        let deployed = self.history.deployed.iter();
        let component = |(name, ids): &(&'static str, Vec<ObjectId>)| {
            let second = self.history.second_step.iter();
            let second = second.filter(|_| *name == nmstate::NAME).cloned();
            Component {
                name,
                workloads: ids.iter().map(|id| self.observe(id)).chain(second).collect(),
            }
        };
        let mut components: Vec<Component> = deployed.map(component).collect();
        let workloads = components
            .iter_mut()
            .flat_map(|component| &mut component.workloads);
        self.ready_at = self.history.ready_since.mark(workloads, Instant::now());
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

    /// Reports a missing workload in the status, before its restoration. A failure of the configuration as a whole
    /// takes precedence. An error of this report does not delay the restoration.
    pub(super) async fn report_losses(&mut self, cr: &Resource) {
        if self.history.failed {
            return;
        }
        let components = self.components();
        if let Progress::Failed(failure) = status::progress(&components) {
            let (reason, error) = (failure.reason, &failure.message);
            tracing::warn!(reason, error, "a workload is gone");
            let finding = Finding::Lost { failure, components };
            if let Err(error) = self.write_status(cr, &finding).await {
                tracing::warn!(%error, "cannot write the status about the workload");
            }
        }
    }

    /// Emits an event about created workloads, and about workloads whose specification any client changed. Workloads
    /// from before the first reconcile are not reported.
    pub(super) async fn report_modifications(&mut self, cr: &Resource) {
        let generation = |id: &ObjectId| match self.cache().lookup(id) {
            Lookup::Present(object) => object.pointer("/metadata/generation").and_then(Value::as_i64),
            _ => None,
        };
        let workloads = self.history.deployed.iter().flat_map(|(_, workloads)| workloads);
        let now: BTreeMap<_, _> = workloads
            .filter_map(|id| Some((id.clone(), generation(id)?)))
            .collect();
        let before = std::mem::replace(&mut self.history.generations, now);
        let changed = self
            .history
            .generations
            .iter()
            .any(|(id, generation)| before.get(id).is_some_and(|before| before != generation));
        if std::mem::take(&mut self.history.created_workload) || changed {
            let regarding = cr.reference();
            self.recorder
                .publish(&regarding, Kind::Normal, reason::MODIFIED, messages::MODIFIED)
                .await;
        }
    }

    /// Sets the metrics from the status.
    fn measure(&self, cr: &Resource, status: &NetworkAddonsConfigStatus) {
        self.metrics.set_ready(status::is_available(status));
        self.metrics.set_mac_pool(cr.wants_mac_pool());
    }

    /// Sets the metrics of a cluster without a configuration resource.
    pub(super) fn measure_absence(&self) {
        self.metrics.set_ready(false);
        self.metrics.set_mac_pool(false);
    }

    /// Time of the next reconcile: messages were held back, the hold of a workload ends, or a Lease is read again.
    pub(crate) fn held_back_until(&self) -> Option<Instant> {
        let due = [self.details_due, self.ready_at, self.release_due];
        due.into_iter().flatten().min()
    }

    /// Whether changed messages may be written now. A roll-out over many nodes changes messages many times a second,
    /// faster than a user can read.
    fn may_write_details(&mut self) -> bool {
        let next = self.status_written.map(|written| written + DETAILS);
        self.details_due = next.filter(|next| *next > Instant::now());
        self.details_due.is_none()
    }

    /// Writes the status if it differs, and then emits the events of the change.
    pub(super) async fn write_status(&mut self, cr: &Resource, finding: &Finding) -> Result<(), Error> {
        self.details_due = None;
        let id = ObjectId::of(&cr.object);
        // The cache has the status that an earlier step of this reconcile wrote.
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
        if events.is_empty() && status::differ_in_messages_alone(&before, &after) && !self.may_write_details()
        {
            return Ok(());
        }
        if after != before {
            self.status_written = Some(Instant::now());
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
                    self.measure_absence();
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

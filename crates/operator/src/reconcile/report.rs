//! What users are told: the status, and events.

use std::{collections::BTreeMap, sync::Arc};

use api::network_addons::NetworkAddonsConfigStatus;
use k8s_openapi::jiff::Timestamp;
use kube_kit::{
    cache::Lookup,
    events::Kind,
    object::{self, ObjectId},
};
use serde_json::Value;

use super::{Error, Reconciler};
use crate::{
    messages,
    names::{env, reason},
    resource::{self, Resource},
    status::{self, Finding},
    workloads::{self, Observation, Progress},
};

impl Reconciler {
    /// Tells the user, once, about components that are accepted and not deployed.
    pub(super) async fn announce(&mut self, cr: &Resource, fields: &[&'static str]) {
        self.memory.announced.retain(|field| fields.contains(field));
        for field in fields {
            if self.memory.announced.insert(field) {
                let message = messages::not_yet_deployed(field);
                tracing::warn!(field, message);
                let regarding = cr.reference();
                self.recorder
                    .publish(&regarding, Kind::Warning, reason::NOT_YET_DEPLOYED, &message)
                    .await;
            }
        }
    }

    pub(super) fn progress(&self) -> Progress {
        let namespace = |id: &ObjectId| {
            let namespace = object::NAMESPACE.object(None, id.namespace.as_deref().unwrap_or_default());
            self.cache().lookup(&namespace) != Lookup::Absent
        };
        let lookups: Vec<_> = self
            .memory
            .tracked
            .iter()
            .map(|id| (id, self.cache().lookup(id)))
            .collect();
        let observations: Vec<_> = lookups
            .iter()
            .map(|(id, lookup)| {
                let observation = match lookup {
                    Lookup::Present(object) => Observation::Seen(object),
                    Lookup::Absent if !self.memory.unseen.contains(*id) => Observation::Gone {
                        namespace: namespace(id),
                    },
                    Lookup::Absent | Lookup::Unknown => Observation::JustCreated,
                };
                ((*id).clone(), observation)
            })
            .collect();
        workloads::evaluate(&observations)
    }

    /// Says in the status that a workload is gone, before it is restored. A failure of the
    /// configuration outranks it.
    pub(super) async fn report_losses(&mut self, cr: &Resource) -> Result<(), Error> {
        if self.memory.rejected {
            return Ok(());
        }
        if let Progress::Failed(failure) = self.progress() {
            tracing::warn!(
                reason = failure.reason,
                error = failure.message,
                "a workload is gone"
            );
            self.write_status(cr, &Finding::Lost(failure)).await?;
        }
        Ok(())
    }

    /// Tells about workloads that were made, or whose specification changed, whoever changed it. What was
    /// there before the first reconcile is no news.
    pub(super) async fn report_modifications(&mut self, cr: &Resource) {
        let generation = |id: &ObjectId| match self.cache().lookup(id) {
            Lookup::Present(object) => object.pointer("/metadata/generation").and_then(Value::as_i64),
            _ => None,
        };
        let tracked = self.memory.tracked.iter();
        let now: BTreeMap<_, _> = tracked
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

    /// Tells the metrics what the status says. A MAC pool that this version accepts and does not deploy is none:
    /// nobody is to be alarmed because it is down.
    fn measure(&self, cr: &Resource, status: &NetworkAddonsConfigStatus) {
        let can_run = self.settings.images.can_run(&[env::KUBEMACPOOL_IMAGE]);
        self.metrics.set_ready(status::is_available(status));
        self.metrics.set_mac_pool(cr.wants_mac_pool() && can_run);
    }

    /// Tells the metrics that there is no configuration resource.
    pub(super) fn measure_nothing(&self) {
        self.metrics.set_ready(false);
        self.metrics.set_mac_pool(false);
    }

    /// Writes the status if it differs, then tells the events that belong to the change.
    pub(super) async fn write_status(&mut self, cr: &Resource, finding: &Finding) -> Result<(), Error> {
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
        if after != before {
            match self
                .applier
                .merge_patch(&id, Some("status"), &resource::status_patch(&live, &after))
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

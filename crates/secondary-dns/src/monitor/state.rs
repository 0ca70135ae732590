//! The state of a monitor: applies events to the records, to the zones in memory, and to the changes that the zone files
//! lack.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use kube_kit::lock;
use kube_kit::watch::Name;

use super::directory::Directory;
use crate::answer::SharedZones;
use crate::claims::Early;
use crate::launchers::Pod;
use crate::messages;
use crate::model::{Instances, Model, key};
use crate::vmi::{Policy, Record, Refused, Vmi};
use crate::zone::serial;

/// The instances that are published, and their records.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) model: Model,
    policy: Policy,
    pub(super) early: Option<Early>,
    memory: Option<SharedZones>,
    /// Whether the first list is complete. The monitor publishes nothing before.
    complete: bool,
    /// Instances whose records the zone files lack; `None` if the monitor writes no files.
    unwritten: Option<Instances>,
    /// Instances whose names or addresses were logged as invalid.
    complained: BTreeSet<Arc<str>>,
    directory: Directory,
    /// The monitor with the former settings, until this monitor has all instances.
    pub(super) predecessor: Option<Arc<Mutex<State>>>,
}

impl State {
    /// A state without instances. `in_files` is true if the monitor writes zone files.
    pub(super) fn new(
        model: Model,
        policy: Policy,
        memory: Option<SharedZones>,
        in_files: bool,
        directory: Directory,
    ) -> Self {
        Self {
            model,
            policy,
            early: None,
            memory,
            complete: false,
            unwritten: in_files.then(Instances::new),
            complained: BTreeSet::new(),
            directory,
            predecessor: None,
        }
    }

    /// Applies an event of an instance. Returns whether a record changed.
    pub(super) fn observe(&mut self, vmi: &Vmi) -> bool {
        let (namespace, name) = vmi.name();
        if namespace.is_empty() || name.is_empty() {
            let text = if name.is_empty() {
                messages::NO_NAME
            } else {
                messages::NO_NAMESPACE
            };
            tracing::error!(namespace, name, "{text}");
            return false;
        }
        let instance = key(namespace, name);
        let published = match &mut self.early {
            Some(early) => {
                early.observe(&instance, vmi);
                let early = &*early;
                vmi.publish_with(&self.policy, |network| early.addresses(vmi, network))
            }
            None => vmi.publish(&self.policy),
        };
        let odd = |refused: &&Refused| matches!(refused, Refused::Name(_) | Refused::NotAllowed { .. });
        let odd: Vec<String> = published
            .refused
            .iter()
            .filter(odd)
            .map(ToString::to_string)
            .collect();
        if odd.is_empty() {
            self.complained.remove(&instance);
        } else if self.complained.insert(Arc::clone(&instance)) {
            tracing::warn!(
                namespace,
                name,
                reason = odd.join("; "),
                "not everything of an instance is published"
            );
        }
        self.set(&instance, published.records)
    }

    /// Applies a change of a claim's addresses. Returns whether a record changed.
    pub(super) fn claimed(&mut self, claim: &Name) -> bool {
        let owner = self.early.as_ref().and_then(|early| early.owner(claim));
        owner.is_some_and(|vmi| self.observe(&vmi))
    }

    /// Applies an event of a pod. Returns whether a record changed.
    pub(super) fn launched(&mut self, pod: &Pod) -> bool {
        let early = self.early.as_mut();
        let instances = early.map(|early| early.launchers.observe(pod));
        let mut is_changed = false;
        for instance in instances.unwrap_or_default() {
            is_changed |= self.publish_again(&instance);
        }
        is_changed
    }

    /// Removes a pod. Returns whether a record changed.
    pub(super) fn pod_gone(&mut self, pod: &Name) -> bool {
        let early = self.early.as_mut();
        let instance = early.and_then(|early| early.launchers.remove(pod));
        instance.is_some_and(|instance| self.publish_again(&instance))
    }

    fn publish_again(&mut self, instance: &str) -> bool {
        let early = self.early.as_ref();
        let vmi = early.and_then(|early| early.instance(instance));
        vmi.is_some_and(|vmi| self.observe(&vmi))
    }

    /// Removes an instance. Returns whether a record changed.
    pub(super) fn gone(&mut self, name: &Name) -> bool {
        let instance = key(&name.namespace, &name.name);
        if let Some(early) = &mut self.early {
            early.gone(&instance);
        }
        self.complained.remove(&instance);
        self.set(&instance, Vec::new())
    }

    fn set(&mut self, instance: &Arc<str>, records: Vec<Record>) -> bool {
        let Some(update) = self.model.set(instance, records) else {
            return false;
        };
        if let Some(unwritten) = &mut self.unwritten {
            unwritten.insert(Arc::clone(instance), self.model.records_of(instance));
        }
        if let (true, Some(memory)) = (self.complete, &self.memory) {
            self.model.carry(&update, &mut lock(memory));
        }
        true
    }

    /// Instances that have changed since the last call, and the serial. `None` if this monitor writes no files, or no
    /// longer writes them.
    pub(crate) fn take_unwritten(&mut self) -> Option<(Instances, u32)> {
        let changes = self.unwritten.as_mut().map(std::mem::take)?;
        Some((changes, self.model.serial()))
    }

    /// Changes the base of the serial: events in between have counted on from `from`, and now count on from `to`.
    pub(crate) fn renumber(&mut self, from: u32, to: u32) {
        let ahead = to.wrapping_sub(from);
        if ahead == 0 {
            return;
        }
        let serial = self.model.serial().wrapping_add(ahead);
        self.model.set_serial(serial);
        if let Some(memory) = &self.memory {
            let mut memory = lock(memory);
            for origin in self.model.origins() {
                if let Some(zone) = memory.get_mut(&origin) {
                    zone.set_serial(serial);
                }
            }
        }
    }

    /// The first list is complete: the zones are answered from now on. Returns the number of instances with records.
    pub(super) fn completed(&mut self) -> usize {
        if !self.complete {
            self.complete = true;
            if let Some(predecessor) = self.predecessor.take() {
                self.take_over(&mut lock(&predecessor));
            }
            if let Some(memory) = &self.memory {
                let zones = self.model.zones();
                let origins: Vec<_> = self.model.origins().collect();
                // All zones change at once: no query finds zones of both settings.
                lock(memory).put_only(&origins, zones);
            }
        }
        self.model.instances()
    }

    /// Takes the state of the former monitor, which publishes nothing any more.
    fn take_over(&mut self, before: &mut Self) {
        before.memory = None;
        before.unwritten = None;
        let (old, new) = (&before.model.header().zone, &self.model.header().zone);
        if old == new {
            self.model.set_serial(serial::next(before.model.serial()));
        } else {
            self.directory.replace(old, new);
        }
    }
}

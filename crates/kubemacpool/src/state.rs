//! The observed state, and its changes when an object is stored or deleted. Pure: no clock except for timestamps, no
//! client.
//!
//! ```text
//! pods, virtual machines ──> Pool        addresses in every namespace: taken ones are not allocated
//! pods, instances ─────────> Collisions
//! namespaces, webhooks ────> Managed ──> Collisions, metrics
//! ```

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::annotation;
use crate::collisions::{self, Collisions, Facts, Migration, Notice, Reference};
use crate::kubevirt::{Pod, VirtualMachine, VirtualMachineInstance};
use crate::machines;
use crate::metrics::{RangeSnapshot, Snapshot};
use crate::names;
use crate::namespaces::{Labels, Managed, Mode, Rules, Unknown};
use crate::pool::{Claimant, Holder, Holding, Kind, Owner, Pool, Usage};
use crate::range::Range;
use crate::timestamp::Timestamp;

#[cfg(test)]
mod tests;

/// Shared by watches, webhooks and timers. Locked for microseconds, never across an await.
pub type Shared = Arc<Mutex<State>>;

/// Takes the lock; the state is consistent even if another holder panicked.
pub fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    kube_kit::lock(shared)
}

/// A random position in the range, so that allocations are unpredictable.
///
/// # Errors
/// If the kernel's random numbers cannot be read.
pub fn random() -> linux::Result<u64> {
    linux::random::bytes().map(u64::from_ne_bytes)
}

/// A part of the state that has to be complete at the start.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Part {
    /// All namespaces.
    Namespaces,
    /// The webhook configuration.
    Rules,
    /// The ConfigMap with the range.
    Range,
    /// All pods.
    Pods,
    /// All virtual machines; complete without KubeVirt too.
    Machines,
    /// All instances; complete without KubeVirt too.
    Instances,
}

/// An address that two objects had at the start. Displayed in upstream's form.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("mac address {} already allocated to {}, conflict with: {machine}:{}", .holding.mac, .by.join(", "), .holding.key)]
pub struct Duplicate {
    holding: Holding,
    machine: Owner,
    by: Vec<String>,
}

/// The observed state.
#[derive(Debug)]
pub struct State {
    /// Holders of addresses.
    pub pool: Pool,
    /// The configured range; the pool may allocate from a part of it.
    pub range: Range,
    /// The managed namespaces.
    pub managed: Managed,
    /// Running objects that share an address.
    pub collisions: Collisions,
    /// Pods that hold addresses until the virtual machine is observed that they may belong to.
    launchers: HashMap<Owner, Vec<Owner>>,
    /// Virtual machines whose legacy finalizer is being removed.
    removing_finalizer: HashSet<Owner>,
    awaited: BTreeSet<Part>,
    /// Whether KubeVirt is installed.
    kubevirt: bool,
    last: Option<Timestamp>,
    /// Virtual machines that existed at the start, until it is known which of them are managed.
    listed: Vec<Owner>,
    duplicates: u64,
}

impl State {
    /// An empty state with the range, and the part to allocate from.
    pub fn new(range: Range, share: Range, random: u64) -> Self {
        Self {
            pool: Pool::new(share, random),
            range,
            managed: Managed::new(),
            collisions: Collisions::new(),
            launchers: HashMap::new(),
            removing_finalizer: HashSet::new(),
            awaited: BTreeSet::from([
                Part::Namespaces,
                Part::Rules,
                Part::Range,
                Part::Pods,
                Part::Machines,
                Part::Instances,
            ]),
            kubevirt: false,
            last: None,
            listed: Vec::new(),
            duplicates: 0,
        }
    }

    /// Sets another range.
    pub fn set_range(&mut self, range: Range, share: Range, random: u64) {
        self.range = range;
        self.pool.set_range(share, random);
    }

    /// The current time, later than ever before.
    pub fn timestamp(&mut self) -> Timestamp {
        let now = Timestamp::after(self.last);
        self.last = Some(now);
        now
    }

    /// Whether a virtual machine is observed.
    pub fn has_machine(&self, machine: &Owner) -> bool {
        self.pool.stored(machine).is_some()
    }

    /// Records that KubeVirt is installed.
    pub fn set_kubevirt_installed(&mut self) {
        self.kubevirt = true;
    }

    /// Records that a part is complete. Returns notices of the existing collisions once all parts are complete.
    pub fn complete(&mut self, part: Part) -> Vec<Notice> {
        if self.awaited.remove(&part) && self.awaited.is_empty() {
            return self.collisions.begin();
        }
        Vec::new()
    }

    /// Whether addresses can be allocated without collisions. An error names what the webhook configuration lacks for
    /// it; `false` means that not all lists are complete.
    ///
    /// # Errors
    /// If only the managed namespaces are unknown.
    pub fn is_ready(&self) -> Result<bool, Unknown> {
        if self.awaited.iter().any(|part| *part != Part::Instances) {
            return Ok(false);
        }
        self.managed.mode(Kind::Pod)?;
        if self.kubevirt {
            self.managed.mode(Kind::Machine)?;
        }
        Ok(true)
    }

    /// Handles a stored pod.
    pub fn pod_stored(&mut self, pod: &Pod) -> Vec<Notice> {
        let (namespace, name) = place(&pod.metadata);
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let holdings = requested(pod);
        let owner = Owner::pod(namespace, name);
        let macs: Vec<_> = holdings.iter().map(|holding| holding.mac).collect();
        if holdings.is_empty() || self.belongs_to_machine(pod) {
            self.release(&owner);
        } else {
            if let Some(machine) = machine_of(pod) {
                let launchers = self.launchers.entry(machine).or_default();
                if !launchers.contains(&owner) {
                    launchers.push(owner.clone());
                }
            }
            self.pool.store(&owner, uid, holdings, None);
        }
        let facts = collisions::Pod {
            uid,
            phase: pod.phase(),
            launcher: pod.is_launcher(),
            attached: pod.is_attached(),
        };
        let facts = Facts::of_pod(&facts, macs);
        self.set_collisions(&Reference::pod(namespace, name), facts)
    }

    /// A pod's own addresses: none if it belongs to an observed virtual machine.
    pub fn pod_holdings(&self, pod: &Pod) -> Vec<Holding> {
        if self.belongs_to_machine(pod) {
            return Vec::new();
        }
        requested(pod)
    }

    fn belongs_to_machine(&self, pod: &Pod) -> bool {
        machine_of(pod).is_some_and(|machine| self.has_machine(&machine))
    }

    /// Handles a deleted pod.
    pub fn pod_deleted(&mut self, namespace: &str, name: &str) {
        let owner = Owner::pod(namespace, name);
        let released = self.release(&owner);
        if !released.is_empty() {
            tracing::info!(pod = %owner, macs = macs(&released), "released mac from pod");
        }
        self.collisions.remove(&Reference::pod(namespace, name));
    }

    /// Releases a pod's addresses; a pod without addresses waits for no virtual machine.
    fn release(&mut self, pod: &Owner) -> Vec<Holding> {
        let released = self.pool.remove(pod);
        if !released.is_empty() {
            self.launchers.retain(|_, pods| {
                pods.retain(|launcher| launcher != pod);
                !pods.is_empty()
            });
        }
        released
    }

    /// Handles a stored virtual machine. Returns it if its legacy finalizer has to be removed, once until
    /// [`State::finalizer_removed`].
    pub fn machine_stored(&mut self, machine: &VirtualMachine) -> Option<Owner> {
        let (namespace, name) = place(&machine.metadata);
        let uid = machine.metadata.uid.as_deref().unwrap_or_default();
        let owner = Owner::machine(namespace, name);
        let transaction = match machines::transaction(machine.metadata.annotations.as_ref()) {
            Ok(transaction) => transaction,
            Err(error) => {
                tracing::warn!(machine = %owner, %error, "malformed transaction timestamp");
                None
            }
        };
        let deleting = machine.metadata.deletion_timestamp.is_some();
        let known = self.has_machine(&owner);
        self.pool
            .store(&owner, uid, machine_holdings(machine), transaction);
        if !known {
            for pod in self.launchers.remove(&owner).unwrap_or_default() {
                self.pool.remove(&pod);
            }
        }
        let finalizers = machine.metadata.finalizers.as_deref().unwrap_or_default();
        let bound = deleting && finalizers.iter().any(|it| it == names::LEGACY_FINALIZER);
        (bound && self.removing_finalizer.insert(owner.clone())).then_some(owner)
    }

    /// Handles a deleted virtual machine.
    pub fn machine_deleted(&mut self, namespace: &str, name: &str) {
        let machine = Owner::machine(namespace, name);
        let released = self.pool.remove(&machine);
        if !released.is_empty() {
            tracing::info!(%machine, macs = macs(&released), "released macs in virtual machine");
        }
    }

    /// Records that a virtual machine has no legacy finalizer any more.
    pub fn finalizer_removed(&mut self, machine: &Owner) {
        self.removing_finalizer.remove(machine);
    }

    /// Handles a stored instance.
    pub fn instance_stored(&mut self, instance: &VirtualMachineInstance) -> Vec<Notice> {
        let (namespace, name) = place(&instance.metadata);
        let status = instance.status.as_ref();
        let facts = status.and_then(|status| {
            let supported: Vec<&str> = instance.supported().collect();
            let macs = collisions::instance_macs(status.interfaces(), |name| supported.contains(&name));
            let (source, target) = status.migrations();
            let uid = instance.metadata.uid.as_deref().unwrap_or_default();
            Facts::of_instance(uid, &status.phase, macs, Migration::new(source, target))
        });
        self.set_collisions(&Reference::instance(namespace, name), facts)
    }

    /// Handles a deleted instance.
    pub fn instance_deleted(&mut self, namespace: &str, name: &str) {
        self.collisions.remove(&Reference::instance(namespace, name));
    }

    /// Stores the webhook configuration.
    pub fn set_rules(&mut self, rules: Rules) -> Vec<Notice> {
        if !self.managed.set_rules(rules) {
            return Vec::new();
        }
        self.log_managed();
        self.recheck(None)
    }

    /// Stores a namespace's labels.
    pub fn set_namespace(&mut self, name: &str, labels: Labels) -> Vec<Notice> {
        if !self.managed.set_namespace(name, labels) {
            return Vec::new();
        }
        self.recheck(Some(name))
    }

    /// Removes a namespace; the events of its objects follow.
    pub fn namespace_deleted(&mut self, name: &str) {
        self.managed.remove_namespace(name);
    }

    /// Logs the number of managed namespaces.
    pub fn log_managed(&self) {
        for (kind, webhook) in [
            (Kind::Pod, names::PODS_WEBHOOK),
            (Kind::Machine, names::MACHINES_WEBHOOK),
        ] {
            match self.managed.mode(kind) {
                Ok(mode) => {
                    let opt = match mode {
                        Mode::OptIn => "in",
                        Mode::OptOut => "out",
                    };
                    let namespaces = self.managed.count(kind);
                    tracing::info!(webhook, opt, namespaces, "computed managed namespaces");
                }
                Err(error) => tracing::warn!(%error, "cannot determine the managed namespaces"),
            }
        }
    }

    /// Records the virtual machines of the initial list.
    pub fn listed(&mut self, machines: Vec<Owner>) {
        self.listed = machines;
    }

    /// Counts addresses that several managed objects have, including a virtual machine of the initial list; in the
    /// order of these, pods first. Each is returned once.
    pub fn count_duplicates(&mut self) -> Vec<Duplicate> {
        let mut duplicates = Vec::new();
        for machine in std::mem::take(&mut self.listed) {
            if !self.counts(&machine) {
                continue;
            }
            for holding in self.pool.stored(&machine).into_iter().flatten() {
                let holders = self.pool.holders(holding.mac);
                if holders.len() < 2 {
                    continue;
                }
                let before = holders
                    .iter()
                    .filter_map(|holder| self.before(holder, &machine, &holding.key));
                let by: Vec<_> = before.collect();
                if !by.is_empty() {
                    duplicates.push(Duplicate {
                        holding: holding.clone(),
                        machine: machine.clone(),
                        by,
                    });
                }
            }
        }
        self.duplicates += duplicates.len() as u64;
        duplicates
    }

    /// Usage of the range.
    pub fn usage(&self) -> Usage {
        let managed = &self.managed;
        self.pool
            .usage(|kind, namespace| managed.is_managed(kind, namespace).unwrap_or(false))
    }

    /// The values of the metrics.
    pub fn snapshot(&self) -> Snapshot {
        let usage = self.usage();
        Snapshot {
            collisions: self.collisions.colliding().collect(),
            duplicates: self.duplicates,
            range: RangeSnapshot {
                addresses: usage.size,
                used: usage.used,
                reserved: usage.reserved,
                pending: usage.pending,
            },
        }
    }

    /// Name of an observed holder of a virtual machine's address, if it precedes the virtual machine.
    fn before(&self, holder: &Holder, machine: &Owner, interface: &str) -> Option<String> {
        let Claimant::Named(owner) = &holder.claimant else {
            return None;
        };
        // Any order works, as long as only one of two interfaces precedes the other.
        let comes_before = (owner, &*holder.key) < (machine, interface);
        (!holder.pending && comes_before && self.counts(owner)).then(|| format!("{owner}:{}", holder.key))
    }

    /// Whether an object counts in metrics.
    fn counts(&self, owner: &Owner) -> bool {
        self.managed
            .is_managed(owner.kind, &owner.namespace)
            .unwrap_or(false)
    }

    fn set_collisions(&mut self, reference: &Reference, facts: Option<Facts>) -> Vec<Notice> {
        let managed = &self.managed;
        self.collisions.set(reference, facts, &|kind, namespace| {
            managed.is_managed(kind, namespace).unwrap_or(true)
        })
    }

    fn recheck(&mut self, namespace: Option<&str>) -> Vec<Notice> {
        let managed = &self.managed;
        self.collisions.recheck(namespace, &|kind, namespace| {
            managed.is_managed(kind, namespace).unwrap_or(true)
        })
    }
}

/// Addresses in a pod's annotation; malformed ones are logged.
fn requested(pod: &Pod) -> Vec<Holding> {
    let (holdings, invalid) = pod.networks().map(annotation::addresses).unwrap_or_default();
    for error in invalid {
        let (namespace, pod) = place(&pod.metadata);
        tracing::warn!(namespace, pod, %error, "ignoring malformed MAC address");
    }
    holdings
}

/// The virtual machine that a pod may belong to.
fn machine_of(pod: &Pod) -> Option<Owner> {
    let (namespace, _) = place(&pod.metadata);
    pod.instance().map(|instance| Owner::machine(namespace, instance))
}

/// Addresses on supported interfaces of a virtual machine; malformed ones are logged.
pub fn machine_holdings(machine: &VirtualMachine) -> Vec<Holding> {
    let addresses = machine.spec.as_ref().map(machines::Spec::addresses);
    let (holdings, invalid) = addresses.unwrap_or_default();
    for (interface, error) in invalid {
        let (namespace, machine) = place(&machine.metadata);
        tracing::warn!(namespace, machine, interface, %error, "ignoring malformed MAC address");
    }
    holdings
}

fn place(metadata: &kube::core::ObjectMeta) -> (&str, &str) {
    (
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

fn macs(holdings: &[Holding]) -> String {
    let macs: Vec<_> = holdings.iter().map(|holding| holding.mac.to_string()).collect();
    macs.join(",")
}

//! Everything that is known, and what it means when an object is seen or gone. Pure: no clock but for timestamps, no
//! client.
//!
//! ```text
//! pods, virtual machines ──> Pool        addresses in every namespace: none that somebody has is handed out
//! pods, instances ─────────> Collisions
//! namespaces, webhooks ────> Managed ──> Collisions, figures
//! ```

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::annotation;
use crate::collisions::{self, Collisions, Facts, Migration, Notice, Reference};
use crate::kubevirt::{Pod, VirtualMachine, VirtualMachineInstance};
use crate::machines;
use crate::metrics::{Figures, RangeFigures};
use crate::names;
use crate::namespaces::{Labels, Managed, Mode, Rules, Unknown};
use crate::pool::{Claimant, Holder, Holding, Kind, Owner, Pool, Usage};
use crate::range::Range;
use crate::timestamp::Timestamp;

#[cfg(test)]
mod tests;

/// What watches, webhooks and timers share. Held for microseconds, never across an await.
pub type Shared = Arc<Mutex<State>>;

/// Takes the lock; what another holder left is whole, even if it panicked.
pub fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    kube_kit::lock(shared)
}

/// Where in a range to begin, for nobody to guess.
///
/// # Errors
/// When the kernel's random numbers can't be read.
pub fn random() -> linux::Result<u64> {
    linux::random::bytes().map(u64::from_ne_bytes)
}

/// What has to be known at the start.
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
    /// All virtual machines, or that there is no such kind.
    Machines,
    /// All instances, or that there is no such kind.
    Instances,
}

/// An address that two objects had at the start. Shown as operators look for it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("mac address {} already allocated to {}, conflict with: {machine}:{}", .holding.mac, .by.join(", "), .holding.key)]
pub struct Duplicate {
    holding: Holding,
    machine: Owner,
    by: Vec<String>,
}

/// Everything that is known.
#[derive(Debug)]
pub struct State {
    /// Who holds which address.
    pub pool: Pool,
    /// The range that was set, of which the pool may hand out of a part.
    pub range: Range,
    /// Which namespaces are managed.
    pub managed: Managed,
    /// Which running objects share an address.
    pub collisions: Collisions,
    /// Pods that hold addresses as long as the virtual machine is not known that they may belong to.
    launchers: HashMap<Owner, Vec<Owner>>,
    /// Virtual machines that are being freed of a finalizer.
    unbinding: HashSet<Owner>,
    awaited: BTreeSet<Part>,
    /// Whether virtual machines exist at all.
    kubevirt: bool,
    last: Option<Timestamp>,
    /// Virtual machines that were there at the start, until it can be told which of them count.
    listed: Vec<Owner>,
    duplicates: u64,
}

impl State {
    /// Nothing is known but the range and what is handed out of it.
    pub fn new(range: Range, share: Range, random: u64) -> Self {
        Self {
            pool: Pool::new(share, random),
            range,
            managed: Managed::new(),
            collisions: Collisions::new(),
            launchers: HashMap::new(),
            unbinding: HashSet::new(),
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

    /// Another range is set.
    pub fn set_range(&mut self, range: Range, share: Range, random: u64) {
        self.range = range;
        self.pool.set_range(share, random);
    }

    /// Now, later than ever before.
    pub fn timestamp(&mut self) -> Timestamp {
        let now = Timestamp::after(self.last);
        self.last = Some(now);
        now
    }

    /// Whether a virtual machine was seen, and not its end.
    pub fn knows_machine(&self, machine: &Owner) -> bool {
        self.pool.stored(machine).is_some()
    }

    /// Virtual machines exist.
    pub fn found_kubevirt(&mut self) {
        self.kubevirt = true;
    }

    /// A part is known completely. Gives notices of the collisions that were there from the start, once everything is
    /// known.
    pub fn complete(&mut self, part: Part) -> Vec<Notice> {
        if self.awaited.remove(&part) && self.awaited.is_empty() {
            return self.collisions.begin();
        }
        Vec::new()
    }

    /// Whether addresses can be handed out without fear that somebody has them. An error tells what of the webhook
    /// configuration is missing for that; `false`, that not all lists are complete.
    ///
    /// # Errors
    /// When all is known but which namespaces are managed.
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

    /// A pod was seen.
    pub fn pod_seen(&mut self, pod: &Pod) -> Vec<Notice> {
        let (namespace, name) = place(&pod.metadata);
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let asked = asked_for(pod);
        let owner = Owner::pod(namespace, name);
        let macs: Vec<_> = asked.iter().map(|holding| holding.mac).collect();
        if asked.is_empty() || self.belongs_to_machine(pod) {
            self.release(&owner);
        } else {
            if let Some(machine) = machine_of(pod) {
                let launchers = self.launchers.entry(machine).or_default();
                if !launchers.contains(&owner) {
                    launchers.push(owner.clone());
                }
            }
            self.pool.store(&owner, uid, asked, None);
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

    /// The addresses that are a pod's own: none when it belongs to a virtual machine that is known.
    pub fn pod_holdings(&self, pod: &Pod) -> Vec<Holding> {
        if self.belongs_to_machine(pod) {
            return Vec::new();
        }
        asked_for(pod)
    }

    fn belongs_to_machine(&self, pod: &Pod) -> bool {
        machine_of(pod).is_some_and(|machine| self.knows_machine(&machine))
    }

    /// A pod is gone.
    pub fn pod_gone(&mut self, namespace: &str, name: &str) {
        let owner = Owner::pod(namespace, name);
        let released = self.release(&owner);
        if !released.is_empty() {
            tracing::info!(pod = %owner, macs = macs(&released), "released mac from pod");
        }
        self.collisions.remove(&Reference::pod(namespace, name));
    }

    /// Takes a pod's addresses from it; one without any waits for no virtual machine.
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

    /// A virtual machine was seen. Tells whether it is to be freed of the finalizer of earlier programs; that is told
    /// once until [`State::unbound`].
    pub fn machine_seen(&mut self, machine: &VirtualMachine) -> Option<Owner> {
        let (namespace, name) = place(&machine.metadata);
        let uid = machine.metadata.uid.as_deref().unwrap_or_default();
        let owner = Owner::machine(namespace, name);
        let transaction = match machines::transaction(machine.metadata.annotations.as_ref()) {
            Ok(transaction) => transaction,
            Err(error) => {
                tracing::warn!(machine = %owner, %error, "cannot tell which admission it includes");
                None
            }
        };
        let deleting = machine.metadata.deletion_timestamp.is_some();
        let known = self.knows_machine(&owner);
        self.pool
            .store(&owner, uid, machine_holdings(machine), transaction);
        if !known {
            for pod in self.launchers.remove(&owner).unwrap_or_default() {
                self.pool.remove(&pod);
            }
        }
        let finalizers = machine.metadata.finalizers.as_deref().unwrap_or_default();
        let bound = deleting && finalizers.iter().any(|it| it == names::LEGACY_FINALIZER);
        (bound && self.unbinding.insert(owner.clone())).then_some(owner)
    }

    /// A virtual machine is gone.
    pub fn machine_gone(&mut self, namespace: &str, name: &str) {
        let machine = Owner::machine(namespace, name);
        let released = self.pool.remove(&machine);
        if !released.is_empty() {
            tracing::info!(%machine, macs = macs(&released), "released macs in virtual machine");
        }
    }

    /// A virtual machine has no finalizer of earlier programs any more.
    pub fn unbound(&mut self, machine: &Owner) {
        self.unbinding.remove(machine);
    }

    /// An instance was seen.
    pub fn instance_seen(&mut self, instance: &VirtualMachineInstance) -> Vec<Notice> {
        let (namespace, name) = place(&instance.metadata);
        let status = instance.status.as_ref();
        let facts = status.and_then(|status| {
            let spec = instance.spec.as_ref();
            let supported: Vec<&str> = spec.map(|spec| spec.supported().collect()).unwrap_or_default();
            let macs = collisions::instance_macs(status.interfaces(), |name| supported.contains(&name));
            let (source, target) = status.migrations();
            let uid = instance.metadata.uid.as_deref().unwrap_or_default();
            Facts::of_instance(uid, &status.phase, macs, Migration::new(source, target))
        });
        self.set_collisions(&Reference::instance(namespace, name), facts)
    }

    /// An instance is gone.
    pub fn instance_gone(&mut self, namespace: &str, name: &str) {
        self.collisions.remove(&Reference::instance(namespace, name));
    }

    /// The webhook configuration is like this.
    pub fn set_rules(&mut self, rules: Rules) -> Vec<Notice> {
        if !self.managed.set_rules(rules) {
            return Vec::new();
        }
        self.log_managed();
        self.reconsider(None)
    }

    /// A namespace has these labels.
    pub fn set_namespace(&mut self, name: &str, labels: Labels) -> Vec<Notice> {
        if !self.managed.set_namespace(name, labels) {
            return Vec::new();
        }
        self.reconsider(Some(name))
    }

    /// A namespace is gone; what it had goes by itself.
    pub fn namespace_gone(&mut self, name: &str) {
        self.managed.remove_namespace(name);
    }

    /// Says in the log which namespaces count.
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
                Err(error) => tracing::warn!(%error, "cannot tell which namespaces are managed"),
            }
        }
    }

    /// These virtual machines were there at the start.
    pub fn listed(&mut self, machines: Vec<Owner>) {
        self.listed = machines;
    }

    /// Counts addresses that more than one managed object has, one of them a virtual machine that was there at the start;
    /// in the order of these, pods first. Each is told once.
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

    /// How full the range is.
    pub fn usage(&self) -> Usage {
        let managed = &self.managed;
        self.pool
            .usage(|kind, namespace| managed.is_managed(kind, namespace).unwrap_or(false))
    }

    /// What Prometheus is told.
    pub fn figures(&self) -> Figures {
        let usage = self.usage();
        Figures {
            collisions: self.collisions.colliding().collect(),
            duplicates: self.duplicates,
            range: RangeFigures {
                addresses: usage.size,
                used: usage.used,
                reserved: usage.reserved,
                pending: usage.pending,
            },
        }
    }

    /// What a stored holder of a virtual machine's address is called, if it comes before it.
    fn before(&self, holder: &Holder, machine: &Owner, interface: &str) -> Option<String> {
        let Claimant::Named(owner) = &holder.claimant else {
            return None;
        };
        // The first of two interfaces is as good as any, they only must not both come first.
        let comes_before = (owner, &*holder.key) < (machine, interface);
        (!holder.pending && comes_before && self.counts(owner)).then(|| format!("{owner}:{}", holder.key))
    }

    /// Whether an object counts in figures.
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

    fn reconsider(&mut self, namespace: Option<&str>) -> Vec<Notice> {
        let managed = &self.managed;
        self.collisions.reconsider(namespace, &|kind, namespace| {
            managed.is_managed(kind, namespace).unwrap_or(true)
        })
    }
}

/// The addresses that a pod asks for; those that cannot be read are told in the log.
fn asked_for(pod: &Pod) -> Vec<Holding> {
    let (holdings, invalid) = pod.networks().map(annotation::addresses).unwrap_or_default();
    for error in invalid {
        let (namespace, pod) = place(&pod.metadata);
        tracing::warn!(namespace, pod, %error, "an address that cannot be read is left aside");
    }
    holdings
}

/// The virtual machine that a pod may belong to.
fn machine_of(pod: &Pod) -> Option<Owner> {
    let (namespace, _) = place(&pod.metadata);
    pod.instance().map(|instance| Owner::machine(namespace, instance))
}

/// The addresses on supported interfaces of a virtual machine; those that cannot be read are told in the log.
pub fn machine_holdings(machine: &VirtualMachine) -> Vec<Holding> {
    let addresses = machine.spec.as_ref().map(machines::Spec::addresses);
    let (holdings, invalid) = addresses.unwrap_or_default();
    for (interface, error) in invalid {
        let (namespace, machine) = place(&machine.metadata);
        tracing::warn!(namespace, machine, interface, %error, "an address that cannot be read is left aside");
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

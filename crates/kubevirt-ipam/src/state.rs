//! The caches. Watches fill them; webhook and controller read them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use kube_kit::watch::Name;

use crate::intern::Interner;
use crate::mutate::Lookup;
use crate::network::Network;
use crate::objects::{Claim, Instance, InstanceNetwork, Interface, Machine, Source};
use crate::plan::{self, Networks, Plan};
use crate::pool::{self, Holders};
use addresses::Reserved;

mod addresses;
#[cfg(test)]
mod tests;

/// The caches that must be synced before any decision.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Part {
    /// Virtual machines.
    Machines,
    /// Instances of virtual machines.
    Instances,
    /// Networks.
    Networks,
    /// Claims.
    Claims,
}

/// Caches that several tasks share. No lock is held across an await.
pub type Shared = Arc<Mutex<State>>;

/// Locks the caches.
pub fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    kube_kit::lock(shared)
}

/// A claim that has an address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Holder(pub Name);

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IPAMClaim {:?}", crate::messages::object(&self.0))
    }
}

/// All cached data under one name: a virtual machine and its instance share their name, and the labels of their claims
/// contain it.
#[derive(Debug, Default)]
struct Named {
    machine: Option<Machine>,
    instance: Option<Arc<Instance>>,
    /// Names of the claims whose label names the virtual machine, in order. Most have one or two: a set would take ten
    /// times the memory.
    claims: Box<[Box<str>]>,
}

impl Named {
    fn is_empty(&self) -> bool {
        self.machine.is_none() && !self.may_need_work()
    }

    /// Whether a reconcile could change anything: a virtual machine that never ran has no claims.
    fn may_need_work(&self) -> bool {
        self.instance.is_some() || !self.claims.is_empty()
    }
}

/// Values that many objects share.
#[derive(Debug, Default)]
struct Common {
    names: Interner<[String]>,
    networks: Interner<[InstanceNetwork]>,
    interfaces: Interner<[Interface]>,
    texts: Interner<str>,
}

impl Common {
    fn machine(&mut self, mut machine: Machine) -> Machine {
        self.names.intern(&mut machine.networks);
        machine
    }

    fn instance(&mut self, mut instance: Instance) -> Instance {
        self.networks.intern(&mut instance.networks);
        self.names.intern(&mut instance.reported);
        // No two instances share a hardware address.
        if instance
            .interfaces
            .iter()
            .all(|interface| interface.mac.is_empty())
        {
            self.interfaces.intern(&mut instance.interfaces);
        }
        instance
    }

    fn claim(&mut self, mut claim: Claim) -> Claim {
        self.texts.intern(&mut claim.network);
        claim
    }
}

/// The caches of all kinds. Each change returns the virtual machines to reconcile.
#[derive(Debug)]
pub struct State {
    /// Cached data by the name of a virtual machine.
    named: BTreeMap<Name, Named>,
    networks: BTreeMap<Name, Arc<Network>>,
    claims: BTreeMap<Name, Claim>,
    /// Holders of addresses, by network.
    addresses: BTreeMap<Arc<str>, Holders<Holder>>,
    /// Addresses before their write into a claim, by claim. `addresses` contains them, too.
    reserved: BTreeMap<Name, Reserved>,
    /// Virtual machines without an address, by the network that had none for them.
    waiting: BTreeMap<Arc<str>, BTreeSet<Name>>,
    /// Addresses that a claim gave back, of networks for which virtual machines wait. Another claim may have them.
    freed: BTreeSet<(Arc<str>, IpAddr)>,
    /// Claims that block a virtual machine.
    in_the_way: BTreeMap<Name, Name>,
    common: Common,
    awaited: BTreeSet<Part>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            named: BTreeMap::new(),
            networks: BTreeMap::new(),
            claims: BTreeMap::new(),
            addresses: BTreeMap::new(),
            reserved: BTreeMap::new(),
            waiting: BTreeMap::new(),
            freed: BTreeSet::new(),
            in_the_way: BTreeMap::new(),
            common: Common::default(),
            awaited: BTreeSet::from([Part::Machines, Part::Instances, Part::Networks, Part::Claims]),
        }
    }
}

impl State {
    /// Marks a part as synced. Returns whether all parts are synced.
    pub fn complete(&mut self, part: Part) -> bool {
        self.awaited.remove(&part);
        self.awaited.is_empty()
    }

    /// Stores a virtual machine.
    pub fn machine_seen(&mut self, name: Name, machine: Machine) -> Vec<Name> {
        if self.machine(&name) == Some(&machine) {
            return Vec::new();
        }
        let machine = self.common.machine(machine);
        self.named.entry(name.clone()).or_default().machine = Some(machine);
        self.concerned(name)
    }

    /// Removes a virtual machine.
    pub fn machine_gone(&mut self, name: Name) -> Vec<Name> {
        self.change(&name, |named| named.machine = None);
        self.concerned(name)
    }

    /// The virtual machine, if a reconcile could change anything.
    fn concerned(&self, name: Name) -> Vec<Name> {
        let concerned = self.named.get(&name).is_some_and(Named::may_need_work);
        if concerned { vec![name] } else { Vec::new() }
    }

    /// Stores an instance.
    pub fn instance_seen(&mut self, name: Name, instance: Instance) -> Vec<Name> {
        if self.instance(&name).is_some_and(|known| **known == instance) {
            return Vec::new();
        }
        let instance = self.common.instance(instance);
        self.named.entry(name.clone()).or_default().instance = Some(Arc::new(instance));
        vec![name]
    }

    /// Removes an instance.
    pub fn instance_gone(&mut self, name: Name) -> Vec<Name> {
        self.change(&name, |named| named.instance = None);
        self.waiting.retain(|_, names| {
            names.remove(&name);
            !names.is_empty()
        });
        self.in_the_way.retain(|_, machine| *machine != name);
        vec![name]
    }

    /// Changes the data under a name, which need not be cached yet. Drops the name when no data is left.
    fn change(&mut self, name: &Name, change: impl FnOnce(&mut Named)) {
        if let Some(named) = self.named.get_mut(name) {
            change(named);
            if named.is_empty() {
                self.named.remove(name);
            }
        }
    }

    /// Stores a network.
    pub fn network_seen(&mut self, network: Network) -> Vec<Name> {
        if self
            .networks
            .get(&network.id)
            .is_some_and(|known| **known == network)
        {
            return Vec::new();
        }
        if let Err(error) = &network.config {
            let nad = crate::messages::object(&network.id);
            tracing::warn!(nad, %error, "malformed NAD is left aside");
        }
        let id = network.id.clone();
        self.networks.insert(id.clone(), Arc::new(network));
        self.attached(&id)
    }

    /// Removes a network.
    pub fn network_gone(&mut self, id: &Name) -> Vec<Name> {
        self.networks.remove(id);
        self.attached(id)
    }

    /// Instances that may be attached to a network.
    fn attached(&self, id: &Name) -> Vec<Name> {
        let is_attached = |(name, named): &(&Name, &Named)| {
            let networks = named
                .instance
                .iter()
                .flat_map(|instance| instance.networks.iter());
            let mut sources = networks.map(|network| &network.source);
            sources.any(|source| match source {
                Source::Multus(definition) => definition == id,
                Source::Pod => name.namespace == id.namespace,
                Source::Neither => false,
            })
        };
        let attached = self.named.iter().filter(is_attached);
        attached.map(|(name, _)| name.clone()).collect()
    }

    /// Stores a claim.
    pub fn claim_seen(&mut self, id: Name, claim: Claim) -> Vec<Name> {
        // The cache has a claim that this replica wrote before the watch's event arrives.
        let known = self.claims.get(&id);
        let is_news = known.is_none_or(|known| *known != claim && known.version <= claim.version);
        if !is_news {
            return Vec::new();
        }
        let mut concerned = self.forget_claim(&id);
        let claim = self.common.claim(claim);
        if !claim.machine.is_empty() {
            let machine = Name::new(&id.namespace, &*claim.machine);
            let named = self.named.entry(machine.clone()).or_default();
            let mut names = std::mem::take(&mut named.claims).into_vec();
            if let Err(place) = names.binary_search_by(|name| (**name).cmp(&id.name)) {
                names.insert(place, id.name.as_str().into());
            }
            named.claims = names.into();
            concerned.push(machine);
        }
        for address in pool::addresses_of(&claim.ips) {
            self.take(&claim.network, address, &id);
        }
        if claim.ips.is_empty() {
            self.claims.insert(id, claim);
        } else {
            self.claims.insert(id.clone(), claim);
            self.settled(&id);
        }
        concerned
    }

    /// Removes a claim.
    pub fn claim_gone(&mut self, id: &Name) -> Vec<Name> {
        let concerned = self.forget_claim(id);
        self.settled(id);
        concerned
    }

    fn forget_claim(&mut self, id: &Name) -> Vec<Name> {
        let mut concerned: Vec<_> = self.in_the_way.remove(id).into_iter().collect();
        let Some(claim) = self.claims.remove(id) else {
            return concerned;
        };
        for address in pool::addresses_of(&claim.ips) {
            self.free(&claim.network, address, id);
        }
        if !claim.machine.is_empty() {
            let machine = Name::new(&id.namespace, &*claim.machine);
            self.change(&machine, |named| {
                let mut names = std::mem::take(&mut named.claims).into_vec();
                names.retain(|name| **name != *id.name);
                named.claims = names.into();
            });
            concerned.push(machine);
        }
        concerned
    }

    /// Records that a claim blocks a virtual machine with an instance. A change of the claim requeues the virtual machine.
    pub fn stands_in_the_way(&mut self, claim: Name, machine: Name) {
        if self.instance(&machine).is_some() {
            self.in_the_way.insert(claim, machine);
        }
    }

    /// All virtual machines that a new leader reconciles.
    pub fn all(&self) -> BTreeSet<Name> {
        let all = self.named.iter().filter(|(_, named)| named.may_need_work());
        all.map(|(name, _)| name.clone()).collect()
    }

    /// Plans the claims of a virtual machine.
    pub fn plan(&self, name: &Name) -> Plan {
        plan::plan(
            name,
            self.machine(name),
            self.instance(name).map(|it| &**it),
            self,
        )
    }

    /// A virtual machine.
    pub fn machine(&self, name: &Name) -> Option<&Machine> {
        self.named.get(name)?.machine.as_ref()
    }

    /// An instance.
    pub fn instance(&self, name: &Name) -> Option<&Arc<Instance>> {
        self.named.get(name)?.instance.as_ref()
    }

    /// Claims whose label names a virtual machine, by their names.
    pub fn claims_of(&self, machine: &Name) -> impl Iterator<Item = (&str, &Claim)> {
        let names = self
            .named
            .get(machine)
            .into_iter()
            .flat_map(|named| &named.claims);
        names.filter_map(|name| {
            let id = Name::new(&machine.namespace, &**name);
            Some((&**name, self.claims.get(&id)?))
        })
    }

    /// Whether a claim lacks our finalizer, and its virtual machine may use its addresses.
    pub fn is_unheld(&self, id: &Name, claim: &Claim) -> bool {
        if claim.held || claim.machine.is_empty() {
            return false;
        }
        let name = Name::new(&id.namespace, &*claim.machine);
        let instance = self.instance(&name).map(|instance| &**instance);
        plan::is_unheld(claim, &name.name, self.machine(&name), instance)
    }

    /// All claims for which [`Self::is_unheld`] is true.
    pub fn unheld(&self) -> Vec<Name> {
        let unheld = self.claims.iter().filter(|(id, claim)| self.is_unheld(id, claim));
        unheld.map(|(id, _)| id.clone()).collect()
    }

    /// The numbers of claims that are held, that are being deleted, and that block a virtual machine.
    pub fn figures(&self) -> Figures {
        let mut figures = Figures {
            in_the_way: self.in_the_way.len() as u64,
            ..Figures::default()
        };
        for claim in self.claims.values().filter(|claim| claim.held) {
            if claim.deleting {
                figures.deleting += 1;
            } else {
                figures.held += 1;
            }
        }
        figures
    }
}

/// Claims by their state.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Figures {
    /// Held for a virtual machine.
    pub held: u64,
    /// Being deleted, and held while their addresses are in use.
    pub deleting: u64,
    /// Claims that block a virtual machine.
    pub in_the_way: u64,
}

impl Networks for State {
    fn network(&self, definition: &Name) -> Option<Arc<Network>> {
        self.networks.get(definition).cloned()
    }

    /// The first one by name (§6.4).
    fn primary(&self, namespace: &str) -> Option<Arc<Network>> {
        let from = Name::new(namespace, "");
        let of_namespace = self
            .networks
            .range(from..)
            .take_while(|(id, _)| id.namespace == namespace);
        let mut networks = of_namespace.map(|(_, network)| network);
        networks.find(|network| network.is_primary()).cloned()
    }
}

impl Lookup for State {
    fn claim(&self, id: &Name) -> Option<Claim> {
        self.claims.get(id).cloned()
    }

    fn machine(&self, name: &Name) -> Option<Machine> {
        self.machine(name).cloned()
    }
}

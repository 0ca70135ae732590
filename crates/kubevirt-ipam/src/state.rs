//! The caches: filled by watches, read by webhook and controller.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use ipnet::IpNet;
use kube_kit::watch::Name;

use crate::mutate::Lookup;
use crate::network::{Config, Network};
use crate::objects::{Claim, Instance, Machine, Source};
use crate::plan::{self, Networks, Plan, Wanted};
use crate::pool::{self, Holders, Refused};

#[cfg(test)]
mod tests;

/// What must be known before anything is decided.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Part {
    /// Virtual machines.
    Machines,
    /// Their instances.
    Instances,
    /// Networks.
    Networks,
    /// Claims.
    Claims,
}

/// What several tasks know together. No lock is held across an await.
pub type Shared = Arc<Mutex<State>>;

/// Locks what is known.
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

/// The caches of all kinds. Each change returns the virtual machines to reconcile.
#[derive(Debug)]
pub struct State {
    machines: HashMap<Name, Machine>,
    instances: HashMap<Name, Arc<Instance>>,
    networks: BTreeMap<Name, Arc<Network>>,
    claims: BTreeMap<Name, Claim>,
    /// By virtual machine, the names of the claims whose label names it, in order. Most have one or two: a set for each would
    /// take ten times the memory.
    claims_of: BTreeMap<Name, Vec<String>>,
    /// By network, who has which address.
    addresses: BTreeMap<String, Holders<Holder>>,
    /// Claims that stand in the way of a virtual machine.
    in_the_way: BTreeMap<Name, Name>,
    awaited: BTreeSet<Part>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            machines: HashMap::new(),
            instances: HashMap::new(),
            networks: BTreeMap::new(),
            claims: BTreeMap::new(),
            claims_of: BTreeMap::new(),
            addresses: BTreeMap::new(),
            in_the_way: BTreeMap::new(),
            awaited: BTreeSet::from([Part::Machines, Part::Instances, Part::Networks, Part::Claims]),
        }
    }
}

impl State {
    /// A part is known completely. Whether all are now.
    pub fn complete(&mut self, part: Part) -> bool {
        self.awaited.remove(&part);
        self.awaited.is_empty()
    }

    /// A virtual machine was seen.
    pub fn machine_seen(&mut self, name: Name, machine: Machine) -> Vec<Name> {
        let known = self.machines.get(&name);
        if known == Some(&machine) {
            return Vec::new();
        }
        self.machines.insert(name.clone(), machine);
        self.concerned(name)
    }

    /// A virtual machine is gone.
    pub fn machine_gone(&mut self, name: Name) -> Vec<Name> {
        self.machines.remove(&name);
        self.concerned(name)
    }

    /// The virtual machine, where there is anything that could have to be done about it.
    fn concerned(&self, name: Name) -> Vec<Name> {
        if self.instances.contains_key(&name) || self.claims_of.contains_key(&name) {
            vec![name]
        } else {
            Vec::new()
        }
    }

    /// An instance was seen.
    pub fn instance_seen(&mut self, name: Name, instance: Instance) -> Vec<Name> {
        if self.instances.get(&name).is_some_and(|known| **known == instance) {
            return Vec::new();
        }
        self.instances.insert(name.clone(), Arc::new(instance));
        vec![name]
    }

    /// An instance is gone.
    pub fn instance_gone(&mut self, name: Name) -> Vec<Name> {
        self.instances.remove(&name);
        vec![name]
    }

    /// A network was seen.
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

    /// A network is gone.
    pub fn network_gone(&mut self, id: &Name) -> Vec<Name> {
        self.networks.remove(id);
        self.attached(id)
    }

    /// Instances that may be attached to a network.
    fn attached(&self, id: &Name) -> Vec<Name> {
        let is_attached = |(name, instance): &(&Name, &Arc<Instance>)| {
            let mut sources = instance.networks.iter().map(|network| &network.source);
            sources.any(|source| match source {
                Source::Multus(definition) => definition == id,
                Source::Pod => name.namespace == id.namespace,
                Source::Other => false,
            })
        };
        let attached = self.instances.iter().filter(is_attached);
        attached.map(|(name, _)| name.clone()).collect()
    }

    /// A claim was seen.
    pub fn claim_seen(&mut self, id: Name, claim: Claim) -> Vec<Name> {
        // A claim that this replica wrote is in the cache before the event of its watch.
        let known = self.claims.get(&id);
        let is_news = known.is_none_or(|known| *known != claim && known.version <= claim.version);
        if !is_news {
            return Vec::new();
        }
        let mut concerned = self.forget_claim(&id);
        if !claim.machine.is_empty() {
            let machine = Name::new(&id.namespace, &claim.machine);
            let names = self.claims_of.entry(machine.clone()).or_default();
            if let Err(place) = names.binary_search(&id.name) {
                names.reserve_exact(1);
                names.insert(place, id.name.clone());
            }
            concerned.push(machine);
        }
        if !claim.network.is_empty() {
            let holders = self.addresses.entry(claim.network.clone()).or_default();
            for address in pool::addresses_of(&claim.ips) {
                let all = holders.entry(address).or_default();
                all.reserve_exact(1);
                all.push(Holder(id.clone()));
            }
        }
        self.claims.insert(id, claim);
        concerned
    }

    /// A claim is gone.
    pub fn claim_gone(&mut self, id: &Name) -> Vec<Name> {
        self.forget_claim(id)
    }

    fn forget_claim(&mut self, id: &Name) -> Vec<Name> {
        let mut concerned: Vec<_> = self.in_the_way.remove(id).into_iter().collect();
        let Some(claim) = self.claims.remove(id) else {
            return concerned;
        };
        if let Some(holders) = self.addresses.get_mut(&claim.network) {
            for address in pool::addresses_of(&claim.ips) {
                if let Some(all) = holders.get_mut(&address) {
                    all.retain(|Holder(holder)| holder != id);
                    if all.is_empty() {
                        holders.remove(&address);
                    }
                }
            }
            if holders.is_empty() {
                self.addresses.remove(&claim.network);
            }
        }
        if !claim.machine.is_empty() {
            let machine = Name::new(&id.namespace, &claim.machine);
            if let Some(names) = self.claims_of.get_mut(&machine) {
                names.retain(|name| *name != id.name);
                if names.is_empty() {
                    self.claims_of.remove(&machine);
                }
            }
            concerned.push(machine);
        }
        concerned
    }

    /// A claim is in the way of a virtual machine, which is reconciled again when the claim changes.
    pub fn stands_in_the_way(&mut self, claim: Name, machine: Name) {
        self.in_the_way.insert(claim, machine);
    }

    /// All virtual machines that a new leader reconciles.
    pub fn all(&self) -> BTreeSet<Name> {
        let instances = self.instances.keys();
        instances.chain(self.claims_of.keys()).cloned().collect()
    }

    /// What is to be done about the claims of a virtual machine.
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
        self.machines.get(name)
    }

    /// An instance.
    pub fn instance(&self, name: &Name) -> Option<&Arc<Instance>> {
        self.instances.get(name)
    }

    /// Claims whose label names a virtual machine, by their names.
    pub fn claims_of(&self, machine: &Name) -> impl Iterator<Item = (&str, &Claim)> {
        let names = self.claims_of.get(machine).into_iter().flatten();
        names.filter_map(|name| {
            let id = Name::new(&machine.namespace, name);
            Some((name.as_str(), self.claims.get(&id)?))
        })
    }

    /// One address of each family for a claim on a network.
    ///
    /// # Errors
    /// When there is none, or one that is asked for can't be given.
    pub fn allocate(&self, wanted: &Wanted) -> Result<Vec<IpNet>, Refused> {
        let none = Holders::new();
        let holders = self.addresses.get(&wanted.network).unwrap_or(&none);
        pool::allocate(&wanted.ranges, holders, &wanted.requested)
    }

    /// What is odd about the addresses of a claim on a network with ranges.
    pub fn oddities(&self, id: &Name, wanted: &Wanted) -> Vec<String> {
        use crate::messages::event;
        let mut odd = Vec::new();
        let holders = self.addresses.get(&wanted.network);
        let claim = self.claims.get(id);
        for address in claim.into_iter().flat_map(|claim| pool::addresses_of(&claim.ips)) {
            let others = holders
                .and_then(|holders| holders.get(&address))
                .into_iter()
                .flatten();
            let other = others.map(|Holder(other)| other).find(|other| *other != id);
            if let Some(other) = other {
                odd.push(event::shared_address(&id.name, address, other));
            }
            if !wanted.ranges.iter().any(|range| range.contains(address)) {
                odd.push(event::foreign_address(&id.name, address, &wanted.network));
            }
        }
        let configs = self
            .networks
            .values()
            .filter_map(|network| network.config.as_ref().ok());
        let shares = |config: &&Config| {
            let mut pairs = config
                .ranges
                .iter()
                .flat_map(|one| wanted.ranges.iter().map(move |two| (one, two)));
            config.name != wanted.network && pairs.any(|(one, two)| one.overlaps(two))
        };
        let mut sharing = configs.filter(shares);
        odd.extend(
            sharing
                .next()
                .map(|other| event::shared_range(&wanted.network, &other.name)),
        );
        odd
    }

    /// How many claims are held, how many are being deleted, and how many stand in the way of a virtual machine.
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
    /// In the way of a virtual machine.
    pub in_the_way: u64,
}

impl Networks for State {
    fn network(&self, definition: &Name) -> Option<Arc<Network>> {
        self.networks.get(definition).cloned()
    }

    /// The first by name (§6.4).
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
}

//! What is known of the cluster: filled by watches, read by webhook and controller.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use kube_kit::watch::Name;

use crate::mutate::Lookup;
use crate::network::Network;
use crate::objects::{Claim, Instance, Machine, Source};
use crate::plan::{self, Networks, Plan};

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

/// What is known. Changes tell which virtual machines have to be looked at.
#[derive(Debug)]
pub struct State {
    machines: HashMap<Name, Machine>,
    instances: HashMap<Name, Arc<Instance>>,
    networks: BTreeMap<Name, Arc<Network>>,
    claims: BTreeMap<Name, Claim>,
    /// By virtual machine, the names of the claims whose label names it.
    claims_of: BTreeMap<Name, BTreeSet<String>>,
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
        if self.claims.get(&id) == Some(&claim) {
            return Vec::new();
        }
        let mut concerned = self.forget_claim(&id);
        if !claim.machine.is_empty() {
            let machine = Name::new(&id.namespace, &claim.machine);
            let names = self.claims_of.entry(machine.clone()).or_default();
            names.insert(id.name.clone());
            concerned.push(machine);
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
        if let Some(claim) = self.claims.remove(id)
            && !claim.machine.is_empty()
        {
            let machine = Name::new(&id.namespace, &claim.machine);
            if let Some(names) = self.claims_of.get_mut(&machine) {
                names.remove(&id.name);
                if names.is_empty() {
                    self.claims_of.remove(&machine);
                }
            }
            concerned.push(machine);
        }
        concerned
    }

    /// A claim stands in the way of a virtual machine, which is to be looked at again when the claim changes.
    pub fn stands_in_the_way(&mut self, claim: Name, machine: Name) {
        self.in_the_way.insert(claim, machine);
    }

    /// All virtual machines that have to be looked at when nobody did so before.
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

    /// A claim.
    pub fn claim(&self, id: &Name) -> Option<&Claim> {
        self.claims.get(id)
    }

    /// Claims whose label names a virtual machine, by their names.
    pub fn claims_of(&self, machine: &Name) -> impl Iterator<Item = (&str, &Claim)> {
        let names = self.claims_of.get(machine).into_iter().flatten();
        names.filter_map(|name| {
            let id = Name::new(&machine.namespace, name);
            Some((name.as_str(), self.claims.get(&id)?))
        })
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
    /// Being deleted, and held until nobody uses their addresses.
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
    fn machine_of(&self, claim: &Name) -> Option<String> {
        self.claims.get(claim).map(|claim| claim.machine.clone())
    }
}

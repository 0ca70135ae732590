//! All addresses of a cluster, and their holders. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};

use cni::mac::Mac;

use super::Error;
use crate::annotation;
use crate::kubevirt::{InstanceStatus, Pod, VirtualMachine, VirtualMachineInstance};
use crate::machines::Spec;
use crate::namespaces::Managed;
use crate::notices::NEARLY_FULL;
use crate::pool::{self, Holding, Kind, Owner, Pool};
use crate::range::Range;

/// The installed pool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Installed {
    /// Its namespace.
    pub namespace: String,
    /// Its range.
    pub range: Range,
}

impl Installed {
    /// Whether an address is in the range.
    pub(super) fn includes(&self, mac: Mac) -> bool {
        let (start, end) = (self.range.start().number(), self.range.end().number());
        mac.number()
            .is_some_and(|number| start <= Some(number) && Some(number) <= end)
    }
}

/// The addresses of a cluster.
#[derive(Debug)]
pub(super) struct Inventory {
    /// All holders of addresses, as the manager observes them.
    holders: Vec<(Owner, Vec<Holding>)>,
    /// Addresses of instances.
    running: Vec<Running>,
    /// The managed namespaces.
    pub managed: Managed,
    /// The installed pool, or the reason why there is none.
    pub range: Result<Installed, Error>,
    /// Remarks for the user.
    pub notes: Vec<String>,
}

#[derive(Debug)]
struct Running {
    instance: String,
    interface: String,
    mac: Mac,
}

/// An object that has an address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Found {
    /// `vm/ns/name`, `vmi/ns/name` or `pod/ns/name`.
    pub object: String,
    /// Interface of a virtual machine, or network of a pod.
    pub interface: String,
    /// Role of the object for the pool.
    pub standing: Standing,
}

/// Role of an object for the pool.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Standing {
    /// The pool manages the object.
    Managed,
    /// The pool only keeps the address from being allocated.
    Reserved,
    /// A running instance of an object that holds the address.
    Runs,
}

/// Usage of the range.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Report {
    /// The installed pool.
    pub installed: Installed,
    /// Usage of the range's addresses.
    pub usage: pool::Usage,
    /// Number of addresses outside of the range.
    pub outside: usize,
    /// Addresses of several objects, with their numbers.
    pub shared: Vec<(Mac, usize)>,
    /// Numbers of addresses by namespace, of virtual machines and of pods; largest first.
    pub namespaces: Vec<(String, usize, usize)>,
}

impl Report {
    /// Whether the range should be extended.
    pub(super) fn is_nearly_full(&self) -> bool {
        let taken = self.usage.size - self.usage.free();
        taken.saturating_mul(100) >= self.usage.size.saturating_mul(NEARLY_FULL)
    }
}

impl Inventory {
    /// Reads all objects; machines and instances are empty without KubeVirt.
    pub(super) fn new(
        pods: &[Pod],
        machines: &[VirtualMachine],
        instances: &[VirtualMachineInstance],
        managed: Managed,
        range: Result<Installed, Error>,
    ) -> Self {
        let mut inventory = Self {
            holders: Vec::new(),
            running: Vec::new(),
            managed,
            range,
            notes: Vec::new(),
        };
        let known: HashSet<_> = machines.iter().map(|machine| place(&machine.metadata)).collect();
        for machine in machines {
            let (namespace, name) = place(&machine.metadata);
            let (holdings, _) = machine.spec.as_ref().map(Spec::addresses).unwrap_or_default();
            let owner = Owner::machine(namespace, name);
            inventory.holders.push((owner, holdings));
        }
        for pod in pods {
            let (namespace, name) = place(&pod.metadata);
            // Its virtual machine holds its addresses.
            if pod
                .instance()
                .is_some_and(|machine| known.contains(&(namespace, machine)))
            {
                continue;
            }
            let (holdings, _) = annotation::addresses(pod.networks().unwrap_or_default());
            let owner = Owner::pod(namespace, name);
            inventory.holders.push((owner, holdings));
        }
        for instance in instances {
            let (namespace, name) = place(&instance.metadata);
            let interfaces = instance.status.iter().flat_map(InstanceStatus::interfaces);
            let running = interfaces.filter_map(|(interface, mac)| {
                Some(Running {
                    instance: format!("vmi/{namespace}/{name}"),
                    interface: interface.to_owned(),
                    mac: Mac::parse(mac).ok()?,
                })
            });
            inventory.running.extend(running);
        }
        inventory
    }

    /// Holders of an address: virtual machines and pods sorted by name, then running instances.
    pub(super) fn who(&self, mac: Mac) -> Vec<Found> {
        let mut found: Vec<_> = self
            .holders
            .iter()
            .flat_map(|(owner, holdings)| holdings.iter().map(move |holding| (owner, holding)))
            .filter(|(_, holding)| holding.mac == mac)
            .map(|(owner, holding)| Found {
                object: owner.to_string(),
                interface: holding.key.to_string(),
                standing: if self.is_managed(owner.kind, &owner.namespace) {
                    Standing::Managed
                } else {
                    Standing::Reserved
                },
            })
            .collect();
        found.sort_by(|one, other| {
            other.object[..2]
                .cmp(&one.object[..2])
                .then(one.object.cmp(&other.object))
        });
        let running = self.running.iter().filter(|running| running.mac == mac);
        found.extend(running.map(|running| Found {
            object: running.instance.clone(),
            interface: running.interface.clone(),
            standing: Standing::Runs,
        }));
        found
    }

    /// Usage of a range.
    pub(super) fn report(&self, installed: &Installed) -> Report {
        let mut pool = Pool::new(installed.range, 0);
        let mut objects: HashMap<Mac, HashSet<&Owner>> = HashMap::new();
        let mut namespaces: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (owner, holdings) in &self.holders {
            pool.store(owner, "", holdings.clone(), None);
            for holding in holdings {
                objects.entry(holding.mac).or_default().insert(owner);
                let counts = namespaces.entry(&owner.namespace).or_default();
                match owner.kind {
                    Kind::Machine => counts.0 += 1,
                    Kind::Pod => counts.1 += 1,
                }
            }
        }
        let mut shared: Vec<_> = objects
            .iter()
            .filter(|(_, owners)| owners.len() > 1)
            .map(|(mac, owners)| (*mac, owners.len()))
            .collect();
        shared.sort_by_key(|(mac, owners)| (usize::MAX - owners, *mac));
        let mut namespaces: Vec<_> = namespaces
            .into_iter()
            .map(|(name, (machines, pods))| (name.to_owned(), machines, pods))
            .collect();
        namespaces.sort_by_key(|(_, machines, pods)| usize::MAX - (machines + pods));
        Report {
            installed: installed.clone(),
            usage: pool.usage(|kind, namespace| self.is_managed(kind, namespace)),
            outside: objects.keys().filter(|mac| !installed.includes(**mac)).count(),
            shared,
            namespaces,
        }
    }

    fn is_managed(&self, kind: Kind, namespace: &str) -> bool {
        self.managed.is_managed(kind, namespace).unwrap_or_default()
    }
}

/// Namespace and name.
fn place(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> (&str, &str) {
    (
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests;

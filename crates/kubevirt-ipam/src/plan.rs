//! Plans the claims of one virtual machine (kubevirt-ipam §5, §7, §8).
//!
//! ```text
//! VirtualMachine, VirtualMachineInstance ──> table of §5.3 ─┬─> Cleanup: release the claims
//! networks ─────────────────────────────────────────────────┼─> Ensure: these claims, these problems
//!                                                           └─> Nothing
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use kube_kit::watch::Name;

use crate::ip_request;
use crate::messages;
use crate::names;
use crate::network::{Config, InvalidConfig, Network};
use crate::objects::{Claim, Instance, Machine, Source};
use crate::pool::Range;
use crate::uid::Uid;
use api::ipam_claim::claim_name;

#[cfg(test)]
mod tests;

/// The plan for the claims of a virtual machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Plan {
    /// Release the claims and their addresses.
    Cleanup,
    /// Create the missing claims.
    Ensure(Ensure),
    /// Leave the claims unchanged.
    Nothing,
}

/// Desired claims, and the obstacles to others.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ensure {
    /// One claim for each network with persistent addresses.
    pub claims: Vec<Wanted>,
    /// Networks that cannot have a claim.
    pub problems: Vec<Problem>,
    /// Messages of events about requested addresses outside of the primary network's subnets.
    pub outside: Vec<String>,
}

/// A desired claim.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Wanted {
    /// Name of the claim.
    pub name: String,
    /// Name of the network in its configuration.
    pub network: String,
    /// The ranges for its addresses; empty if the network's plugin allocates them.
    pub ranges: Vec<Range>,
    /// Requested addresses.
    pub requested: Vec<String>,
}

/// The reason for a network without a claim.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Problem {
    /// The definition of the network does not exist.
    #[error("{}", messages::event::no_network(network, definition))]
    NoNetwork {
        /// Name of the network in the instance.
        network: String,
        /// The definition.
        definition: Name,
    },
    /// The configuration of the network can't be read.
    #[error("{}: {error}", messages::NO_INFORMATION)]
    Invalid {
        /// Name of the network in the instance.
        network: String,
        /// The definition.
        definition: Name,
        /// The cause.
        error: InvalidConfig,
    },
    /// The annotation with the requested addresses can't be read.
    #[error("{}", messages::event::failed(claim, error))]
    Request {
        /// The claim.
        claim: String,
        /// The cause.
        error: String,
    },
    /// Another network has a claim of that name.
    #[error("{}", messages::event::ambiguous(claim, first, second))]
    Ambiguous {
        /// The claim.
        claim: String,
        /// The network that has it.
        first: String,
        /// The network without a claim.
        second: String,
    },
}

impl Problem {
    /// The reason of its event.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoNetwork { .. } => names::reason::NO_NETWORK,
            Self::Invalid { .. } => names::reason::INVALID_NETWORK,
            Self::Ambiguous { .. } => names::reason::CONFLICT,
            Self::Request { .. } => names::reason::FAILED,
        }
    }

    /// The message of its event.
    pub fn message(&self) -> String {
        match self {
            Self::NoNetwork { .. } | Self::Ambiguous { .. } | Self::Request { .. } => self.to_string(),
            Self::Invalid {
                network,
                definition,
                error,
            } => messages::event::invalid_network(network, definition, error),
        }
    }
}

/// Lookup of networks.
pub trait Networks {
    /// The network with this definition.
    fn network(&self, definition: &Name) -> Option<Arc<Network>>;
    /// The primary network of a namespace.
    fn primary(&self, namespace: &str) -> Option<Arc<Network>>;
}

/// Whether the addresses of a virtual machine may be released: the table of §5.3.
pub fn may_release(machine: Option<&Machine>, instance: Option<&Instance>) -> bool {
    match (machine, instance) {
        (Some(machine), None) => machine.deleting,
        (Some(_), Some(_)) => false,
        (None, None) => true,
        (None, Some(instance)) => instance.deleting && !instance.has_pods,
    }
}

/// Plans the claims of the virtual machine of this name.
pub fn plan(
    name: &Name,
    machine: Option<&Machine>,
    instance: Option<&Instance>,
    networks: &impl Networks,
) -> Plan {
    if may_release(machine, instance) {
        return Plan::Cleanup;
    }
    match instance {
        // An instance that is being deleted needs no new claim, and keeps its claims.
        Some(instance) if !instance.deleting => Plan::Ensure(wanted(name, instance, networks)),
        Some(_) | None => Plan::Nothing,
    }
}

fn wanted(name: &Name, instance: &Instance, networks: &impl Networks) -> Ensure {
    let mut ensure = Ensure::default();
    let mut taken: BTreeMap<String, String> = BTreeMap::new();
    for network in instance.networks.iter() {
        let config = match &network.source {
            Source::Multus(definition) => match readable(networks, definition, &network.name) {
                Ok(config) => config,
                Err(problem) => {
                    ensure.problems.push(problem);
                    continue;
                }
            },
            Source::Pod => match networks.primary(&name.namespace) {
                Some(primary) => primary.config.clone().unwrap_or_default(),
                None => continue,
            },
            Source::Neither => continue,
        };
        if !config.allow_persistent_ips {
            continue;
        }
        let claim = claim_name(&name.name, &network.name);
        if let Some(first) = taken.get(&claim) {
            ensure.problems.push(Problem::Ambiguous {
                claim,
                first: first.clone(),
                second: network.name.clone(),
            });
            continue;
        }
        taken.insert(claim.clone(), network.name.clone());
        // The primary network of a namespace has its own rules (§6.5).
        if network.source == Source::Pod {
            let outside = ip_request::outside(instance.addresses.as_deref(), &config.subnets, &network.name);
            let texts = outside
                .into_iter()
                .map(|address| messages::event::outside(address, &config.name, &config.subnets));
            ensure.outside.extend(texts);
        }
        let ranges = match network.source {
            Source::Multus(_) => config.ranges,
            Source::Pod | Source::Neither => Vec::new(),
        };
        let requested = if ranges.is_empty() {
            Vec::new()
        } else {
            match ip_request::addresses_of(instance.addresses.as_deref(), &network.name) {
                Ok(requested) => requested,
                Err(error) => {
                    let error = error.to_string();
                    ensure.problems.push(Problem::Request { claim, error });
                    continue;
                }
            }
        };
        ensure.claims.push(Wanted {
            name: claim,
            network: config.name,
            ranges,
            requested,
        });
    }
    ensure
}

fn readable(networks: &impl Networks, definition: &Name, network: &str) -> Result<Config, Problem> {
    let Some(found) = networks.network(definition) else {
        return Err(Problem::NoNetwork {
            network: network.to_owned(),
            definition: definition.clone(),
        });
    };
    found.config.clone().map_err(|error| Problem::Invalid {
        network: network.to_owned(),
        definition: definition.clone(),
        error,
    })
}

/// The owner of an existing claim.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Belongs {
    /// The virtual machine or its instance.
    Ours,
    /// The claim has no owner and names this virtual machine, which becomes its owner.
    Orphaned,
    /// Another owner.
    Foreign,
}

/// The owner of a claim, from the view of the virtual machine or instance of this name. A claim without an owner is
/// left by the deletion of a virtual machine with orphaned dependents.
pub fn belongs(claim: &Claim, name: &str, machine: Option<&Machine>, instance: &Instance) -> Belongs {
    match &*claim.owners {
        [owner] if is_owner(owner, machine, Some(instance)) => Belongs::Ours,
        [] if *claim.machine == *name && claim.held && !claim.deleting => Belongs::Orphaned,
        _ => Belongs::Foreign,
    }
}

/// Whether a UID is the UID of the virtual machine, of its instance, or of the virtual machine that controls the
/// instance.
fn is_owner(uid: &Uid, machine: Option<&Machine>, instance: Option<&Instance>) -> bool {
    let of_machine = machine.map(|machine| &machine.uid);
    let of_instance = instance
        .into_iter()
        .flat_map(|instance| [&instance.uid, &instance.owner]);
    of_machine
        .into_iter()
        .chain(of_instance)
        .any(|owner| !owner.is_empty() && owner == uid)
}

/// Whether a claim has owners, and all are others than the virtual machine and its instance: it is the claim of an earlier
/// virtual machine of the same name. The cached virtual machine of an instance that has a controller may be the earlier
/// one, too: then the instance alone decides.
pub fn is_of_others(claim: &Claim, machine: Option<&Machine>, instance: &Instance) -> bool {
    let machine = machine.filter(|_| instance.owner.is_empty());
    let mut owners = claim.owners.iter();
    !claim.owners.is_empty() && !owners.any(|owner| is_owner(owner, machine, Some(instance)))
}

/// Whether a claim is a leftover of an earlier virtual machine of the same name: the claim is being deleted, and the
/// instance that used its addresses is gone.
pub fn is_left_behind(
    claim: &Claim,
    name: &str,
    machine: Option<&Machine>,
    instance: Option<&Instance>,
) -> bool {
    let of_others = |owner: &Uid| !is_owner(owner, machine, instance);
    *claim.machine == *name
        && claim.held
        && claim.deleting
        && !claim.owners.is_empty()
        && claim.owners.iter().all(of_others)
}

/// Whether a claim lacks our finalizer, and its virtual machine may use its addresses. The removal of the component
/// leaves such claims. Without the finalizer, the addresses of a deleted virtual machine would be free before its pod
/// has ended.
pub fn is_unheld(claim: &Claim, name: &str, machine: Option<&Machine>, instance: Option<&Instance>) -> bool {
    let is_ours = match &*claim.owners {
        [owner] => is_owner(owner, machine, instance),
        _ => false,
    };
    is_ours && *claim.machine == *name && !claim.held && !claim.deleting && !may_release(machine, instance)
}

/// Whether a claim has lost its network: neither the virtual machine nor its instance names the network any more, and
/// no pod is attached to the network.
pub fn is_unplugged(
    (claim_id, claim): (&str, &Claim),
    name: &str,
    machine: Option<&Machine>,
    instance: &Instance,
) -> bool {
    if instance.deleting || *claim.machine != *name || !claim.held {
        return false;
    }
    if belongs(claim, name, machine, instance) != Belongs::Ours {
        return false;
    }
    let of_machine = machine.into_iter().flat_map(|machine| machine.networks.iter());
    let of_instance = instance.networks.iter().map(|network| &network.name);
    let mut named = of_machine.chain(of_instance).chain(instance.reported.iter());
    !named.any(|network| claim_name(name, network) == claim_id)
}

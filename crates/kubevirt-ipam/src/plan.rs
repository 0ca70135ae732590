//! What is to become of the claims of one virtual machine (kubevirt-ipam §5, §7, §8).
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

/// What to do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Plan {
    /// Release the claims: their addresses are free.
    Cleanup,
    /// See to it that there are claims.
    Ensure(Ensure),
    /// Leave everything as it is.
    Nothing,
}

/// Claims that are wanted, and what stands in the way of others.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ensure {
    /// One for each network whose addresses persist.
    pub claims: Vec<Wanted>,
    /// Networks that can't have one.
    pub problems: Vec<Problem>,
    /// Requested addresses that the primary network's subnets lack, as events say it.
    pub outside: Vec<String>,
}

/// A claim that is wanted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// Name of the network, as the network's configuration says it.
    pub network: String,
    /// What its addresses are given out of; empty where the network's plugin gives them.
    pub ranges: Vec<Range>,
    /// Requested addresses.
    pub requested: Vec<String>,
}

/// Why a network has no claim.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Problem {
    /// Its definition does not exist.
    #[error("{}", messages::event::no_network(network, definition))]
    NoNetwork {
        /// Its name in the instance.
        network: String,
        /// The definition.
        definition: Name,
    },
    /// Its configuration can't be read.
    #[error("{}: {error}", messages::NO_INFORMATION)]
    Invalid {
        /// Its name in the instance.
        network: String,
        /// The definition.
        definition: Name,
        /// What is wrong.
        error: InvalidConfig,
    },
    /// The annotation with the requested addresses can't be read.
    #[error("{}", messages::event::failed(claim, error))]
    Request {
        /// The claim.
        claim: String,
        /// What is wrong.
        error: String,
    },
    /// Another network has a claim of that name.
    #[error("{}", messages::event::ambiguous(claim, first, second))]
    Ambiguous {
        /// The claim.
        claim: String,
        /// The network that has it.
        first: String,
        /// The one that does not.
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

    /// What its event says.
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

/// Networks by their definition.
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

/// What is to be done about the claims of the virtual machine of this name.
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
        // A pod that ends needs no new claim, and keeps what it has.
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
            Source::Other => continue,
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
        // The primary network of a namespace has its own way (§6.5).
        if network.source == Source::Pod {
            let outside = ip_request::outside(instance.addresses.as_deref(), &config.subnets, &network.name);
            let texts = outside
                .into_iter()
                .map(|address| messages::event::outside(address, &config.name, &config.subnets));
            ensure.outside.extend(texts);
        }
        let ranges = match network.source {
            Source::Multus(_) => config.ranges,
            Source::Pod | Source::Other => Vec::new(),
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

/// Whose an existing claim is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Belongs {
    /// The virtual machine's, or its instance's.
    Ours,
    /// It has no owner and was made for this virtual machine, which becomes its owner.
    Orphaned,
    /// Of another owner.
    Foreign,
}

/// Whose a claim is, for the virtual machine or instance of this name. One without an owner is what the deletion of a virtual
/// machine leaves that orphans what it owned.
pub fn belongs(claim: &Claim, name: &str, machine: Option<&Machine>, instance: &Instance) -> Belongs {
    match &*claim.owners {
        [owner] if is_owner(owner, machine, Some(instance)) => Belongs::Ours,
        [] if *claim.machine == *name && claim.held && !claim.deleting => Belongs::Orphaned,
        _ => Belongs::Foreign,
    }
}

/// Whether a UID is that of the virtual machine, of its instance, or of the virtual machine that the instance came from.
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

/// Whether a claim was left behind by an earlier virtual machine of the same name: it is being deleted, and the instance that
/// used its addresses is gone.
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

/// Whether a claim lacks our finalizer, and its virtual machine may use its addresses: the removal of the component leaves such
/// claims. Without it, the addresses of a deleted virtual machine would be free before its pod has ended.
pub fn is_unheld(claim: &Claim, name: &str, machine: Option<&Machine>, instance: Option<&Instance>) -> bool {
    let is_ours = match &*claim.owners {
        [owner] => is_owner(owner, machine, instance),
        _ => false,
    };
    is_ours && *claim.machine == *name && !claim.held && !claim.deleting && !may_release(machine, instance)
}

/// Whether a claim outlived its network: neither the virtual machine nor its instance names the network any more, and no pod
/// is attached to it.
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

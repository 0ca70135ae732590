//! User-visible texts that the specification fixes (kubevirt-ipam §5, §6, §7, §12).

use std::fmt::Display;

use api::kubevirt;
use kube_kit::watch::Name;

use crate::names;

/// The most bytes of a user's text that an error repeats.
const LONGEST: usize = 2048;

/// The start of a text, cut to [`LONGEST`] bytes.
pub(crate) fn excerpt(mut text: String) -> String {
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push_str("...");
    }
    text
}

/// The name of an object in logs and errors.
pub(crate) fn object(name: &Name) -> String {
    format!("{}/{}", name.namespace, name.name)
}

/// The configuration of a network can't be read.
pub(crate) fn invalid_config(error: impl Display) -> String {
    format!("failed to extract CNI configuration from NAD: {error}")
}

/// Answers of the webhook.
pub(crate) mod review {
    use super::{Display, Name, kubevirt, names, object};

    /// The pod runs no virtual machine.
    pub(crate) const NOT_A_VM: &str = "not a VM";
    /// The pod is on no network with persistent addresses.
    pub(crate) const NOT_REQUIRED: &str = "no mutation required";
    /// The pod needs no change.
    pub(crate) const CARRY_ON: &str = "carry on";
    /// The pod already has the annotations.
    pub(crate) const NOT_NEEDED: &str = "mutation not needed";
    /// The annotation with the pod's networks can't be read.
    pub(crate) const UNREADABLE: &str = "failed to parse pod network selection elements";
    /// A review without an object.
    pub(crate) const NO_OBJECT: &str = "there is no content to decode";
    /// The request to the API server timed out.
    pub(crate) const TOO_SLOW: &str = "the API server takes too long";
    /// The caches are not synced yet.
    pub(crate) const NOT_READY: &str = "not ready";

    /// The user set the annotation that the webhook is about to set.
    pub(crate) fn default_network_not_allowed() -> String {
        format!(
            "multus default network annotation \"{}\" is not allowed on pod creation",
            names::DEFAULT_NETWORK
        )
    }

    /// The instance that the pod runs can't be read.
    pub(crate) fn no_access(namespace: &str, pod: &str, error: impl Display) -> String {
        format!("failed to access the VMI running in pod \"{namespace}/{pod}\": {error}")
    }

    /// The API server's text for a missing instance, with a hint: the instance may have been created only just now.
    pub(crate) fn instance_not_found(instance: &str) -> String {
        format!(
            "{}.{} {instance:?} not found; the pod can be created once it exists: try again",
            kubevirt::INSTANCES,
            kubevirt::GROUP
        )
    }

    /// Two networks of an instance would share a claim.
    pub(crate) fn ambiguous(claim: &str, first: &str, second: &str) -> String {
        format!(
            "networks {first:?} and {second:?} of the virtual machine would share the IPAMClaim {claim:?}: rename one of \
             them"
        )
    }

    /// A claim has no addresses of its network's range yet.
    pub(crate) fn no_addresses(claim: &Name) -> String {
        format!("IPAMClaim \"{}\" has no addresses yet: try again", object(claim))
    }

    /// The label of a network's claim names another virtual machine.
    pub(crate) fn foreign(claim: &Name, machine: &str) -> String {
        format!(
            "IPAMClaim \"{}\" belongs to the virtual machine {machine:?}: rename the network or the virtual machine",
            object(claim)
        )
    }
}

/// A claim of that name exists, with another owner than the instance.
pub(crate) fn found_existing(claim: &str) -> String {
    format!("failed since it found an existing IPAMClaim for {claim:?}")
}

/// Prefix of errors about networks.
pub(crate) const NO_INFORMATION: &str = "failed to extract the relevant NAD information";

/// Claims can't be listed.
pub(crate) fn no_list(machine: &Name, error: impl Display) -> String {
    format!(
        "could not get list of IPAMClaims owned by VM {:?}: {error}",
        object(machine)
    )
}

/// Claims can't be released.
pub(crate) fn not_released(error: impl Display) -> String {
    format!("failed removing the IPAMClaims finalizer: {error}")
}

/// A virtual machine can't be read.
pub(crate) fn no_machine(machine: &Name, error: impl Display) -> String {
    format!("failed getting VM {:?}: {error}", object(machine))
}

/// Texts of events on instances.
pub(crate) mod event {
    use super::{Display, Name, object};

    /// The controller created a claim.
    pub(crate) fn created(claim: &str, network: &str) -> String {
        format!("IPAMClaim {claim:?} holds the addresses on network {network:?}")
    }

    /// An existing claim blocks a virtual machine.
    pub(crate) fn conflict(claim: &str, whose: impl Display) -> String {
        format!(
            "IPAMClaim {claim:?} exists already and belongs to {whose}: addresses on its network do not persist until it is \
             gone"
        )
    }

    /// A network does not exist.
    pub(crate) fn no_network(network: &str, definition: &Name) -> String {
        format!(
            "network {network:?} needs the NetworkAttachmentDefinition {:?}, which does not exist",
            object(definition)
        )
    }

    /// A network can't be read.
    pub(crate) fn invalid_network(network: &str, definition: &Name, error: impl Display) -> String {
        format!(
            "network {network:?}, NetworkAttachmentDefinition {:?}: {error}",
            object(definition)
        )
    }

    /// Two networks would share a claim.
    pub(crate) fn ambiguous(claim: &str, first: &str, second: &str) -> String {
        format!("networks {first:?} and {second:?} would share the IPAMClaim {claim:?}: rename one of them")
    }

    /// A claim can't be created.
    pub(crate) fn failed(claim: &str, error: impl Display) -> String {
        format!("cannot create IPAMClaim {claim:?}: {error}")
    }

    /// A claim gets no addresses.
    pub(crate) fn no_address(claim: &str, network: &str, error: impl Display) -> String {
        format!("IPAMClaim {claim:?} gets no addresses on network {network:?}: {error}")
    }

    /// Two claims have the same address.
    pub(crate) fn shared_address(claim: &str, address: impl Display, other: &Name) -> String {
        format!(
            "address {address} of IPAMClaim {claim:?} is held by IPAMClaim {:?} too",
            object(other)
        )
    }

    /// A claim has an address outside of the ranges of its network.
    pub(crate) fn foreign_address(claim: &str, address: impl Display, network: &str) -> String {
        format!(
            "address {address} of IPAMClaim {claim:?} is not in the range of network {network:?}; it is kept"
        )
    }

    /// A requested address is outside of the subnets of the primary network.
    pub(crate) fn outside(address: impl Display, network: &str, subnets: &str) -> String {
        format!("requested address {address} is in no subnet of network {network:?} ({subnets})")
    }

    /// A claim with addresses has another network than the virtual machine.
    pub(crate) fn other_network(claim: &str, claimed: &str, network: &str) -> String {
        format!(
            "IPAMClaim {claim:?} holds addresses of network {claimed:?}, and the virtual machine's network is {network:?} now; \
             they are kept"
        )
    }

    /// The ranges of two networks overlap.
    pub(crate) fn shared_range(network: &str, other: &str) -> String {
        format!("networks {network:?} and {other:?} have ranges that overlap: they must not be connected")
    }

    /// The controller released a claim.
    pub(crate) fn released(claim: &str) -> String {
        format!("IPAMClaim {claim:?} is released: its network is no longer one of the virtual machine's")
    }
}

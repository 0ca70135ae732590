//! Messages that the specification fixes (kubemacpool §11, §12.1, §13.6, §16).

use std::fmt::Display;
use std::sync::Arc;

use cni::mac::Mac;

use crate::pool::{Claimant, Holder, Kind, Owner};

/// Answer of a successful probe.
pub(crate) const HEALTHY: &str = "ok";
/// Answer of the readiness probe until the pool is complete.
pub(crate) const NOT_READY: &str = "internal server error: pool manager not ready";

/// Message about an admitted virtual machine without a template.
pub(crate) const NO_TEMPLATE: &str = "virtual machine template is nil, ignoring virtual machine";
/// A review without an object.
pub(crate) const NO_OBJECT: &str = "there is no content to decode";
/// Log line about an interface without an address.
pub(crate) const UNSUPPORTED_INTERFACE: &str =
    "mac address can be set only for interface of type masquerade and slirp on the pod network";
/// Log line about an allocated address of a pod.
pub(crate) const ALLOCATED_TO_POD: &str = "mac from pool was allocated to the pod";
/// Log line about a pod's own address.
pub(crate) const REGISTERED_FOR_POD: &str = "requested mac was allocated for pod";
/// Log line about a pod with a comma list.
pub(crate) const COMMA_LIST: &str = "Only JSON List Format for networks is allowed to be parsed";

/// Maximum length of a user's text in an error, in bytes.
const LONGEST: usize = 2048;

/// Denial of a created virtual machine.
pub(crate) fn create_failed(error: impl Display) -> String {
    excerpt(format!(
        "Failed to create virtual machine allocation error: {error}"
    ))
}

/// Cause: its addresses.
pub(crate) fn allocation_failed(error: impl Display) -> String {
    format!("Failed to allocate mac to the vm object: {error}")
}

/// Cause: it is unknown whether it exists.
pub(crate) fn lookup_failed(error: impl Display) -> String {
    format!("Failed to get the existing vm object: {error}")
}

/// The API server's message about a missing virtual machine.
pub(crate) fn machine_not_found(name: &str) -> String {
    format!("virtualmachines.kubevirt.io {name:?} not found")
}

/// Denial of a changed virtual machine.
pub(crate) fn update_failed(error: impl Display) -> String {
    excerpt(format!(
        "Failed to update virtual machine allocation error: {error}"
    ))
}

/// Denial of an explicit address that others have; `used` is [`already_used`].
pub(crate) fn refused_duplicate(used: impl Display) -> String {
    format!("failed to allocate requested mac address: {used}")
}

/// The object of a request, for messages.
pub(crate) fn owner(claimant: &Claimant) -> Owner {
    match claimant {
        Claimant::Named(owner) => owner.clone(),
        Claimant::Unnamed { kind, namespace, .. } => Owner {
            kind: *kind,
            namespace: Arc::clone(namespace),
            name: "(not named yet)".into(),
        },
    }
}

/// Warning about an explicit address that others have; the first of them is named.
pub(crate) fn already_used(mac: Mac, first: &Holder, others: usize) -> String {
    let owner = owner(&first.claimant);
    let place = match owner.kind {
        Kind::Pod => "network",
        Kind::Machine => "interface",
    };
    let others = if others > 0 {
        format!(" and {others} more")
    } else {
        String::new()
    };
    format!(
        "MAC {mac} is already used by {owner}, {place} {}{others}",
        first.key
    )
}

/// A text, truncated for an answer.
pub(crate) fn excerpt(mut text: String) -> String {
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push_str("...");
    }
    text
}

/// Help texts of the metrics.
pub(crate) mod help {
    /// Of [`crate::names::metric::COLLISIONS`].
    pub(crate) const COLLISIONS: &str =
        "Count of running objects sharing the same MAC address (collision when > 1)";
    /// Of [`crate::names::metric::DUPLICATES`].
    pub(crate) const DUPLICATES: &str =
        "[DEPRECATED] Total count of duplicate KubeMacPool MAC addresses. Use kmp_mac_collisions instead.";
    /// Of [`crate::names::metric::RANGE`].
    pub(crate) const RANGE: &str = "Count of MAC addresses of the range that may be handed out";
    /// Of [`crate::names::metric::USED`].
    pub(crate) const USED: &str = "Count of them that objects in managed namespaces have";
    /// Of [`crate::names::metric::RESERVED`].
    pub(crate) const RESERVED: &str = "Count of them that only objects in other namespaces have";
    /// Of [`crate::names::metric::PENDING`].
    pub(crate) const PENDING: &str =
        "Count of them that were handed out or asked for and are not seen in an object yet";
}

/// Maximum length of an event's message in the API server, in bytes.
const LONGEST_EVENT: usize = 1024;

/// Running objects share an address; `parties` are sorted. As many as fit are named.
pub(crate) fn collision(mac: Mac, parties: &[impl Display]) -> String {
    let mut text = format!("MAC {mac}: Collision between ");
    for (index, party) in parties.iter().enumerate() {
        let left = parties.len() - index;
        let comma = if index == 0 { "" } else { ", " };
        let party = format!("{comma}{party}");
        let end = format!("{comma}and {left} more");
        // There must be room for the number of the others.
        let room = if left > 1 { end.len() } else { 0 };
        if text.len() + party.len() + room > LONGEST_EVENT {
            return text + &end;
        }
        text.push_str(&party);
    }
    text
}

/// The ConfigMap has no range.
pub(crate) fn range_ignored(error: impl Display) -> String {
    format!("Invalid MAC range in ConfigMap, ignoring new range values: {error}")
}

/// The range in the ConfigMap cannot be used.
pub(crate) fn range_refused(start: Mac, end: Mac, error: impl Display) -> String {
    format!("Failed to apply new MAC ranges {start} - {end}: {error}")
}

/// The range in the ConfigMap is used.
pub(crate) fn range_updated(start: Mac, end: Mac) -> String {
    format!("MAC addresses are handed out of {start} - {end} from now on")
}

/// Few addresses are free. Without numbers, because each would cause another event.
pub(crate) fn range_nearly_full(percent: u64) -> String {
    format!(
        "{percent}% or more of the MAC range is taken: \
         virtual machines and pods are refused when it is full. Widen the range."
    )
}

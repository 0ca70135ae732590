//! Texts that users see and that are fixed (kubemacpool §11, §12.1, §13.6, §16).

use std::fmt::Display;
use std::sync::Arc;

use crate::mac::Mac;
use crate::pool::{Claimant, Holder, Kind, Owner};

/// What a probe says when all is well.
pub const HEALTHY: &str = "ok";
/// What the readiness probe says until the pool is complete.
pub const NOT_READY: &str = "internal server error: pool manager not ready";

/// A virtual machine without a template is let through with this.
pub const NO_TEMPLATE: &str = "virtual machine template is nil, ignoring virtual machine";
/// A review without an object.
pub const NO_OBJECT: &str = "there is no content to decode";
/// Why an interface is left alone, for the log.
pub const UNSUPPORTED_INTERFACE: &str =
    "mac address can be set only for interface of type masquerade and slirp on the pod network";
/// An address was handed out to a pod, for the log.
pub const ALLOCATED_TO_POD: &str = "mac from pool was allocated to the pod";
/// A pod brought an address, for the log.
pub const REGISTERED_FOR_POD: &str = "requested mac was allocated for pod";
/// Why a pod with a comma list is left alone, for the log.
pub const COMMA_LIST: &str = "Only JSON List Format for networks is allowed to be parsed";

/// What an error repeats of a text that a user wrote, in bytes.
const LONGEST: usize = 2048;

/// A virtual machine that is refused when it is created.
pub fn create_failed(error: impl Display) -> String {
    excerpt(format!(
        "Failed to create virtual machine allocation error: {error}"
    ))
}

/// Its addresses are why.
pub fn allocation_failed(error: impl Display) -> String {
    format!("Failed to allocate mac to the vm object: {error}")
}

/// That it could not be found out whether it exists is why.
pub fn lookup_failed(error: impl Display) -> String {
    format!("Failed to get the existing vm object: {error}")
}

/// How the API server says that there is no virtual machine of a name.
pub fn machine_not_found(name: &str) -> String {
    format!("virtualmachines.kubevirt.io {name:?} not found")
}

/// A virtual machine whose change is refused.
pub fn update_failed(error: impl Display) -> String {
    excerpt(format!(
        "Failed to update virtual machine allocation error: {error}"
    ))
}

/// An explicit address is refused because others have it; `used` is [`already_used`].
pub fn refused_duplicate(used: impl Display) -> String {
    format!("failed to allocate requested mac address: {used}")
}

/// Whose a request is, to be shown.
pub fn owner(claimant: &Claimant) -> Owner {
    match claimant {
        Claimant::Named(owner) => owner.clone(),
        Claimant::Unnamed { kind, namespace, .. } => Owner {
            kind: *kind,
            namespace: Arc::clone(namespace),
            name: "(not named yet)".into(),
        },
    }
}

/// An explicit address that others have already; the first of them is named.
pub fn already_used(mac: Mac, first: &Holder, others: usize) -> String {
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

/// As much of a text as an answer repeats.
pub fn excerpt(mut text: String) -> String {
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push_str("...");
    }
    text
}

/// What the figures are.
pub mod help {
    /// Of [`crate::names::metric::COLLISIONS`].
    pub const COLLISIONS: &str = "Count of running objects sharing the same MAC address (collision when > 1)";
    /// Of [`crate::names::metric::DUPLICATES`].
    pub const DUPLICATES: &str =
        "[DEPRECATED] Total count of duplicate KubeMacPool MAC addresses. Use kmp_mac_collisions instead.";
    /// Of [`crate::names::metric::RANGE`].
    pub const RANGE: &str = "Count of MAC addresses of the range that may be handed out";
    /// Of [`crate::names::metric::USED`].
    pub const USED: &str = "Count of them that objects in managed namespaces have";
    /// Of [`crate::names::metric::RESERVED`].
    pub const RESERVED: &str = "Count of them that only objects in other namespaces have";
    /// Of [`crate::names::metric::PENDING`].
    pub const PENDING: &str =
        "Count of them that were handed out or asked for and are not seen in an object yet";
}

/// Longest message of an event that the API server takes, in bytes.
const LONGEST_EVENT: usize = 1024;

/// Running objects share an address; `parties` are sorted. As many as fit are named.
pub fn collision(mac: Mac, parties: &[impl Display]) -> String {
    let mut text = format!("MAC {mac}: Collision between ");
    for (index, party) in parties.iter().enumerate() {
        let left = parties.len() - index;
        let comma = if index == 0 { "" } else { ", " };
        let party = format!("{comma}{party}");
        let end = format!("{comma}and {left} more");
        // What is named must leave room for how many are not.
        let room = if left > 1 { end.len() } else { 0 };
        if text.len() + party.len() + room > LONGEST_EVENT {
            return text + &end;
        }
        text.push_str(&party);
    }
    text
}

/// The ConfigMap does not say a range.
pub fn range_ignored(error: impl Display) -> String {
    format!("Invalid MAC range in ConfigMap, ignoring new range values: {error}")
}

/// The range that the ConfigMap says can't be used.
pub fn range_refused(start: Mac, end: Mac, error: impl Display) -> String {
    format!("Failed to apply new MAC ranges {start} - {end}: {error}")
}

/// The range that the ConfigMap says is used from now on.
pub fn range_updated(start: Mac, end: Mac) -> String {
    format!("MAC addresses are handed out of {start} - {end} from now on")
}

/// Little is left to hand out. The numbers are left out: each would make another event of it.
pub fn range_nearly_full(percent: u64) -> String {
    format!(
        "{percent}% or more of the MAC range is taken: \
         virtual machines and pods are refused when it is full. Widen the range."
    )
}

//! The changes of a renewed lease on the link.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};
use linux::routes::{KERNEL_PROTOCOL, Route};
use serde::{Deserialize, Serialize};

use crate::lease::{Lease, LeasedRoute};

/// A change of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Change {
    AddAddress(Ipv4Net),
    RemoveRoute(LeasedRoute),
    AddRoute(LeasedRoute),
    RemoveAddress(Ipv4Net),
}

/// Compares two leases of a link. The old address is removed before the new one is added: with a subnet's first address
/// the kernel removes the others of that subnet. Routes come last: the kernel removes routes together with the address
/// that they depend on.
pub(crate) fn between(old: &Lease, new: &Lease) -> Vec<Change> {
    let moved = old.address != new.address;
    let gone = old
        .routes
        .iter()
        .filter(|route| moved || !new.routes.contains(route));
    let mut changes: Vec<_> = gone.copied().map(Change::RemoveRoute).collect();
    if moved {
        changes.push(Change::RemoveAddress(old.address));
        changes.push(Change::AddAddress(new.address));
    }
    let fresh = new
        .routes
        .iter()
        .filter(|route| moved || !old.routes.contains(route));
    changes.extend(fresh.copied().map(Change::AddRoute));
    changes
}

/// Adds the changes to the lease `new` to those that the link still lacks. Of these, only those that the new lease needs
/// stay.
pub(crate) fn merged(lacking: Vec<Change>, fresh: Vec<Change>, new: &Lease) -> Vec<Change> {
    let is_needed = |change: &Change| match change {
        Change::AddAddress(address) => *address == new.address,
        Change::RemoveAddress(address) => *address != new.address,
        Change::AddRoute(route) => new.routes.contains(route),
        Change::RemoveRoute(route) => !new.routes.contains(route),
    };
    let mut changes = lacking;
    changes.retain(|change| is_needed(change) && !fresh.contains(change));
    changes.extend(fresh);
    changes
}

/// Applies changes in their order, and returns those that the link still lacks, and the first error. A failed change
/// does not stop the others. The removal of an address may remove others and routes: after a failed one, all later
/// changes are needed again.
pub(crate) fn apply<E>(
    changes: &[Change],
    mut make: impl FnMut(Change) -> Result<(), E>,
) -> (Vec<Change>, Option<E>) {
    let (mut lacking, mut first) = (Vec::new(), None);
    let mut is_address_left = false;
    for change in changes {
        let done = make(*change);
        is_address_left |= done.is_err() && matches!(change, Change::RemoveAddress(_));
        if done.is_err() || is_address_left {
            lacking.push(*change);
        }
        first = first.or(done.err());
    }
    (lacking, first)
}

/// The routes over a link that neither the kernel nor these changes have added. Those without a gateway come first:
/// others may need them.
pub(crate) fn foreign(routes: &[Route], link: u32, changes: &[Change]) -> Vec<Route> {
    let is_leased = |route: &Route| {
        changes.iter().any(|change| match change {
            Change::AddRoute(leased) | Change::RemoveRoute(leased) => {
                IpNet::V4(leased.to) == route.dst && leased.by.map(IpAddr::V4) == route.gateway
            }
            _ => false,
        })
    };
    let is_foreign = |route: &&Route| {
        route.link == Some(link) && route.protocol != Some(KERNEL_PROTOCOL) && !is_leased(route)
    };
    let mut foreign: Vec<_> = routes.iter().filter(is_foreign).copied().collect();
    foreign.sort_by_key(|route| route.gateway.is_some());
    foreign
}

#[cfg(test)]
mod tests {
    use dhcproto::v4::DhcpOption;

    use super::*;
    use crate::lease::tests::ack;

    fn lease(address: &str, routes: &[&str]) -> Lease {
        let mut lease = Lease::read(&ack([DhcpOption::SubnetMask([255, 255, 255, 0].into())])).unwrap();
        lease.address = address.parse().unwrap();
        lease.routes = routes.iter().map(|to| route(to)).collect();
        lease
    }

    fn route(to: &str) -> LeasedRoute {
        LeasedRoute {
            to: to.parse().unwrap(),
            by: Some([10, 1, 0, 1].into()),
        }
    }

    #[test]
    fn the_same_lease_changes_nothing() {
        let lease = lease("10.1.0.7/24", &["0.0.0.0/0"]);
        assert_eq!(between(&lease, &lease), []);
    }

    #[test]
    fn only_routes_that_differ_are_changed() {
        let old = lease("10.1.0.7/24", &["0.0.0.0/0", "10.8.0.0/16"]);
        let new = lease("10.1.0.7/24", &["0.0.0.0/0", "10.9.0.0/16"]);
        assert_eq!(
            between(&old, &new),
            [
                Change::RemoveRoute(route("10.8.0.0/16")),
                Change::AddRoute(route("10.9.0.0/16"))
            ]
        );
    }

    #[test]
    fn another_address_takes_the_routes_along() {
        let old = lease("10.1.0.7/24", &["0.0.0.0/0"]);
        let new = lease("10.1.0.8/24", &["0.0.0.0/0"]);
        assert_eq!(
            between(&old, &new),
            [
                Change::RemoveRoute(route("0.0.0.0/0")),
                Change::RemoveAddress(old.address),
                Change::AddAddress(new.address),
                Change::AddRoute(route("0.0.0.0/0")),
            ]
        );
    }

    #[test]
    fn changes_that_a_new_lease_needs_stay() {
        let first = lease("10.1.0.7/24", &["10.8.0.0/16"]);
        let second = lease("10.1.0.8/24", &["10.8.0.0/16", "10.9.0.0/16"]);
        let lacking = between(&first, &second);
        assert_eq!(
            merged(lacking.clone(), Vec::new(), &second),
            [
                Change::RemoveAddress(first.address),
                Change::AddAddress(second.address),
                Change::AddRoute(route("10.8.0.0/16")),
                Change::AddRoute(route("10.9.0.0/16")),
            ]
        );
        let third = lease("10.1.0.9/24", &["10.9.0.0/16"]);
        assert_eq!(
            merged(lacking.clone(), between(&second, &third), &third),
            [
                Change::RemoveAddress(first.address),
                Change::RemoveRoute(route("10.8.0.0/16")),
                Change::RemoveRoute(route("10.9.0.0/16")),
                Change::RemoveAddress(second.address),
                Change::AddAddress(third.address),
                Change::AddRoute(route("10.9.0.0/16")),
            ]
        );
        let back = merged(lacking, between(&second, &first), &first);
        assert!(!back.contains(&Change::RemoveAddress(first.address)), "{back:?}");
    }

    #[test]
    fn only_changes_that_failed_are_made_again() {
        let (old, new) = (
            lease("10.1.0.7/24", &["0.0.0.0/0"]),
            lease("10.1.0.8/24", &["0.0.0.0/0", "10.9.0.0/16"]),
        );
        let changes = between(&old, &new);
        let refuse =
            |refused: Change| move |change: Change| if change == refused { Err("refused") } else { Ok(()) };
        let refused = Change::AddRoute(route("10.9.0.0/16"));
        assert_eq!(apply(&changes, refuse(refused)), (vec![refused], Some("refused")));
        let (lacking, _) = apply(&changes, refuse(Change::RemoveAddress(old.address)));
        assert_eq!(lacking, changes[1..]);
        assert_eq!(apply(&changes, |_| Ok::<_, ()>(())), (Vec::new(), None));
    }
}

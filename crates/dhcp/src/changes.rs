//! The changes of a renewed lease on the link.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};
use linux::routes::{KERNEL_PROTOCOL, MAIN_TABLE, Route};
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

/// The routes over a link that are gone after these changes of it, and that neither the kernel nor a lease with routes of
/// this priority has added. Routes with several next hops are left out. Those without a gateway come first: others may
/// need them.
pub(crate) fn foreign(
    before: &[Route],
    after: &[Route],
    link: u32,
    changes: &[Change],
    priority: u32,
) -> Vec<Route> {
    let is_leased = |route: &Route| {
        let is_main = route.table == Some(MAIN_TABLE) && route.priority.unwrap_or_default() == priority;
        is_main
            && changes.iter().any(|change| match change {
                Change::AddRoute(leased) | Change::RemoveRoute(leased) => {
                    IpNet::V4(leased.to) == route.dst && leased.by.map(IpAddr::V4) == route.gateway
                }
                _ => false,
            })
    };
    let has_one_hop = |route: &Route| {
        let is_twin = |other: &&Route| {
            (other.dst, other.table, other.priority) == (route.dst, route.table, route.priority)
        };
        before.iter().filter(is_twin).count() == 1
    };
    let is_foreign = |route: &&Route| {
        route.link == Some(link)
            && route.protocol != Some(KERNEL_PROTOCOL)
            && !after.contains(route)
            && !is_leased(route)
            && has_one_hop(route)
    };
    let mut foreign: Vec<_> = before.iter().filter(is_foreign).copied().collect();
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
    fn lost_routes_of_others_are_added_again() {
        const LINK: u32 = 7;
        let of = |to: &str, gateway: &str| Route {
            gateway: Some(gateway.parse().unwrap()),
            link: Some(LINK),
            table: Some(MAIN_TABLE),
            ..Route::to(to.parse().unwrap())
        };
        let changes = between(
            &lease("10.1.0.7/24", &["10.8.0.0/16"]),
            &lease("10.1.0.8/24", &["10.8.0.0/16"]),
        );
        let leased = of("10.8.0.0/16", "10.1.0.1");
        let in_another_table = Route {
            table: Some(100),
            ..leased
        };
        let on_link = Route {
            gateway: None,
            ..of("10.3.0.0/16", "10.1.0.1")
        };
        let lost = of("10.2.0.0/16", "10.1.0.1");
        let of_the_kernel = Route {
            protocol: Some(KERNEL_PROTOCOL),
            ..of("10.1.0.0/24", "10.1.0.1")
        };
        let elsewhere = Route {
            link: Some(LINK + 1),
            ..of("10.4.0.0/16", "10.1.0.1")
        };
        let kept = of("10.5.0.0/16", "10.1.0.1");
        let hops = [of("10.6.0.0/16", "10.1.0.1"), of("10.6.0.0/16", "10.1.0.2")];
        let single = [
            lost,
            leased,
            in_another_table,
            on_link,
            of_the_kernel,
            elsewhere,
            kept,
        ];
        let before = [&single[..], &hops].concat();
        assert_eq!(
            foreign(&before, &[kept], LINK, &changes, 0),
            [on_link, lost, in_another_table]
        );
        let with_priority = foreign(&before, &[kept], LINK, &changes, 9);
        assert!(with_priority.contains(&leased), "{with_priority:?}");
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

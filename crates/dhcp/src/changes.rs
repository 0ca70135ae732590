//! The changes of a renewed lease on the link.

use ipnet::Ipv4Net;

use crate::lease::{Lease, LeasedRoute};

/// A change of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
}

//! Routes of an egress router: packets leave by its link, and answers return by the pod's other interface.

use std::net::IpAddr;

use cni::Error;
use ipnet::IpNet;
use linux::{
    address::Family,
    link::Link,
    route::Socket,
    routes::{LINK_SCOPE, MAIN_TABLE, Route},
    rules::Rule,
};

use super::config::Router;
use crate::{
    messages::Explain as _,
    names::{EGRESS_ROUTER_TABLE, PRIMARY},
};

/// Makes `link` the pod's only default route.
///
/// Answers of external systems have a destination in the cluster, and their source selects the table with the former
/// routes of the pod's primary interface.
pub(super) fn set_up(socket: &mut Socket, link: &Link, router: &Router) -> Result<(), Error> {
    let family = Family::of(&router.gateway);
    let routes = list(socket, family)?;
    let primary = socket
        .find_link(PRIMARY)
        .explain(|| format!("failed to lookup \"{PRIMARY}\""))?;
    if let Some(primary) = primary.filter(|primary| primary.index != link.index) {
        for route in former(&routes, primary.index, family) {
            add(socket, &route)?;
        }
        let own = socket
            .addresses(&primary, Some(family))
            .explain(|| format!("failed to list addresses of {PRIMARY}"))?;
        let own = own.iter().map(|address| address.net.addr());
        for source in own.chain(router.destinations()) {
            let rule = Rule::from_address(source, EGRESS_ROUTER_TABLE);
            match socket.add_rule(family, &rule) {
                Err(error) if error.is_exists() => {}
                done => done.explain(|| "failed to add rule".to_owned())?,
            }
        }
    }
    let to_gateway = Route {
        link: Some(link.index),
        scope: Some(LINK_SCOPE),
        ..Route::to(IpNet::from(router.gateway))
    };
    add(socket, &to_gateway)?;
    for route in routes.iter().filter(|route| is_default(route)) {
        if route.link != Some(link.index) {
            delete(socket, route)?;
        }
    }
    let default = Route {
        gateway: Some(router.gateway),
        link: Some(link.index),
        ..Route::to(all(family))
    };
    add(socket, &default)
}

/// Returns the default route to the primary interface, and deletes the table with its rules. A default route of a third
/// interface stays.
///
/// The default route of the table is deleted last: an interrupted call can be repeated.
pub(super) fn restore(socket: &mut Socket, ifname: &str) -> Result<(), Error> {
    let link = socket
        .find_link(ifname)
        .explain(|| format!("failed to lookup \"{ifname}\""))?;
    let link = link.map(|link| link.index);
    for family in [Family::V4, Family::V6] {
        let routes = list(socket, family)?;
        let mut former: Vec<&Route> = routes
            .iter()
            .filter(|route| route.table == Some(EGRESS_ROUTER_TABLE))
            .collect();
        former.sort_by_key(|route| route.dst.prefix_len() == 0);
        let default = former.iter().find(|route| route.dst.prefix_len() == 0);
        let mut defaults = routes.iter().filter(|route| is_default(route));
        if let Some(default) = default
            && defaults.clone().all(|route| route.link == link)
        {
            defaults.try_for_each(|route| delete(socket, route))?;
            let main = Route {
                table: Some(MAIN_TABLE),
                ..**default
            };
            add(socket, &main)?;
        }
        let rules = socket
            .rules(family)
            .explain(|| "failed to list rules".to_owned())?;
        for rule in rules.iter().filter(|rule| rule.table == EGRESS_ROUTER_TABLE) {
            socket
                .delete_rule(family, rule)
                .explain(|| "failed to delete rule".to_owned())?;
        }
        for route in former {
            delete(socket, route)?;
        }
    }
    Ok(())
}

/// Whether the default route is that of the router.
pub(super) fn has_default(routes: &[Route], link: &Link, router: &Router) -> bool {
    routes.iter().any(|route| {
        is_default(route) && route.link == Some(link.index) && route.gateway == Some(router.gateway)
    })
}

/// The routes of the primary interface, in the table of the router. Routes without a gateway come first.
///
/// Multus may have deleted the default route already. A gateway of another route replaces it, or the only neighbour.
fn former(routes: &[Route], primary: u32, family: Family) -> Vec<Route> {
    let is_single = |route: &Route| route.dst.prefix_len() == route.dst.max_prefix_len();
    let mut former: Vec<Route> = routes
        .iter()
        .filter(|route| route.link == Some(primary) && is_main(route) && !route.unreachable)
        .map(|route| Route {
            table: Some(EGRESS_ROUTER_TABLE),
            ..*route
        })
        .collect();
    former.sort_by_key(|route| route.gateway.is_some());
    if !former.iter().any(|route| route.dst.prefix_len() == 0) {
        let gateway = former.iter().find_map(|route| route.gateway);
        let neighbour = || {
            former
                .iter()
                .find(|route| is_single(route))
                .map(|route| route.dst.addr())
        };
        let gateway: Option<IpAddr> = gateway.or_else(neighbour);
        former.extend(gateway.map(|gateway| Route {
            gateway: Some(gateway),
            link: Some(primary),
            table: Some(EGRESS_ROUTER_TABLE),
            onlink: true,
            ..Route::to(all(family))
        }));
    }
    former
}

fn all(family: Family) -> IpNet {
    let address: IpAddr = match family {
        Family::V4 => std::net::Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    IpNet::new_assert(address, 0)
}

fn is_main(route: &Route) -> bool {
    route.table.is_none_or(|table| table == MAIN_TABLE)
}

fn is_default(route: &Route) -> bool {
    route.dst.prefix_len() == 0 && is_main(route) && !route.unreachable
}

fn list(socket: &mut Socket, family: Family) -> Result<Vec<Route>, Error> {
    socket
        .routes(family)
        .explain(|| "failed to list routes".to_owned())
}

fn delete(socket: &mut Socket, route: &Route) -> Result<(), Error> {
    match socket.delete_route(route) {
        Err(error) if error.is_not_found() => Ok(()),
        done => done.explain(|| format!("failed to delete route {route}")),
    }
}

fn add(socket: &mut Socket, route: &Route) -> Result<(), Error> {
    match socket.add_route(route) {
        Err(error) if error.is_exists() => Ok(()),
        done => done.explain(|| format!("failed to add route {route}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(dst: &str, gateway: Option<&str>) -> Route {
        Route {
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
            link: Some(2),
            table: Some(MAIN_TABLE),
            ..Route::to(dst.parse().unwrap())
        }
    }

    // cluster-network#118
    #[test]
    fn answers_return_by_the_former_gateway_or_a_neighbour() {
        let shown = |routes: &[Route]| -> Vec<String> {
            former(routes, 2, Family::V4)
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        let near = route("10.1.2.0/24", None);
        let elsewhere = Route {
            link: Some(3),
            ..route("0.0.0.0/0", Some("192.0.2.1"))
        };
        assert_eq!(
            shown(&[route("0.0.0.0/0", Some("10.1.2.1")), near, elsewhere]),
            ["10.1.2.0/24", "0.0.0.0/0 via 10.1.2.1"]
        );
        // Multus deleted the default route.
        assert_eq!(
            shown(&[route("10.0.0.0/8", Some("10.1.2.1")), near, elsewhere]),
            ["10.1.2.0/24", "10.0.0.0/8 via 10.1.2.1", "0.0.0.0/0 via 10.1.2.1"]
        );
        assert_eq!(
            shown(&[route("169.254.1.1/32", None)]),
            ["169.254.1.1/32", "0.0.0.0/0 via 169.254.1.1"]
        );
        assert_eq!(shown(&[near]), ["10.1.2.0/24"]);
    }
}

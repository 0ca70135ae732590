//! CHECK in the pod, for all plugins that attach an interface (cni-plugins §2.6).

use std::collections::{HashMap, HashSet};

use cni::{
    Error,
    plugin::Call,
    result::{CniResult, Interface, IpConfig, Route},
};
use ipnet::IpNet;
use linux::{address::Family, link::Link, route::Socket, routes};

use crate::{
    chained,
    messages::{Explain, NO_PREV_RESULT},
};

/// `prevResult`, the result of ADD.
pub(crate) fn previous(call: &Call) -> Result<CniResult, Error> {
    chained::previous(call, NO_PREV_RESULT)
}

/// The entry of the pod's interface, whose sandbox must be that of the call.
pub(crate) fn sandbox_interface<'a>(
    call: &Call,
    previous: &'a CniResult,
    netns: &str,
) -> Result<&'a Interface, Error> {
    let ifname = &call.request.ifname;
    let interface = previous
        .interfaces
        .iter()
        .find(|interface| interface.name == *ifname && interface.sandbox.is_some())
        .ok_or_else(|| Error::internal(format!("prevResult has no interface \"{ifname}\" with a sandbox")))?;
    let sandbox = interface.sandbox.as_deref().unwrap_or_default();
    if sandbox != netns {
        return Err(Error::internal(format!(
            "Sandbox in prevResult {sandbox} doesn't match configured netns: {netns}"
        )));
    }
    Ok(interface)
}

/// The pod's interface, whose MAC must be the reported one.
pub(crate) fn sandbox_link(socket: &mut Socket, expected: &Interface) -> Result<Link, Error> {
    let link = container_link(socket, &expected.name)?;
    same_mac(&link, expected, "Interface")?;
    Ok(link)
}

/// Looks up a required link in the pod.
pub(crate) fn container_link(socket: &mut Socket, ifname: &str) -> Result<Link, Error> {
    socket
        .find_link(ifname)
        .explain(|| format!("failed to lookup \"{ifname}\""))?
        .ok_or_else(|| Error::internal(format!("Cannot find container link {ifname}")))
}

/// An error if the link's MAC is not the reported one.
pub(crate) fn same_mac(link: &Link, expected: &Interface, what: &str) -> Result<(), Error> {
    let Some(wanted) = &expected.mac else {
        return Ok(());
    };
    let found = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    if found.eq_ignore_ascii_case(wanted) {
        return Ok(());
    }
    Err(Error::internal(format!(
        "{what} {} Mac doesn't match: {found}",
        expected.name
    )))
}

/// An error unless the link has every address and a route to its subnet.
pub(crate) fn addresses(socket: &mut Socket, link: &Link, ips: &[IpConfig]) -> Result<(), Error> {
    if ips.is_empty() {
        return Ok(());
    }
    let ifname = &link.name;
    let found: HashSet<IpNet> = socket
        .addresses(link, None)
        .explain(|| format!("failed to list addresses of {ifname}"))?
        .into_iter()
        .map(|address| address.net)
        .collect();
    // The kernel adds no route for a /32.
    let is_host = |net: &IpNet| matches!(net, IpNet::V4(net) if net.prefix_len() == 32);
    let subnets = ips.iter().map(|ip| ip.address).filter(|net| !is_host(net));
    let routes = by_destination(subnets, |family| list(socket, family))?;
    for ip in ips {
        if !found.contains(&ip.address) {
            return Err(Error::internal(format!(
                "Failed to match addr {} on interface {ifname}",
                ip.address
            )));
        }
        if is_host(&ip.address) {
            continue;
        }
        let mut to_subnet = routes.get(&ip.address.trunc()).into_iter().flatten();
        if !to_subnet.any(|route| in_table(route, None)) {
            let gateway = ip.gateway.map(|gw| gw.to_string()).unwrap_or_default();
            return Err(Error::internal(format!(
                "Failed to find Gateway {gateway} for interface {ifname}"
            )));
        }
    }
    Ok(())
}

/// An error unless every route exists.
pub(crate) fn routes(socket: &mut Socket, expected: &[Route]) -> Result<(), Error> {
    let found = by_destination(expected.iter().map(|route| route.dst), |family| {
        list(socket, family)
    })?;
    require_routes(&found, expected)
}

fn require_routes(found: &Destinations, expected: &[Route]) -> Result<(), Error> {
    for wanted in expected {
        let mut there = found.get(&wanted.dst.trunc()).into_iter().flatten();
        let is_wanted = |route: &routes::Route| {
            in_table(route, wanted.table)
                && (wanted.is_default() || wanted.gw.is_none() || wanted.gw == route.gateway)
        };
        if !there.any(is_wanted) {
            let gateway = wanted.gw.map(|gw| format!(" via {gw}")).unwrap_or_default();
            return Err(Error::internal(format!(
                "Expected Route {}{gateway} not found in routing table",
                wanted.dst
            )));
        }
    }
    Ok(())
}

/// Routes by their destination.
type Destinations = HashMap<IpNet, Vec<routes::Route>>;

/// Lists the routes of the families of `wanted`, once for each family: a namespace may have many routes.
fn by_destination(
    wanted: impl Iterator<Item = IpNet>,
    mut list: impl FnMut(Family) -> Result<Vec<routes::Route>, Error>,
) -> Result<Destinations, Error> {
    let families: HashSet<Family> = wanted.map(|net| Family::of(&net.addr())).collect();
    let mut found = Destinations::new();
    for family in families {
        for route in list(family)? {
            found.entry(route.dst).or_default().push(route);
        }
    }
    Ok(found)
}

fn list(socket: &mut Socket, family: Family) -> Result<Vec<routes::Route>, Error> {
    socket
        .routes(family)
        .explain(|| "failed to list routes".to_owned())
}

/// Without a configured table every table matches, because later plugins in the chain may move routes.
fn in_table(route: &routes::Route, table: Option<u32>) -> bool {
    match table {
        Some(table) => route.table == Some(table),
        None => route.table != Some(routes::LOCAL_TABLE),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::Ipv4Addr,
        time::{Duration, Instant},
    };

    use ipnet::Ipv4Net;

    use super::*;

    #[test]
    fn many_routes_are_listed_once_and_found_at_once() {
        // cni-plugins#90
        let nets: Vec<IpNet> = (0..40_000)
            .map(|number: u32| {
                Ipv4Net::new_assert(Ipv4Addr::from_bits(0x0a00_0000 + number * 256), 24).into()
            })
            .collect();
        let started = Instant::now();
        let mut lists = 0;
        let found = by_destination(nets.iter().copied(), |family| {
            lists += 1;
            assert_eq!(family, Family::V4);
            let route = |net: &IpNet| routes::Route {
                table: Some(routes::MAIN_TABLE),
                ..routes::Route::to(*net)
            };
            Ok(nets.iter().map(route).collect())
        })
        .unwrap();
        let mut expected: Vec<Route> = nets.iter().map(|net| Route::new(*net, None)).collect();
        assert_eq!(require_routes(&found, &expected), Ok(()));
        assert_eq!(lists, 1);
        assert!(started.elapsed() < Duration::from_secs(10));
        expected.push(Route::new("192.0.2.0/24".parse().unwrap(), None));
        assert_eq!(
            require_routes(&found, &expected).unwrap_err().msg,
            "Expected Route 192.0.2.0/24 not found in routing table"
        );
    }
}

//! CHECK in the pod, for all plugins that attach an interface (cni-plugins §2.6).

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
    let found = socket
        .addresses(link, None)
        .explain(|| format!("failed to list addresses of {ifname}"))?;
    for ip in ips {
        if !found.iter().any(|address| address.net == ip.address) {
            return Err(Error::internal(format!(
                "Failed to match addr {} on interface {ifname}",
                ip.address
            )));
        }
        // The kernel adds no route for a /32.
        if matches!(ip.address, IpNet::V4(net) if net.prefix_len() == 32) {
            continue;
        }
        let subnet = ip.address.trunc();
        if !list(socket, &subnet)?
            .iter()
            .any(|route| route.dst == subnet && in_table(route, None))
        {
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
    for wanted in expected {
        let dst = wanted.dst.trunc();
        let there = list(socket, &dst)?.iter().any(|route| {
            route.dst == dst
                && in_table(route, wanted.table)
                && (wanted.is_default() || wanted.gw.is_none() || wanted.gw == route.gateway)
        });
        if !there {
            let gateway = wanted.gw.map(|gw| format!(" via {gw}")).unwrap_or_default();
            return Err(Error::internal(format!(
                "Expected Route {}{gateway} not found in routing table",
                wanted.dst
            )));
        }
    }
    Ok(())
}

fn list(socket: &mut Socket, like: &IpNet) -> Result<Vec<routes::Route>, Error> {
    socket
        .routes(Family::of(&like.addr()))
        .explain(|| "failed to list routes".to_owned())
}

/// Without a configured table every table matches, because later plugins in the chain may move routes.
fn in_table(route: &routes::Route, table: Option<u32>) -> bool {
    match table {
        Some(table) => route.table == Some(table),
        None => route.table != Some(routes::LOCAL_TABLE),
    }
}

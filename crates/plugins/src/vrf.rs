//! `vrf`: moves the previous plugin's interface into a VRF with its own routing table (cni-plugins §15).
//!
//! ```text
//!   pod: net1 ──port of──> VRF blue (created for its first interface) ──> table 7: the routes of net1
//! ```

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use cni::{
    Error, json,
    plugin::{Call, Plugin},
    result::CniResult,
    version::Version,
};
use ipnet::IpNet;
use linux::{
    address::{Address, Family},
    link::{KindState, Link, LinkKind, LinkSpec},
    monitor::wait_addresses_settled,
    route::Socket,
    routes::{MAIN_TABLE, Route},
};
use serde::Deserialize;

use crate::{
    chained,
    config::read_config,
    messages::{Explain as _, NO_EARLIER_RESULT, NO_VRF_NAME},
    names::{VRF, kind},
    pod::Pod,
};

/// Prefix of ADD errors.
const ADD_FAILED: &str = "cmdAdd failed";
/// Timeout for restored addresses to become usable.
const SETTLE: Duration = Duration::from_secs(5);
/// Scope of routes beyond the link.
const EVERYWHERE: u8 = 0;

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vrf;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Wire {
    #[serde(rename = "vrfname")]
    name: String,
    table: u32,
}

/// The keys of a config.
pub(crate) fn keys() -> &'static [&'static str] {
    json::fields_of::<Wire>()
}

/// Validates the config of an ADD.
pub(crate) fn validate(call: &Call) -> Result<(), Error> {
    read(call).map(drop)
}

fn read(call: &Call) -> Result<Wire, Error> {
    let wire: Wire = read_config(call)?;
    if wire.name.is_empty() {
        return Err(Error::internal(NO_VRF_NAME));
    }
    Ok(wire)
}

impl Plugin for Vrf {
    fn name(&self) -> &'static str {
        VRF
    }

    fn versions(&self) -> &'static [Version] {
        // Results have interfaces since 0.3.0. Upstream's plugin supports the versions after it.
        Version::V0_3_1.and_later()
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        add(call).map_err(|error| error.prefixed(ADD_FAILED))
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        // A DEL must succeed also with a config that made ADD fail.
        let wire: Wire = call.config.read().unwrap_or_default();
        let Some(mut pod) = Pod::find_remaining(call)? else {
            return Ok(());
        };
        let socket = &mut pod.socket;
        if let (Some(link), Some(vrf)) = (find(socket, &call.request.ifname)?, find(socket, &wire.name)?)
            && link.master == Some(vrf.index)
        {
            socket
                .set_master(&link, 0)
                .explain(|| format!("failed to take \"{}\" out of VRF {}", link.name, vrf.name))?;
        }
        remove_unused(socket, &wire.name)
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        let wire = read(call)?;
        chained::previous(call, NO_EARLIER_RESULT)?;
        let mut pod = Pod::open(call)?;
        let (vrf, _) = find_vrf(&mut pod.socket, &wire)?
            .ok_or_else(|| Error::internal(format!("VRF {} not found", wire.name)))?;
        let link = interface(&mut pod.socket, &call.request.ifname)?;
        if link.master == Some(vrf.index) {
            return Ok(());
        }
        Err(Error::internal(format!(
            "interface {} is not in VRF {}",
            link.name, wire.name
        )))
    }
}

fn add(call: &Call) -> Result<CniResult, Error> {
    let wire = read(call)?;
    let previous = chained::previous(call, NO_EARLIER_RESULT)?;
    let mut pod = Pod::open(call)?;
    let socket = &mut pod.socket;
    let link = interface(socket, &call.request.ifname)?;
    if let Some(master) = link.master {
        let name = socket.link_by_index(master).map(|master| master.name);
        return Err(Error::internal(format!(
            "interface {} has already a master set: {}",
            link.name,
            name.unwrap_or_default()
        )));
    }
    let before = PreservedConfig::of(socket, &link)?;
    let outcome = enter(socket, &wire, &link, &before);
    if outcome.is_err() {
        // Best effort, to report the first error.
        let _ = socket.set_master(&link, 0);
        let _ = before.restore(socket, &link, MAIN_TABLE);
        let _ = remove_unused(socket, &wire.name);
    }
    outcome.map(|()| previous)
}

/// Adds the interface to the VRF, and preserves its addresses and routes.
fn enter(socket: &mut Socket, wire: &Wire, link: &Link, before: &PreservedConfig) -> Result<(), Error> {
    let (vrf, table) = match find_vrf(socket, wire)? {
        Some((_, table)) if wire.table != 0 && wire.table != table => {
            return Err(Error::internal(format!(
                "VRF {} already exist with different routing table {table}",
                wire.name
            )));
        }
        Some(found) => found,
        None => make_vrf(socket, wire)?,
    };
    if !vrf.is_up() {
        socket
            .set_up(&vrf)
            .explain(|| format!("could not set link up for VRF {}", vrf.name))?;
    }
    socket
        .set_master(link, vrf.index)
        .explain(|| format!("could not set vrf {} as master of {}", vrf.name, link.name))?;
    before.restore(socket, link, table)
}

fn make_vrf(socket: &mut Socket, wire: &Wire) -> Result<(Link, u32), Error> {
    let failed = || format!("could not add VRF {}", wire.name);
    let table = match wire.table {
        0 => first_unused(&socket.links().explain(failed)?),
        table => table,
    };
    let made = socket.create_link(&LinkSpec::new(&wire.name, LinkKind::Vrf { table }));
    match made {
        // A concurrent ADD of the pod created it.
        Err(error) if error.is_exists() => {}
        done => done.explain(failed)?,
    }
    find_vrf(socket, wire)?.ok_or_else(|| Error::internal(format!("{}: it is gone", failed())))
}

/// The smallest unused table.
fn first_unused(links: &[Link]) -> u32 {
    let used: BTreeSet<u32> = links
        .iter()
        .filter_map(|link| match link.kind_state {
            KindState::Vrf(table) => Some(table),
            _ => None,
        })
        .collect();
    (1..u32::MAX)
        .find(|table| !used.contains(table))
        .unwrap_or(u32::MAX)
}

/// The configured VRF with its table.
fn find_vrf(socket: &mut Socket, wire: &Wire) -> Result<Option<(Link, u32)>, Error> {
    match find(socket, &wire.name)? {
        None => Ok(None),
        Some(link) => match link.kind_state {
            KindState::Vrf(table) => Ok(Some((link, table))),
            _ => Err(Error::internal(format!("link {} is not a VRF", wire.name))),
        },
    }
}

/// Removes the VRF if it has no interface.
fn remove_unused(socket: &mut Socket, name: &str) -> Result<(), Error> {
    let Some(vrf) = find(socket, name)?.filter(|link| link.is_kind(kind::VRF)) else {
        return Ok(());
    };
    let failed = || format!("could not remove VRF {name}");
    let links = socket.links().explain(failed)?;
    if links.iter().any(|link| link.master == Some(vrf.index)) {
        return Ok(());
    }
    match socket.delete_link(&vrf) {
        Err(error) if error.is_not_found() => Ok(()),
        done => done.explain(failed),
    }
}

fn find(socket: &mut Socket, name: &str) -> Result<Option<Link>, Error> {
    if name.is_empty() {
        return Ok(None);
    }
    socket
        .find_link(name)
        .explain(|| format!("failed to lookup \"{name}\""))
}

fn interface(socket: &mut Socket, ifname: &str) -> Result<Link, Error> {
    find(socket, ifname)?.ok_or_else(|| Error::internal(format!("could not find link {ifname}")))
}

/// The addresses and routes that an interface loses when it joins or leaves a VRF.
struct PreservedConfig {
    /// IPv6 addresses beyond link scope.
    addresses: Vec<Address>,
    routes: Vec<Route>,
}

impl PreservedConfig {
    fn of(socket: &mut Socket, link: &Link) -> Result<Self, Error> {
        let failed = || format!("could not read addresses and routes of \"{}\"", link.name);
        let mut addresses = socket.addresses(link, Some(Family::V6)).explain(failed)?;
        addresses.retain(|address| address.global);
        let mut routes = socket.routes(Family::V4).explain(failed)?;
        routes.extend(socket.routes(Family::V6).explain(failed)?);
        routes.retain(|route| moves(route, link.index));
        Ok(PreservedConfig { addresses, routes })
    }

    /// Restores the addresses, and the routes in `table`.
    fn restore(&self, socket: &mut Socket, link: &Link, table: u32) -> Result<(), Error> {
        let failed = || format!("could not restore addresses of \"{}\"", link.name);
        let left = socket.addresses(link, Some(Family::V6)).explain(failed)?;
        let is_lost = |address: &&Address| !left.iter().any(|left| left.net == address.net);
        let lost: Vec<_> = self.addresses.iter().filter(is_lost).collect();
        for address in &lost {
            match socket.add_address(link, address.net) {
                Err(error) if error.is_exists() => {}
                done => done.explain(failed)?,
            }
        }
        if !lost.is_empty() {
            // The kernel rejects routes with a tentative source address.
            wait_addresses_settled(socket, link, Instant::now() + SETTLE).explain(failed)?;
        }
        for route in &self.routes {
            let route = Route {
                table: Some(table),
                ..*route
            };
            match socket.add_route(&route) {
                Err(error) if error.is_exists() => {}
                done => done.explain(|| format!("could not add route '{route}'"))?,
            }
        }
        Ok(())
    }
}

/// Whether a route needs restoring. The kernel restores its own routes and rejects duplicates.
fn moves(route: &Route, link: u32) -> bool {
    let link_local = matches!(route.dst, IpNet::V6(net) if net.addr().is_unicast_link_local());
    route.link == Some(link)
        && route.table == Some(MAIN_TABLE)
        && route.scope == Some(EVERYWHERE)
        && !link_local
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vrf(table: u32) -> Link {
        let mut link = Link::default();
        link.kind_state = KindState::Vrf(table);
        link
    }

    #[test]
    fn the_first_table_that_no_vrf_has() {
        assert_eq!(first_unused(&[]), 1);
        assert_eq!(
            first_unused(&[vrf(1), vrf(3), Link::default(), vrf(2), vrf(7)]),
            4
        );
    }

    #[test]
    fn routes_that_lead_further_move() {
        let route = |dst: &str, gateway: Option<&str>, scope: u8| Route {
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
            link: Some(7),
            scope: Some(scope),
            table: Some(MAIN_TABLE),
            ..Route::to(dst.parse().unwrap())
        };
        let far = route("10.9.0.0/16", Some("10.1.2.1"), 0);
        assert!(moves(&far, 7) && !moves(&far, 8));
        assert!(moves(&route("::/0", Some("fd00::1"), 0), 7));
        assert!(moves(&route("fd00::/64", None, 0), 7));
        for own in [route("10.1.2.0/24", None, 253), route("fe80::/64", None, 0)] {
            assert!(!moves(&own, 7), "{own}");
        }
        let elsewhere = Route {
            table: Some(255),
            ..far
        };
        assert!(!moves(&elsewhere, 7));
    }
}

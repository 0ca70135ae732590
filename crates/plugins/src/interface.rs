//! Applies an IPAM result to an interface in the pod (cni-plugins §2.4).

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use cni::{
    Error,
    note::Level,
    plugin::Call,
    result::{CniResult, IpConfig, Route},
};
use ipnet::IpNet;
use linux::{
    link::{Link, OperState},
    monitor::{Settled, wait_addresses_settled},
    route::Socket,
    routes,
    sysctl::Key,
};

use crate::{
    messages::{Explain, NO_INTERFACES},
    names::LO,
};

/// Deadline of duplicate address detection.
const SETTLE: Duration = Duration::from_secs(5);

/// Planned changes of an interface.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    addresses: Vec<IpNet>,
    /// Wait for duplicate address detection. Only set with an IPv6 gateway.
    settle: bool,
    routes: Vec<Route>,
}

/// Plans the changes of `ifname` for `result`.
pub(crate) fn plan(ifname: &str, result: &CniResult) -> Result<Plan, Error> {
    if result.interfaces.is_empty() {
        return Err(Error::internal(NO_INTERFACES));
    }
    let mut addresses = Vec::new();
    let (mut gateway4, mut gateway6) = (None, None);
    for ip in &result.ips {
        let Some(index) = ip.interface else { continue };
        if result
            .interfaces
            .get(index)
            .is_none_or(|interface| interface.name != ifname)
        {
            return Err(Error::internal(format!(
                "failed to add IP addr {} to \"{ifname}\": invalid interface index",
                describe(ip)
            )));
        }
        match ip.address {
            IpNet::V4(_) => gateway4 = gateway4.or(ip.gateway),
            IpNet::V6(_) => gateway6 = gateway6.or(ip.gateway),
        }
        addresses.push(ip.address);
    }
    let mut routes: Vec<Route> = Vec::new();
    let mut known = HashSet::new();
    for route in &result.routes {
        let first = if matches!(route.dst, IpNet::V4(_)) {
            gateway4
        } else {
            gateway6
        };
        let route = Route {
            gw: route.gw.or(first),
            ..route.clone()
        };
        // The kernel rejects a duplicate route.
        if known.insert(route.clone()) {
            routes.push(route);
        }
    }
    Ok(Plan {
        addresses,
        settle: gateway6.is_some(),
        routes,
    })
}

/// Applies a plan to `link`. Call it inside the namespace of `socket`.
pub(crate) fn apply(call: &Call, socket: &mut Socket, link: &Link, plan: &Plan) -> Result<(), Error> {
    let ifname = link.name.as_str();
    let mut ipv6_ready = false;
    for address in &plan.addresses {
        if matches!(address, IpNet::V6(_)) && !ipv6_ready {
            enable_ipv6(call, ifname)?;
            ipv6_ready = true;
        }
        socket
            .add_address(link, *address)
            .explain(|| format!("failed to add IP addr {address} to \"{ifname}\""))?;
    }
    socket
        .set_up(link)
        .explain(|| format!("failed to set \"{ifname}\" UP"))?;
    if plan.settle {
        settle(socket, link)
            .map_err(|error| error.wrapped(&format!("failed to settle addresses for \"{ifname}\"")))?;
    }
    for route in &plan.routes {
        socket
            .add_route(&kernel_route(route, link.index))
            .explain(|| describe_route(route, ifname))?;
    }
    Ok(())
}

/// Enables IPv6 on the interface, and keeps its addresses when the link goes down.
fn enable_ipv6(call: &Call, ifname: &str) -> Result<(), Error> {
    for name in [LO, ifname] {
        let key = Key::ipv6(name, "disable_ipv6").map_err(cni::error::internal)?;
        match key.read() {
            Ok(value) if value == "0" => {}
            Ok(_) => {
                key.write("0")
                    .explain(|| format!("failed to enable IPv6 for interface \"{name}\""))?;
            }
            Err(error) => call.note(Level::Warn, error),
        }
    }
    Key::ipv6(ifname, "keep_addr_on_down")
        .and_then(|key| key.write("1"))
        .explain(|| format!("failed to enable keep_addr_on_down for interface \"{ifname}\""))
}

fn settle(socket: &mut Socket, link: &Link) -> Result<(), Error> {
    let ifname = &link.name;
    let deadline = Instant::now() + SETTLE;
    match wait_addresses_settled(socket, link, deadline).map_err(cni::error::internal)? {
        Settled::Usable => Ok(()),
        Settled::Duplicate(ip) => Err(Error::internal(format!(
            "link {ifname} has address {ip} in DADFAILED state"
        ))),
        // A link without carrier cannot complete the detection. Not an error of ADD.
        Settled::Tentative => {
            let state = socket
                .link_by_index(link.index)
                .map_err(cni::error::internal)?
                .operstate;
            if state == OperState::Up {
                let seconds = SETTLE.as_secs();
                return Err(Error::internal(format!(
                    "link {ifname} still has tentative addresses after {seconds} seconds"
                )));
            }
            Ok(())
        }
    }
}

/// Converts a route of a result to a kernel route via interface `link`.
pub(crate) fn kernel_route(route: &Route, link: u32) -> routes::Route {
    let given = |number: u32| Some(number).filter(|number| *number != 0);
    routes::Route {
        gateway: route.gw,
        link: Some(link),
        priority: given(route.priority),
        table: route.table,
        scope: route.scope,
        mtu: given(route.mtu),
        advmss: given(route.advmss),
        ..routes::Route::to(route.dst)
    }
}

fn describe(ip: &IpConfig) -> String {
    match ip.gateway {
        Some(gateway) => format!("{} (gateway {gateway})", ip.address),
        None => ip.address.to_string(),
    }
}

fn describe_route(route: &Route, ifname: &str) -> String {
    let gateway = route.gw.map(|gw| gw.to_string()).unwrap_or_default();
    let table = route.table.unwrap_or(routes::MAIN_TABLE);
    let scope = match route.scope.unwrap_or_default() {
        0 => "global".to_owned(),
        200 => "site".to_owned(),
        253 => "link".to_owned(),
        254 => "host".to_owned(),
        255 => "nowhere".to_owned(),
        other => other.to_string(),
    };
    format!(
        "failed to add route '{} via {gateway} dev {ifname} metric {} (Scope: {scope}, Table: {table})'",
        route.dst, route.priority
    )
}

#[cfg(test)]
mod tests {
    use cni::result::Interface;

    use super::*;

    fn result(ips: &[(&str, Option<&str>, Option<usize>)], routes: &[(&str, Option<&str>)]) -> CniResult {
        let named = |name: &str| Interface {
            name: name.into(),
            ..Interface::default()
        };
        let parse = |ip: &str| ip.parse().unwrap();
        CniResult {
            interfaces: vec![named("br0"), named("veth0"), named("net1")],
            ips: ips
                .iter()
                .map(|(address, gateway, interface)| IpConfig {
                    address: address.parse().unwrap(),
                    gateway: gateway.map(parse),
                    interface: *interface,
                })
                .collect(),
            routes: routes
                .iter()
                .map(|(dst, gw)| Route::new(dst.parse().unwrap(), gw.map(parse)))
                .collect(),
            ..CniResult::default()
        }
    }

    #[test]
    fn a_result_without_interfaces_configures_nothing() {
        let error = plan("net1", &CniResult::default()).unwrap_err();
        assert_eq!(
            (error.code, error.msg.as_str()),
            (999, "no interfaces to configure")
        );
    }

    #[test]
    fn addresses_of_other_interfaces_are_refused_and_of_none_are_skipped() {
        for index in [0, 3] {
            let error = plan("net1", &result(&[("10.1.2.2/24", None, Some(index))], &[])).unwrap_err();
            assert_eq!(
                error.msg,
                "failed to add IP addr 10.1.2.2/24 to \"net1\": invalid interface index"
            );
        }
        let skipped = plan("net1", &result(&[("10.1.2.2/24", None, None)], &[])).unwrap();
        assert_eq!(skipped.addresses, []);
    }

    #[test]
    fn routes_take_the_first_gateway_of_their_family() {
        // cni-plugins#89
        let result = result(
            &[
                ("10.1.2.2/24", None, Some(2)),
                ("10.1.3.2/24", Some("10.1.3.1"), Some(2)),
                ("fd00::2/64", None, Some(2)),
                ("fd01::2/64", Some("fd01::1"), Some(2)),
            ],
            &[
                ("0.0.0.0/0", None),
                ("::/0", None),
                ("10.9.0.0/16", Some("10.1.2.9")),
            ],
        );
        let plan = plan("net1", &result).unwrap();
        let gateways: Vec<_> = plan
            .routes
            .iter()
            .filter_map(|route| route.gw.map(|gw| gw.to_string()))
            .collect();
        assert_eq!(gateways, ["10.1.3.1", "fd01::1", "10.1.2.9"]);
        assert!(plan.settle);
    }

    #[test]
    fn the_same_route_twice_is_installed_once() {
        let result = result(
            &[
                ("10.1.2.2/24", Some("10.1.2.1"), Some(2)),
                ("fd00::2/64", Some("fd00::1"), Some(2)),
            ],
            &[
                ("0.0.0.0/0", None),
                ("0.0.0.0/0", Some("10.1.2.1")),
                ("0.0.0.0/0", Some("10.1.2.9")),
            ],
        );
        let plan = plan("net1", &result).unwrap();
        assert_eq!(plan.routes.len(), 2);
        assert!(plan.settle);
    }

    #[test]
    fn failed_route_is_described_in_full() {
        let mut route = Route::new("10.9.0.0/16".parse().unwrap(), Some("10.1.2.1".parse().unwrap()));
        route.priority = 7;
        route.scope = Some(253);
        assert_eq!(
            describe_route(&route, "net1"),
            "failed to add route '10.9.0.0/16 via 10.1.2.1 dev net1 metric 7 (Scope: link, Table: 254)'"
        );
    }

    #[test]
    fn many_routes_are_planned_in_little_time() {
        // cni-plugins#90
        let mut many = result(&[("10.1.2.2/24", Some("10.1.2.1"), Some(2))], &[]);
        let net = |number: u32| {
            let address = std::net::Ipv4Addr::from_bits(0x0a00_0000 + number * 256);
            ipnet::Ipv4Net::new_assert(address, 24).into()
        };
        many.routes = (0..50_000).map(|number| Route::new(net(number), None)).collect();
        let started = Instant::now();
        assert_eq!(plan("net1", &many).unwrap().routes.len(), 50_000);
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}

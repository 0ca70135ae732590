//! Decides how the bridge plugin uses the IPAM result (cni-plugins §3.2 steps 7 and 8).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni::result::{CniResult, Route};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::config::Config;

/// Completes the IPAM result with the configured gateways and default routes.
pub(super) fn complete(config: &Config, leased: &mut CniResult) {
    for ip in &mut leased.ips {
        if config.is_gateway && ip.gateway.is_none() {
            ip.gateway = Some(first_host(&ip.address));
        }
    }
    if config.is_default_gateway {
        for ip in &leased.ips {
            route_by_default(&mut leased.routes, everywhere(&ip.address), ip.gateway);
        }
    }
}

/// Adds a default route unless one with a gateway exists. Adds the gateway to an existing one, because the kernel
/// rejects a second default route as a duplicate.
fn route_by_default(routes: &mut Vec<Route>, dst: IpNet, gateway: Option<IpAddr>) {
    if routes.iter().any(|route| route.dst == dst && route.gw.is_some()) {
        return;
    }
    let plain = Route::new(dst, None);
    match routes.iter_mut().find(|route| **route == plain) {
        Some(route) => route.gw = gateway,
        None => routes.push(Route::new(dst, gateway)),
    }
}

/// The bridge's gateway addresses with the prefix lengths of the pod's addresses, IPv4 first.
pub(super) fn gateways(leased: &CniResult) -> Vec<IpNet> {
    let mut gateways: Vec<IpNet> = leased
        .ips
        .iter()
        .filter_map(|ip| IpNet::new(ip.gateway?, ip.address.prefix_len()).ok())
        .collect();
    gateways.sort_by_key(|gateway| gateway.addr().is_ipv6());
    gateways
}

/// Addresses of a bridge that conflict with `wanted`. `None` if the bridge has `wanted`.
///
/// A bridge has one IPv4 address of ours. IPv6 addresses conflict only if their subnets overlap.
pub(super) fn conflicts(present: &[IpNet], wanted: &IpNet) -> Option<Vec<IpNet>> {
    if present.contains(wanted) {
        return None;
    }
    let same_family = present
        .iter()
        .filter(|net| net.addr().is_ipv4() == wanted.addr().is_ipv4());
    let overlapping = same_family.filter(|net| match net {
        IpNet::V4(_) => true,
        IpNet::V6(_) => net.contains(&wanted.addr()) || wanted.contains(&net.addr()),
    });
    Some(overlapping.copied().collect())
}

/// The first host address of a subnet.
fn first_host(net: &IpNet) -> IpAddr {
    match net.network() {
        IpAddr::V4(network) => Ipv4Addr::from(u32::from(network).wrapping_add(1)).into(),
        IpAddr::V6(network) => Ipv6Addr::from(u128::from(network).wrapping_add(1)).into(),
    }
}

/// The default destination for the family of `net`.
fn everywhere(net: &IpNet) -> IpNet {
    match net {
        IpNet::V4(_) => Ipv4Net::default().into(),
        IpNet::V6(_) => Ipv6Net::default().into(),
    }
}

#[cfg(test)]
mod tests {
    use cni::result::IpConfig;

    use super::*;

    fn config(is_gateway: bool, is_default_gateway: bool) -> Config {
        Config {
            bridge: "br0".into(),
            is_gateway,
            is_default_gateway,
            force_address: false,
            mtu: None,
            hairpin: false,
            promiscuous: false,
            isolated: false,
            vlans: None,
            detect_duplicates: false,
            leave_down: false,
            spoof_check: false,
            masquerade: None,
            mac: None,
            dns: None,
        }
    }

    fn leased(ips: &[(&str, Option<&str>)], routes: &[(&str, Option<&str>)]) -> CniResult {
        let parse = |ip: &str| ip.parse().unwrap();
        CniResult {
            ips: ips
                .iter()
                .map(|(address, gateway)| IpConfig {
                    address: address.parse().unwrap(),
                    gateway: gateway.map(parse),
                    interface: None,
                })
                .collect(),
            routes: routes
                .iter()
                .map(|(dst, gw)| Route::new(dst.parse().unwrap(), gw.map(parse)))
                .collect(),
            ..CniResult::default()
        }
    }

    fn completed(config: &Config, mut leased: CniResult) -> CniResult {
        complete(config, &mut leased);
        leased
    }

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn shown(routes: &[Route]) -> Vec<String> {
        routes
            .iter()
            .map(|r| format!("{} via {}", r.dst, r.gw.map_or("-".into(), |gw| gw.to_string())))
            .collect()
    }

    #[test]
    fn the_gateway_is_the_first_host_unless_ipam_names_one() {
        let ips = [
            ("10.1.2.77/24", None),
            ("10.1.3.2/24", Some("10.1.3.254")),
            ("2001:db8::2/64", None),
        ];
        let with = completed(&config(true, false), leased(&ips, &[]));
        let gateways: Vec<_> = with
            .ips
            .iter()
            .map(|ip| ip.gateway.unwrap().to_string())
            .collect();
        assert_eq!(gateways, ["10.1.2.1", "10.1.3.254", "2001:db8::1"]);
        assert!(with.routes.is_empty());
        let without = completed(&config(false, false), leased(&ips, &[]));
        assert_eq!(without.ips[0].gateway, None);
    }

    #[test]
    fn default_routes_are_added_once_a_family() {
        let ips = [
            ("10.1.2.2/24", None),
            ("10.1.3.2/24", None),
            ("2001:db8::2/64", None),
        ];
        let result = completed(&config(true, true), leased(&ips, &[]));
        assert_eq!(
            shown(&result.routes),
            ["0.0.0.0/0 via 10.1.2.1", "::/0 via 2001:db8::1"]
        );
        let result = completed(
            &config(true, true),
            leased(&ips[..1], &[("0.0.0.0/0", Some("10.1.2.9"))]),
        );
        assert_eq!(shown(&result.routes), ["0.0.0.0/0 via 10.1.2.9"]);
        // An IPAM default route without gateway is that very route.
        let result = completed(&config(true, true), leased(&ips[..1], &[("0.0.0.0/0", None)]));
        assert_eq!(shown(&result.routes), ["0.0.0.0/0 via 10.1.2.1"]);
    }

    #[test]
    fn gateways_come_with_their_prefix_ipv4_first() {
        let ips = [
            ("2001:db8::2/64", Some("2001:db8::1")),
            ("10.1.2.2/24", Some("10.1.2.1")),
            ("10.9.0.2/16", None),
        ];
        assert_eq!(
            gateways(&leased(&ips, &[])),
            nets(&["10.1.2.1/24", "2001:db8::1/64"])
        );
    }

    // cni-plugins#13
    #[test]
    fn bridge_addresses_conflict_by_family() {
        let of = |present: &[&str], wanted: &str| conflicts(&nets(present), &wanted.parse().unwrap());
        assert_eq!(of(&["10.1.2.1/24"], "10.1.2.1/24"), None);
        assert_eq!(
            of(&["10.0.0.1/8", "fd00::1/64"], "10.1.2.3/16"),
            Some(nets(&["10.0.0.1/8"]))
        );
        assert_eq!(
            of(&["192.168.0.1/24"], "10.1.2.3/16"),
            Some(nets(&["192.168.0.1/24"]))
        );
        assert_eq!(of(&["fe80::1/64", "fd00::1/64"], "fd01::1/64"), Some(Vec::new()));
        assert_eq!(
            of(&["fd00::1/48", "fd01::1/64"], "fd00:0:0:1::1/64"),
            Some(nets(&["fd00::1/48"]))
        );
        assert_eq!(
            of(&["fd00:0:0:1::1/64", "fd01::1/64"], "fd00::1/48"),
            Some(nets(&["fd00:0:0:1::1/64"]))
        );
        assert_eq!(of(&[], "10.1.2.3/16"), Some(Vec::new()));
    }
}

//! Plans the tables of sources, and the moves of routes.

use std::{collections::BTreeSet, net::IpAddr};

use cni::{Error, result::IpConfig};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use linux::{
    routes::{MAIN_TABLE, Route},
    rules::Rule,
};

use super::config::Config;

/// Maximum of the addresses times the interface's routes, each of which may be copied for each address.
const MAX_COPIES: usize = 100_000;
/// Start of the search for an unused table.
const FIRST_TABLE: u32 = 100;

/// Routes and rules of the container.
#[derive(Debug, Default)]
pub(super) struct Host {
    /// The interface's index.
    pub(super) link: u32,
    pub(super) rules: Vec<Rule>,
    /// Routes of all tables and interfaces.
    pub(super) routes: Vec<Route>,
}

/// Planned changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Sources with their tables.
    pub(super) tables: Vec<(IpAddr, u32)>,
    /// Routes of these tables, in order of dependency.
    pub(super) add: Vec<Route>,
    /// Routes to delete from the main table.
    pub(super) delete: Vec<Route>,
    /// Routes of the main table to get a source.
    pub(super) hint: Vec<Route>,
}

/// Plans the changes for the interface's addresses.
pub(super) fn plan(config: &Config, ips: &[&IpConfig], host: &Host) -> Result<Plan, Error> {
    let mut plan = Plan::default();
    if let Some(table) = config.table {
        plan.tables = ips.iter().map(|ip| (ip.address.addr(), table)).collect();
        return Ok(plan);
    }
    let mut used: BTreeSet<u32> = host.rules.iter().map(|rule| rule.table).collect();
    used.extend(host.routes.iter().filter_map(|route| route.table));
    let own: Vec<Route> = host
        .routes
        .iter()
        .filter(|route| route.link == Some(host.link) && route.table == Some(MAIN_TABLE))
        .copied()
        .collect();
    if ips.len().saturating_mul(own.len()) > MAX_COPIES {
        return Err(Error::internal(format!(
            "too many routes to copy: {} addresses with {} routes, at most {MAX_COPIES} in all",
            ips.len(),
            own.len()
        )));
    }
    let mut free = (FIRST_TABLE..).filter(|table| !used.contains(table));
    for (ip, table) in ips.iter().zip(&mut free) {
        plan.tables.push((ip.address.addr(), table));
        plan.add.extend(
            routes(config, ip, host.link, &own)
                .into_iter()
                .map(|route| Route {
                    table: Some(table),
                    ..route
                }),
        );
    }
    for route in own.iter().filter(|route| !is_link_local(&route.dst)) {
        let source = ips.iter().find(|ip| ip.address.trunc() == route.dst);
        match source {
            Some(ip) if config.source_hints && route.gateway.is_none() => {
                if route.source.is_none() {
                    plan.hint.push(Route {
                        source: Some(ip.address.addr()),
                        ..*route
                    });
                }
            }
            _ => plan.delete.push(*route),
        }
    }
    Ok(plan)
}

/// The routes of an address: the interface's relevant routes, and one default route.
fn routes(config: &Config, ip: &IpConfig, link: u32, own: &[Route]) -> Vec<Route> {
    let concerns = |address: Option<IpAddr>| address.is_some_and(|address| ip.address.contains(&address));
    let is_near = |route: &Route| route.source.is_none() && route.gateway.is_none();
    let mut routes: Vec<Route> = own
        .iter()
        .filter(|route| is_ipv4(&route.dst) == is_ipv4(&ip.address))
        .filter(|route| concerns(route.source) || concerns(route.gateway) || is_near(route))
        .copied()
        .collect();
    if let Some(gateway) = fixed_gateway(config, ip) {
        routes.retain(|route| route.dst.prefix_len() != 0);
        routes.push(way_out(gateway, link));
    } else if let Some(gateway) = ip.gateway
        && !routes.iter().any(|route| route.dst.prefix_len() == 0)
    {
        routes.push(way_out(gateway, link));
    }
    // A gateway must be reachable before a route via it.
    routes.sort_by_key(|route| route.gateway.is_some());
    routes
}

fn fixed_gateway(config: &Config, ip: &IpConfig) -> Option<IpAddr> {
    let of_family = |gateway: &&IpAddr| gateway.is_ipv4() == is_ipv4(&ip.address);
    config.gateways.iter().find(of_family).copied()
}

fn way_out(gateway: IpAddr, link: u32) -> Route {
    let everywhere = match gateway {
        IpAddr::V4(_) => IpNet::V4(Ipv4Net::default()),
        IpAddr::V6(_) => IpNet::V6(Ipv6Net::default()),
    };
    Route {
        gateway: Some(gateway),
        link: Some(link),
        ..Route::to(everywhere)
    }
}

/// The first missing rule or route, as an error text for CHECK.
pub(super) fn missing(config: &Config, ips: &[&IpConfig], host: &Host, link: u32) -> Option<String> {
    for ip in ips {
        let source = ip.address.addr();
        let tables: Vec<u32> = host
            .rules
            .iter()
            .filter(|rule| rule.source == Some(IpNet::from(source)))
            .map(|rule| rule.table)
            .filter(|table| config.table.is_none_or(|wanted| wanted == *table))
            .collect();
        if tables.is_empty() {
            return Some(format!("no rule for source {source} found"));
        }
        let Some(gateway) = fixed_gateway(config, ip).or(ip.gateway) else {
            continue;
        };
        let leads_out = |route: &Route| {
            route.dst.prefix_len() == 0
                && is_ipv4(&route.dst) == is_ipv4(&ip.address)
                && route.link == Some(link)
                && route.table.is_some_and(|table| tables.contains(&table))
        };
        if config.table.is_none() && !host.routes.iter().any(leads_out) {
            return Some(format!("no default route by {gateway} for source {source} found"));
        }
    }
    None
}

fn is_ipv4(net: &IpNet) -> bool {
    matches!(net, IpNet::V4(_))
}

/// Whether a network is link-local. Neighbour discovery needs its routes for every source.
fn is_link_local(net: &IpNet) -> bool {
    matches!(net, IpNet::V6(net) if net.addr().is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: u32 = 5;

    fn ip(address: &str, gateway: Option<&str>) -> IpConfig {
        IpConfig {
            address: address.parse().unwrap(),
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
            interface: None,
        }
    }

    /// A route of the interface in the main table.
    fn route(dst: &str, gateway: Option<&str>, source: Option<&str>) -> Route {
        Route {
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
            source: source.map(|source| source.parse().unwrap()),
            link: Some(LINK),
            table: Some(MAIN_TABLE),
            ..Route::to(dst.parse().unwrap())
        }
    }

    fn host(routes: Vec<Route>) -> Host {
        Host {
            link: LINK,
            rules: vec![Rule::from_address("192.0.2.1".parse().unwrap(), 100)],
            routes,
        }
    }

    fn shown(routes: &[Route]) -> Vec<String> {
        routes
            .iter()
            .map(|route| format!("{route} table {}", route.table.unwrap()))
            .collect()
    }

    // cni-plugins#52
    #[test]
    fn each_address_has_the_next_free_table() {
        let mut there = vec![
            route("10.1.2.0/24", None, Some("10.1.2.3")),
            route("0.0.0.0/0", Some("10.1.2.1"), None),
            route("10.9.0.0/16", Some("10.1.2.254"), None),
            route("10.7.0.0/24", None, Some("10.7.0.2")),
            route("fe80::/64", None, None),
        ];
        let foreign = Route {
            link: Some(9),
            table: Some(102),
            ..route("10.0.0.0/8", None, None)
        };
        there.push(foreign);
        let (first, second) = (
            ip("10.1.2.3/24", Some("10.1.2.1")),
            ip("10.7.0.2/24", Some("10.7.0.1")),
        );
        let plan = plan(&Config::default(), &[&first, &second], &host(there)).unwrap();
        let tables: Vec<_> = plan
            .tables
            .iter()
            .map(|(ip, table)| format!("{ip} {table}"))
            .collect();
        assert_eq!(tables, ["10.1.2.3 101", "10.7.0.2 103"]);
        assert_eq!(
            shown(&plan.add),
            [
                "10.1.2.0/24 table 101",
                "0.0.0.0/0 via 10.1.2.1 table 101",
                "10.9.0.0/16 via 10.1.2.254 table 101",
                "10.7.0.0/24 table 103",
                "0.0.0.0/0 via 10.7.0.1 table 103",
            ]
        );
        assert_eq!(
            shown(&plan.delete),
            [
                "10.1.2.0/24 table 254",
                "0.0.0.0/0 via 10.1.2.1 table 254",
                "10.9.0.0/16 via 10.1.2.254 table 254",
                "10.7.0.0/24 table 254",
            ]
        );
        assert!(plan.hint.is_empty());
    }

    // cni-plugins#52
    #[test]
    fn configured_gateway_wins_and_hints_keep_subnets() {
        let there = vec![
            route("10.1.2.0/24", None, None),
            route("0.0.0.0/0", Some("10.1.2.1"), None),
            route("fd00::/64", None, None),
        ];
        let config = Config {
            gateways: vec!["10.1.2.9".parse().unwrap()],
            source_hints: true,
            ..Config::default()
        };
        let (v4, v6) = (
            ip("10.1.2.3/24", Some("10.1.2.1")),
            ip("fd00::3/64", Some("fd00::1")),
        );
        let plan = plan(&config, &[&v4, &v6], &host(there)).unwrap();
        assert_eq!(
            shown(&plan.add),
            [
                "10.1.2.0/24 table 101",
                "0.0.0.0/0 via 10.1.2.9 table 101",
                "fd00::/64 table 102",
                "::/0 via fd00::1 table 102",
            ]
        );
        assert_eq!(shown(&plan.delete), ["0.0.0.0/0 via 10.1.2.1 table 254"]);
        let sources: Vec<_> = plan
            .hint
            .iter()
            .map(|route| route.source.unwrap().to_string())
            .collect();
        assert_eq!(sources, ["10.1.2.3", "fd00::3"]);
    }

    // cni-plugins#52
    #[test]
    fn configured_table_gets_only_rules() {
        let config = Config {
            table: Some(7),
            ..Config::default()
        };
        let address = ip("10.1.2.3/24", Some("10.1.2.1"));
        let there = host(vec![route("10.1.2.0/24", None, None)]);
        let expected = Plan {
            tables: vec![("10.1.2.3".parse().unwrap(), 7)],
            ..Plan::default()
        };
        assert_eq!(plan(&config, &[&address], &there), Ok(expected));
    }

    // cni-plugins#87
    #[test]
    fn addresses_times_routes_are_limited() {
        let plan_of = |addresses: usize, routes: usize| {
            let address = ip("10.1.2.3/16", None);
            let there = vec![route("10.9.0.0/16", Some("10.1.2.1"), None); routes];
            plan(&Config::default(), &vec![&address; addresses], &host(there)).map(|plan| plan.add.len())
        };
        assert_eq!(plan_of(10, 100), Ok(1_000));
        assert_eq!(
            plan_of(1_000, 1_000).unwrap_err().msg,
            "too many routes to copy: 1000 addresses with 1000 routes, at most 100000 in all"
        );
    }

    #[test]
    fn check_reports_missing_rules() {
        let address = ip("10.1.2.3/24", Some("10.1.2.1"));
        let find = |host: &Host| missing(&Config::default(), &[&address], host, LINK);
        let mut there = host(Vec::new());
        assert_eq!(find(&there).unwrap(), "no rule for source 10.1.2.3 found");
        there.rules.push(Rule::from_address(address.address.addr(), 101));
        let text = "no default route by 10.1.2.1 for source 10.1.2.3 found";
        assert_eq!(find(&there).unwrap(), text);
        there.routes.push(Route {
            table: Some(101),
            ..route("0.0.0.0/0", Some("10.1.2.1"), None)
        });
        assert_eq!(find(&there), None);
        let elsewhere = Config {
            table: Some(7),
            ..Config::default()
        };
        let text = missing(&elsewhere, &[&address], &there, LINK);
        assert_eq!(text.unwrap(), "no rule for source 10.1.2.3 found");
    }
}

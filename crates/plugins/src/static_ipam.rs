//! `static`: an IPAM plugin that assigns configured addresses (cni-plugins §7).
//!
//! ```text
//! config addresses ─┬─ + CNI_ARGS IP, GATEWAY ──┐
//! args.cni.ips ─────┴─ replaces both ───────────┼─> addresses, routes, dns
//! runtimeConfig.ips ── replaces all ────────────┘
//! ```

use std::net::IpAddr;

use cni::{
    Error, Version,
    args::CniArgs,
    net::parse_cidr,
    plugin::{Call, Plugin},
    result::{CniResult, Dns, IpConfig, Route},
};
use ipnet::IpNet;
use serde::Deserialize;

use crate::{
    config::{WireArgs, WireIps},
    messages::{NO_IPAM, NO_PREV_RESULT},
    names::{STATIC, arg},
};

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub struct StaticIpam;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    ipam: Option<WireIpam>,
    runtime_config: WireIps,
    args: WireArgs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireIpam {
    addresses: Vec<WireAddress>,
    routes: Vec<Route>,
    dns: Dns,
}

impl WireIpam {
    /// The addresses in the config.
    fn listed(&self) -> Result<Vec<IpConfig>, Error> {
        let read = |WireAddress { address, gateway }: &WireAddress| {
            let net = parse_cidr(address).ok_or_else(|| {
                Error::internal(format!(
                    "the 'address' field is expected to be in CIDR notation, got: '{address}'"
                ))
            })?;
            Ok(assigned(net, next_hop(gateway)?))
        };
        self.addresses.iter().map(read).collect()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireAddress {
    address: String,
    gateway: String,
}

/// The keys of `ipam`.
pub(crate) fn ipam_keys() -> &'static [&'static str] {
    cni::json::fields_of::<WireIpam>()
}

/// Validates the config of an ADD.
pub(crate) fn validate(call: &Call) -> Result<(), Error> {
    read(call).map(drop)
}

/// The addresses, routes and DNS settings to assign.
#[derive(Debug, PartialEq, Eq)]
struct Assignment {
    addresses: Vec<IpConfig>,
    routes: Vec<Route>,
    dns: Dns,
}

fn read(call: &Call) -> Result<Assignment, Error> {
    let wire: Wire = call.config.read().map_err(cni::error::internal)?;
    assignment(wire, &call.args()?, call.version)
}

fn assignment(wire: Wire, args: &CniArgs, version: Version) -> Result<Assignment, Error> {
    args.require_known(&[arg::IP, arg::GATEWAY])?;
    let requested = from_arguments(args)?;
    let mut replaced = None;
    for ips in [&wire.args.cni.ips, &wire.runtime_config.ips] {
        if !ips.is_empty() {
            let entries = ips.iter().map(|ip| {
                parse_cidr(ip).ok_or_else(|| {
                    Error::internal(format!(
                        "an entry in the 'ips' field is NOT in CIDR notation, got: '{ip}'"
                    ))
                })
            });
            replaced = Some(
                entries
                    .map(|net| net.map(|net| assigned(net, None)))
                    .collect::<Result<Vec<_>, _>>()?,
            );
        }
    }
    let ipam = wire.ipam.ok_or_else(|| Error::internal(NO_IPAM))?;
    let addresses: Vec<IpConfig> = match replaced {
        Some(addresses) => addresses,
        None => ipam.listed()?.into_iter().chain(requested).collect(),
    };
    if version < Version::V0_3_0 {
        let count = |v4: bool| {
            addresses
                .iter()
                .filter(|ip| ip.address.addr().is_ipv4() == v4)
                .count()
        };
        if count(true) > 1 || count(false) > 1 {
            return Err(Error::internal(format!(
                "CNI version {version} does not support more than 1 address per family"
            )));
        }
    }
    Ok(Assignment {
        addresses,
        routes: ipam.routes,
        dns: ipam.dns,
    })
}

/// Addresses from `IP` and `GATEWAY` in `CNI_ARGS`. Each gateway applies to the addresses whose subnet contains it.
fn from_arguments(args: &CniArgs) -> Result<Vec<IpConfig>, Error> {
    let items = |key| {
        let value = args.get(key).filter(|value: &&str| !value.is_empty());
        value
            .into_iter()
            .flat_map(|value| value.split(','))
            .map(str::trim)
    };
    let mut addresses = Vec::new();
    for ip in items(arg::IP) {
        let net = parse_cidr(ip).ok_or_else(|| {
            Error::internal(format!(
                "the 'ip' field is expected to be in CIDR notation, got: '{ip}'"
            ))
        })?;
        addresses.push(assigned(net, None));
    }
    for gateway in items(arg::GATEWAY) {
        let ip: IpAddr = gateway
            .parse()
            .map_err(|_| Error::internal(format!("invalid gateway address: {gateway}")))?;
        for address in &mut addresses {
            if address.address.contains(&ip) {
                address.gateway = Some(ip);
            }
        }
    }
    Ok(addresses)
}

fn assigned(address: IpNet, gateway: Option<IpAddr>) -> IpConfig {
    IpConfig {
        address,
        gateway,
        interface: None,
    }
}

/// Parses a gateway. Empty means none.
fn next_hop(text: &str) -> Result<Option<IpAddr>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|_| Error::internal(format!("invalid IP address: {text}")))
}

/// Checks that the assigned addresses match the config.
fn verify(assignment: &Assignment, previous: &CniResult, ifname: &str) -> Result<(), Error> {
    for wanted in &assignment.addresses {
        for found in previous
            .ips
            .iter()
            .filter(|ip| ip.address.addr() == wanted.address.addr())
        {
            if wanted.gateway.is_some() && wanted.gateway != found.gateway {
                return Err(Error::internal(format!(
                    "static: Failed to match addr {} on interface {ifname}",
                    found.address.addr()
                )));
            }
        }
    }
    Ok(())
}

impl Plugin for StaticIpam {
    fn name(&self) -> &'static str {
        STATIC
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let Assignment {
            addresses,
            routes,
            dns,
        } = read(call)?;
        Ok(CniResult {
            ips: addresses,
            routes,
            dns,
            interfaces: Vec::new(),
        })
    }

    fn del(&self, _call: &Call) -> Result<(), Error> {
        // No state to release, so the config is not read.
        Ok(())
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        let previous = call
            .config
            .prev_result()?
            .ok_or_else(|| Error::internal(NO_PREV_RESULT))?;
        verify(&read(call)?, &previous, &call.request.ifname)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        // No state: ADD needs only a valid config.
        read(call).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assign(config: &str, args: &str, version: Version) -> Result<Assignment, Error> {
        assignment(
            cni::json::from_str(config).unwrap(),
            &CniArgs::parse(args).unwrap(),
            version,
        )
    }

    fn addresses(config: &str, args: &str) -> Vec<String> {
        let found = assign(config, args, Version::V1_0_0).unwrap();
        let show = |ip: &IpConfig| match ip.gateway {
            Some(gateway) => format!("{} via {gateway}", ip.address),
            None => ip.address.to_string(),
        };
        found.addresses.iter().map(show).collect()
    }

    fn message(config: &str, args: &str, version: Version) -> String {
        let error = assign(config, args, version).unwrap_err();
        assert_eq!(error.code, 999);
        error.msg
    }

    // cni-plugins#44
    #[test]
    fn address_sources_combine_or_override() {
        let plain = r#""ipam":{"addresses":[{"address":"10.1.2.3/24","gateway":"10.1.2.1"},{"address":"fd00::3/64"}]}"#;
        let config = format!("{{{plain}}}");
        assert_eq!(addresses(&config, ""), ["10.1.2.3/24 via 10.1.2.1", "fd00::3/64"]);
        // The environment's addresses come on top; its gateways leave those of the config alone.
        assert_eq!(
            addresses(&config, "IP=10.1.2.9/24, 10.5.0.9/16;GATEWAY=10.1.2.254,10.5.0.1"),
            [
                "10.1.2.3/24 via 10.1.2.1",
                "fd00::3/64",
                "10.1.2.9/24 via 10.1.2.254",
                "10.5.0.9/16 via 10.5.0.1"
            ]
        );
        let args = format!(r#"{{{plain},"args":{{"cni":{{"ips":["10.7.0.7/16"]}}}}}}"#);
        assert_eq!(addresses(&args, "IP=10.1.2.9/24"), ["10.7.0.7/16"]);
        let both = format!(
            r#"{{{plain},"args":{{"cni":{{"ips":["10.7.0.7/16"]}}}},"RuntimeConfig":{{"IPs":["10.8.0.8/16"]}}}}"#
        );
        assert_eq!(addresses(&both, "IP=10.1.2.9/24"), ["10.8.0.8/16"]);
    }

    // cni-plugins#44
    #[test]
    fn invalid_addresses_are_reported_with_their_source() {
        let v1 = Version::V1_0_0;
        assert_eq!(
            message(r#"{"ipam":{"addresses":[{"address":"10.1.2.3"}]}}"#, "", v1),
            "the 'address' field is expected to be in CIDR notation, got: '10.1.2.3'"
        );
        assert_eq!(
            message(r#"{"ipam":{"addresses":[{"address":"10.01.2.3/24"}]}}"#, "", v1),
            "the 'address' field is expected to be in CIDR notation, got: '10.01.2.3/24'"
        );
        assert_eq!(
            message(r#"{"ipam":{}}"#, "IP=10.1.2.3", v1),
            "the 'ip' field is expected to be in CIDR notation, got: '10.1.2.3'"
        );
        for source in [
            "args\":{\"cni\":{\"ips\":[\"x\"]}}",
            "runtimeConfig\":{\"ips\":[\"x\"]}",
        ] {
            assert_eq!(
                message(&format!("{{\"ipam\":{{}},\"{source}}}"), "", v1),
                "an entry in the 'ips' field is NOT in CIDR notation, got: 'x'"
            );
        }
        assert_eq!(
            message(r#"{"ipam":{}}"#, "IP=10.1.2.3/24;GATEWAY=nowhere", v1),
            "invalid gateway address: nowhere"
        );
        assert_eq!(message("{}", "", v1), "IPAM config missing 'ipam' key");
    }

    #[test]
    fn old_versions_take_one_address_of_a_family() {
        let two = r#"{"ipam":{"addresses":[{"address":"10.1.2.3/24"},{"address":"10.1.2.4/24"}]}}"#;
        assert_eq!(
            message(two, "", Version::V0_2_0),
            "CNI version 0.2.0 does not support more than 1 address per family"
        );
        let mixed = r#"{"ipam":{"addresses":[{"address":"10.1.2.3/24"},{"address":"fd00::4/64"}]}}"#;
        assign(mixed, "", Version::V0_2_0).unwrap();
    }

    #[test]
    fn check_finds_an_address_with_another_gateway() {
        let config = r#"{"ipam":{"addresses":[{"address":"10.1.2.3/24","gateway":"10.1.2.1"}]}}"#;
        let wanted = assign(config, "", Version::V1_0_0).unwrap();
        let previous = |gateway: Option<&str>| CniResult {
            ips: vec![assigned(
                "10.1.2.3/24".parse().unwrap(),
                gateway.map(|gw| gw.parse().unwrap()),
            )],
            ..CniResult::default()
        };
        verify(&wanted, &previous(Some("10.1.2.1")), "net1").unwrap();
        let error = verify(&wanted, &previous(Some("10.1.2.9")), "net1").unwrap_err();
        assert_eq!(
            error.msg,
            "static: Failed to match addr 10.1.2.3 on interface net1"
        );
        verify(&wanted, &CniResult::default(), "net1").unwrap();
    }
}

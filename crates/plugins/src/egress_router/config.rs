//! The config of an egress router, as the cluster network operator renders it.

use std::net::IpAddr;

use cni::{Error, plugin::Call, result::Dns};
use ipnet::IpNet;
use linux::link::MacVlanMode;
use serde::Deserialize;

use crate::{attach::mode, config::read_config, names::MACVLAN};

/// The keys of a config. The plugin has no log file of its own.
pub(super) const KEYS: &[&str] = &[
    "interfaceType",
    "interfaceArgs",
    "ip",
    "dns",
    "log_file",
    "log_level",
];

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    interface_type: String,
    interface_args: WireInterface,
    ip: WireIp,
    dns: Dns,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireInterface {
    master: String,
    mode: String,
    mtu: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireIp {
    addresses: Vec<String>,
    gateway: String,
    destinations: Vec<String>,
    #[serde(rename = "fallbackIP")]
    fallback: String,
}

/// A valid config.
pub(super) struct Config {
    pub(super) master: String,
    pub(super) mode: MacVlanMode,
    /// MTU in bytes. 0: that of the parent.
    pub(super) mtu: i64,
    pub(super) dns: Dns,
    pub(super) router: Router,
}

/// The redirection. All addresses are of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Router {
    pub(super) address: IpNet,
    pub(super) gateway: IpAddr,
    pub(super) forwards: Vec<Forward>,
    /// Destination of connections to all other ports.
    pub(super) fallback: Option<IpAddr>,
}

/// A port of the pod, and its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Forward {
    pub(super) protocol: u8,
    pub(super) port: u16,
    pub(super) address: IpAddr,
    pub(super) destination_port: u16,
}

impl Router {
    /// All external systems.
    pub(super) fn destinations(&self) -> impl Iterator<Item = IpAddr> {
        let forwards = self.forwards.iter().map(|forward| forward.address);
        forwards.chain(self.fallback)
    }
}

pub(super) fn read(call: &Call) -> Result<Config, Error> {
    let wire: Wire = read_config(call)?;
    if !["", MACVLAN].contains(&wire.interface_type.as_str()) {
        return Err(Error::internal(format!(
            "unknown interfaceType \"{}\": only macvlan is supported",
            wire.interface_type
        )));
    }
    let WireInterface {
        master,
        mode: named,
        mtu,
    } = wire.interface_args;
    let invalid = |_| Error::internal(format!("failed to convert MTU to integer: \"{mtu}\""));
    Ok(Config {
        mode: mode(MACVLAN, &named, MacVlanMode::Bridge)?,
        mtu: if mtu.is_empty() {
            0
        } else {
            mtu.parse().map_err(invalid)?
        },
        master,
        dns: wire.dns,
        router: router(&wire.ip)?,
    })
}

fn router(wire: &WireIp) -> Result<Router, Error> {
    let first = wire.addresses.first().map(String::as_str).unwrap_or_default();
    let address: IpNet = first
        .parse()
        .map_err(|_| Error::internal(format!("unable to parse IP address \"{first}\"")))?;
    let of_family = |what: &str, text: &str| {
        let parsed = text.parse::<IpAddr>().ok();
        let same = parsed.filter(|it| it.is_ipv4() == address.addr().is_ipv4());
        same.ok_or_else(|| {
            Error::internal(format!(
                "{what} \"{text}\" is not an IP address of the family of {address}"
            ))
        })
    };
    let mut router = Router {
        address,
        gateway: of_family("gateway", &wire.gateway)?,
        forwards: Vec::new(),
        fallback: None,
    };
    for text in &wire.destinations {
        let what = "destination";
        match text.split(' ').collect::<Vec<_>>()[..] {
            [only] => router.fallback = router.fallback.or(Some(of_family(what, only)?)),
            [port, protocol, to] | [port, protocol, to, _] => {
                let port = number(text, port)?;
                let destination_port = match text.split(' ').nth(3) {
                    Some(other) => number(text, other)?,
                    None => port,
                };
                router.forwards.push(Forward {
                    protocol: transport(text, protocol)?,
                    port,
                    address: of_family(what, to)?,
                    destination_port,
                });
            }
            _ => return Err(invalid(text, "expected \"port protocol address [port]\"")),
        }
    }
    if !wire.fallback.is_empty() {
        let fallback = of_family("fallbackIP", &wire.fallback)?;
        router.fallback = router.fallback.or(Some(fallback));
    }
    Ok(router)
}

fn invalid(destination: &str, cause: &str) -> Error {
    Error::internal(format!("invalid destination \"{destination}\": {cause}"))
}

fn number(destination: &str, text: &str) -> Result<u16, Error> {
    let number = text.parse().ok().filter(|number| *number != 0);
    number.ok_or_else(|| invalid(destination, &format!("port {text} is not between 1 and 65535")))
}

fn transport(destination: &str, name: &str) -> Result<u8, Error> {
    match name.to_ascii_lowercase().as_str() {
        "tcp" => Ok(6),
        "udp" => Ok(17),
        "sctp" => Ok(132),
        _ => Err(invalid(
            destination,
            &format!("protocol {name} is not TCP, UDP or SCTP"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(wire: &str) -> Result<Router, String> {
        let wire: WireIp = serde_json::from_str(wire).unwrap();
        router(&wire).map_err(|error| error.msg)
    }

    // cluster-network#117
    #[test]
    fn destinations_are_those_of_the_operator() {
        let found = of(
            r#"{"addresses":["192.168.3.10/24"],"gateway":"192.168.3.1","fallbackIP":"203.0.113.9",
            "destinations":["80 UDP 10.100.3.0","8080 tcp 203.0.113.26 80"]}"#,
        )
        .unwrap();
        let forward = |protocol, port, address: &str, destination_port| Forward {
            protocol,
            port,
            address: address.parse().unwrap(),
            destination_port,
        };
        let expected = Router {
            address: "192.168.3.10/24".parse().unwrap(),
            gateway: "192.168.3.1".parse().unwrap(),
            forwards: vec![
                forward(17, 80, "10.100.3.0", 80),
                forward(6, 8080, "203.0.113.26", 80),
            ],
            fallback: Some("203.0.113.9".parse().unwrap()),
        };
        assert_eq!(found, expected);
        let found = of(
            r#"{"addresses":["2001:db8::10/64"],"gateway":"2001:db8::1","destinations":["2001:db8:1::1"]}"#,
        );
        assert_eq!(found.unwrap().fallback, Some("2001:db8:1::1".parse().unwrap()));
    }

    // cluster-network#117
    #[test]
    fn error_names_the_value() {
        for (change, text) in [
            (r#""addresses":[]"#, "unable to parse IP address \"\""),
            (
                r#""gateway":"2001:db8::1""#,
                "gateway \"2001:db8::1\" is not an IP address of the family of 192.0.2.2/24",
            ),
            (
                r#""destinations":["0 TCP 192.0.2.9"]"#,
                "invalid destination \"0 TCP 192.0.2.9\": port 0 is not between 1 and 65535",
            ),
            (
                r#""destinations":["1 TCP 192.0.2.9 65536"]"#,
                "invalid destination \"1 TCP 192.0.2.9 65536\": port 65536 is not between 1 and 65535",
            ),
            (
                r#""destinations":["1 ICMP 192.0.2.9"]"#,
                "invalid destination \"1 ICMP 192.0.2.9\": protocol ICMP is not TCP, UDP or SCTP",
            ),
            (
                r#""destinations":["1 TCP"]"#,
                "invalid destination \"1 TCP\": expected \"port protocol address [port]\"",
            ),
            (
                r#""fallbackIP":"x""#,
                "fallbackIP \"x\" is not an IP address of the family of 192.0.2.2/24",
            ),
        ] {
            let mut wire: serde_json::Value =
                serde_json::from_str(r#"{"addresses":["192.0.2.2/24"],"gateway":"192.0.2.1"}"#).unwrap();
            let change: serde_json::Value = serde_json::from_str(&format!("{{{change}}}")).unwrap();
            for (key, value) in change.as_object().unwrap() {
                wire[key] = value.clone();
            }
            assert_eq!(of(&wire.to_string()), Err(text.to_owned()));
        }
    }
}

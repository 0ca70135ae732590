//! The config of `portmap`.

use std::net::IpAddr;

use cni::{Error, json, plugin::Call, result::CniResult};
use linux::nft::Expression;
use serde::Deserialize;

use super::{
    conditions,
    forward::{Forward, Mapping, Masquerade, Protocol},
};
use crate::{
    chained,
    hash::hashed,
    masquerade::{Backend, Choice},
    messages::{PORTMAP_MARK, PORTMAP_TWO_MARKS},
};

/// Default mark bit for masquerading.
const MARK_BIT: i64 = 13;
/// Number of digits in the hash of conditions.
const HASH_LENGTH: usize = 16;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    backend: Option<String>,
    snat: Option<bool>,
    masq_all: bool,
    mark_masq_bit: Option<i64>,
    external_set_mark_chain: Option<String>,
    conditions_v4: Vec<String>,
    conditions_v6: Vec<String>,
    runtime_config: WireRuntime,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireRuntime {
    port_mappings: Vec<WireMapping>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireMapping {
    host_port: i64,
    container_port: i64,
    protocol: String,
    #[serde(rename = "hostIP")]
    host_ip: String,
}

/// A validated config.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) choice: Choice,
    masquerade: Masquerade,
    /// iptables: the mark bit for masquerading.
    pub(super) mark_bit: u8,
    /// iptables: an external chain that marks packets.
    pub(super) external_mark_chain: Option<String>,
    conditions_v4: Conditions,
    conditions_v6: Conditions,
    mappings: Vec<Mapping>,
}

/// Conditions of one family.
#[derive(Debug, Default)]
struct Conditions {
    words: Vec<String>,
    /// Parsed nft conditions.
    steps: Vec<Expression>,
}

/// The keys of a config.
pub(super) fn keys() -> &'static [&'static str] {
    json::fields_of::<Wire>()
}

impl Config {
    /// Reads and validates the config of an ADD or CHECK.
    pub(super) fn read(call: &Call) -> Result<Self, Error> {
        call.config
            .read()
            .map_err(cni::error::internal)
            .and_then(Config::new)
            .map_err(|error| error.prefixed("failed to parse config"))
    }

    fn new(wire: Wire) -> Result<Self, Error> {
        if wire.mark_masq_bit.is_some() && wire.external_set_mark_chain.is_some() {
            return Err(Error::internal(PORTMAP_TWO_MARKS));
        }
        let mark_bit = match wire.mark_masq_bit.unwrap_or(MARK_BIT) {
            bit @ 0..=31 => u8::try_from(bit).unwrap_or_default(),
            _ => return Err(Error::internal(PORTMAP_MARK)),
        };
        let choice = choose(&wire)?;
        let masquerade = match (wire.snat.unwrap_or(true), wire.masq_all) {
            (false, _) => Masquerade::Nothing,
            (true, false) => Masquerade::Inner,
            (true, true) => Masquerade::All,
        };
        let mut mappings = Vec::new();
        for mapping in &wire.runtime_config.port_mappings {
            mappings.push(read_mapping(mapping)?);
        }
        let conditions = |words: Vec<String>, is_ipv4| -> Result<Conditions, Error> {
            let steps = match choice {
                Choice::Only(Backend::Iptables) => Vec::new(),
                _ => conditions::parse(&words, is_ipv4)?,
            };
            Ok(Conditions { words, steps })
        };
        Ok(Config {
            choice,
            masquerade,
            mark_bit,
            external_mark_chain: wire.external_set_mark_chain,
            conditions_v4: conditions(wire.conditions_v4, true)?,
            conditions_v6: conditions(wire.conditions_v6, false)?,
            mappings,
        })
    }

    fn conditions(&self, is_ipv4: bool) -> &Conditions {
        if is_ipv4 {
            &self.conditions_v4
        } else {
            &self.conditions_v6
        }
    }

    /// The conditions in iptables syntax.
    pub(super) fn words(&self, is_ipv4: bool) -> &[String] {
        &self.conditions(is_ipv4).words
    }

    /// The conditions as nftables expressions.
    pub(super) fn steps(&self, is_ipv4: bool) -> &[Expression] {
        &self.conditions(is_ipv4).steps
    }

    /// The forwards to the addresses of a result: one per family with ports.
    pub(super) fn forwards(&self, result: &CniResult, ifname: &str) -> Vec<Forward> {
        let mut forwards = Vec::new();
        for is_ipv4 in [true, false] {
            let Some(ip) =
                chained::addresses(result, ifname).find(|ip| ip.address.addr().is_ipv4() == is_ipv4)
            else {
                continue;
            };
            let of_family = |mapping: &&Mapping| {
                mapping
                    .host_ip
                    .is_none_or(|host| host.is_ipv4() == ip.address.addr().is_ipv4())
            };
            let mappings: Vec<Mapping> = self
                .mappings
                .iter()
                .filter(of_family)
                .map(|mapping| Mapping {
                    host_ip: mapping.host_ip.filter(|host| !host.is_unspecified()),
                    ..*mapping
                })
                .collect();
            let words = self.words(is_ipv4);
            if !mappings.is_empty() {
                forwards.push(Forward {
                    address: ip.address,
                    masquerade: self.masquerade,
                    conditions: if words.is_empty() {
                        String::new()
                    } else {
                        hashed(HASH_LENGTH, "", &words.join(" "))
                    },
                    mappings,
                });
            }
        }
        forwards
    }
}

/// The configured backend, else the one that the keys imply.
fn choose(wire: &Wire) -> Result<Choice, Error> {
    let mut of_iptables = Vec::new();
    let mut of_nftables = Vec::new();
    if wire.external_set_mark_chain.is_some() {
        of_iptables.push("externalSetMarkChain");
    }
    for (key, words) in [
        ("conditionsV4", &wire.conditions_v4),
        ("conditionsV6", &wire.conditions_v6),
    ] {
        match conditions::backend_of(words) {
            Some(Backend::Iptables) => of_iptables.push(key),
            Some(Backend::Nftables) => of_nftables.push(key),
            None => {}
        }
    }
    let backend = match wire.backend.as_deref() {
        None | Some("") if !of_nftables.is_empty() => Backend::Nftables,
        None | Some("") if !of_iptables.is_empty() => Backend::Iptables,
        None | Some("") => return Ok(Choice::Automatic),
        Some("nftables") => Backend::Nftables,
        Some("iptables") => Backend::Iptables,
        Some(other) => return Err(Error::internal(format!("unrecognized backend \"{other}\""))),
    };
    let (own, other, wrong) = match backend {
        Backend::Nftables => ("nftables", "iptables", of_iptables),
        Backend::Iptables => ("iptables", "nftables", of_nftables),
    };
    if wrong.is_empty() {
        return Ok(Choice::Only(backend));
    }
    Err(Error::internal(format!(
        "{own} backend was requested but configuration contains {other}-specific options [{}]",
        wrong.join(" ")
    )))
}

fn read_mapping(wire: &WireMapping) -> Result<Mapping, Error> {
    let port = |number: i64, whose: &str| {
        u16::try_from(number)
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| Error::internal(format!("Invalid {whose} port number: {number}")))
    };
    let container_port = port(wire.container_port, "container")?;
    let host_port = port(wire.host_port, "host")?;
    let protocol = Protocol::named(&wire.protocol)
        .ok_or_else(|| Error::internal(format!("unknown protocol \"{}\"", wire.protocol)))?;
    let host_ip: Option<IpAddr> = match wire.host_ip.as_str() {
        "" => None,
        text => Some(
            text.parse()
                .map_err(|_| Error::internal(format!("invalid host IP address: {text}")))?,
        ),
    };
    Ok(Mapping {
        protocol,
        host_ip,
        host_port,
        container_port,
    })
}

#[cfg(test)]
pub(super) fn from_text(text: &str) -> Config {
    Config::new(json::from_str(text).unwrap()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: &str) -> Result<Config, Error> {
        Config::new(json::from_str(config).unwrap())
    }

    // cni-plugins#49
    #[test]
    fn invalid_configs_return_upstreams_errors() {
        let ports = |ports: &str| format!(r#"{{"runtimeConfig":{{"portMappings":[{ports}]}}}}"#);
        for (config, text) in [
            (
                ports(r#"{"hostPort":80,"containerPort":0}"#),
                "Invalid container port number: 0",
            ),
            (
                ports(r#"{"hostPort":-1,"containerPort":80}"#),
                "Invalid host port number: -1",
            ),
            (
                ports(r#"{"hostPort":65536,"containerPort":80}"#),
                "Invalid host port number: 65536",
            ),
            (
                ports(r#"{"hostPort":80,"containerPort":80,"protocol":"icmp"}"#),
                "unknown protocol \"icmp\"",
            ),
            (
                ports(r#"{"hostPort":80,"containerPort":80,"hostIP":"here"}"#),
                "invalid host IP address: here",
            ),
            (
                r#"{"markMasqBit":32}"#.to_owned(),
                "MasqMarkBit must be between 0 and 31",
            ),
            (
                r#"{"markMasqBit":5,"externalSetMarkChain":"KUBE-MARK-MASQ"}"#.to_owned(),
                "Cannot specify externalSetMarkChain and markMasqBit",
            ),
            (r#"{"backend":"pf"}"#.to_owned(), "unrecognized backend \"pf\""),
            (
                r#"{"backend":"nftables","conditionsV4":["-d","10.0.0.1"],"externalSetMarkChain":"X"}"#
                    .to_owned(),
                "nftables backend was requested but configuration contains iptables-specific options \
                 [externalSetMarkChain conditionsV4]",
            ),
            (
                r#"{"backend":"iptables","conditionsV6":["ip6","daddr","fd00::1"]}"#.to_owned(),
                "iptables backend was requested but configuration contains nftables-specific options [conditionsV6]",
            ),
        ] {
            let error = read(&config).unwrap_err();
            assert_eq!((error.code, error.msg.as_str()), (999, text), "{config}");
        }
    }

    #[test]
    fn keys_of_one_backend_choose_it() {
        let choice = |config: &str| read(config).unwrap().choice;
        assert_eq!(choice("{}"), Choice::Automatic);
        let iptables = Choice::Only(Backend::Iptables);
        assert_eq!(choice(r#"{"externalSetMarkChain":"X"}"#), iptables);
        assert_eq!(choice(r#"{"conditionsV4":["!","-d","10.0.0.1"]}"#), iptables);
        let nftables = Choice::Only(Backend::Nftables);
        assert_eq!(choice(r#"{"conditionsV4":["ip","daddr","10.0.0.1"]}"#), nftables);
        assert_eq!(choice(r#"{"Backend":"nftables"}"#), nftables);
    }

    // cni-plugins#47
    #[test]
    fn each_family_has_the_ports_of_its_addresses() {
        let config = read(
            r#"{"runtimeConfig":{"portMappings":[
                {"hostPort":8080,"containerPort":80,"protocol":"TCP"},
                {"hostPort":53,"containerPort":53,"protocol":"udp","hostIP":"192.0.2.1"},
                {"hostPort":54,"containerPort":53,"protocol":"udp","hostIP":"::"}]}}"#,
        )
        .unwrap();
        let result = CniResult::parse(
            br#"{"cniVersion":"1.0.0","interfaces":[{"name":"br0"},{"name":"net1","sandbox":"/x"}],
                "ips":[{"address":"10.9.0.1/24","interface":0},{"address":"10.1.2.3/24","interface":1},
                {"address":"10.1.2.4/24","interface":1},{"address":"fd00::3/64"}]}"#,
            cni::Version::LATEST,
        )
        .unwrap();
        let forwards = config.forwards(&result, "net1");
        let shown: Vec<_> = forwards
            .iter()
            .map(|forward| {
                let ports: Vec<_> = forward
                    .mappings
                    .iter()
                    .map(|mapping| {
                        let host = mapping.host_ip.map(|host| format!("{host} ")).unwrap_or_default();
                        format!("{host}{} {}", mapping.protocol.name(), mapping.host_port)
                    })
                    .collect();
                format!("{}: {}", forward.address, ports.join(", "))
            })
            .collect();
        assert_eq!(
            shown,
            [
                "10.1.2.3/24: tcp 8080, 192.0.2.1 udp 53",
                "fd00::3/64: tcp 8080, udp 54",
            ]
        );
        let none = read("{}").unwrap();
        assert!(none.forwards(&result, "net1").is_empty());
    }
}

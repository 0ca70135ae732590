//! The config of `sbr`.

use std::net::IpAddr;

use cni::{Error, json, plugin::Call};
use serde::Deserialize;

use crate::{config::read_config, messages::SBR_GATEWAYS};

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    table: Option<u32>,
    gateways: Vec<String>,
    add_source_hints: bool,
}

/// A validated config.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Config {
    /// An existing table for all rules. Then no table is created.
    pub(super) table: Option<u32>,
    /// Gateways that replace those of the addresses, at most one per family.
    pub(super) gateways: Vec<IpAddr>,
    /// Keep subnets in the main table, with a source address.
    pub(super) source_hints: bool,
}

/// The keys of a config.
pub(super) fn keys() -> &'static [&'static str] {
    json::fields_of::<Wire>()
}

impl Config {
    /// Reads and validates the config of an ADD or CHECK.
    pub(super) fn read(call: &Call) -> Result<Self, Error> {
        Config::new(&read_config(call)?)
    }

    fn new(wire: &Wire) -> Result<Self, Error> {
        let mut gateways: Vec<IpAddr> = Vec::new();
        for text in &wire.gateways {
            let gateway = text
                .parse()
                .map_err(|_| Error::internal(format!("invalid static gateway IP address: {text}")))?;
            gateways.push(gateway);
        }
        let (v4, v6): (Vec<&IpAddr>, Vec<&IpAddr>) = gateways.iter().partition(|gateway| gateway.is_ipv4());
        if v4.len() > 1 || v6.len() > 1 {
            return Err(Error::internal(SBR_GATEWAYS));
        }
        Ok(Config {
            table: wire.table,
            gateways,
            source_hints: wire.add_source_hints,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: &str) -> Result<Config, Error> {
        Config::new(&json::from_str(config).unwrap())
    }

    // cni-plugins#52
    #[test]
    fn gateways_of_one_family_are_limited_to_one() {
        let config = read(r#"{"Gateways":["10.1.2.1","fd00::1"],"table":7,"addsourcehints":true}"#).unwrap();
        let expected = Config {
            table: Some(7),
            gateways: vec!["10.1.2.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            source_hints: true,
        };
        assert_eq!(config, expected);
        for (gateways, text) in [
            (
                r#"["10.1.2.1","fd00::1","10.1.2.2"]"#,
                "gateways list cannot contain more than 2 entries (one IPv4, one IPv6)",
            ),
            (
                r#"["10.1.2.1","10.1.2.2"]"#,
                "gateways list cannot contain more than 2 entries (one IPv4, one IPv6)",
            ),
            (r#"["here"]"#, "invalid static gateway IP address: here"),
        ] {
            let error = read(&format!(r#"{{"gateways":{gateways}}}"#)).unwrap_err();
            assert_eq!((error.code, error.msg.as_str()), (999, text));
        }
    }
}

//! The parts of a NetworkAttachmentDefinition that matter for addresses (kubevirt-ipam §4.2).

use std::fmt;

use kube_kit::watch::Name;
use serde::Deserialize;

use crate::messages;
use crate::names;
use crate::pool::{Range, WireRange};

/// A network for pods.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Network {
    /// Namespace and name of its definition.
    pub id: Name,
    /// The configuration, or its error.
    pub config: Result<Config, InvalidConfig>,
}

/// The top level of a CNI configuration, without `plugins`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Config {
    /// Name of the network.
    pub name: String,
    /// Whether addresses of virtual machines persist.
    pub allow_persistent_ips: bool,
    /// `primary`, or any other text.
    pub role: String,
    /// Subnets with their prefix lengths, separated by commas.
    pub subnets: String,
    /// The ranges for addresses that the controller allocates; empty if the network's plugin allocates them.
    pub ranges: Vec<Range>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireConfig {
    name: String,
    #[serde(rename = "allowPersistentIPs")]
    allow_persistent_ips: bool,
    role: String,
    subnets: String,
    #[serde(rename = "persistentIPRanges")]
    ranges: Vec<WireRange>,
}

/// The maximum number of ranges of a network.
const MOST_RANGES: usize = 16;

/// A configuration that can't be read; the text is the parser's.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InvalidConfig(String);

impl fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&messages::invalid_config(&self.0))
    }
}

impl std::error::Error for InvalidConfig {}

impl Config {
    /// Reads a configuration. An empty text has all defaults.
    ///
    /// # Errors
    /// If the text is no JSON object, or a key has a value of the wrong type.
    pub fn parse(text: &str) -> Result<Self, InvalidConfig> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let invalid = |text: String| InvalidConfig(messages::excerpt(text));
        let wire: WireConfig = cni::json::from_str(text).map_err(|error| invalid(error.to_string()))?;
        if wire.ranges.len() > MOST_RANGES {
            return Err(invalid(format!(
                "persistentIPRanges: more than {MOST_RANGES} ranges"
            )));
        }
        let range = |(index, range): (usize, &WireRange)| {
            Range::read(range).map_err(|error| invalid(format!("persistentIPRanges[{index}]: {error}")))
        };
        let ranges = wire.ranges.iter().enumerate().map(range);
        Ok(Self {
            ranges: ranges.collect::<Result<_, _>>()?,
            name: wire.name,
            allow_persistent_ips: wire.allow_persistent_ips,
            role: wire.role,
            subnets: wire.subnets,
        })
    }

    /// Whether it is the primary network of its namespace.
    pub fn is_primary(&self) -> bool {
        self.role == names::PRIMARY
    }
}

impl Network {
    /// A network with this configuration, which may be unreadable.
    pub fn read(id: Name, config: &str) -> Self {
        let config = Config::parse(config);
        Self { id, config }
    }

    /// Whether it is the primary network of its namespace. A network with an unreadable configuration is not (§6.4).
    pub fn is_primary(&self) -> bool {
        self.config.as_ref().is_ok_and(Config::is_primary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_level_alone_is_read() {
        let text = r#"{"name": "goodnet", "allowPersistentIPs": true, "Role": "primary", "subnets": "10.0.0.0/8",
            "plugins": [{"allowPersistentIPs": false, "role": "secondary"}], "other": {"x": [1]}}"#;
        let expected = Config {
            name: "goodnet".to_owned(),
            allow_persistent_ips: true,
            role: "primary".to_owned(),
            subnets: "10.0.0.0/8".to_owned(),
            ranges: Vec::new(),
        };
        assert_eq!(Config::parse(text), Ok(expected));
        let nested = r#"{"plugins": [{"name": "x", "allowPersistentIPs": true}]}"#;
        assert_eq!(Config::parse(nested), Ok(Config::default()));
    }

    #[test]
    fn empty_configuration_is_not_opted_in() {
        // kubevirt-ipam#28
        assert_eq!(Config::parse(""), Ok(Config::default()));
        assert!(!Config::default().allow_persistent_ips);
    }

    #[test]
    fn malformed_configuration_names_the_error() {
        for text in [
            "this is not JSON !!!",
            "[]",
            r#"{"allowPersistentIPs": "yes"}"#,
            r#"{"name": 1}"#,
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(
                error.starts_with("failed to extract CNI configuration from NAD: ") && error.len() > 50,
                "{error}"
            );
        }
        let error = Config::parse(r#"{"persistentIPRanges": [{"subnet": "10.0.0.0/24"}, {"subnet": "x"}]}"#);
        assert_eq!(
            error.unwrap_err().to_string(),
            "failed to extract CNI configuration from NAD: persistentIPRanges[1]: subnet \"x\" is not an address with a \
             prefix length"
        );
        let error = Config::parse(r#"{"allowPersistentIPs": "yes"}"#).unwrap_err();
        assert!(error.to_string().contains("allowPersistentIPs"), "{error}");
    }

    #[test]
    fn role_is_case_sensitive() {
        let network = |config: &str| Network::read(Name::new("ns", "n"), config);
        assert!(network(r#"{"role": "primary"}"#).is_primary());
        assert!(!network(r#"{"role": "Primary"}"#).is_primary());
        assert!(!network("{not json").is_primary());
    }
}

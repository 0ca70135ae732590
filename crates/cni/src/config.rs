//! Network configs: single plugins, and lists of plugins.

mod list;

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::error::Error;
use crate::json::{self, Object};
use crate::names::key;
use crate::result::{CniResult, Dns};
use crate::version::Version;

pub use list::{LoadError, NetworkList, files_with_extension, find_by_name};

/// The config of one plugin: its verbatim text, and the parsed keys that all plugins share.
#[derive(Debug, Clone, Default)]
pub struct NetworkConfig {
    /// The config, lossless: keeps unknown keys and large numbers.
    pub object: Object,
    common: Common,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Common {
    #[serde(rename = "cniVersion")]
    cni_version: String,
    name: String,
    #[serde(rename = "type")]
    plugin: String,
    capabilities: BTreeMap<String, bool>,
    ipam: Ipam,
    dns: Dns,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Ipam {
    #[serde(rename = "type")]
    plugin: String,
}

impl NetworkConfig {
    /// Parses a config. Keys match as in Go.
    pub fn parse(text: &[u8]) -> Result<Self, json::Error> {
        Ok(Self {
            object: Object::parse(text)?,
            common: json::from_slice(text)?,
        })
    }

    /// The same, from an edited object.
    pub fn from_object(object: Object) -> Result<Self, json::Error> {
        let common = json::from_str(&object.to_json())?;
        Ok(Self { object, common })
    }

    /// Parses the config into a plugin's own type. Keys match as in Go.
    pub fn read<T: serde::de::DeserializeOwned>(&self) -> Result<T, json::Error> {
        json::from_str(&self.object.to_json())
    }

    /// `cniVersion` verbatim; empty means 0.1.0.
    pub fn version_text(&self) -> &str {
        &self.common.cni_version
    }

    /// The config's version; an error with code 1 if it is not in `supported`.
    pub fn version(&self, supported: &[Version]) -> Result<Version, Error> {
        let text = &self.common.cni_version;
        text.parse()
            .ok()
            .filter(|version| supported.contains(version))
            .ok_or_else(|| Version::unsupported(if text.is_empty() { "0.1.0" } else { text }, supported))
    }

    /// The network's name.
    pub fn name(&self) -> &str {
        &self.common.name
    }

    /// The plugin's name.
    pub fn plugin(&self) -> &str {
        &self.common.plugin
    }

    /// The IPAM plugin; may be empty.
    pub fn ipam_plugin(&self) -> &str {
        &self.common.ipam.plugin
    }

    /// Resolver settings of the config.
    pub fn dns(&self) -> &Dns {
        &self.common.dns
    }

    /// Whether the config declares a capability.
    pub fn has_capability(&self, name: &str) -> bool {
        self.common.capabilities.get(name).copied().unwrap_or_default()
    }

    /// The declared capabilities.
    pub fn capabilities(&self) -> impl Iterator<Item = &str> {
        self.common
            .capabilities
            .iter()
            .filter(|(_, on)| **on)
            .map(|(name, _)| name.as_str())
    }

    /// The result of the plugin before this one in the chain.
    pub fn prev_result(&self) -> Result<Option<CniResult>, Error> {
        let Some(text) = self.object.get(key::PREV_RESULT) else {
            return Ok(None);
        };
        let version = self.version(&Version::ALL)?;
        CniResult::parse(text.get().as_bytes(), version)
            .map(Some)
            .map_err(|error| Error::internal(format!("could not parse prevResult: {error}")))
    }

    /// Whether GC got a list of valid attachments. `null` counts as one: Go programs encode an empty list so.
    pub fn has_valid_attachments(&self) -> bool {
        self.object
            .iter()
            .any(|(name, _)| [key::VALID_ATTACHMENTS, key::ATTACHMENTS].contains(&name))
    }

    /// The attachments that GC must keep, from either of the two keys that runtimes use.
    pub fn valid_attachments(&self) -> Result<Vec<ValidAttachment>, json::Error> {
        match self.object.read(key::VALID_ATTACHMENTS)? {
            Some(list) => Ok(list),
            None => Ok(self.object.read(key::ATTACHMENTS)?.unwrap_or_default()),
        }
    }
}

/// An attachment in use, in a GC request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize, serde::Serialize)]
pub struct ValidAttachment {
    /// The sandbox.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The interface in it.
    #[serde(rename = "ifname")]
    pub ifname: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_keys_are_read_in_any_case() {
        let config = NetworkConfig::parse(
            br#"{"CNIVersion":"1.0.0","NAME":"n","Type":"bridge","ipam":{"Type":"static"},"capabilities":{"ips":true,"mac":false}}"#,
        )
        .unwrap();
        assert_eq!(
            (config.name(), config.plugin(), config.ipam_plugin()),
            ("n", "bridge", "static")
        );
        assert_eq!(config.version(&Version::ALL), Ok(Version::V1_0_0));
        assert!(config.has_capability("ips") && !config.has_capability("mac"));
        assert_eq!(config.capabilities().collect::<Vec<_>>(), ["ips"]);
    }

    #[test]
    fn versions_that_a_plugin_lacks_are_refused() {
        // cni-plugins#6
        let config = NetworkConfig::parse(br#"{"cniVersion":"9.9.9"}"#).unwrap();
        let error = config.version(&Version::ALL).unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (1, "incompatible CNI versions"));
        assert_eq!(
            error.details,
            r#"config is "9.9.9", plugin supports ["0.1.0" "0.2.0" "0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]"#
        );
        let config = NetworkConfig::parse(b"{}").unwrap();
        assert_eq!(config.version(&Version::ALL), Ok(Version::V0_1_0));
    }

    #[test]
    fn a_previous_result_takes_the_configs_version() {
        let config =
            NetworkConfig::parse(br#"{"cniVersion":"0.2.0","prevResult":{"ip4":{"ip":"10.0.0.1/8"}}}"#)
                .unwrap();
        assert_eq!(config.prev_result().unwrap().unwrap().ips.len(), 1);
        let config = NetworkConfig::parse(br#"{"cniVersion":"1.0.0","prevResult":null}"#).unwrap();
        assert_eq!(config.prev_result(), Ok(None));
        let config = NetworkConfig::parse(br#"{"cniVersion":"1.0.0","prevResult":[]}"#).unwrap();
        let error = config.prev_result().unwrap_err();
        assert_eq!(error.code, 999);
        assert!(error.msg.starts_with("could not parse prevResult: "), "{error}");
    }

    #[test]
    fn empty_list_differs_from_missing_list() {
        let says = |text: &str| {
            let config = NetworkConfig::parse(text.as_bytes()).unwrap();
            (
                config.has_valid_attachments(),
                config.valid_attachments().unwrap().len(),
            )
        };
        assert_eq!(says("{}"), (false, 0));
        assert_eq!(says(r#"{"cni.dev/valid-attachments": []}"#), (true, 0));
        assert_eq!(says(r#"{"cni.dev/attachments": null}"#), (true, 0));
    }

    #[test]
    fn valid_attachments_have_two_names() {
        for name in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
            let text = format!(r#"{{"{name}":[{{"containerID":"c","ifname":"eth0"}}]}}"#);
            let valid = NetworkConfig::parse(text.as_bytes())
                .unwrap()
                .valid_attachments()
                .unwrap();
            assert_eq!(
                valid,
                [ValidAttachment {
                    container_id: "c".into(),
                    ifname: "eth0".into()
                }]
            );
        }
    }
}

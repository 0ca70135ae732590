//! The configuration in `DP_MACVTAP_CONF` (cni-plugins.md §11.1). It is an environment variable, so it is read once.

use crate::names::{CAPACITY, CONFIG, MOST_CAPACITY};
use crate::resource::{Resource, is_valid_name, mode};
use cni::json;
use linux::link::MacVlanMode;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;

/// The configuration is unusable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The variable is missing.
    #[error("{CONFIG} environment variable must be set")]
    Missing,
    /// The value is not a list of resources.
    #[error("Error reading config: {0}")]
    Invalid(#[from] json::Error),
    /// The value is not text.
    #[error("Error reading config: {CONFIG} is not UTF-8 text")]
    NoText,
}

/// The resources that a node offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Config {
    /// One resource for each suitable link of the node.
    SuitableLinks,
    /// Resources by name, independent of the node's links.
    Listed(BTreeMap<String, Resource>),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Entry {
    name: String,
    lower_device: String,
    mode: String,
    capacity: i64,
}

impl Config {
    /// Parses the value of the variable. Skips resources with names that kubelet would refuse, with a log line.
    ///
    /// # Errors
    /// If the variable is missing, or not a JSON array of objects with fields of the right types.
    pub fn parse(value: Option<&OsStr>) -> Result<Self, Error> {
        let text = value.ok_or(Error::Missing)?.to_str().ok_or(Error::NoText)?;
        let entries: Option<Vec<Entry>> = json::from_str(text)?;
        let entries = entries.unwrap_or_default();
        if entries.is_empty() {
            return Ok(Self::SuitableLinks);
        }
        let valid = entries.into_iter().filter(is_valid);
        // The last resource of a name wins.
        let listed = valid.map(|entry| (entry.name.clone(), listed(entry)));
        Ok(Self::Listed(listed.collect()))
    }

    /// Returns the resources to offer on a node with these links. For [`Config::SuitableLinks`], one for each suitable
    /// link.
    pub(crate) fn resources(&self, links: &BTreeSet<String>) -> BTreeMap<String, Resource> {
        match self {
            Self::Listed(listed) => listed.clone(),
            Self::SuitableLinks => {
                let valid = links.iter().filter(|name| is_valid_name(name));
                valid.map(|name| (name.clone(), on_link(name))).collect()
            }
        }
    }
}

fn is_valid(entry: &Entry) -> bool {
    let valid = is_valid_name(&entry.name);
    if !valid {
        tracing::error!(
            name = entry.name,
            "{CONFIG} has a resource with an invalid name, skipped: the name must be 1 to 63 letters, digits, '-', '_' or '.', \
             with a letter or digit at both ends"
        );
    }
    valid
}

fn listed(entry: Entry) -> Resource {
    let mode = mode(&entry.mode);
    if let Err(error) = &mode {
        tracing::error!(name = entry.name, %error, "invalid mode: allocations of the resource will fail");
    }
    Resource {
        capacity: capacity(&entry),
        name: entry.name,
        lower_device: entry.lower_device,
        mode,
    }
}

fn capacity(entry: &Entry) -> u32 {
    if entry.capacity <= 0 {
        return CAPACITY;
    }
    let capacity = u32::try_from(entry.capacity).unwrap_or(u32::MAX);
    if capacity > MOST_CAPACITY {
        tracing::warn!(
            name = entry.name,
            capacity,
            "the resource gets {MOST_CAPACITY} devices"
        );
    }
    capacity.min(MOST_CAPACITY)
}

fn on_link(name: &str) -> Resource {
    Resource {
        name: name.to_owned(),
        lower_device: name.to_owned(),
        mode: Ok(MacVlanMode::Bridge),
        capacity: CAPACITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::UnknownMode;

    fn parsed(text: &str) -> Result<Config, String> {
        Config::parse(Some(OsStr::new(text))).map_err(|error| error.to_string())
    }

    fn resources(text: &str) -> BTreeMap<String, Resource> {
        match parsed(text) {
            Ok(Config::Listed(listed)) => listed,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn parse_list_reads_mode_and_capacity() {
        // cni-plugins#68 (mode and capacity), cni-plugins#67 (capacity 0)
        let listed = resources(
            r#"[{"name": "a", "lowerDevice": "eth1", "mode": "vepa", "capacity": 5},
                {"Name": "b", "LOWERDEVICE": "eth2", "capacity": 0, "mode": null},
                {"name": "c", "lowerDevice": "eth3", "mode": "passthru", "capacity": -1},
                {"name": "d", "lowerDevice": "eth4", "capacity": 1000000000000}]"#,
        );
        let found: Vec<_> = listed.values().cloned().collect();
        let resource = |name: &str, lower: &str, mode, capacity| Resource {
            name: name.into(),
            lower_device: lower.into(),
            mode,
            capacity,
        };
        let unknown = Err(UnknownMode("passthru".into()));
        assert_eq!(
            found,
            [
                resource("a", "eth1", Ok(MacVlanMode::Vepa), 5),
                resource("b", "eth2", Ok(MacVlanMode::Bridge), 100),
                resource("c", "eth3", unknown, 100),
                resource("d", "eth4", Ok(MacVlanMode::Bridge), 10_000),
            ]
        );
    }

    #[test]
    fn parse_two_resources_of_one_name_last_wins() {
        let listed = resources(r#"[{"name": "a", "lowerDevice": "x"}, {"name": "a", "lowerDevice": "y"}]"#);
        assert_eq!(listed.len(), 1);
        assert_eq!(listed["a"].lower_device, "y");
    }

    #[test]
    fn parse_invalid_name_others_are_offered() {
        let listed = resources(r#"[{"name": "../a"}, {"name": "b"}, {}]"#);
        assert_eq!(listed.into_keys().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn parse_empty_list_means_suitable_links() {
        for text in ["[]", " [ ] ", "null"] {
            assert_eq!(parsed(text), Ok(Config::SuitableLinks), "{text}");
        }
        let links = BTreeSet::from(["bond0".to_owned(), "eth0".to_owned(), "odd:1".to_owned()]);
        let found = Config::SuitableLinks.resources(&links);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["bond0", "eth0"]);
        let bond = &found["bond0"];
        assert_eq!((bond.lower_device.as_str(), bond.capacity), ("bond0", 100));
        assert_eq!(bond.mode, Ok(MacVlanMode::Bridge));
    }

    #[test]
    fn parse_broken_config_is_error() {
        // cni-plugins#68 (broken config)
        let missing = Config::parse(None).unwrap_err().to_string();
        assert_eq!(missing, "DP_MACVTAP_CONF environment variable must be set");
        for text in ["", "{}", "[", "[{\"name\": 1}]", "[1]", "[{\"capacity\": \"5\"}]"] {
            let error = parsed(text).unwrap_err();
            assert!(error.starts_with("Error reading config: "), "{text}: {error}");
        }
    }

    #[test]
    fn resources_of_a_list_do_not_depend_on_links() {
        // cni-plugins#68 (constant list)
        let config = parsed(r#"[{"name": "a", "lowerDevice": "x"}]"#).unwrap();
        let without = config.resources(&BTreeSet::new());
        assert_eq!(config.resources(&BTreeSet::from(["y".to_owned()])), without);
        assert_eq!(without.into_keys().collect::<Vec<_>>(), ["a"]);
    }
}

//! What to change on the node: pure.

use super::names::{CANONICAL_CAPACITY, CAPACITY, RESOURCE_PREFIX};
use kube_kit::patch::{Operation, escape};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A bridge whose name can be that of a resource: at most 63 letters, digits, `-`, `_` and `.`, beginning and ending
/// with a letter or digit. The kernel allows more.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BridgeName(String);

impl BridgeName {
    /// `None` when the API server would refuse the resource, and with it everything else in the same patch.
    pub fn new(name: &str) -> Option<Self> {
        let bytes = name.as_bytes();
        let (first, last) = (bytes.first()?, bytes.last()?);
        let inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let valid = bytes.len() <= 63
            && first.is_ascii_alphanumeric()
            && last.is_ascii_alphanumeric()
            && bytes.iter().all(inner);
        valid.then(|| Self(name.to_owned()))
    }

    /// The resource that stands for the bridge.
    fn resource(&self) -> String {
        format!("{RESOURCE_PREFIX}{}", self.0)
    }
}

impl fmt::Display for BridgeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The bridges that a node's capacity lists: name after the prefix, and quantity.
pub type Advertised = BTreeMap<String, String>;

/// Picks the bridges out of a node's capacity.
pub fn advertised(capacity: &BTreeMap<String, String>) -> Advertised {
    capacity
        .iter()
        .filter_map(|(key, quantity)| {
            let bridge = key.strip_prefix(RESOURCE_PREFIX)?;
            Some((bridge.to_owned(), quantity.clone()))
        })
        .collect()
}

/// What a node's capacity lists when it is right.
pub fn wanted(bridges: &BTreeSet<BridgeName>) -> Advertised {
    bridges
        .iter()
        .map(|bridge| (bridge.0.clone(), CAPACITY.to_owned()))
        .collect()
}

/// What to change, so that the node's capacity lists exactly the bridges that exist.
#[derive(Debug, PartialEq, Eq)]
pub struct CapacityPatch {
    /// Bridges that are not listed, or with another quantity.
    pub add: BTreeSet<BridgeName>,
    /// Listed names of bridges that do not exist.
    pub remove: BTreeSet<String>,
}

/// Compares the bridges of the host with those that the node advertises. `None` when nothing changes: then nothing is
/// written.
pub fn plan(bridges: &BTreeSet<BridgeName>, advertised: &Advertised) -> Option<CapacityPatch> {
    let right = |bridge: &&BridgeName| {
        matches!(
            advertised.get(&bridge.0).map(String::as_str),
            Some(CAPACITY | CANONICAL_CAPACITY)
        )
    };
    let exists = |name: &&String| BridgeName::new(name).is_some_and(|name| bridges.contains(&name));
    let add: BTreeSet<_> = bridges.iter().filter(|bridge| !right(bridge)).cloned().collect();
    let remove: BTreeSet<_> = advertised.keys().filter(|name| !exists(name)).cloned().collect();
    let change = !add.is_empty() || !remove.is_empty();
    change.then_some(CapacityPatch { add, remove })
}

impl CapacityPatch {
    /// The JSON patch of the node's status.
    pub fn operations(&self) -> Vec<Operation> {
        let path = |resource: &str| format!("/status/capacity/{}", escape(resource));
        let remove = self.remove.iter().map(|name| Operation::Remove {
            path: path(&format!("{RESOURCE_PREFIX}{name}")),
        });
        let add = self.add.iter().map(|bridge| Operation::Add {
            path: path(&bridge.resource()),
            value: json!(CAPACITY),
        });
        remove.chain(add).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<BridgeName> {
        names
            .iter()
            .map(|name| BridgeName::new(name).expect("a name"))
            .collect()
    }

    fn listed(entries: &[(&str, &str)]) -> Advertised {
        entries
            .iter()
            .map(|(name, quantity)| ((*name).to_owned(), (*quantity).to_owned()))
            .collect()
    }

    fn body(patch: &CapacityPatch) -> String {
        serde_json::to_string(&patch.operations()).expect("JSON")
    }

    #[test]
    fn a_bridge_that_appears_is_advertised() {
        // cni-plugins#63
        let patch = plan(&set(&["br1"]), &listed(&[])).expect("a change");
        assert_eq!(
            body(&patch),
            r#"[{"op":"add","path":"/status/capacity/bridge.network.kubevirt.io~1br1","value":"1000"}]"#
        );
    }

    #[test]
    fn a_bridge_that_disappears_is_withdrawn() {
        // cni-plugins#63
        let patch = plan(&set(&["br1"]), &listed(&[("br1", "1k"), ("br2", "1k")])).expect("a change");
        assert_eq!(
            body(&patch),
            r#"[{"op":"remove","path":"/status/capacity/bridge.network.kubevirt.io~1br2"}]"#
        );
    }

    #[test]
    fn what_is_right_is_left_alone() {
        // cni-plugins#63
        let capacity = listed(&[("br1", "1k"), ("br-2.x_y", "1000")]);
        assert_eq!(plan(&set(&["br1", "br-2.x_y"]), &capacity), None);
        assert_eq!(plan(&set(&[]), &listed(&[])), None);
    }

    #[test]
    fn a_quantity_that_somebody_changed_is_repaired() {
        let patch = plan(&set(&["br1"]), &listed(&[("br1", "0")])).expect("a change");
        assert_eq!((patch.add, patch.remove.len()), (set(&["br1"]), 0));
    }

    #[test]
    fn only_resources_with_the_prefix_are_ours() {
        let capacity = listed(&[
            ("cpu", "4"),
            ("bridge.network.kubevirt.io/br1", "1k"),
            ("ovs-cni.network.kubevirt.io/br2", "1k"),
        ]);
        assert_eq!(advertised(&capacity), listed(&[("br1", "1k")]));
    }

    #[test]
    fn names_that_the_api_server_refuses_are_recognised() {
        for valid in ["br1", "br-ex", "a.b_c", "0", "A"] {
            assert!(BridgeName::new(valid).is_some(), "{valid}");
        }
        for invalid in ["", "-br", "br-", "br~1", "br%1", "bré", "br 1", "a:b", ".br"] {
            assert!(BridgeName::new(invalid).is_none(), "{invalid}");
        }
    }
}

//! What to change on the node: pure.

use crate::names::{CANONICAL_CAPACITY, CAPACITY};
use kube_kit::patch::{Operation, escape};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A bridge whose name can be that of a resource: at most 63 letters, digits, `-`, `_` and `.`, beginning and ending
/// with a letter or digit. The kernel and Open vSwitch allow more.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BridgeName(String);

impl BridgeName {
    /// `None` when the API server would refuse the resource, and with it everything else in the same patch.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let bytes = name.as_bytes();
        let (first, last) = (bytes.first()?, bytes.last()?);
        let inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let valid = bytes.len() <= 63
            && first.is_ascii_alphanumeric()
            && last.is_ascii_alphanumeric()
            && bytes.iter().all(inner);
        valid.then(|| Self(name.to_owned()))
    }
}

impl fmt::Display for BridgeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Splits names into those that can be advertised and those that can't.
pub(crate) fn sort(names: impl IntoIterator<Item = String>) -> (BTreeSet<BridgeName>, BTreeSet<String>) {
    let mut valid = BTreeSet::new();
    let mut invalid = BTreeSet::new();
    for name in names {
        match BridgeName::new(&name) {
            Some(bridge) => {
                valid.insert(bridge);
            }
            None => {
                invalid.insert(name);
            }
        }
    }
    (valid, invalid)
}

/// The bridges that a node's capacity lists: name after the prefix, and quantity.
pub(crate) type Advertised = BTreeMap<String, String>;

/// Picks the resources with the prefix out of a node's capacity.
pub(crate) fn advertised(prefix: &str, capacity: &BTreeMap<String, String>) -> Advertised {
    capacity
        .iter()
        .filter_map(|(key, quantity)| {
            let bridge = key.strip_prefix(prefix)?;
            Some((bridge.to_owned(), quantity.clone()))
        })
        .collect()
}

/// What a node's capacity lists when it is right.
pub(crate) fn wanted(bridges: &BTreeSet<BridgeName>) -> Advertised {
    bridges
        .iter()
        .map(|bridge| (bridge.0.clone(), CAPACITY.to_owned()))
        .collect()
}

/// What to change, so that the node's capacity lists exactly the bridges that exist.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CapacityPatch {
    /// Bridges that are not listed, or with another quantity.
    pub(crate) add: BTreeSet<BridgeName>,
    /// Listed names of bridges that do not exist.
    pub(crate) remove: BTreeSet<String>,
}

/// Compares the bridges of the host with those that the node advertises. `None` when nothing changes: then nothing is
/// written.
pub(crate) fn plan(bridges: &BTreeSet<BridgeName>, advertised: &Advertised) -> Option<CapacityPatch> {
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
    pub(crate) fn operations(&self, prefix: &str) -> Vec<Operation> {
        let path = |name: &str| format!("/status/capacity/{}", escape(&format!("{prefix}{name}")));
        let remove = self
            .remove
            .iter()
            .map(|name| Operation::Remove { path: path(name) });
        let add = self.add.iter().map(|bridge| Operation::Add {
            path: path(&bridge.0),
            value: json!(CAPACITY),
        });
        remove.chain(add).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "bridge.network.kubevirt.io/";

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
        serde_json::to_string(&patch.operations(PREFIX)).expect("JSON")
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
        assert_eq!(advertised(PREFIX, &capacity), listed(&[("br1", "1k")]));
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

    #[test]
    fn names_are_sorted_into_usable_and_not() {
        let (valid, invalid) = sort(["br1", "br~1"].map(str::to_owned));
        assert_eq!(valid.iter().map(ToString::to_string).collect::<Vec<_>>(), ["br1"]);
        assert_eq!(invalid.iter().map(String::as_str).collect::<Vec<_>>(), ["br~1"]);
    }
}

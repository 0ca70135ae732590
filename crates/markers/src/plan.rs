//! The changes of the node: pure functions.

use crate::names::{CANONICAL_CAPACITY, CAPACITY};
use kube_kit::object::is_label_value;
use kube_kit::patch::{Operation, escape};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A bridge whose name is valid in the name of a resource ([`is_label_value`], not empty). The kernel and Open vSwitch
/// allow more.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BridgeName(String);

impl BridgeName {
    /// `None` if the API server would refuse the resource, and with it the whole patch.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let valid = !name.is_empty() && is_label_value(name);
        valid.then(|| Self(name.to_owned()))
    }
}

impl fmt::Display for BridgeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Splits names into valid and invalid ones.
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

/// The bridges in a node's capacity: name after the prefix, and quantity.
pub(crate) type Advertised = BTreeMap<String, String>;

/// The resources with the prefix in a node's capacity.
pub(crate) fn advertised(prefix: &str, capacity: &BTreeMap<String, String>) -> Advertised {
    capacity
        .iter()
        .filter_map(|(key, quantity)| {
            let bridge = key.strip_prefix(prefix)?;
            Some((bridge.to_owned(), quantity.clone()))
        })
        .collect()
}

/// The desired resources of a node's capacity.
pub(crate) fn desired(bridges: &BTreeSet<BridgeName>) -> Advertised {
    bridges
        .iter()
        .map(|bridge| (bridge.0.clone(), CAPACITY.to_owned()))
        .collect()
}

/// The changes after which the node's capacity lists exactly the existing bridges.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CapacityPatch {
    /// Bridges that are not listed, or have another quantity.
    pub(crate) add: BTreeSet<BridgeName>,
    /// Listed names of bridges that do not exist.
    pub(crate) remove: BTreeSet<String>,
}

/// Compares the bridges of the host with those that the node advertises. `None` if nothing differs, so that nothing is
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
    fn plan_adds_new_bridge() {
        // cni-plugins#63
        let patch = plan(&set(&["br1"]), &listed(&[])).expect("a change");
        assert_eq!(
            body(&patch),
            r#"[{"op":"add","path":"/status/capacity/bridge.network.kubevirt.io~1br1","value":"1000"}]"#
        );
    }

    #[test]
    fn plan_removes_deleted_bridge() {
        // cni-plugins#63
        let patch = plan(&set(&["br1"]), &listed(&[("br1", "1k"), ("br2", "1k")])).expect("a change");
        assert_eq!(
            body(&patch),
            r#"[{"op":"remove","path":"/status/capacity/bridge.network.kubevirt.io~1br2"}]"#
        );
    }

    #[test]
    fn plan_of_equal_capacity_is_none() {
        // cni-plugins#63
        let capacity = listed(&[("br1", "1k"), ("br-2.x_y", "1000")]);
        assert_eq!(plan(&set(&["br1", "br-2.x_y"]), &capacity), None);
        assert_eq!(plan(&set(&[]), &listed(&[])), None);
    }

    #[test]
    fn plan_repairs_changed_quantity() {
        let patch = plan(&set(&["br1"]), &listed(&[("br1", "0")])).expect("a change");
        assert_eq!((patch.add, patch.remove.len()), (set(&["br1"]), 0));
    }

    #[test]
    fn advertised_selects_resources_with_prefix() {
        let capacity = listed(&[
            ("cpu", "4"),
            ("bridge.network.kubevirt.io/br1", "1k"),
            ("ovs-cni.network.kubevirt.io/br2", "1k"),
        ]);
        assert_eq!(advertised(PREFIX, &capacity), listed(&[("br1", "1k")]));
    }

    #[test]
    fn bridge_name_refuses_invalid_resource_names() {
        for valid in ["br1", "br-ex", "a.b_c", "0", "A"] {
            assert!(BridgeName::new(valid).is_some(), "{valid}");
        }
        for invalid in ["", "-br", "br-", "br~1", "br%1", "bré", "br 1", "a:b", ".br"] {
            assert!(BridgeName::new(invalid).is_none(), "{invalid}");
        }
    }

    #[test]
    fn sort_splits_valid_and_invalid_names() {
        let (valid, invalid) = sort(["br1", "br~1"].map(str::to_owned));
        assert_eq!(valid.iter().map(ToString::to_string).collect::<Vec<_>>(), ["br1"]);
        assert_eq!(invalid.iter().map(String::as_str).collect::<Vec<_>>(), ["br~1"]);
    }
}

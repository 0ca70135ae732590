//! Node variables in documents: `{{ node.name }}`, `{{ node.labels.KEY }}`, `{{ node.annotations.KEY }}`, so that one
//! policy serves nodes that differ in an address or a name. Upstream's handlers refuse such references.
//!
//! The values come from everyone who may label a node, not from the policy's author: they are only text, and never
//! become a part of an expression.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use thiserror::Error;

const OPEN: &str = "{{";
const CLOSE: &str = "}}";
const NODE: &str = "node.";
const ANNOTATIONS: &str = "node.annotations.";

/// The parts of a node that policies refer to.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NodeFacts {
    /// Node name.
    pub name: String,
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the node.
    pub annotations: BTreeMap<String, String>,
}

/// A reference cannot be filled in.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub(crate) enum Error {
    /// The node lacks the label or annotation.
    #[error("node {node} has no {what} {key}, which {place} refers to")]
    Missing {
        /// Node name.
        node: String,
        /// `label` or `annotation`.
        what: &'static str,
        /// Key of the label or annotation.
        key: String,
        /// Path of the text in the document.
        place: String,
    },
    /// The value would be more than text in this place.
    #[error(
        "{what} {key} of node {node}, which {place} refers to, has {text:?} in it, which is refused there"
    )]
    Unfit {
        /// Node name.
        node: String,
        /// `label` or `annotation`.
        what: &'static str,
        /// Key of the label or annotation.
        key: String,
        /// Path of the text in the document.
        place: String,
        /// The refused part of the value.
        text: &'static str,
    },
    /// Nodes have no such property.
    #[error(
        "unknown reference {{{{ {reference} }}}} in {place}: nodes have node.name, node.labels.KEY and node.annotations.KEY"
    )]
    Unknown {
        /// The text between the braces.
        reference: String,
        /// Path of the text in the document.
        place: String,
    },
}

/// Kind of a document.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// Expressions with quoted texts.
    Captures,
    /// A state with references to captures.
    State,
}

impl Kind {
    /// Texts that no value may contain: references, and in expressions everything that ends a quoted text.
    fn refused(self) -> &'static [&'static str] {
        match self {
            Self::State => &[OPEN],
            Self::Captures => &[OPEN, "\"", "'", "|", "\\", "\n", "\r"],
        }
    }
}

/// Fills the node's values into a document. Other references stay; so do malformed texts, which the engine refuses.
pub(crate) fn fill(document: &mut Value, facts: &NodeFacts, kind: Kind) -> Result<(), Error> {
    Filling { facts, kind }.fill_at(document, "")
}

/// Keys of the node's annotations that a document refers to.
pub(crate) fn annotations(document: &Value) -> BTreeSet<&str> {
    let mut keys = BTreeSet::new();
    collect_annotations(document, &mut keys);
    keys
}

fn collect_annotations<'a>(value: &'a Value, keys: &mut BTreeSet<&'a str>) {
    match value {
        Value::String(text) => {
            let mut rest = text.as_str();
            while let Some((_, inside)) = rest.split_once(OPEN) {
                let Some((reference, after)) = inside.split_once(CLOSE) else {
                    return;
                };
                keys.extend(reference.trim().strip_prefix(ANNOTATIONS));
                rest = after;
            }
        }
        Value::Array(items) => {
            for item in items {
                collect_annotations(item, keys);
            }
        }
        Value::Object(members) => {
            for member in members.values() {
                collect_annotations(member, keys);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

struct Filling<'a> {
    facts: &'a NodeFacts,
    kind: Kind,
}

impl<'a> Filling<'a> {
    fn fill_at(&self, value: &mut Value, place: &str) -> Result<(), Error> {
        match value {
            Value::String(text) => *text = self.filled(text, place)?,
            Value::Array(items) => {
                for (position, item) in items.iter_mut().enumerate() {
                    self.fill_at(item, &format!("{place}[{position}]"))?;
                }
            }
            Value::Object(members) => {
                for (key, member) in members {
                    let dot = if place.is_empty() { "" } else { "." };
                    self.fill_at(member, &format!("{place}{dot}{key}"))?;
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        Ok(())
    }

    fn filled(&self, text: &str, place: &str) -> Result<String, Error> {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, inside)) = rest.split_once(OPEN) {
            let Some((reference, after)) = inside.split_once(CLOSE) else {
                break;
            };
            filled.push_str(before);
            if let Some(reference) = reference.trim().strip_prefix(NODE) {
                filled.push_str(self.value(reference, place)?);
            } else {
                filled.push_str(OPEN);
                filled.push_str(reference);
                filled.push_str(CLOSE);
            }
            rest = after;
        }
        filled.push_str(rest);
        Ok(filled)
    }

    fn value(&self, reference: &str, place: &str) -> Result<&'a str, Error> {
        let facts = self.facts;
        if reference == "name" {
            return Ok(&facts.name);
        }
        // The rest is the key: keys contain dots and slashes.
        let (what, map, key) = match reference.split_once('.') {
            Some(("labels", key)) => ("label", &facts.labels, key),
            Some(("annotations", key)) => ("annotation", &facts.annotations, key),
            _ => {
                return Err(Error::Unknown {
                    reference: format!("{NODE}{reference}"),
                    place: place.to_owned(),
                });
            }
        };
        let value = map.get(key).ok_or_else(|| Error::Missing {
            node: facts.name.clone(),
            what,
            key: key.to_owned(),
            place: place.to_owned(),
        })?;
        match self.kind.refused().iter().find(|text| value.contains(**text)) {
            None => Ok(value),
            Some(text) => Err(Error::Unfit {
                node: facts.name.clone(),
                what,
                key: key.to_owned(),
                place: place.to_owned(),
                text,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn facts() -> NodeFacts {
        NodeFacts {
            name: "node01".to_owned(),
            labels: [("example.com/nic".to_owned(), "eth1".to_owned())].into(),
            annotations: [
                ("address".to_owned(), "192.0.2.5".to_owned()),
                ("vlan".to_owned(), "101".to_owned()),
            ]
            .into(),
        }
    }

    #[test]
    fn node_values_replace_references() {
        let mut document = json!({
            "hostname": {"config": "{{node.name}}.example.com"},
            "interfaces": [{
                "name": "{{ node.labels.example.com/nic }}.{{ node.annotations.vlan }}",
                "vlan": {"id": "{{ node.annotations.vlan }}"},
                "ipv4": {"address": [{"ip": "{{ node.annotations.address }}", "prefix-length": 24}]},
                "mac-address": "{{ capture.base.interfaces.0.mac-address }}",
                "description": "{ {{ unclosed",
            }],
        });
        fill(&mut document, &facts(), Kind::State).expect("all there");
        assert_eq!(
            document,
            json!({
                "hostname": {"config": "node01.example.com"},
                "interfaces": [{
                    "name": "eth1.101",
                    "vlan": {"id": "101"},
                    "ipv4": {"address": [{"ip": "192.0.2.5", "prefix-length": 24}]},
                    "mac-address": "{{ capture.base.interfaces.0.mac-address }}",
                    "description": "{ {{ unclosed",
                }],
            })
        );
    }

    // nmstate#106
    #[test]
    fn referenced_annotations_are_listed_by_key() {
        let document = json!({
            "capture": {"nic": "interfaces.name==\"{{ node.annotations.example.com/nic }}\""},
            "desiredState": {"interfaces": [{
                "name": "{{node.annotations.a}}-{{ node.annotations.b }}",
                "description": "{{ node.labels.c }} {{ node.name }} {{ capture.nic.interfaces.0.name }}",
                "mtu": 1500,
            }, "{{ node.annotations.unclosed"]},
        });
        let keys: Vec<&str> = annotations(&document).into_iter().collect();
        assert_eq!(keys, ["a", "b", "example.com/nic"]);
    }

    #[test]
    fn engine_accepts_numbers_as_strings() {
        let document = json!({"interfaces": [{"name": "eth1.101", "type": "vlan", "mtu": "1400",
            "vlan": {"id": "101", "base-iface": "eth1"},
            "ipv4": {"enabled": "true", "address": [{"ip": "192.0.2.5", "prefix-length": "24"}]}}]});
        nmstate::NetworkState::new_from_json(&document.to_string()).expect("a document");
    }

    #[test]
    fn missing_value_is_reported_with_its_path() {
        let mut document = json!({"interfaces": [{"name": "eth1"}, {"name": "{{ node.labels.nic }}"}]});
        let error = fill(&mut document, &facts(), Kind::State).expect_err("no such label");
        assert_eq!(
            error.to_string(),
            "node node01 has no label nic, which interfaces[1].name refers to"
        );
        let error = fill(&mut json!({"hostname": "{{ node.zone }}"}), &facts(), Kind::State)
            .expect_err("no such thing");
        assert_eq!(
            error.to_string(),
            "unknown reference {{ node.zone }} in hostname: nodes have node.name, node.labels.KEY and node.annotations.KEY"
        );
    }

    #[test]
    fn filled_values_are_not_expanded_again() {
        let mut facts = facts();
        facts
            .annotations
            .insert("loop".to_owned(), "{{ node.name }}".to_owned());
        let mut document = json!("{{ node.annotations.loop }}");
        let refused = fill(&mut document, &facts, Kind::State);
        assert!(matches!(refused, Err(Error::Unfit { .. })), "{refused:?}");
    }

    #[test]
    fn value_with_syntax_is_refused() {
        let fill = |value: &str, kind| {
            let facts = NodeFacts {
                annotations: [("nic".to_owned(), value.to_owned())].into(),
                ..facts()
            };
            let mut document = json!({"uplink": "interfaces.name==\"{{ node.annotations.nic }}\""});
            fill(&mut document, &facts, kind)
        };
        for value in [
            "eth0\" | interfaces.name==\"eth1",
            "a|b",
            "a\nb",
            "a'b",
            "a\\b",
            "{{ capture.x }}",
        ] {
            assert!(
                matches!(fill(value, Kind::Captures), Err(Error::Unfit { .. })),
                "{value}"
            );
        }
        assert!(fill("{{ capture.other.interfaces.0.name }}", Kind::State).is_err());
        assert!(fill("bond 0 | \"eth1\"", Kind::State).is_ok());
        assert!(fill("eth1.100@x", Kind::Captures).is_ok());
        assert_eq!(
            fill("a\"b", Kind::Captures).unwrap_err().to_string(),
            "annotation nic of node node01, which uplink refers to, has \"\\\"\" in it, which is refused there"
        );
    }
}

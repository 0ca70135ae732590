//! What a policy of the original design says (nmstate §3.1, §3.2-7, §3.2-10).

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::normalise;

/// A policy of the original design that makes no sense. The texts stand in the enactment.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum Error {
    /// Captures belong to today's design.
    #[error("capture cannot be used together with match or autoConfig")]
    Capture,
    /// Either the policy says what is wanted, or it leaves that to the node.
    #[error("autoConfig cannot be used together with desiredState")]
    AutoConfigAndState,
    /// Bonds are made of interfaces on the same VLANs.
    #[error(
        "autoConfig.autoBonding needs match.interfaces with lldp.vlan-ids: the VLANs whose interfaces are bonded"
    )]
    NoVlans,
    /// A part of it that cannot be understood, or would have no effect.
    #[error("{0}")]
    Unclear(String),
}

/// A policy of the original design.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// What an interface may be like; one of them is enough.
    pub rules: Vec<Rule>,
    /// What matched interfaces are bonded by.
    pub auto_bonding: bool,
    /// What is wanted, normalised; interfaces without a name stand for those that match.
    pub desired: Value,
    /// Whether a veth is no card: rules with the type `ethernet` do not mean it then.
    pub veths_apart: bool,
}

/// What an interface is like. What is not said does not matter.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Rule {
    /// Its exact name.
    pub name: Option<String>,
    /// Its exact type, in the engine's words.
    pub kind: Option<String>,
    /// VLANs of which a neighbour announces at least one.
    pub vlans: Option<BTreeSet<u16>>,
}

impl Policy {
    /// The policy of a specification, if it is one of the original design.
    ///
    /// # Errors
    /// When parts of it exclude each other, or cannot be understood.
    pub fn of(spec: &Value) -> Result<Option<Self>, Error> {
        let conditions = ["match", "matchRules"].map(|key| member(spec, key));
        let auto_config = member(spec, "autoConfig").or_else(|| member(spec, "autoconfig"));
        if conditions == [None, None] && auto_config.is_none() {
            return Ok(None);
        }
        if member(spec, "capture").is_some_and(normalise::has_content) {
            return Err(Error::Capture);
        }
        let mut desired = member(spec, "desiredState").cloned().unwrap_or_default();
        let auto_bonding = match auto_config {
            None => false,
            Some(_) if normalise::has_content(&desired) => return Err(Error::AutoConfigAndState),
            Some(auto_config) => is_auto_bonding(auto_config)?,
        };
        normalise::document(&mut desired);
        let mut rules = Vec::new();
        for condition in conditions.into_iter().flatten() {
            rules.extend(self::rules(condition)?);
        }
        if auto_bonding && rules.iter().all(|rule| rule.vlans.is_none()) {
            return Err(Error::NoVlans);
        }
        Ok(Some(Self {
            rules,
            auto_bonding,
            desired,
            veths_apart: false,
        }))
    }
}

/// Where a policy stands among those of its node: they are applied in ascending order, so that of two that disagree the
/// higher one wins.
pub fn priority(spec: &Value) -> i64 {
    spec.get("priority").and_then(Value::as_i64).unwrap_or_default()
}

/// Whether a policy has rules about what neighbours announce: hosts have to listen before it is known what it means.
pub fn is_about_neighbours(spec: &Value) -> bool {
    let policy = Policy::of(spec).ok().flatten();
    policy.is_some_and(|policy| policy.rules.iter().any(|rule| rule.vlans.is_some()))
}

/// How many nodes may be configured at a time, as today's `maxUnavailable` says it: the policy's own word, else what
/// its `parallel` means.
pub fn max_unavailable(spec: &Value) -> Option<Value> {
    member(spec, "maxUnavailable")
        .cloned()
        .or_else(|| match spec.get("parallel") {
            Some(Value::Bool(true)) => Some(json!("100%")),
            Some(Value::Bool(false)) => Some(json!(1)),
            _ => None,
        })
}

fn member<'a>(object: &'a Value, key: &str) -> Option<&'a Value> {
    object.get(key).filter(|value| !value.is_null())
}

fn is_auto_bonding(auto_config: &Value) -> Result<bool, Error> {
    let unclear = |text: &str| Err(Error::Unclear(text.to_owned()));
    let Value::Object(members) = auto_config else {
        return unclear("autoConfig is not an object");
    };
    let mut auto_bonding = false;
    for (key, value) in members {
        match (key.as_str(), value) {
            ("autoBonding", Value::Bool(value)) => auto_bonding = *value,
            (_, Value::Null | Value::Bool(false)) => {}
            ("autoBonding", _) => return unclear("autoConfig.autoBonding is neither true nor false"),
            ("autoVlan", _) => return unclear("autoConfig.autoVlan is not supported"),
            (key, _) => return unclear(&format!("unknown key autoConfig.{key}")),
        }
    }
    Ok(auto_bonding)
}

/// One rule, a list of them, or a wrapper around either: all forms that the drafts of the design had.
fn rules(condition: &Value) -> Result<Vec<Rule>, Error> {
    match condition {
        Value::Null => Ok(Vec::new()),
        Value::Array(items) => {
            let says_nothing = |item: &Value| item.as_object().is_some_and(Map::is_empty);
            if items.iter().any(says_nothing) {
                return Err(Error::Unclear(SAYS_NOTHING.to_owned()));
            }
            let rules = items.iter().map(rules).collect::<Result<Vec<_>, _>>()?;
            Ok(rules.into_iter().flatten().collect())
        }
        Value::Object(members) => {
            let mut wrapped = members
                .iter()
                .filter(|(key, _)| ["interfaces", "items"].contains(&key.as_str()));
            match (wrapped.next(), members.len()) {
                (Some((_, inner)), 1) => rules(inner),
                (Some(_), _) => Err(Error::Unclear(
                    "match has other keys beside interfaces".to_owned(),
                )),
                (None, 0) => Ok(Vec::new()),
                (None, _) => Ok(vec![rule(members)?]),
            }
        }
        _ => Err(Error::Unclear(
            "match.interfaces is neither an object nor a list".to_owned(),
        )),
    }
}

fn rule(members: &Map<String, Value>) -> Result<Rule, Error> {
    let mut rule = Rule::default();
    for (key, value) in members {
        match (key.as_str(), value) {
            (_, Value::Null) => {}
            ("name", Value::String(name)) => rule.name = Some(name.clone()),
            ("type", Value::String(kind)) => rule.kind = Some(kind.clone()),
            ("lldp", Value::Object(lldp)) => {
                for (key, value) in lldp {
                    rule.vlans = Some(vlans(key, value)?);
                }
            }
            ("name" | "type" | "lldp", _) => {
                return Err(Error::Unclear(format!("match.interfaces.{key} is malformed")));
            }
            (key, value) if VLANS.contains(&key) => rule.vlans = Some(vlans(key, value)?),
            // Ignored, it would match more than was meant.
            (key, _) => return Err(Error::Unclear(format!("unknown key match.interfaces.{key}"))),
        }
    }
    if rule == Rule::default() {
        return Err(Error::Unclear(SAYS_NOTHING.to_owned()));
    }
    Ok(rule)
}

const SAYS_NOTHING: &str = "a rule in match.interfaces says nothing: give it name, type or lldp.vlan-ids";

/// All spellings of the list of VLANs.
const VLANS: [&str; 6] = [
    "vlan-ids",
    "vlanIDs",
    "vlanIDList",
    "vlanIds",
    "vlanID",
    "vlan-id",
];

fn vlans(key: &str, value: &Value) -> Result<BTreeSet<u16>, Error> {
    if !VLANS.contains(&key) {
        return Err(Error::Unclear(format!("unknown key match.interfaces.lldp.{key}")));
    }
    let items = match value {
        Value::Array(items) => items.as_slice(),
        one => std::slice::from_ref(one),
    };
    let id = |item: &Value| {
        let number = match item {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        number
            .and_then(|number| u16::try_from(number).ok())
            .filter(|number| (1..=4094).contains(number))
            .ok_or_else(|| Error::Unclear(format!("{item} in match.interfaces.lldp.{key} is no VLAN")))
    };
    items.iter().map(id).collect()
}

#[cfg(test)]
mod tests;

//! Parses policies of the original design (nmstate §3.1, §3.2-7, §3.2-10).

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::normalise;

/// An invalid policy of the original design. The texts appear in the enactment.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum Error {
    /// Captures belong to the present design.
    #[error("capture cannot be used together with match or autoConfig")]
    Capture,
    /// A desired state excludes an automatic one.
    #[error("autoConfig cannot be used together with desiredState")]
    AutoConfigAndState,
    /// Bonds consist of interfaces on the same VLANs.
    #[error(
        "autoConfig.autoBonding needs match.interfaces with lldp.vlan-ids: the VLANs whose interfaces are bonded"
    )]
    NoVlans,
    /// A malformed or unknown part.
    #[error("{0}")]
    Unclear(String),
}

/// A policy of the original design.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct OriginalPolicy {
    /// Rules; an interface matches if one of them does.
    pub rules: Vec<Rule>,
    /// Whether matched interfaces are bonded.
    pub auto_bonding: bool,
    /// Normalised desired state; an interface without a name stands for all matched ones.
    pub desired: Value,
    /// Whether rules with the type `ethernet` exclude veths.
    pub excludes_veths: bool,
}

/// A rule about an interface. A missing member matches everything.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Rule {
    /// Exact name.
    pub name: Option<String>,
    /// Exact type, in the engine's spelling.
    pub kind: Option<String>,
    /// VLANs of which a neighbour announces at least one.
    pub vlans: Option<BTreeSet<u16>>,
}

impl OriginalPolicy {
    /// Parses a policy, if it is one of the original design.
    pub(crate) fn of(spec: &Value) -> Result<Option<Self>, Error> {
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
            excludes_veths: false,
        }))
    }
}

/// Priority among the policies of a node: they are applied in ascending order, so that the highest one prevails.
pub fn priority(spec: &Value) -> i64 {
    spec.get("priority").and_then(Value::as_i64).unwrap_or_default()
}

/// Whether a policy has rules about VLANs of neighbours, so that it needs LLDP before it can be rendered.
pub fn needs_lldp(spec: &Value) -> bool {
    let policy = OriginalPolicy::of(spec).ok().flatten();
    policy.is_some_and(|policy| policy.rules.iter().any(|rule| rule.vlans.is_some()))
}

/// `maxUnavailable` of a policy, or its equivalent for the old member `parallel`.
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

/// One rule, a list of them, or a wrapper around either: all forms in the drafts of the design.
fn rules(condition: &Value) -> Result<Vec<Rule>, Error> {
    match condition {
        Value::Null => Ok(Vec::new()),
        Value::Array(items) => {
            let is_empty = |item: &Value| item.as_object().is_some_and(Map::is_empty);
            if items.iter().any(is_empty) {
                return Err(Error::Unclear(EMPTY_RULE.to_owned()));
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
            // If it were ignored, the rule would match more than intended.
            (key, _) => return Err(Error::Unclear(format!("unknown key match.interfaces.{key}"))),
        }
    }
    if rule == Rule::default() {
        return Err(Error::Unclear(EMPTY_RULE.to_owned()));
    }
    Ok(rule)
}

const EMPTY_RULE: &str = "a rule in match.interfaces says nothing: give it name, type or lldp.vlan-ids";

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

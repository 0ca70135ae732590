//! Egress routers (§17.5): each `EgressRouter` has a network and a Deployment with one pod.
//!
//! ```text
//! EgressRouters of a namespace ──> check ──> decide: the owner of the objects, and the errors of the others
//!                                               │
//!              render::egress_router ◄──────────┘
//! ```

use std::net::IpAddr;

use api::cluster_network::Condition;
use api::cluster_network::egress_router::{EgressRouterSpec, Macvlan, RedirectRule};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::{cidr, conditions::builder, messages::egress_router as messages, names};

pub mod controller;
#[cfg(test)]
mod tests;

/// Longest name of a link.
const LINK_NAME: usize = 15;
/// The mode of macvlan links that the CNI plugin has by default.
const DEFAULT_MODE: &str = "Bridge";

/// A valid egress router, in the terms of the CNI plugin.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Router {
    address: String,
    /// The gateway of the pod.
    pub gateway: String,
    destinations: Vec<String>,
    fallback: String,
    /// Differences from the plugin's default interface.
    interface: Map<String, Value>,
}

impl Router {
    /// The CNI configuration, byte for byte as upstream renders it: any difference would cause a write when one
    /// operator replaces the other.
    pub fn config(&self) -> String {
        let name = names::EGRESS_ROUTER_NETWORK;
        let mut text = format!(r#"{{ "cniVersion": "0.4.0", "type": "egress-router", "name": "{name}", "#);
        if !self.interface.is_empty() {
            text += &format!(r#""interfaceArgs": {}, "#, json!(self.interface));
        }
        text += &format!(
            "\"ip\": {{ \"addresses\": [ {} ], \"destinations\": {},\n",
            json!(self.address),
            json!(self.destinations)
        );
        if !self.fallback.is_empty() {
            text += &format!("\"fallbackIP\": {},\n", json!(self.fallback));
        }
        text + &format!(
            r#""gateway": {} }}, "log_file": "/tmp/egress-router-log", "log_level": "debug" }}"#,
            json!(self.gateway)
        )
    }
}

/// Validates the spec of an egress router.
///
/// # Errors
/// All errors, each with the path of its field.
pub fn check(spec: &EgressRouterSpec) -> Result<Router, Vec<String>> {
    let mut errors = Vec::new();
    if !["", "Redirect"].contains(&spec.mode.as_str()) {
        errors.push(messages::mode(&spec.mode));
    }
    let Some(address) = spec.addresses.first() else {
        errors.push(messages::NO_ADDRESS.to_owned());
        return Err(errors);
    };
    let own = cidr::parse(&address.ip).ok();
    if own.is_none() {
        errors.push(messages::no_cidr("addresses[0].ip", &address.ip));
    }
    let mut destination = |field: &str, text: &str| match (text.parse::<IpAddr>(), own) {
        (Err(_), _) => errors.push(messages::no_address(field, text)),
        (Ok(it), Some(own)) if it.is_ipv6() != cidr::is_v6(&own) => {
            errors.push(messages::other_family(field, text, &address.ip));
        }
        (Ok(it), Some(own)) if it == own.addr() => errors.push(messages::own_address(field, text)),
        (Ok(_), _) => {}
    };
    destination("addresses[0].gateway", &address.gateway);
    let rules = &spec.redirect.redirect_rules;
    for (index, rule) in rules.iter().enumerate() {
        let field = format!("redirect.redirectRules[{index}].destinationIP");
        destination(&field, &rule.destination_ip);
    }
    if !spec.redirect.fallback_ip.is_empty() {
        destination("redirect.fallbackIP", &spec.redirect.fallback_ip);
    }
    for (index, rule) in rules.iter().enumerate() {
        check_ports(index, rule, &mut errors);
    }
    let interface = interface(&spec.network_interface.macvlan, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    Ok(Router {
        address: address.ip.clone(),
        gateway: address.gateway.clone(),
        destinations: rules.iter().map(line).collect(),
        fallback: spec.redirect.fallback_ip.clone(),
        interface,
    })
}

fn check_ports(index: usize, rule: &RedirectRule, errors: &mut Vec<String>) {
    let field = |name: &str| format!("redirect.redirectRules[{index}].{name}");
    if !(1..=65535).contains(&rule.port) {
        errors.push(messages::port(&field("port"), rule.port));
    }
    if !(0..=65535).contains(&rule.target_port) {
        errors.push(messages::port(&field("targetPort"), rule.target_port));
    }
    if !["TCP", "UDP", "SCTP"].contains(&rule.protocol.as_str()) {
        errors.push(messages::protocol(&field("protocol"), &rule.protocol));
    }
}

/// A rule, as the CNI plugin reads it: port, protocol, destination, and the port of the destination if that differs.
fn line(rule: &RedirectRule) -> String {
    let RedirectRule {
        destination_ip,
        port,
        protocol,
        target_port,
    } = rule;
    match target_port {
        0 => format!("{port} {protocol} {destination_ip}"),
        _ => format!("{port} {protocol} {destination_ip} {target_port}"),
    }
}

fn interface(macvlan: &Macvlan, errors: &mut Vec<String>) -> Map<String, Value> {
    let mut arguments = Map::new();
    let Macvlan { mode, master } = macvlan;
    if !["", DEFAULT_MODE, "Private", "VEPA", "Passthru"].contains(&mode.as_str()) {
        errors.push(messages::macvlan_mode(mode));
    }
    let is_name = |text: &str| {
        text.len() <= LINK_NAME && ![".", ".."].contains(&text) && !text.contains(['/', ' ', '\t', '\n'])
    };
    if !is_name(master) {
        errors.push(messages::master(master));
    }
    if !master.is_empty() {
        arguments.insert("master".to_owned(), json!(master));
    }
    if !["", DEFAULT_MODE].contains(&mode.as_str()) {
        arguments.insert("mode".to_owned(), json!(mode.to_lowercase()));
    }
    arguments
}

/// An egress router of a namespace.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Candidate {
    /// Name of the router.
    pub name: String,
    /// UID of the router.
    pub uid: String,
    /// Creation time, as in the metadata.
    pub created: String,
    /// The valid router, or its errors.
    pub router: Result<Router, Vec<String>>,
}

/// Cause for which the objects do not follow a router.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refused {
    /// The spec is invalid. Existing objects of the router stay.
    #[error("{}", .0.join("; "))]
    Invalid(Vec<String>),
    /// Another router of the namespace owns the objects.
    #[error("{}", messages::taken(.0))]
    Taken(String),
}

impl Refused {
    /// Reason of the router's conditions, in one word.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "InvalidSpec",
            Self::Taken(_) => "NamesTaken",
        }
    }
}

/// Decides which router of a namespace the objects follow: their owner as long as it exists, otherwise the oldest valid
/// router. `owner` is the UID in the owner reference of the existing objects. All routers of a namespace would have
/// objects with the same names.
pub fn decide(candidates: &[Candidate], owner: Option<&str>) -> Vec<Result<Router, Refused>> {
    let existing = candidates.iter().find(|it| Some(it.uid.as_str()) == owner);
    let valid = candidates.iter().filter(|it| it.router.is_ok());
    let chosen = existing.or_else(|| valid.min_by_key(|it| (&it.created, &it.name)));
    let decision = |candidate: &Candidate| match (&candidate.router, chosen) {
        (Err(errors), _) => Err(Refused::Invalid(errors.clone())),
        (Ok(_), Some(other)) if other.uid != candidate.uid => Err(Refused::Taken(other.name.clone())),
        (Ok(router), _) => Ok(router.clone()),
    };
    candidates.iter().map(decision).collect()
}

/// The next conditions of a router. `failure` is the reason and the message of `Degraded`.
pub fn conditions(
    failure: Option<(&str, &str)>,
    is_available: bool,
    before: &[Condition],
    now: Timestamp,
) -> Vec<Condition> {
    let condition = builder(before, now);
    let available = match failure {
        _ if is_available => condition("Available", "True", "PodAvailable", ""),
        Some((reason, message)) => condition("Available", "False", reason, message),
        None => condition("Available", "False", "NoPodAvailable", messages::NO_POD),
    };
    let degraded = match failure {
        Some((reason, message)) => condition("Degraded", "True", reason, message),
        None => condition("Degraded", "False", "AsExpected", ""),
    };
    vec![available, degraded]
}

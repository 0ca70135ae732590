//! The rules and elements of forwards.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

use linux::nft::{
    Expression, Family, Header, Hook, HookPoint, Key, KeyPart, LOCAL_ADDRESS, Meta, Register, Value, Verdict,
};

use crate::{
    matches::{self, Side, compare},
    names::portmap::{
        ALL_HOSTPORTS, COMMENT, HOSTIP_HOSTPORTS, HOSTIP_PORTS, HOSTPORTS, MASQUERADED, MASQUERADED_FROM,
        MASQUERADING, OUTPUT, PORTS, PREROUTING,
    },
    portmap::{
        config::Config,
        forward::{Forward, Masquerade},
    },
};

/// Priorities -100 and 100 are nft's `dstnat` and `srcnat`.
const DESTINATIONS: i32 = -100;
const SOURCES: i32 = 100;
/// Offset and length of the destination port in the headers of all supported protocols.
const DESTINATION_PORT: (u32, u32) = (2, 2);

/// A required element of a set or map.
pub(super) struct RequiredElement {
    pub(super) set: String,
    pub(super) key: Key,
    /// The value in a map.
    pub(super) data: Option<Key>,
}

/// The name of a map or set for these conditions.
fn named(name: &str, conditions: &str) -> String {
    if conditions.is_empty() {
        name.to_owned()
    } else {
        format!("{name}-{conditions}")
    }
}

/// The elements of a forward. The first of duplicate ports wins.
pub(super) fn required_elements(forward: &Forward) -> Vec<RequiredElement> {
    let mut places: Vec<RequiredElement> = Vec::new();
    let mut known = BTreeSet::new();
    let container = forward.address.addr();
    for mapping in &forward.mappings {
        let mut key = vec![
            Value::Transport(mapping.protocol.number()),
            Value::Port(mapping.host_port),
        ];
        let mut set = PORTS;
        if let Some(host) = mapping.host_ip {
            key.insert(0, Value::Ip(host));
            set = HOSTIP_PORTS;
        }
        let place = RequiredElement {
            set: named(set, &forward.conditions),
            key: Key::of(&key),
            data: Some(Key::of(&[
                Value::Ip(container),
                Value::Port(mapping.container_port),
            ])),
        };
        if known.insert((place.set.clone(), place.key.clone())) {
            places.push(place);
        }
    }
    let mut masquerade = |set: &str, key: &[Value<'_>]| {
        places.push(RequiredElement {
            set: set.to_owned(),
            key: Key::of(key),
            data: None,
        });
    };
    match forward.masquerade {
        Masquerade::Nothing => {}
        Masquerade::Inner => {
            masquerade(MASQUERADED_FROM, &[Value::Ip(container), Value::Ip(container)]);
            if forward.is_ipv4() {
                let localhost = Value::Ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
                masquerade(MASQUERADED_FROM, &[localhost, Value::Ip(container)]);
            }
        }
        Masquerade::All => masquerade(MASQUERADED, &[Value::Ip(container)]),
    }
    places
}

/// A required rule of a chain.
pub(super) struct RequiredRule {
    pub(super) chain: &'static str,
    pub(super) rule: Vec<Expression>,
    pub(super) comment: &'static str,
    /// The map or set that the rule looks up, and the parts of its keys and values.
    pub(super) set: Option<(String, Vec<KeyPart>, Vec<KeyPart>)>,
}

/// The ordered rules of a forward.
pub(super) fn required_rules(config: &Config, forward: &Forward) -> Vec<RequiredRule> {
    let is_ipv4 = forward.is_ipv4();
    let jump = |chain: &str| Expression::Verdict(Verdict::Jump(chain.to_owned()));
    let plain = |chain, rule| RequiredRule {
        chain,
        rule,
        comment: "",
        set: None,
    };
    let to_the_host = || {
        vec![
            Expression::DestinationType { to: Register::FIRST },
            compare(true, LOCAL_ADDRESS.to_vec()),
            jump(ALL_HOSTPORTS),
        ]
    };
    let mut all = vec![
        plain(ALL_HOSTPORTS, vec![jump(HOSTIP_HOSTPORTS)]),
        plain(ALL_HOSTPORTS, vec![jump(HOSTPORTS)]),
        plain(PREROUTING, to_the_host()),
        plain(OUTPUT, to_the_host()),
    ];
    let address = if is_ipv4 { KeyPart::Ipv4 } else { KeyPart::Ipv6 };
    for (name, by_address) in [(HOSTIP_PORTS, true), (PORTS, false)] {
        let set = named(name, &forward.conditions);
        let mut rule = config.steps(is_ipv4).to_vec();
        let mut key = vec![KeyPart::Transport, KeyPart::Port];
        if by_address {
            key.insert(0, address);
        }
        rule.extend(lead(&set, is_ipv4, by_address));
        all.push(RequiredRule {
            chain: HOSTPORTS,
            rule,
            comment: COMMENT,
            set: Some((set, key, vec![address, KeyPart::Port])),
        });
    }
    match forward.masquerade {
        Masquerade::Nothing => {}
        Masquerade::Inner => all.push(masquerade(MASQUERADED_FROM, is_ipv4, true)),
        Masquerade::All => all.push(masquerade(MASQUERADED, is_ipv4, false)),
    }
    all
}

/// `dnat to [ip daddr .] meta l4proto . th dport map @<set>`.
fn lead(set: &str, is_ipv4: bool, by_address: bool) -> Vec<Expression> {
    let address_words = if is_ipv4 { 1 } else { 4 };
    let mut rule = Vec::new();
    let mut word = 0;
    if by_address {
        rule.push(matches::address(Side::Destination, is_ipv4, Register::FIRST));
        word = address_words;
    }
    let (offset, length) = DESTINATION_PORT;
    rule.extend([
        Expression::Meta {
            meta: Meta::Transport,
            to: Register::word(word),
        },
        Expression::Payload {
            header: Header::Transport,
            offset,
            length,
            to: Register::word(word + 1),
        },
        Expression::Map {
            set: set.to_owned(),
            register: Register::FIRST,
            to: Register::FIRST,
        },
        Expression::DestinationNat {
            family: if is_ipv4 { Family::Ipv4 } else { Family::Ipv6 },
            address: Register::FIRST,
            port: Register::word(address_words),
        },
    ]);
    rule
}

/// `[ip saddr .] ip daddr @<set> masquerade`.
fn masquerade(set: &'static str, is_ipv4: bool, by_source: bool) -> RequiredRule {
    let address = if is_ipv4 { KeyPart::Ipv4 } else { KeyPart::Ipv6 };
    let words = if is_ipv4 { 1 } else { 4 };
    let mut rule = Vec::new();
    let mut key = vec![address];
    if by_source {
        rule.push(matches::address(Side::Source, is_ipv4, Register::FIRST));
        key.push(address);
    }
    let to = Register::word(if by_source { words } else { 0 });
    rule.extend([
        matches::address(Side::Destination, is_ipv4, to),
        Expression::Lookup {
            set: set.to_owned(),
            register: Register::FIRST,
            contained: true,
        },
        Expression::Masquerade,
    ]);
    RequiredRule {
        chain: MASQUERADING,
        rule,
        comment: COMMENT,
        set: Some((set.to_owned(), key, Vec::new())),
    }
}

pub(super) fn hook(chain: &str) -> Option<Hook> {
    let (point, priority) = match chain {
        PREROUTING => (HookPoint::Prerouting, DESTINATIONS),
        OUTPUT => (HookPoint::Output, DESTINATIONS),
        MASQUERADING => (HookPoint::Postrouting, SOURCES),
        _ => return None,
    };
    Some(Hook {
        kind: "nat",
        point,
        priority,
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::portmap::forward::{Mapping, Protocol};

    #[test]
    fn elements_of_many_mappings_are_distinct_in_little_time() {
        // cni-plugins#90
        let mapping = |host_port| Mapping {
            protocol: Protocol::Tcp,
            host_ip: None,
            host_port,
            container_port: 80,
        };
        let forward = Forward {
            address: "10.1.2.3/24".parse().unwrap(),
            masquerade: Masquerade::Nothing,
            conditions: String::new(),
            mappings: (0..50_000).chain(0..50_000).map(mapping).collect(),
        };
        let started = Instant::now();
        assert_eq!(required_elements(&forward).len(), 50_000);
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}

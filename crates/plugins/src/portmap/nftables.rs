//! Ports by nftables.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use linux::nft::{
    Element, Expression, Family, Header, Hook, HookPoint, Key, KeyPart, LOCAL_ADDRESS, Meta, Register, Rule,
    SetSpec, Socket, Table, Transaction, Value, Verdict,
};

use super::{
    config::Config,
    forward::{Forward, Masquerade},
};
use crate::{
    comment,
    matches::{self, Side, compare},
    names::portmap::{
        ALL_HOSTPORTS, COMMENT, HOSTIP_HOSTPORTS, HOSTIP_PORTS, HOSTPORTS, MASQUERADED, MASQUERADED_COMMENT,
        MASQUERADED_FROM, MASQUERADING, OUTPUT, PORTS, PORTS_COMMENT, PREROUTING, TABLE_COMMENT, TABLE_NAME,
    },
    record::{Attachment, AttachmentId},
};

const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];
/// Priorities -100 and 100 are nft's `dstnat` and `srcnat`.
const DESTINATIONS: i32 = -100;
const SOURCES: i32 = 100;
/// Where headers of all protocols with ports have the destination's, and its length.
const DESTINATION_PORT: (u32, u32) = (2, 2);

fn table(family: Family) -> Table {
    Table {
        family,
        name: TABLE_NAME,
    }
}

/// An element that is to be in a set or map.
struct Place {
    set: String,
    key: Key,
    /// Where a map leads.
    data: Option<Key>,
}

/// The name of a map or set of addresses and ports under some conditions.
fn named(name: &str, conditions: &str) -> String {
    if conditions.is_empty() {
        name.to_owned()
    } else {
        format!("{name}-{conditions}")
    }
}

/// The elements of a forward. Of ports that are given twice, the first counts.
fn places(forward: &Forward) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
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
        let place = Place {
            set: named(set, &forward.conditions),
            key: Key::of(&key),
            data: Some(Key::of(&[
                Value::Ip(container),
                Value::Port(mapping.container_port),
            ])),
        };
        if !places
            .iter()
            .any(|other| other.set == place.set && other.key == place.key)
        {
            places.push(place);
        }
    }
    let mut masquerade = |set: &str, key: &[Value<'_>]| {
        places.push(Place {
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

/// A rule that there has to be, in a chain.
struct Wanted {
    chain: &'static str,
    rule: Vec<Expression>,
    comment: &'static str,
    /// The map or set that it looks into, and what its keys are made of.
    set: Option<(String, Vec<KeyPart>, Vec<KeyPart>)>,
}

/// The rules of a forward, in the order in which packets meet them.
fn wanted(config: &Config, forward: &Forward) -> Vec<Wanted> {
    let is_ipv4 = forward.is_ipv4();
    let jump = |chain: &str| Expression::Verdict(Verdict::Jump(chain.to_owned()));
    let plain = |chain, rule| Wanted {
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
        all.push(Wanted {
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
fn masquerade(set: &'static str, is_ipv4: bool, by_source: bool) -> Wanted {
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
    Wanted {
        chain: MASQUERADING,
        rule,
        comment: COMMENT,
        set: Some((set.to_owned(), key, Vec::new())),
    }
}

fn hook(chain: &str) -> Option<Hook> {
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

pub(super) fn add(
    socket: &mut Socket,
    config: &Config,
    attachment: Attachment<'_>,
    forwards: &[Forward],
) -> linux::Result<()> {
    let comment = comment::of_attachment(attachment);
    socket.update(|socket| {
        let mut changes = Transaction::new();
        for forward in forwards {
            let table = table(forward.family());
            add_base(socket, config, forward, &mut changes)?;
            for place in places(forward) {
                let Place { set, key, data } = &place;
                // The last one who asks for a port has it.
                if socket.element(table, set, key)?.is_some() {
                    changes.delete_element(table, set, key);
                }
                match data {
                    Some(data) => changes.add_map_element(table, set, key, data, &comment),
                    None => changes.add_element(table, set, key, &comment),
                }
            }
        }
        Ok(changes)
    })
}

/// Table, chains, sets and rules, as far as they are missing.
fn add_base(
    socket: &mut Socket,
    config: &Config,
    forward: &Forward,
    changes: &mut Transaction,
) -> linux::Result<()> {
    let table = table(forward.family());
    let wanted = wanted(config, forward);
    let mut missing = Vec::new();
    for rule in &wanted {
        if !has(socket, table, rule)? {
            missing.push(rule);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    changes.add_table(table, TABLE_COMMENT);
    let mut chains = vec![HOSTPORTS, HOSTIP_HOSTPORTS];
    for rule in &wanted {
        if !chains.contains(&rule.chain) {
            chains.push(rule.chain);
        }
    }
    for chain in chains {
        changes.add_chain(table, chain, hook(chain), "");
    }
    for rule in missing {
        if let Some((name, key, data)) = &rule.set {
            let comment = if data.is_empty() {
                MASQUERADED_COMMENT
            } else {
                PORTS_COMMENT
            };
            changes.add_set(
                table,
                &SetSpec {
                    name,
                    key,
                    data,
                    comment,
                },
            );
        }
        changes.add_rule(table, rule.chain, &rule.rule, rule.comment);
    }
    Ok(())
}

fn has(socket: &mut Socket, table: Table, wanted: &Wanted) -> linux::Result<bool> {
    let rules = socket.rules(table, wanted.chain)?;
    Ok(rules.iter().any(|rule| rule.expressions == wanted.rule))
}

/// Removes elements that are on record. Those that another attachment has by now stay.
pub(super) fn remove(
    socket: &mut Socket,
    attachment: Attachment<'_>,
    forwards: &[Forward],
) -> linux::Result<()> {
    let hash = attachment.hash();
    socket.update(|socket| {
        let mut changes = Transaction::new();
        let mut seen: Vec<(Family, Place)> = Vec::new();
        for forward in forwards {
            let family = forward.family();
            for place in places(forward) {
                let is_known = |(of, other): &(Family, Place)| {
                    *of == family && other.set == place.set && other.key == place.key
                };
                if seen.iter().any(is_known) {
                    continue;
                }
                let element = socket.element(table(family), &place.set, &place.key)?;
                if element.is_some_and(|element| element.comment.starts_with(&hash)) {
                    changes.delete_element(table(family), &place.set, &place.key);
                }
                seen.push((family, place));
            }
        }
        Ok(changes)
    })
}

/// Finds what is there of the attachment, and rules that established plugins made for its container.
pub(super) fn search_and_remove(socket: &mut Socket, attachment: Attachment<'_>) -> linux::Result<()> {
    let hash = attachment.hash();
    socket.update(|socket| {
        let mut changes = Transaction::new();
        for family in FAMILIES {
            let table = table(family);
            for chain in [HOSTPORTS, HOSTIP_HOSTPORTS, MASQUERADING] {
                for rule in socket.rules(table, chain)? {
                    if rule.comment == attachment.container_id {
                        changes.delete_rule(table, chain, rule.handle);
                    }
                }
            }
            for (set, element) in elements(socket, table)? {
                if element.comment.starts_with(&hash) {
                    changes.delete_element(table, &set, &element.key);
                }
            }
        }
        Ok(changes)
    })
}

/// All elements of our sets, each with the set that it is in.
fn elements(socket: &mut Socket, table: Table) -> linux::Result<Vec<(String, Element)>> {
    let mut found = Vec::new();
    for set in socket.sets(table)? {
        if is_ours(&set) {
            let elements = socket.elements(table, &set)?;
            found.extend(elements.into_iter().map(|element| (set.clone(), element)));
        }
    }
    Ok(found)
}

fn is_ours(set: &str) -> bool {
    [PORTS, HOSTIP_PORTS, MASQUERADED, MASQUERADED_FROM].contains(&set) || is_conditional(set)
}

/// Whether it is a map for the ports of a config with conditions.
fn is_conditional(set: &str) -> bool {
    [PORTS, HOSTIP_PORTS]
        .iter()
        .any(|name| set.strip_prefix(name).is_some_and(|rest| rest.starts_with('-')))
}

/// The chain in which something is missing of what leads to the container, in our way and in that of established
/// plugins.
pub(super) fn missing(
    socket: &mut Socket,
    config: &Config,
    attachment: Attachment<'_>,
    forwards: &[Forward],
) -> linux::Result<Option<String>> {
    let hash = attachment.hash();
    for forward in forwards {
        let table = table(forward.family());
        let mut ours = None;
        for rule in wanted(config, forward) {
            if !has(socket, table, &rule)? {
                ours = Some(rule.chain);
                break;
            }
        }
        for place in places(forward) {
            let element = socket.element(table, &place.set, &place.key)?;
            let is_there = element
                .is_some_and(|element| element.data == place.data && element.comment.starts_with(&hash));
            if !is_there && ours.is_none() {
                ours = Some(if place.data.is_some() {
                    HOSTPORTS
                } else {
                    MASQUERADING
                });
            }
        }
        if let Some(chain) = ours
            && !is_established(socket, table, attachment, forward)?
        {
            return Ok(Some(chain.to_owned()));
        }
    }
    Ok(None)
}

/// Whether an established plugin made as many rules as the forward takes.
fn is_established(
    socket: &mut Socket,
    table: Table,
    attachment: Attachment<'_>,
    forward: &Forward,
) -> linux::Result<bool> {
    let mut count = |chain: &str| -> linux::Result<usize> {
        let rules = socket.rules(table, chain)?;
        let is_of_container = |rule: &&Rule| rule.comment == attachment.container_id;
        Ok(rules.iter().filter(is_of_container).count())
    };
    let masquerading = match (forward.masquerade, forward.is_ipv4()) {
        (Masquerade::Nothing, _) => 0,
        (Masquerade::Inner, true) => 2,
        (Masquerade::Inner, false) | (Masquerade::All, _) => 1,
    };
    Ok(
        count(HOSTPORTS)? + count(HOSTIP_HOSTPORTS)? >= forward.mappings.len()
            && count(MASQUERADING)? >= masquerading,
    )
}

/// Removes everything of the network's attachments that are not in `valid`.
pub(super) fn collect(
    socket: &mut Socket,
    network: &str,
    valid: &BTreeSet<AttachmentId>,
) -> linux::Result<()> {
    let is_stale = comment::is_stale(network, valid);
    comment::collect(socket, |socket, _| {
        let mut stale = Vec::new();
        for table in FAMILIES.map(table) {
            let mut elements = elements(socket, table)?;
            elements.retain(|(_, element)| is_stale(&element.comment));
            stale.extend(
                elements
                    .into_iter()
                    .map(|(set, element)| (table, set, element.key)),
            );
        }
        Ok(stale)
    })
}

/// Removes maps for conditions that no port has any more, with their rules. All else stays, as with established plugins.
pub(super) fn remove_unused(socket: &mut Socket) -> linux::Result<()> {
    socket.update(|socket| {
        let mut changes = Transaction::new();
        for family in FAMILIES {
            let table = table(family);
            let mut unused = socket.sets(table)?;
            unused.retain(|set| is_conditional(set));
            let mut empty = Vec::new();
            for set in unused {
                if socket.elements(table, &set)?.is_empty() {
                    empty.push(set);
                }
            }
            if empty.is_empty() {
                continue;
            }
            for rule in socket.rules(table, HOSTPORTS)? {
                if looks_into(&rule, &empty) {
                    changes.delete_rule(table, HOSTPORTS, rule.handle);
                }
            }
            for set in &empty {
                changes.delete_set(table, set);
            }
        }
        Ok(changes)
    })
}

fn looks_into(rule: &Rule, sets: &[String]) -> bool {
    rule.expressions
        .iter()
        .any(|expression| matches!(expression, Expression::Map { set, .. } if sets.contains(set)))
}

//! Port forwarding with nftables.

mod rules;

use std::collections::BTreeSet;

use linux::nft::{Expression, Family, Key, Rule, SetSpec, Socket, Table, Transaction};

use self::rules::{RequiredElement, RequiredRule, hook, required_elements, required_rules};
use super::{
    config::Config,
    forward::{Forward, Masquerade},
};
use crate::{
    comment,
    names::portmap::{
        HOSTIP_HOSTPORTS, HOSTIP_PORTS, HOSTPORTS, MASQUERADED, MASQUERADED_COMMENT, MASQUERADED_FROM,
        MASQUERADING, PORTS, PORTS_COMMENT, TABLE_COMMENT, TABLE_NAME,
    },
    record::{Attachment, AttachmentId},
};

const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

fn table(family: Family) -> Table {
    Table {
        family,
        name: TABLE_NAME,
    }
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
            for place in required_elements(forward) {
                let RequiredElement { set, key, data } = &place;
                // The last ADD for a port wins.
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

/// Adds missing tables, chains, sets and rules.
fn add_base(
    socket: &mut Socket,
    config: &Config,
    forward: &Forward,
    changes: &mut Transaction,
) -> linux::Result<()> {
    let table = table(forward.family());
    let required = required_rules(config, forward);
    let mut missing = Vec::new();
    for rule in &required {
        if !has(socket, table, rule)? {
            missing.push(rule);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    changes.add_table(table, TABLE_COMMENT);
    let mut chains = vec![HOSTPORTS, HOSTIP_HOSTPORTS];
    for rule in &required {
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

fn has(socket: &mut Socket, table: Table, required: &RequiredRule) -> linux::Result<bool> {
    let rules = socket.rules(table, required.chain)?;
    Ok(rules.iter().any(|rule| rule.expressions == required.rule))
}

/// Removes recorded elements. Keeps those that belong to another attachment now.
pub(super) fn remove(
    socket: &mut Socket,
    attachment: Attachment<'_>,
    forwards: &[Forward],
) -> linux::Result<()> {
    let hash = attachment.hash();
    socket.update(|socket| {
        let mut changes = Transaction::new();
        let mut seen = BTreeSet::new();
        for forward in forwards {
            let family = forward.family();
            for place in required_elements(forward) {
                let is_new = seen.insert((forward.is_ipv4(), place.set.clone(), place.key.clone()));
                if is_new && comment::has_element(socket, &hash, table(family), &place.set, &place.key)? {
                    changes.delete_element(table(family), &place.set, &place.key);
                }
            }
        }
        Ok(changes)
    })
}

/// Searches for the attachment's elements and upstream's rules for its container, and removes them.
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
            for (set, key) in keys(socket, table, |comment| comment.starts_with(&hash))? {
                changes.delete_element(table, &set, &key);
            }
        }
        Ok(changes)
    })
}

/// The keys of the elements of our sets whose comment satisfies `which`, each with its set.
fn keys(
    socket: &mut Socket,
    table: Table,
    which: impl Fn(&str) -> bool,
) -> linux::Result<Vec<(String, Key)>> {
    let mut found = Vec::new();
    for set in socket.sets(table)? {
        if is_ours(&set) {
            let keys = comment::keys(socket, table, &set, &which)?;
            found.extend(keys.into_iter().map(|key| (set.clone(), key)));
        }
    }
    Ok(found)
}

fn is_ours(set: &str) -> bool {
    [PORTS, HOSTIP_PORTS, MASQUERADED, MASQUERADED_FROM].contains(&set) || is_conditional(set)
}

/// Whether a map belongs to a config with conditions.
fn is_conditional(set: &str) -> bool {
    [PORTS, HOSTIP_PORTS]
        .iter()
        .any(|name| set.strip_prefix(name).is_some_and(|rest| rest.starts_with('-')))
}

/// The first chain that lacks both our and upstream's rules for the pod.
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
        for rule in required_rules(config, forward) {
            if !has(socket, table, &rule)? {
                ours = Some(rule.chain);
                break;
            }
        }
        for place in required_elements(forward) {
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
            && !has_upstream_rules(socket, table, attachment, forward)?
        {
            return Ok(Some(chain.to_owned()));
        }
    }
    Ok(None)
}

/// Whether upstream's rules for the forward are complete.
fn has_upstream_rules(
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

/// Removes the elements of the network's attachments that are not in `valid`.
pub(super) fn collect(
    socket: &mut Socket,
    network: &str,
    valid: &BTreeSet<AttachmentId>,
) -> linux::Result<()> {
    let is_stale = comment::is_stale(network, valid);
    comment::collect(socket, |socket, _| {
        let mut stale = Vec::new();
        for table in FAMILIES.map(table) {
            let keys = keys(socket, table, &is_stale)?;
            stale.extend(keys.into_iter().map(|(set, key)| (table, set, key)));
        }
        Ok(stale)
    })
}

/// Removes unused maps for conditions with their rules. Like upstream, keeps the rest.
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

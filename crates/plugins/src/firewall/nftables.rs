//! Addresses and policies with nftables.

mod rules;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use linux::nft::{
    Expression, Header, Hook, HookPoint, Key, KeyPart, Register, Rule, SetSpec, Socket, Table, Transaction,
    Value, Verdict,
};

use self::rules::{RequiredRule, TABLE, admitting, isolating, without_counters};
use super::config::{Config, Policy};
use crate::{
    comment,
    iptables::Version,
    matches::{self, Side, compare},
    names::{
        IPTABLES_FILTER, IPTABLES_FORWARD,
        firewall::{
            ADDRESSES_IPV4, ADDRESSES_IPV6, ADMITTED_COMMENT, BRIDGES, BRIDGES_COMMENT, CNI_FORWARD, FORWARD,
            ISOLATED, ISOLATION, PAIRS_COMMENT, SAME, TABLE_COMMENT, UNMARK,
        },
    },
    record::{Attachment, AttachmentId},
};

/// iptables has priority 0: isolation and marking run before it, unmarking after it.
const HOOKS: [(&str, i32); 3] = [(ISOLATION, -2), (FORWARD, -1), (UNMARK, 1)];
const IPTABLES_HOOK: Hook = hook(0);
const ADDRESSES: [&str; 2] = [ADDRESSES_IPV4, ADDRESSES_IPV6];
const PAIR: &[KeyPart] = &[KeyPart::InterfaceName, KeyPart::InterfaceName];
/// Sets with their keys and comments.
const SETS: [(&str, &[KeyPart], &str); 5] = [
    (ADDRESSES_IPV4, &[KeyPart::Ipv4], ADMITTED_COMMENT),
    (ADDRESSES_IPV6, &[KeyPart::Ipv6], ADMITTED_COMMENT),
    (BRIDGES, &[KeyPart::InterfaceName], BRIDGES_COMMENT),
    (SAME, PAIR, PAIRS_COMMENT),
    (ISOLATED, PAIR, PAIRS_COMMENT),
];

const fn hook(priority: i32) -> Hook {
    Hook {
        kind: "filter",
        point: HookPoint::Forward,
        priority,
    }
}

fn set_of(address: &IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => ADDRESSES_IPV4,
        IpAddr::V6(_) => ADDRESSES_IPV6,
    }
}

fn key_of(address: &IpAddr) -> Key {
    Key::of(&[Value::Ip(*address)])
}

/// The rules that one update has read: several decisions need the same chains.
#[derive(Default)]
struct ReadChains(Vec<(Table, String, Vec<Rule>)>);

impl ReadChains {
    fn rules(&mut self, socket: &mut Socket, table: Table, chain: &str) -> linux::Result<&[Rule]> {
        let is = |(of, name, _): &(Table, String, Vec<Rule>)| *of == table && name == chain;
        let read = self.0.iter().position(is);
        let at = read.unwrap_or(self.0.len());
        if read.is_none() {
            let rules = socket.rules(table, chain)?;
            self.0.push((table, chain.to_owned(), rules));
        }
        Ok(&self.0[at].2)
    }
}

/// The IP versions of addresses.
fn versions(addresses: &[IpAddr]) -> impl Iterator<Item = Version> + '_ {
    let is_of = |version: &Version| {
        addresses
            .iter()
            .any(|address| Version::of(&IpNet::from(*address)) == *version)
    };
    Version::ALL.into_iter().filter(move |version| is_of(version))
}

/// Adds missing rules with their tables, chains and sets. `admin` is the administrator's chain.
fn ensure(
    socket: &mut Socket,
    chains: &mut ReadChains,
    wanted: Vec<RequiredRule>,
    admin: &str,
    changes: &mut Transaction,
) -> linux::Result<()> {
    let mut missing: Vec<RequiredRule> = Vec::new();
    for rule in wanted {
        let there = chains.rules(socket, rule.table, &rule.chain)?;
        // Both families may request the same rule.
        let is_known = missing
            .iter()
            .any(|other| other.table == rule.table && other.chain == rule.chain && other.rule == rule.rule);
        if !is_known && !rule.is_in(there) {
            missing.push(rule);
        }
    }
    let (mut made, mut made_of_ours) = (Vec::new(), Vec::new());
    for rule in &missing {
        if rule.table == TABLE {
            add_place(rule, &mut made_of_ours, changes);
        } else if !made.contains(&rule.table) {
            made.push(rule.table);
            changes.add_table(rule.table, "");
            changes.add_chain(rule.table, IPTABLES_FORWARD, Some(IPTABLES_HOOK), "");
            changes.add_chain(rule.table, CNI_FORWARD, None, "");
            changes.add_chain(rule.table, admin, None, "");
        }
    }
    for rule in &missing {
        if rule.first {
            changes.insert_rule(rule.table, &rule.chain, &rule.rule, rule.comment);
        } else {
            changes.add_rule(rule.table, &rule.chain, &rule.rule, rule.comment);
        }
    }
    Ok(())
}

/// Adds our table, and the chain and the sets of a rule unless `made` has them. An ADD does not wait for chains and sets that
/// only other configs need: the kernel takes long to make them.
fn add_place(rule: &RequiredRule, made: &mut Vec<&'static str>, changes: &mut Transaction) {
    if made.is_empty() {
        changes.add_table(TABLE, TABLE_COMMENT);
    }
    for (chain, priority) in HOOKS {
        if chain == rule.chain && !made.contains(&chain) {
            made.push(chain);
            changes.add_chain(TABLE, chain, Some(hook(priority)), "");
        }
    }
    for (name, key, comment) in SETS {
        let is_used = |step: &Expression| matches!(step, Expression::Lookup { set, .. } if set == name);
        if rule.rule.iter().any(is_used) && !made.contains(&name) {
            made.push(name);
            let data = &[];
            changes.add_set(
                TABLE,
                &SetSpec {
                    name,
                    key,
                    data,
                    comment,
                },
            );
        }
    }
}

/// Admits addresses. Takes over an address of another attachment.
pub(super) fn admit(
    socket: &mut Socket,
    config: &Config,
    attachment: Attachment<'_>,
    addresses: &[IpAddr],
) -> linux::Result<()> {
    let comment = comment::of_attachment(attachment);
    socket.update(|socket| {
        let (mut changes, mut chains) = (Transaction::new(), ReadChains::default());
        let wanted = versions(addresses)
            .flat_map(|version| admitting(config, version))
            .collect();
        ensure(socket, &mut chains, wanted, &config.admin_chain, &mut changes)?;
        for address in addresses {
            let (set, key) = (set_of(address), key_of(address));
            if socket.element(TABLE, set, &key)?.is_some() {
                changes.delete_element(TABLE, set, &key);
            }
            changes.add_element(TABLE, set, &key, &comment);
        }
        delete_upstream(socket, &mut chains, addresses, &mut changes)?;
        Ok(changes)
    })
}

/// Removes recorded addresses. Keeps those that belong to another attachment now.
pub(super) fn remove(
    socket: &mut Socket,
    attachment: Attachment<'_>,
    addresses: &[IpAddr],
) -> linux::Result<()> {
    let hash = attachment.hash();
    socket.update(|socket| {
        let mut changes = Transaction::new();
        for address in addresses {
            let (set, key) = (set_of(address), key_of(address));
            if comment::has_element(socket, &hash, TABLE, set, &key)? {
                changes.delete_element(TABLE, set, &key);
            }
        }
        Ok(changes)
    })
}

/// Searches for an attachment's addresses and removes them.
pub(super) fn search_and_remove(socket: &mut Socket, attachment: Attachment<'_>) -> linux::Result<()> {
    let hash = attachment.hash();
    socket.update(|socket| {
        let mut changes = Transaction::new();
        for set in ADDRESSES {
            for key in comment::keys(socket, TABLE, set, |comment| comment.starts_with(&hash))? {
                changes.delete_element(TABLE, set, &key);
            }
        }
        Ok(changes)
    })
}

/// Removes the iptables rules of addresses.
pub(super) fn remove_upstream(socket: &mut Socket, addresses: &[IpAddr]) -> linux::Result<()> {
    socket.update(|socket| {
        let mut changes = Transaction::new();
        delete_upstream(socket, &mut ReadChains::default(), addresses, &mut changes)?;
        Ok(changes)
    })
}

fn delete_upstream(
    socket: &mut Socket,
    chains: &mut ReadChains,
    addresses: &[IpAddr],
    changes: &mut Transaction,
) -> linux::Result<()> {
    for version in versions(addresses) {
        let table = version.table(IPTABLES_FILTER);
        for rule in chains.rules(socket, table, CNI_FORWARD)? {
            if addresses.iter().any(|address| is_of(rule, address)) {
                changes.delete_rule(table, CNI_FORWARD, rule.handle);
            }
        }
    }
    Ok(())
}

/// Whether a rule accepts packets from or to only this address.
fn is_of(rule: &Rule, address: &IpAddr) -> bool {
    let value = match address {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let sides = [Side::Source, Side::Destination]
        .map(|side| matches::address(side, address.is_ipv4(), Register::FIRST));
    let steps = without_counters(rule);
    let is_load = |step: &Expression| {
        matches!(
            step,
            Expression::Payload {
                header: Header::Network,
                ..
            }
        )
    };
    let equal = compare(true, value);
    let matches = steps
        .windows(2)
        .any(|pair| sides.contains(&pair[0]) && pair[1] == equal);
    matches
        && steps.iter().filter(|step| is_load(step)).count() == 1
        && steps.last() == Some(&Expression::Verdict(Verdict::Accept))
}

/// The first address that neither our nor upstream's rules admit.
pub(super) fn missing(
    socket: &mut Socket,
    config: &Config,
    attachment: Attachment<'_>,
    addresses: &[IpAddr],
) -> linux::Result<Option<IpAddr>> {
    let hash = attachment.hash();
    for address in addresses {
        let version = Version::of(&IpNet::from(*address));
        let mut ours = comment::has_element(socket, &hash, TABLE, set_of(address), &key_of(address))?;
        for rule in admitting(config, version) {
            ours = ours && rule.is_in(&socket.rules(rule.table, &rule.chain)?);
        }
        let rules = socket.rules(version.table(IPTABLES_FILTER), CNI_FORWARD)?;
        let upstream = rules.iter().filter(|rule| is_of(rule, address)).count();
        // One rule for its packets, one for the replies.
        if !ours && upstream < 2 {
            return Ok(Some(*address));
        }
    }
    Ok(None)
}

/// The bridge's element for each set, and whether the set must contain it.
fn bridge_elements(policy: Policy, bridge: &str) -> [(&'static str, Key, bool); 3] {
    let name = Value::InterfaceName(bridge);
    let pair = || Key::of(&[name, name]);
    [
        (BRIDGES, Key::of(&[name]), true),
        (SAME, pair(), true),
        (ISOLATED, pair(), policy == Policy::Isolated),
    ]
}

/// Isolates a bridge until the bridge is deleted, because its other pods rely on it.
pub(super) fn isolate(socket: &mut Socket, policy: Policy, bridge: &str) -> linux::Result<()> {
    socket.update(|socket| {
        let mut changes = Transaction::new();
        ensure(
            socket,
            &mut ReadChains::default(),
            isolating().into(),
            "",
            &mut changes,
        )?;
        for (set, key, wanted) in bridge_elements(policy, bridge) {
            let is_there = socket.element(TABLE, set, &key)?.is_some();
            if wanted && !is_there {
                changes.add_element(TABLE, set, &key, policy.name());
            }
        }
        Ok(changes)
    })
}

pub(super) fn is_isolated(socket: &mut Socket, policy: Policy, bridge: &str) -> linux::Result<bool> {
    for rule in isolating() {
        if !rule.is_in(&socket.rules(rule.table, &rule.chain)?) {
            return Ok(false);
        }
    }
    for (set, key, wanted) in bridge_elements(policy, bridge) {
        if wanted && socket.element(TABLE, set, &key)?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
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
        for set in ADDRESSES {
            let keys = comment::keys(socket, TABLE, set, &is_stale)?;
            stale.extend(keys.into_iter().map(|key| (TABLE, set.to_owned(), key)));
        }
        Ok(stale)
    })
}

/// Removes the elements of deleted bridges, and our table if it is empty. `links` lists the names of the host's links.
pub(super) fn sweep(
    socket: &mut Socket,
    mut links: impl FnMut() -> linux::Result<Vec<String>>,
) -> linux::Result<()> {
    socket.update(|socket| {
        let mut changes = Transaction::new();
        let mut left = 0;
        for set in ADDRESSES {
            left += socket.elements(TABLE, set)?.len();
        }
        let mut of_bridges = Vec::new();
        for set in [BRIDGES, SAME, ISOLATED] {
            let elements = socket.elements(TABLE, set)?;
            of_bridges.extend(elements.into_iter().map(|element| (set, element.key)));
        }
        // After the elements: a bridge exists before its elements do.
        let links = links()?;
        for (set, key) in of_bridges {
            if key.interface_name().is_some_and(|name| !links.contains(&name)) {
                changes.delete_element(TABLE, set, &key);
            } else {
                left += 1;
            }
        }
        if left == 0 && !socket.chains(TABLE)?.is_empty() {
            changes = Transaction::new();
            changes.delete_table(TABLE);
        }
        Ok(changes)
    })
}

#[cfg(test)]
mod tests;

//! Masquerading with nftables.

use std::collections::BTreeSet;

use ipnet::IpNet;
use linux::nft::{
    Expression, Family, Hook, HookPoint, Key, KeyPart, Register, Rule, SetSpec, Socket, Table, Transaction,
    Value, Verdict,
};

use crate::{
    comment::{self, network_hash},
    matches::{self, Side, protocol, within},
    names::masquerade::{
        CHECKS, CHECKS_COMMENT, MULTICAST_IPV4, MULTICAST_IPV6, POSTROUTING, SET_PREFIX, TABLE_COMMENT,
        TABLE_NAME,
    },
    record::{Attachment, AttachmentId},
};

const TABLE: Table = Table {
    family: Family::Inet,
    name: TABLE_NAME,
};
/// Priority 100 is nft's `srcnat`.
const HOOK: Hook = Hook {
    kind: "nat",
    point: HookPoint::Postrouting,
    priority: 100,
};

/// An address with its set and rule.
struct AddressRule {
    /// Name of the set for the network and subnet.
    set: String,
    subnet: IpNet,
    key: Key,
}

impl AddressRule {
    fn of(network: &str, address: &IpNet) -> Self {
        let subnet = address.trunc();
        AddressRule {
            set: set_name(network, &subnet),
            subnet,
            key: Key::of(&[Value::Ip(address.addr())]),
        }
    }

    /// `ip saddr @<set> ip daddr != <subnet> masquerade`.
    fn rule(&self) -> Vec<Expression> {
        let is_ipv4 = matches!(self.subnet, IpNet::V4(_));
        let mut rule = protocol(&self.subnet);
        rule.push(matches::address(Side::Source, is_ipv4, Register::FIRST));
        rule.push(Expression::Lookup {
            set: self.set.clone(),
            register: Register::FIRST,
            contained: true,
        });
        rule.extend(within(Side::Destination, &self.subnet, false));
        rule.push(Expression::Masquerade);
        rule
    }
}

/// The set name of a subnet. Replaces invalid characters, and stays unique per subnet.
fn set_name(network: &str, subnet: &IpNet) -> String {
    let subnet = subnet.to_string().replace(':', "_").replace('/', "-");
    format!("{}{subnet}", set_prefix(network))
}

fn set_prefix(network: &str) -> String {
    format!("{SET_PREFIX}{}-", network_hash(network))
}

/// The comment of a subnet's rule. Must not start with a hash, which marks upstream's rules of an attachment.
fn subnet_comment(network: &str, subnet: &IpNet) -> String {
    comment::shortened(&format!("subnet: {subnet}, net: {network}"))
}

pub(super) fn add(socket: &mut Socket, attachment: Attachment<'_>, addresses: &[IpNet]) -> linux::Result<()> {
    let network = attachment.network;
    let comment = comment::of_attachment(attachment);
    let hash = attachment.hash();
    socket.update(|socket| {
        let mut changes = Transaction::new();
        add_base(socket, &mut changes)?;
        let checks = socket.rules(TABLE, CHECKS)?;
        delete_rules(&checks, |rule| rule.comment.starts_with(&hash), &mut changes);
        let mut made: BTreeSet<String> = BTreeSet::new();
        let mut added: BTreeSet<IpNet> = BTreeSet::new();
        for address in addresses {
            let place = AddressRule::of(network, address);
            let rule = place.rule();
            if !made.contains(&place.set) && !checks.iter().any(|other| other.expressions == rule) {
                let text = subnet_comment(network, &place.subnet);
                changes.add_set(
                    TABLE,
                    &SetSpec {
                        name: &place.set,
                        key: &[match place.subnet {
                            IpNet::V4(_) => KeyPart::Ipv4,
                            IpNet::V6(_) => KeyPart::Ipv6,
                        }],
                        data: &[],
                        comment: &text,
                    },
                );
                changes.add_rule(TABLE, CHECKS, &rule, &text);
                made.insert(place.set.clone());
            }
            if !added.insert(*address) {
                continue;
            }
            if socket.element(TABLE, &place.set, &place.key)?.is_some() {
                changes.delete_element(TABLE, &place.set, &place.key);
            }
            changes.add_element(TABLE, &place.set, &place.key, &comment);
        }
        Ok(changes)
    })
}

pub(super) fn remove(
    socket: &mut Socket,
    attachment: Attachment<'_>,
    addresses: &[IpNet],
) -> linux::Result<()> {
    let hash = attachment.hash();
    socket.update(|socket| {
        let mut changes = Transaction::new();
        // A transaction that deletes an element twice fails.
        for address in addresses.iter().collect::<BTreeSet<_>>() {
            let place = AddressRule::of(attachment.network, address);
            if comment::has_element(socket, &hash, TABLE, &place.set, &place.key)? {
                changes.delete_element(TABLE, &place.set, &place.key);
            }
        }
        Ok(changes)
    })
}

/// Searches for the attachment's elements and rules, also upstream's, and removes them.
pub(super) fn search_and_remove(socket: &mut Socket, attachment: Attachment<'_>) -> linux::Result<()> {
    let prefix = set_prefix(attachment.network);
    let hash = attachment.hash();
    socket.update(|socket| {
        let mut changes = Transaction::new();
        let checks = socket.rules(TABLE, CHECKS)?;
        delete_rules(&checks, |rule| rule.comment.starts_with(&hash), &mut changes);
        for set in socket.sets(TABLE)? {
            if !set.starts_with(&prefix) {
                continue;
            }
            for key in comment::keys(socket, TABLE, &set, |comment| comment.starts_with(&hash))? {
                changes.delete_element(TABLE, &set, &key);
            }
        }
        Ok(changes)
    })
}

/// The first address without masquerading.
pub(super) fn missing(
    socket: &mut Socket,
    attachment: Attachment<'_>,
    addresses: &[IpNet],
) -> linux::Result<Option<IpNet>> {
    let hash = attachment.hash();
    let entry = socket.rules(TABLE, POSTROUTING)?;
    let leads_there = Expression::Verdict(Verdict::Goto(CHECKS.to_owned()));
    if !entry.iter().any(|rule| rule.expressions.contains(&leads_there)) {
        return Ok(addresses.first().copied());
    }
    let checks = socket.rules(TABLE, CHECKS)?;
    for address in addresses {
        let place = AddressRule::of(attachment.network, address);
        let rule = place.rule();
        let ours = checks.iter().any(|other| other.expressions == rule)
            && comment::has_element(socket, &hash, TABLE, &place.set, &place.key)?;
        if !ours && !checks.iter().any(|rule| rule.comment.starts_with(&hash)) {
            return Ok(Some(*address));
        }
    }
    Ok(None)
}

/// Removes the elements and rules of the network's attachments that are not in `valid`.
pub(super) fn collect(
    socket: &mut Socket,
    network: &str,
    valid: &BTreeSet<AttachmentId>,
) -> linux::Result<()> {
    let prefix = set_prefix(network);
    let is_stale = comment::is_stale(network, valid);
    comment::collect(socket, |socket, changes| {
        let checks = socket.rules(TABLE, CHECKS)?;
        delete_rules(&checks, |rule| is_stale(&rule.comment), changes);
        let mut stale = Vec::new();
        for set in socket.sets(TABLE)?.iter().filter(|set| set.starts_with(&prefix)) {
            let keys = comment::keys(socket, TABLE, set, &is_stale)?;
            stale.extend(keys.into_iter().map(|key| (TABLE, set.clone(), key)));
        }
        Ok(stale)
    })
}

/// Removes the network's empty sets with their rules, and unused chains. Keeps the table, which upstream's plugins
/// share.
pub(super) fn remove_unused(socket: &mut Socket, network: &str) -> linux::Result<()> {
    let prefix = set_prefix(network);
    socket.update(|socket| {
        let mut changes = Transaction::new();
        let mut checks = socket.rules(TABLE, CHECKS)?;
        for set in socket.sets(TABLE)? {
            if set.starts_with(&prefix) && socket.elements(TABLE, &set)?.is_empty() {
                delete_rules(&checks, |rule| looks_up(rule, &set), &mut changes);
                checks.retain(|rule| !looks_up(rule, &set));
                changes.delete_set(TABLE, &set);
            }
        }
        if checks.is_empty() && has_our_chains_alone(socket)? {
            changes.flush_chain(TABLE, POSTROUTING);
            changes.delete_chain(TABLE, POSTROUTING);
            changes.delete_chain(TABLE, CHECKS);
        }
        Ok(changes)
    })
}

/// Whether the table has only the two chains of ADD. Other chains could jump to them.
fn has_our_chains_alone(socket: &mut Socket) -> linux::Result<bool> {
    let mut chains = socket.chains(TABLE)?;
    chains.sort();
    let there = socket.rules(TABLE, POSTROUTING)?;
    Ok(chains == [CHECKS, POSTROUTING] && there.iter().map(|rule| &rule.expressions).eq(entry().iter()))
}

fn looks_up(rule: &Rule, name: &str) -> bool {
    rule.expressions
        .iter()
        .any(|expression| matches!(expression, Expression::Lookup { set, .. } if set == name))
}

fn delete_rules(rules: &[Rule], which: impl Fn(&Rule) -> bool, changes: &mut Transaction) {
    for rule in rules.iter().filter(|rule| which(rule)) {
        changes.delete_rule(TABLE, CHECKS, rule.handle);
    }
}

/// Adds or repairs the table, the chains and the rules of `postrouting`.
fn add_base(socket: &mut Socket, changes: &mut Transaction) -> linux::Result<()> {
    let wanted = entry();
    let there = socket.rules(TABLE, POSTROUTING)?;
    if there.iter().map(|rule| &rule.expressions).eq(wanted.iter()) {
        return Ok(());
    }
    changes.add_table(TABLE, TABLE_COMMENT);
    changes.add_chain(TABLE, CHECKS, None, CHECKS_COMMENT);
    changes.add_chain(TABLE, POSTROUTING, Some(HOOK), "");
    changes.flush_chain(TABLE, POSTROUTING);
    for rule in &wanted {
        changes.add_rule(TABLE, POSTROUTING, rule, "");
    }
    Ok(())
}

/// The rules of `postrouting`: skips multicast, and jumps to the checks for the rest.
fn entry() -> [Vec<Expression>; 3] {
    let leave_alone = |group: IpNet| {
        let mut rule = protocol(&group);
        rule.extend(within(Side::Destination, &group, true));
        rule.push(Expression::Verdict(Verdict::Return));
        rule
    };
    [
        leave_alone(MULTICAST_IPV4),
        leave_alone(MULTICAST_IPV6),
        vec![Expression::Verdict(Verdict::Goto(CHECKS.to_owned()))],
    ]
}

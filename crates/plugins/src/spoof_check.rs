//! The MAC spoof check: drops frames from a port with another source MAC than the pod's (cni-plugins §4).
//!
//! ```text
//! bridge nat PREROUTING ── one rule ──> is the port in "ports", and port + source MAC not in "allowed"? drop
//!                                           │                       │
//!                                       an element               an element      per guarded port, with the
//!                                                                                attachment as comment
//! ```
//!
//! The cost per frame and per attachment does not depend on the number of ports. Upstream's plugin has a rule and two
//! chains per port instead, which are recognised and removed.

use cni::Error;
use linux::{
    link::Mac,
    nft::{
        COMMENT_LENGTH, Expression, Family, Header, Hook, HookPoint, Key, KeyPart, Meta, Register, Rule,
        SetSpec, Socket, Table, Transaction, Value, Verdict,
    },
};

use crate::{
    hash::hashed,
    messages::{Explain, SPOOF_CHECK_SET_UP, SPOOF_CHECK_TEAR_DOWN},
    names::spoof_check::{
        ALLOWED, ALLOWED_COMMENT, CHAIN, COMMENT_PREFIX, OLD_CHAIN_PREFIX, OLD_CHAIN_SUFFIX, PORTS,
        PORTS_COMMENT, RULE_COMMENT, TABLE_NAME,
    },
    record::Attachment,
    ruleset::{Ruleset, unless_unsupported},
};

const TABLE: Table = Table {
    family: Family::Bridge,
    name: TABLE_NAME,
};
/// Priority -300: before all other chains for bridged frames.
const HOOK: Hook = Hook {
    kind: "filter",
    point: HookPoint::Prerouting,
    priority: -300,
};
/// Offset of the source in an Ethernet header.
const SOURCE_MAC: u32 = 6;
const MAC_LENGTH: u32 = 6;
/// Number of hash digits in shortened comments.
const HASH_LENGTH: usize = 16;

/// A guarded port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Port<'a> {
    /// Name of the host end.
    pub(crate) name: &'a str,
    /// The pod's MAC.
    pub(crate) mac: Mac,
}

impl Attachment<'_> {
    fn reference(self) -> String {
        format!("{}-{}", self.container_id, self.ifname)
    }

    /// The comment of upstream's rules.
    fn old_comment(self) -> String {
        format!("{COMMENT_PREFIX}{}", self.reference())
    }

    /// The comment of elements: the same, shortened if nft could not parse it.
    fn comment(self) -> String {
        let whole = self.old_comment();
        if whole.len() <= COMMENT_LENGTH && !whole.contains('"') {
            return whole;
        }
        let mut comment = whole.replace('"', "");
        comment.truncate(comment.floor_char_boundary(COMMENT_LENGTH - HASH_LENGTH - 1));
        format!("{comment}-{}", hashed(HASH_LENGTH, "", &whole))
    }

    fn old_chains(self) -> [String; 2] {
        let chain = format!("{OLD_CHAIN_PREFIX}{}", self.reference());
        let of_mac = format!("{chain}{OLD_CHAIN_SUFFIX}");
        [chain, of_mac]
    }
}

impl Port<'_> {
    fn value(&self) -> Value<'_> {
        Value::InterfaceName(self.name)
    }

    /// The key in the set of ports.
    fn key(&self) -> Key {
        Key::of(&[self.value()])
    }

    /// The key in the set of allowed pairs.
    fn allowed_key(&self) -> Key {
        Key::of(&[self.value(), Value::Mac(self.mac)])
    }
}

/// Guards a port. Replaces earlier elements with its name or owner.
pub(crate) fn set_up(rules: &mut Ruleset, owner: Attachment<'_>, port: Port<'_>) -> Result<(), Error> {
    rules
        .socket()
        .and_then(|socket| add(socket, owner, port))
        .explain(|| SPOOF_CHECK_SET_UP.to_owned())
}

/// Removes the guard of an attachment's port. `known` is the recorded port, which makes a search unnecessary.
pub(crate) fn tear_down(
    rules: &mut Ruleset,
    owner: Attachment<'_>,
    known: Option<Port<'_>>,
) -> Result<(), Error> {
    let removed = rules.socket().and_then(|socket| remove(socket, owner, known));
    unless_unsupported(removed).explain(|| SPOOF_CHECK_TEAR_DOWN.to_owned())
}

/// Removes the rule, sets and chain if no port is guarded. Keeps them if they have foreign references.
pub(crate) fn remove_unused(rules: &mut Ruleset) -> Result<(), Error> {
    match rules.socket().and_then(remove_base) {
        Err(error) if error.is_unsupported() || error.is_in_use() => Ok(()),
        outcome => outcome.explain(|| SPOOF_CHECK_TEAR_DOWN.to_owned()),
    }
}

/// An error if neither our nor upstream's rules guard the port.
pub(crate) fn check(rules: &mut Ruleset, owner: Attachment<'_>, port: Port<'_>) -> Result<(), Error> {
    let guarded = rules
        .socket()
        .and_then(|socket| is_guarded(socket, owner, port))
        .explain(|| "failed to read spoof-check".to_owned())?;
    if guarded {
        return Ok(());
    }
    Err(Error::internal(format!(
        "spoof-check of port {} for MAC {} not found",
        port.name, port.mac
    )))
}

fn add(socket: &mut Socket, owner: Attachment<'_>, port: Port<'_>) -> linux::Result<()> {
    let comment = owner.comment();
    socket.update(|socket| {
        let mut changes = Transaction::new();
        let rules = socket.rules(TABLE, CHAIN)?;
        if rules.iter().any(|rule| rule.comment == owner.old_comment()) {
            remove_old(socket, owner, &rules, &mut changes)?;
        }
        if !rules.iter().any(is_ours) {
            add_base(&mut changes);
        }
        if socket.element(TABLE, PORTS, &port.key())?.is_some() {
            // Drops the allowed MACs of an earlier port with this name.
            changes.delete_element(TABLE, PORTS, &port.key());
            for element in socket.elements(TABLE, ALLOWED)? {
                if element.key.begins_with(port.value()) {
                    changes.delete_element(TABLE, ALLOWED, &element.key);
                }
            }
        } else if socket.element(TABLE, ALLOWED, &port.allowed_key())?.is_some() {
            changes.delete_element(TABLE, ALLOWED, &port.allowed_key());
        }
        changes.add_element(TABLE, PORTS, &port.key(), &comment);
        changes.add_element(TABLE, ALLOWED, &port.allowed_key(), &comment);
        Ok(changes)
    })
}

fn remove(socket: &mut Socket, owner: Attachment<'_>, known: Option<Port<'_>>) -> linux::Result<()> {
    if let Some(port) = known {
        let mut changes = Transaction::new();
        changes.delete_element(TABLE, PORTS, &port.key());
        changes.delete_element(TABLE, ALLOWED, &port.allowed_key());
        match socket.commit(&changes) {
            // An element has changed, for example because another owner has the name now.
            Err(error) if error.is_not_found() => {}
            outcome => return outcome,
        }
    }
    let comment = owner.comment();
    socket.update(|socket| {
        let mut changes = Transaction::new();
        let rules = socket.rules(TABLE, CHAIN)?;
        remove_old(socket, owner, &rules, &mut changes)?;
        for set in [PORTS, ALLOWED] {
            for element in socket.elements(TABLE, set)? {
                if element.comment == comment {
                    changes.delete_element(TABLE, set, &element.key);
                }
            }
        }
        Ok(changes)
    })
}

fn is_guarded(socket: &mut Socket, owner: Attachment<'_>, port: Port<'_>) -> linux::Result<bool> {
    let rules = socket.rules(TABLE, CHAIN)?;
    if rules.iter().any(|rule| rule.comment == owner.old_comment()) {
        return Ok(true);
    }
    Ok(rules.iter().any(is_ours)
        && socket.element(TABLE, PORTS, &port.key())?.is_some()
        && socket.element(TABLE, ALLOWED, &port.allowed_key())?.is_some())
}

/// Removes upstream's rules of the attachment, then their chains.
fn remove_old(
    socket: &mut Socket,
    owner: Attachment<'_>,
    rules: &[Rule],
    changes: &mut Transaction,
) -> linux::Result<()> {
    let comment = owner.old_comment();
    let chains = owner.old_chains();
    let [entry, _] = &chains;
    let jump = Expression::Verdict(Verdict::Jump(entry.clone()));
    for rule in rules {
        if rule.comment == comment || rule.expressions.contains(&jump) {
            changes.delete_rule(TABLE, CHAIN, rule.handle);
        }
    }
    let mut there = Vec::new();
    for chain in &chains {
        if socket.has_chain(TABLE, chain)? {
            changes.flush_chain(TABLE, chain);
            there.push(chain);
        }
    }
    for chain in there {
        changes.delete_chain(TABLE, chain);
    }
    Ok(())
}

fn add_base(changes: &mut Transaction) {
    changes.add_table(TABLE, "");
    changes.add_chain(TABLE, CHAIN, Some(HOOK), "");
    changes.add_set(
        TABLE,
        &SetSpec {
            name: PORTS,
            key: &[KeyPart::InterfaceName],
            data: &[],
            comment: PORTS_COMMENT,
        },
    );
    changes.add_set(
        TABLE,
        &SetSpec {
            name: ALLOWED,
            key: &[KeyPart::InterfaceName, KeyPart::Mac],
            data: &[],
            comment: ALLOWED_COMMENT,
        },
    );
    changes.add_rule(TABLE, CHAIN, &guard(), RULE_COMMENT);
}

/// Undoes [`add_base`] if both sets are empty. Keeps the table, and a chain with other uses.
fn remove_base(socket: &mut Socket) -> linux::Result<()> {
    socket.update(|socket| {
        let mut changes = Transaction::new();
        let mut sets = socket.sets(TABLE)?;
        sets.retain(|set| [PORTS, ALLOWED].contains(&set.as_str()));
        for set in &sets {
            if !socket.elements(TABLE, set)?.is_empty() {
                return Ok(changes);
            }
        }
        let (ours, others): (Vec<_>, Vec<_>) = socket.rules(TABLE, CHAIN)?.into_iter().partition(is_ours);
        for rule in &ours {
            changes.delete_rule(TABLE, CHAIN, rule.handle);
        }
        for set in &sets {
            changes.delete_set(TABLE, set);
        }
        // Upstream's plugin creates its chains before the rule that jumps to them.
        if !ours.is_empty() && others.is_empty() && socket.chains(TABLE)? == [CHAIN] {
            changes.delete_chain(TABLE, CHAIN);
        }
        Ok(changes)
    })
}

fn is_ours(rule: &Rule) -> bool {
    rule.expressions == guard()
}

/// `iifname @macspoofchk-ports iifname . ether saddr != @macspoofchk-allowed drop`.
fn guard() -> [Expression; 6] {
    let port = Expression::Meta {
        meta: Meta::InputInterfaceName,
        to: Register::FIRST,
    };
    [
        port.clone(),
        Expression::Lookup {
            set: PORTS.to_owned(),
            register: Register::FIRST,
            contained: true,
        },
        port,
        Expression::Payload {
            header: Header::Link,
            offset: SOURCE_MAC,
            length: MAC_LENGTH,
            to: Register::SECOND,
        },
        Expression::Lookup {
            set: ALLOWED.to_owned(),
            register: Register::FIRST,
            contained: false,
        },
        Expression::Verdict(Verdict::Drop),
    ]
}

#[cfg(test)]
mod tests;

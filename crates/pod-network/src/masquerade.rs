//! Packets that leave the cluster get the address of the node.
//!
//! ```text
//! postrouting ── from the node's pods? ──> from_pods ── multicast, or to an address inside? unchanged
//!                                                  └── masquerade
//! ```
//!
//! The inside addresses are in sets, one for each prefix length: a packet costs one lookup for each prefix length
//! instead of one for each node. Only the first packet of a connection takes these rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use linux::nft::{
    Expression, Hook, HookPoint, Key, KeyPart, Register, Rule, SetSpec, Socket, Transaction, Value, Verdict,
    matches::{self, Side},
};

use crate::{
    desired::Masquerade,
    names::{FROM_PODS, POSTROUTING, TABLE, TABLE_COMMENT},
};

/// Priority 100 is nft's `srcnat`.
const HOOK: Hook = Hook {
    kind: "nat",
    point: HookPoint::Postrouting,
    priority: 100,
};

const MULTICAST_IPV4: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4));
const MULTICAST_IPV6: IpNet = IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8));

/// The desired table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    postrouting: Vec<Vec<Expression>>,
    from_pods: Vec<Vec<Expression>>,
    /// Sets by name: true for IPv4, and the addresses.
    sets: BTreeMap<String, (bool, BTreeSet<IpAddr>)>,
}

fn wanted(masquerade: &Masquerade) -> Wanted {
    let mut sets: BTreeMap<String, (bool, BTreeSet<IpAddr>)> = BTreeMap::new();
    let mut lengths = BTreeMap::new();
    for net in &masquerade.inside {
        let name = set_name(net);
        lengths.entry(name.clone()).or_insert(*net);
        let set = sets
            .entry(name)
            .or_insert((net.addr().is_ipv4(), BTreeSet::new()));
        set.1.insert(net.network());
    }
    let postrouting = masquerade.pods.iter().map(|range| {
        let mut rule = matches::protocol(range);
        rule.extend(matches::within(Side::Source, range, true));
        rule.push(Expression::Verdict(Verdict::Goto(FROM_PODS.to_owned())));
        rule
    });
    let multicast = [MULTICAST_IPV4, MULTICAST_IPV6].map(|group| {
        let mut rule = matches::protocol(&group);
        rule.extend(matches::within(Side::Destination, &group, true));
        rule.push(Expression::Verdict(Verdict::Return));
        rule
    });
    let inside = lengths.iter().map(|(name, example)| {
        let register = Register::FIRST;
        let mut rule = matches::protocol(example);
        rule.push(matches::address(
            Side::Destination,
            example.addr().is_ipv4(),
            register,
        ));
        if example.prefix_len() < example.max_prefix_len() {
            rule.push(Expression::Mask {
                register,
                mask: mask(example),
            });
        }
        rule.push(Expression::Lookup {
            set: name.clone(),
            register,
            contained: true,
        });
        rule.push(Expression::Verdict(Verdict::Return));
        rule
    });
    Wanted {
        postrouting: postrouting.collect(),
        from_pods: multicast
            .into_iter()
            .chain(inside)
            .chain([vec![Expression::Masquerade]])
            .collect(),
        sets,
    }
}

/// `inside-ipv4-24`.
fn set_name(net: &IpNet) -> String {
    let family = if net.addr().is_ipv4() { "ipv4" } else { "ipv6" };
    format!("inside-{family}-{}", net.prefix_len())
}

fn mask(net: &IpNet) -> Vec<u8> {
    match net.netmask() {
        IpAddr::V4(mask) => mask.octets().to_vec(),
        IpAddr::V6(mask) => mask.octets().to_vec(),
    }
}

/// Applies the table, and writes nothing if it does not differ. Returns true if the table was written.
///
/// # Errors
/// If the kernel refuses the table or cannot list it.
pub(crate) fn ensure(socket: &mut Socket, masquerade: &Masquerade) -> linux::Result<bool> {
    let wanted = wanted(masquerade);
    let mut changed = false;
    socket.update(|socket| {
        let transaction = if is_in_place(socket, &wanted)? {
            adapt(socket, &wanted)?
        } else {
            replace(&wanted)
        };
        changed = !transaction.is_empty();
        Ok(transaction)
    })?;
    Ok(changed)
}

/// Removes the table, if it exists.
///
/// # Errors
/// If the kernel refuses the removal.
pub(crate) fn remove(socket: &mut Socket) -> linux::Result<()> {
    let mut transaction = Transaction::new();
    // The table exists from here on, so that its removal never fails.
    transaction.add_table(TABLE, "");
    transaction.delete_table(TABLE);
    socket.commit(&transaction)
}

/// Returns true if chains, rules and sets are as desired. The elements of the sets may differ.
fn is_in_place(socket: &mut Socket, wanted: &Wanted) -> linux::Result<bool> {
    let same = |rules: Vec<Rule>, wanted: &[Vec<Expression>]| {
        rules.iter().map(|rule| &rule.expressions).eq(wanted.iter())
    };
    let mut sets = socket.sets(TABLE)?;
    sets.sort();
    let mut chains = socket.chains(TABLE)?;
    chains.sort();
    Ok(chains == [FROM_PODS, POSTROUTING]
        && sets.iter().eq(wanted.sets.keys())
        && same(socket.rules(TABLE, POSTROUTING)?, &wanted.postrouting)
        && same(socket.rules(TABLE, FROM_PODS)?, &wanted.from_pods))
}

/// Adds missing elements and removes others.
fn adapt(socket: &mut Socket, wanted: &Wanted) -> linux::Result<Transaction> {
    let mut transaction = Transaction::new();
    for (name, (_, addresses)) in &wanted.sets {
        let mut missing: BTreeSet<Key> = addresses.iter().copied().map(key).collect();
        for element in socket.elements(TABLE, name)? {
            if !missing.remove(&element.key) {
                transaction.delete_element(TABLE, name, &element.key);
            }
        }
        for key in &missing {
            transaction.add_element(TABLE, name, key, "");
        }
    }
    Ok(transaction)
}

/// Replaces the whole table.
fn replace(wanted: &Wanted) -> Transaction {
    let mut transaction = Transaction::new();
    transaction.add_table(TABLE, "");
    transaction.delete_table(TABLE);
    transaction.add_table(TABLE, TABLE_COMMENT);
    for (name, (is_ipv4, addresses)) in &wanted.sets {
        transaction.add_set(
            TABLE,
            &SetSpec {
                name,
                key: &[if *is_ipv4 { KeyPart::Ipv4 } else { KeyPart::Ipv6 }],
                data: &[],
                comment: "",
            },
        );
        for address in addresses {
            transaction.add_element(TABLE, name, &key(*address), "");
        }
    }
    transaction.add_chain(TABLE, FROM_PODS, None, "");
    transaction.add_chain(TABLE, POSTROUTING, Some(HOOK), "");
    for rule in &wanted.from_pods {
        transaction.add_rule(TABLE, FROM_PODS, rule, "");
    }
    for rule in &wanted.postrouting {
        transaction.add_rule(TABLE, POSTROUTING, rule, "");
    }
    transaction
}

fn key(address: IpAddr) -> Key {
    Key::of(&[Value::Ip(address)])
}

#[cfg(test)]
mod tests;

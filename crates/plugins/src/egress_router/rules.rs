//! Packet rules of an egress router, in the pod.
//!
//! ```text
//! table ip egress_cni
//!   prerouting   iifname eth0  protocol, port ──> map ports: address, port ──> else: map others: address
//!   postrouting  oifname net1  masquerade
//! ```

use cni::Error;
use linux::nft::{
    Expression, Family, Header, Hook, HookPoint, Key, KeyPart, Meta, Register, SetSpec, Socket, Table,
    Transaction, Value, matches::compare,
};

use super::config::Router;
use crate::{
    messages::Explain as _,
    names::{PRIMARY, egress_router as names},
};

/// Priorities `dstnat` and `srcnat` of nft.
const DESTINATIONS: i32 = -100;
const SOURCES: i32 = 100;
/// Length of an interface name, bytes.
const INTERFACE_NAME: usize = 16;
/// Offset and length of the destination port, bytes.
const DESTINATION_PORT: (u32, u32) = (2, 2);
/// TCP, UDP and SCTP.
const TRANSPORTS: [u8; 3] = [6, 17, 132];

fn table(family: Family) -> Table {
    Table {
        family,
        name: names::TABLE,
    }
}

fn family(router: &Router) -> Family {
    if router.gateway.is_ipv4() {
        Family::Ipv4
    } else {
        Family::Ipv6
    }
}

/// Replaces the table. Call it inside the namespace of the pod.
pub(super) fn add(router: &Router, ifname: &str) -> Result<(), Error> {
    Socket::open()
        .and_then(|mut socket| socket.commit(&transaction(router, ifname)))
        .explain(|| "failed to set nftables rules".to_owned())
}

/// Removes the tables, if there are any. Call it inside the namespace of the pod.
pub(super) fn remove() -> Result<(), Error> {
    let mut changes = Transaction::new();
    for family in [Family::Ipv4, Family::Ipv6] {
        // A table that does not exist cannot be deleted.
        changes.add_table(table(family), "");
        changes.delete_table(table(family));
    }
    match Socket::open().and_then(|mut socket| socket.commit(&changes)) {
        Err(error) if error.is_unsupported() => Ok(()),
        done => done.explain(|| "failed to remove nftables rules".to_owned()),
    }
}

/// An error unless the rules exist.
pub(super) fn check(router: &Router) -> Result<(), Error> {
    let table = table(family(router));
    let mut socket = Socket::open().explain(|| "failed to read nftables rules".to_owned())?;
    for chain in [names::PREROUTING, names::POSTROUTING] {
        let rules = socket
            .rules(table, chain)
            .explain(|| "failed to read nftables rules".to_owned())?;
        if rules.is_empty() {
            return Err(Error::internal(format!("chain {table} {chain} has no rules")));
        }
    }
    Ok(())
}

fn transaction(router: &Router, ifname: &str) -> Transaction {
    let family = family(router);
    let table = table(family);
    let mut changes = Transaction::new();
    changes.add_table(table, "");
    changes.delete_table(table);
    changes.add_table(table, "");
    let hook = |point, priority| {
        Some(Hook {
            kind: "nat",
            point,
            priority,
        })
    };
    let before = hook(HookPoint::Prerouting, DESTINATIONS);
    changes.add_chain(table, names::PREROUTING, before, "");
    let after = hook(HookPoint::Postrouting, SOURCES);
    changes.add_chain(table, names::POSTROUTING, after, "");
    let (address, words) = if family == Family::Ipv4 {
        (KeyPart::Ipv4, 1)
    } else {
        (KeyPart::Ipv6, 4)
    };
    let ports = SetSpec {
        name: names::PORTS,
        key: &[KeyPart::Transport, KeyPart::Port],
        data: &[address, KeyPart::Port],
        comment: "",
    };
    changes.add_set(table, &ports);
    let others = SetSpec {
        name: names::OTHERS,
        key: &[KeyPart::Transport],
        data: &[address],
        comment: "",
    };
    changes.add_set(table, &others);
    let mut known: Vec<Key> = Vec::new();
    for forward in &router.forwards {
        let key = Key::of(&[Value::Transport(forward.protocol), Value::Port(forward.port)]);
        // The first rule of a port wins.
        if known.contains(&key) {
            continue;
        }
        let to = Key::of(&[Value::Ip(forward.address), Value::Port(forward.destination_port)]);
        changes.add_map_element(table, names::PORTS, &key, &to, "");
        known.push(key);
    }
    for (transport, fallback) in TRANSPORTS.iter().zip(std::iter::repeat(router.fallback)) {
        if let Some(fallback) = fallback {
            let key = Key::of(&[Value::Transport(*transport)]);
            let to = Key::of(&[Value::Ip(fallback)]);
            changes.add_map_element(table, names::OTHERS, &key, &to, "");
        }
    }
    let port = |to| {
        let (offset, length) = DESTINATION_PORT;
        Expression::Payload {
            header: Header::Transport,
            offset,
            length,
            to,
        }
    };
    let transport = |to| Expression::Meta {
        meta: Meta::Transport,
        to,
    };
    let lookup = |set: &str| Expression::Map {
        set: set.to_owned(),
        register: Register::FIRST,
        to: Register::FIRST,
    };
    let translate = |port| Expression::DestinationNat {
        family,
        address: Register::FIRST,
        port,
    };
    let received = interface(Meta::InputInterfaceName, PRIMARY);
    let by_port = [
        transport(Register::FIRST),
        port(Register::word(1)),
        lookup(names::PORTS),
        translate(Register::word(words)),
    ];
    let rule = [&received[..], &by_port].concat();
    changes.add_rule(table, names::PREROUTING, &rule, "");
    let by_transport = [
        transport(Register::FIRST),
        lookup(names::OTHERS),
        // The destination keeps the port.
        port(Register::SECOND),
        translate(Register::SECOND),
    ];
    let rule = [&received[..], &by_transport].concat();
    changes.add_rule(table, names::PREROUTING, &rule, "");
    let mut rule = interface(Meta::OutputInterfaceName, ifname).to_vec();
    rule.push(Expression::Masquerade);
    changes.add_rule(table, names::POSTROUTING, &rule, "");
    changes
}

fn interface(meta: Meta, name: &str) -> [Expression; 2] {
    let mut value = name.as_bytes().to_vec();
    value.resize(INTERFACE_NAME, 0);
    let load = Expression::Meta {
        meta,
        to: Register::FIRST,
    };
    [load, compare(true, value)]
}

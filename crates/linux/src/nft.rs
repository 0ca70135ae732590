//! `nf_tables`, the kernel's packet rules, over its own netlink.
//!
//! ```text
//!  Socket::update(decide) ──┬─> generation, rules, elements, ...       reads: O(size of the answers)
//!                           └─> Transaction ──> all or nothing, and only if the ruleset has not changed since
//! ```
//!
//! Comments and types are written in the format of libnftnl, so that `nft list ruleset` prints all objects in its own
//! syntax and can read it back.

mod connections;
mod expression;
pub mod matches;
mod monitor;
mod read;
mod set;
mod transaction;
mod userdata;
mod wire;

use std::fmt;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_MULTIPART, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR,
};
use netlink_sys::{Socket as RawSocket, SocketAddr, protocols::NETLINK_NETFILTER};
use rustix::net::{RecvFlags, sockopt::set_socket_send_buffer_size_force};

use self::wire::{GENERATION, Writer, field, fields, message, number};
use crate::{
    Errno, Feature, Result,
    route::{DUMP_ATTEMPTS, RECEIVE_BUFFER, Request, acknowledged, descriptor, finished, messages, retry},
};

pub use connections::Destination;
pub use expression::{ESTABLISHED_OR_RELATED, Expression, Header, LOCAL_ADDRESS, Meta, Register, Verdict};
pub use monitor::Monitor;
pub use read::Rule;
pub use set::{Element, Key, KeyPart, SetSpec, Value};
pub use transaction::{Hook, HookPoint, Transaction};
pub use userdata::COMMENT_LENGTH;

/// Names of chains and sets are shorter than this, bytes.
const NAME_LENGTH: usize = 256;
/// Size that fits a socket's buffer on all kernels, bytes.
const USUAL_TRANSACTION: usize = 64 * 1024;
/// Maximum number of attempts of an update while the ruleset changes concurrently. Each failed attempt means that
/// another program's change succeeded.
const UPDATE_ATTEMPTS: usize = 1000;

/// The packets that a table handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// Ethernet frames that bridges forward.
    Bridge,
}

impl Family {
    fn number(self) -> u8 {
        match self {
            Family::Inet => 1,
            Family::Ipv4 => 2,
            Family::Bridge => 7,
            Family::Ipv6 => 10,
        }
    }

    fn from_number(number: u32) -> Option<Self> {
        [Family::Inet, Family::Ipv4, Family::Ipv6, Family::Bridge]
            .into_iter()
            .find(|family| u32::from(family.number()) == number)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Inet => "inet",
            Family::Ipv4 => "ip",
            Family::Ipv6 => "ip6",
            Family::Bridge => "bridge",
        })
    }
}

/// A table, by its family and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// The packets that the table handles.
    pub family: Family,
    /// The name within the family.
    pub name: &'static str,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

/// Traffic of a socket so far, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// To the kernel.
    pub sent: usize,
    /// From the kernel.
    pub received: usize,
}

/// A netfilter netlink socket. It belongs to the network namespace in which it was opened.
#[derive(Debug)]
pub struct Socket {
    raw: RawSocket,
    sequence: u32,
    send: Vec<u8>,
    receive: Vec<u8>,
    traffic: Traffic,
}

impl Socket {
    /// Opens a socket in the network namespace of this thread.
    pub fn open() -> Result<Self> {
        let request = Request::new("open nftables socket", "").needs(Feature::Nftables);
        let raw = RawSocket::new(NETLINK_NETFILTER).map_err(|e| request.io(&e))?;
        // Options that older kernels lack: messages in errors, and short errors.
        let _ = raw.set_ext_ack(true);
        let _ = raw.set_cap_ack(true);
        Ok(Socket {
            raw,
            sequence: 0,
            send: Vec::new(),
            receive: Vec::with_capacity(RECEIVE_BUFFER),
            traffic: Traffic::default(),
        })
    }

    /// Returns the traffic of this socket so far.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Applies a transaction, completely or not at all. The error is that of the first failed change.
    pub fn commit(&mut self, transaction: &Transaction) -> Result<()> {
        self.commit_at(transaction, None)
    }

    /// Applies the transaction that `decide` returns, provided that the ruleset did not change after `decide` read it.
    /// Calls `decide` again after a concurrent change.
    pub fn update(&mut self, mut decide: impl FnMut(&mut Self) -> Result<Transaction>) -> Result<()> {
        let mut attempt = 1;
        loop {
            let generation = self.generation()?;
            let transaction = decide(self)?;
            let outcome = if transaction.is_empty() {
                // An empty transaction counts only if all reads come from one state of the ruleset.
                match self.generation()? {
                    now if now == generation => Ok(()),
                    _ => Err(Request::new("read the ruleset", "").refused(Errno::RESTART)),
                }
            } else {
                self.commit_at(&transaction, Some(generation))
            };
            match outcome {
                Err(error) if error.errno() == Some(Errno::RESTART) && attempt < UPDATE_ATTEMPTS => {
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }

    /// Returns the generation of the ruleset, which increases with every change.
    fn generation(&mut self) -> Result<u32> {
        let request = Request::new("read the ruleset's generation", "").needs(Feature::Nftables);
        let found = self
            .converse(
                request,
                message::GET_GENERATION,
                NLM_F_REQUEST,
                None,
                |_| {},
                |payload| field(fields(payload), GENERATION).and_then(number),
            )
            // The kernel's refusal of requests to a missing subsystem.
            .map_err(|error| error.lacking(Errno::INVAL, request.needs))?;
        let generation = found.answers.into_iter().flatten().next();
        generation.ok_or_else(|| request.unreadable("no generation in the answer"))
    }

    fn commit_at(&mut self, transaction: &Transaction, generation: Option<u32>) -> Result<()> {
        if transaction.is_empty() {
            return Ok(());
        }
        let request = Request::new("change the ruleset", "").needs(Feature::Nftables);
        let first = self.sequence.wrapping_add(1);
        let count = u32::try_from(transaction.len()).unwrap_or(u32::MAX);
        self.sequence = first.wrapping_add(count).wrapping_add(1);
        let mut bytes = std::mem::take(&mut self.send);
        transaction.encode(first, generation, &mut bytes);
        self.send = bytes;
        self.send(request)?;
        let mut failure = None;
        loop {
            self.receive(request)?;
            for answer in messages(request, &self.receive) {
                let answer = answer?;
                if answer.message_type() != NLMSG_ERROR {
                    continue;
                }
                let number = answer.sequence_number().wrapping_sub(first);
                if number == 0 {
                    return acknowledged(request, answer.flags(), answer.payload());
                }
                if let Some(operation) = transaction.operation(number) {
                    let done = acknowledged(operation.request(), answer.flags(), answer.payload());
                    if let (Err(error), None) = (done, &failure) {
                        failure = Some(error.lacking(Errno::NOENT, operation.needs()));
                    }
                    if number == count {
                        return failure.map_or(Ok(()), Err);
                    }
                }
            }
        }
    }

    /// Sends one query about a table, and calls `read` with each answer after `struct nfgenmsg`. Repeats interrupted
    /// dumps (cni-plugins §2.2).
    fn query<T>(
        &mut self,
        request: Request<'_>,
        kind: u16,
        flags: u16,
        table: Table,
        fill: impl Fn(&mut Writer<'_>),
        read: impl Fn(&[u8]) -> T,
    ) -> Result<Vec<T>> {
        let mut attempt = 1;
        loop {
            let found = self.converse(request, kind, flags, Some(table.family), &fill, &read)?;
            if !found.interrupted || attempt == DUMP_ATTEMPTS {
                return Ok(found.answers);
            }
            attempt += 1;
        }
    }

    fn converse<T>(
        &mut self,
        request: Request<'_>,
        kind: u16,
        flags: u16,
        family: Option<Family>,
        fill: impl FnOnce(&mut Writer<'_>),
        read: impl Fn(&[u8]) -> T,
    ) -> Result<Found<T>> {
        self.sequence = self.sequence.wrapping_add(1);
        self.send.clear();
        wire::append(&mut self.send, kind, flags, family, 0, fill);
        wire::set_sequence(&mut self.send, 0, self.sequence);
        self.send(request)?;
        let mut found = Found {
            answers: Vec::new(),
            interrupted: false,
        };
        loop {
            self.receive(request)?;
            for answer in messages(request, &self.receive) {
                let answer = answer?;
                // Leftovers of an earlier, abandoned exchange have another sequence number.
                if answer.sequence_number() != self.sequence {
                    continue;
                }
                found.interrupted |= answer.flags() & NLM_F_DUMP_INTR != 0;
                match answer.message_type() {
                    NLMSG_ERROR => {
                        return acknowledged(request, answer.flags(), answer.payload()).map(|()| found);
                    }
                    NLMSG_DONE => return finished(request, answer.payload()).map(|()| found),
                    _ => {
                        found.answers.push(read(answer.payload()));
                        if answer.flags() & NLM_F_MULTIPART == 0 && flags & NLM_F_DUMP == 0 {
                            return Ok(found);
                        }
                    }
                }
            }
        }
    }

    fn send(&mut self, request: Request<'_>) -> Result<()> {
        if self.send.len() > USUAL_TRANSACTION {
            self.enlarge_buffer();
        }
        let kernel = SocketAddr::new(0, 0);
        retry(|| self.raw.send_to(&self.send, &kernel, 0)).map_err(|e| request.io(&e))?;
        self.traffic.sent += self.send.len();
        Ok(())
    }

    /// Enlarges the socket's buffer: the kernel takes a transaction as one datagram, which must fit.
    fn enlarge_buffer(&self) {
        // Without the capability, sending fails and reports the cause.
        let _ = set_socket_send_buffer_size_force(descriptor(&self.raw), self.send.len());
    }

    /// The kernel answers before sending returns: a missing answer will never arrive.
    fn receive(&mut self, request: Request<'_>) -> Result<()> {
        let at_once = RecvFlags::DONTWAIT.bits().cast_signed();
        self.receive.clear();
        retry(|| self.raw.recv(&mut self.receive, at_once)).map_err(|e| request.io(&e))?;
        self.traffic.received += self.receive.len();
        Ok(())
    }
}

/// The answers to a query.
struct Found<T> {
    answers: Vec<T>,
    interrupted: bool,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule() -> Vec<Expression> {
        let register = Register::FIRST;
        vec![
            Expression::Meta {
                meta: Meta::Protocol,
                to: register,
            },
            Expression::Compare {
                register,
                equal: true,
                value: vec![2],
            },
            Expression::Payload {
                header: Header::Network,
                offset: 16,
                length: 4,
                to: register,
            },
            Expression::Mask {
                register,
                mask: vec![255, 255, 240, 0],
            },
            Expression::Lookup {
                set: "s".into(),
                register,
                contained: false,
            },
            Expression::Flip {
                register,
                mask: vec![255; 4],
                flip: vec![0, 16, 0, 0],
            },
            Expression::SetMark { from: register },
            Expression::DestinationType { to: register },
            Expression::ConnectionState { to: register },
            Expression::Map {
                set: "m".into(),
                register,
                to: register,
            },
            Expression::DestinationNat {
                family: Family::Ipv4,
                address: register,
                port: Register::word(1),
            },
            Expression::Match {
                name: "mark".into(),
                revision: 1,
                data: vec![0; 16],
            },
            Expression::Masquerade,
            Expression::Verdict(Verdict::Accept),
            Expression::Verdict(Verdict::Goto("c".into())),
        ]
    }

    const TABLE: Table = Table {
        family: Family::Inet,
        name: "t",
    };

    fn everything() -> Vec<u8> {
        let mut transaction = Transaction::new();
        transaction.add_rule(TABLE, "c", &rule(), "hello");
        let key = Key::of(&[Value::InterfaceName("veth1")]);
        transaction.add_element(TABLE, "s", &key, "hello");
        let mut bytes = Vec::new();
        transaction.encode(7, Some(3), &mut bytes);
        bytes
    }

    /// Decodes all rules and elements in a datagram.
    fn decode(datagram: &[u8]) -> (Vec<Rule>, Vec<Element>) {
        let (mut rules, mut elements) = (Vec::new(), Vec::new());
        let request = Request::new("", "");
        for message in messages(request, datagram).map_while(Result::ok) {
            let _ = acknowledged(request, message.flags(), message.payload());
            let _ = finished(request, message.payload());
            let bytes = fields(message.payload());
            let _ = field(bytes, GENERATION).and_then(number);
            rules.extend(read::read_rule(bytes));
            elements.extend(set::read_elements(bytes));
        }
        (rules, elements)
    }

    #[test]
    fn written_rules_and_elements_are_read_back() {
        // The kernel lists the rule with a handle.
        let mut bytes = Vec::new();
        wire::append(
            &mut bytes,
            message::NEW_RULE,
            0,
            Some(Family::Inet),
            0,
            |writer| {
                writer.bytes(wire::rule::HANDLE, &5_u64.to_be_bytes());
                writer.nest(wire::rule::EXPRESSIONS, |writer| {
                    for expression in rule() {
                        expression.write(writer);
                    }
                });
                writer.bytes(wire::rule::USERDATA, &userdata::comment("hello"));
            },
        );
        let expected = Rule {
            handle: 5,
            expressions: rule(),
            comment: "hello".into(),
        };
        assert_eq!(decode(&bytes).0, [expected]);
        let element = decode(&everything()).1;
        assert_eq!(element.len(), 1);
        assert_eq!(element[0].comment, "hello");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            decode(&bytes);
        }

        #[test]
        fn damaged_messages_never_panic(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = everything();
            for (place, value) in changes {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            decode(&bytes);
            decode(&bytes[..cut.index(bytes.len())]);
        }
    }
}

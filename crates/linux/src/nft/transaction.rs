//! Changes of the ruleset that are applied completely or not at all.

use netlink_packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST};

use super::{
    Family, Table,
    expression::Expression,
    set::{Key, SetSpec, layout},
    userdata,
    wire::{
        BATCH_BEGIN, BATCH_END, BATCH_GENERATION, DATA_VALUE, FLAGS, LIST_ENTRY, SUBSYSTEM, Writer, append,
        chain, element, message, rule, set, set_sequence, table,
    },
};
use crate::{Feature, route::Request};

/// A hook of the kernel, with the priority of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hook {
    /// `filter` or `nat`.
    pub kind: &'static str,
    /// The hook's place in the path of packets.
    pub point: HookPoint,
    /// Chains with lower values come first.
    pub priority: i32,
}

/// A place in the path of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookPoint {
    /// Received packets.
    Prerouting,
    /// Forwarded packets.
    Forward,
    /// Packets of the host itself.
    Output,
    /// Packets that leave.
    Postrouting,
}

/// `NFT_SET_MAP`.
const SET_IS_MAP: u32 = 1 << 3;

/// Changes that are applied in order, completely or not at all.
#[derive(Debug, Default)]
pub struct Transaction {
    bytes: Vec<u8>,
    operations: Vec<Operation>,
}

/// A change, described for its error.
#[derive(Debug)]
pub(super) struct Operation {
    start: usize,
    doing: &'static str,
    object: String,
    needs: Option<Feature>,
}

impl Operation {
    pub(super) fn request(&self) -> Request<'_> {
        Request {
            doing: self.doing,
            object: &self.object,
            needs: self.needs,
        }
    }

    /// Returns the feature that is missing if the kernel reports an unknown object that the operation does not name.
    pub(super) fn needs(&self) -> Option<Feature> {
        self.needs
    }
}

impl Transaction {
    /// Returns a transaction without changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// The transaction has no changes.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Returns the number of changes.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Adds a table, unless it exists.
    pub fn add_table(&mut self, table: Table, comment: &str) {
        let needs = match table.family {
            Family::Bridge => Feature::NftablesBridge,
            Family::Inet | Family::Ipv4 | Family::Ipv6 => Feature::Nftables,
        };
        self.push("add table", table.to_string(), Some(needs));
        self.message(message::NEW_TABLE, NLM_F_CREATE, table, |writer| {
            writer.text(table::NAME, table.name);
            if !comment.is_empty() {
                writer.bytes(table::USERDATA, &userdata::comment(comment));
            }
        });
    }

    /// Removes a table with its content.
    pub fn delete_table(&mut self, table: Table) {
        self.push("delete table", table.to_string(), None);
        self.message(message::DELETE_TABLE, 0, table, |writer| {
            writer.text(table::NAME, table.name);
        });
    }

    /// Adds a chain, unless it exists. With a hook, the chain receives packets directly.
    pub fn add_chain(&mut self, table: Table, name: &str, hook: Option<Hook>, comment: &str) {
        let nat = hook.is_some_and(|hook| hook.kind == "nat");
        self.push(
            "add chain",
            format!("{table} {name}"),
            nat.then_some(Feature::NftablesNat),
        );
        self.message(message::NEW_CHAIN, NLM_F_CREATE, table, |writer| {
            writer.text(chain::TABLE, table.name);
            writer.text(chain::NAME, name);
            if let Some(hook) = hook {
                let point = match hook.point {
                    HookPoint::Prerouting => 0,
                    HookPoint::Forward => 2,
                    HookPoint::Output => 3,
                    HookPoint::Postrouting => 4,
                };
                writer.text(chain::TYPE, hook.kind);
                writer.nest(chain::HOOK, |writer| {
                    writer.number(chain::HOOK_NUMBER, point);
                    writer.bytes(chain::HOOK_PRIORITY, &hook.priority.to_be_bytes());
                });
            }
            if !comment.is_empty() {
                writer.bytes(chain::USERDATA, &userdata::comment(comment));
            }
        });
    }

    /// Removes a chain that has no rules and no references.
    pub fn delete_chain(&mut self, table: Table, name: &str) {
        self.push("delete chain", format!("{table} {name}"), None);
        self.message(message::DELETE_CHAIN, 0, table, |writer| {
            writer.text(chain::TABLE, table.name);
            writer.text(chain::NAME, name);
        });
    }

    /// Adds a set, unless it exists.
    pub fn add_set(&mut self, table: Table, spec: &SetSpec<'_>) {
        // The set's number for references in the transaction, which use names instead.
        let id = u32::try_from(self.operations.len()).unwrap_or_default() + 1;
        let (key_type, length, order) = layout(spec.key);
        let data = (!spec.data.is_empty()).then(|| layout(spec.data));
        self.push("add set", format!("{table} {}", spec.name), None);
        self.message(message::NEW_SET, NLM_F_CREATE, table, |writer| {
            writer.text(set::TABLE, table.name);
            writer.text(set::NAME, spec.name);
            writer.number(set::FLAGS, if data.is_some() { SET_IS_MAP } else { 0 });
            writer.number(set::KEY_TYPE, key_type);
            writer.number(set::KEY_LENGTH, u32::try_from(length).unwrap_or_default());
            if let Some((data_type, length, _)) = data {
                writer.number(set::DATA_TYPE, data_type);
                writer.number(set::DATA_LENGTH, u32::try_from(length).unwrap_or_default());
            }
            writer.number(set::ID, id);
            let data_order = data.map(|(_, _, order)| order);
            writer.bytes(set::USERDATA, &userdata::of_set(order, data_order, spec.comment));
        });
    }

    /// Removes a set with its elements. No rule may refer to the set.
    pub fn delete_set(&mut self, table: Table, name: &str) {
        self.push("delete set", format!("{table} {name}"), None);
        self.message(message::DELETE_SET, 0, table, |writer| {
            writer.text(set::TABLE, table.name);
            writer.text(set::NAME, name);
        });
    }

    /// Adds an element to a set. An existing element keeps its comment.
    pub fn add_element(&mut self, table: Table, set: &str, key: &Key, comment: &str) {
        self.push("add element to set", format!("{table} {set}"), None);
        self.message(message::NEW_ELEMENT, NLM_F_CREATE, table, |writer| {
            write_element(writer, table, set, key, None, Some(comment));
        });
    }

    /// Adds an element to a map. The map must not have the key.
    pub fn add_map_element(&mut self, table: Table, set: &str, key: &Key, data: &Key, comment: &str) {
        self.push("add element to map", format!("{table} {set}"), None);
        self.message(message::NEW_ELEMENT, NLM_F_CREATE, table, |writer| {
            write_element(writer, table, set, key, Some(data), Some(comment));
        });
    }

    /// Removes an element. The element must exist.
    pub fn delete_element(&mut self, table: Table, set: &str, key: &Key) {
        self.push("delete element of set", format!("{table} {set}"), None);
        self.message(message::DELETE_ELEMENT, 0, table, |writer| {
            write_element(writer, table, set, key, None, None);
        });
    }

    /// Adds a rule at the end of a chain.
    pub fn add_rule(&mut self, table: Table, chain: &str, expressions: &[Expression], comment: &str) {
        self.place_rule(table, chain, NLM_F_APPEND, expressions, comment);
    }

    /// Adds a rule at the start of a chain.
    pub fn insert_rule(&mut self, table: Table, chain: &str, expressions: &[Expression], comment: &str) {
        self.place_rule(table, chain, 0, expressions, comment);
    }

    fn place_rule(
        &mut self,
        table: Table,
        chain: &str,
        place: u16,
        expressions: &[Expression],
        comment: &str,
    ) {
        let object = format!("{table} {chain}");
        self.push("add rule to chain", object, expressions.iter().find_map(needs));
        self.message(message::NEW_RULE, NLM_F_CREATE | place, table, |writer| {
            writer.text(rule::TABLE, table.name);
            writer.text(rule::CHAIN, chain);
            writer.nest(rule::EXPRESSIONS, |writer| {
                for expression in expressions {
                    expression.write(writer);
                }
            });
            if !comment.is_empty() {
                writer.bytes(rule::USERDATA, &userdata::comment(comment));
            }
        });
    }

    /// Removes a rule by its handle.
    pub fn delete_rule(&mut self, table: Table, chain: &str, handle: u64) {
        self.push("delete rule of chain", format!("{table} {chain}"), None);
        self.message(message::DELETE_RULE, 0, table, |writer| {
            writer.text(rule::TABLE, table.name);
            writer.text(rule::CHAIN, chain);
            writer.bytes(rule::HANDLE, &handle.to_be_bytes());
        });
    }

    /// Removes all rules of a chain.
    pub fn flush_chain(&mut self, table: Table, chain: &str) {
        self.push("flush chain", format!("{table} {chain}"), None);
        self.message(message::DELETE_RULE, 0, table, |writer| {
            writer.text(rule::TABLE, table.name);
            writer.text(rule::CHAIN, chain);
        });
    }

    fn push(&mut self, doing: &'static str, object: String, needs: Option<Feature>) {
        self.operations.push(Operation {
            start: self.bytes.len(),
            doing,
            object,
            needs,
        });
    }

    fn message(&mut self, kind: u16, flags: u16, table: Table, fill: impl FnOnce(&mut Writer<'_>)) {
        append(
            &mut self.bytes,
            kind,
            NLM_F_REQUEST | flags,
            Some(table.family),
            0,
            fill,
        );
    }

    /// Returns the operation of an answer with this number, counted from the message that opens the transaction.
    pub(super) fn operation(&self, number: u32) -> Option<&Operation> {
        self.operations.get(usize::try_from(number).ok()?.checked_sub(1)?)
    }

    /// Encodes the transaction with sequence numbers from `first` on, and requests an acknowledgement for the last
    /// message. The kernel refuses the transaction if the ruleset no longer has `generation`.
    pub(super) fn encode(&self, first: u32, generation: Option<u32>, buffer: &mut Vec<u8>) {
        buffer.clear();
        append(buffer, BATCH_BEGIN, NLM_F_REQUEST, None, SUBSYSTEM, |writer| {
            if let Some(generation) = generation {
                writer.number(BATCH_GENERATION, generation);
            }
        });
        set_sequence(buffer, 0, first);
        let base = buffer.len();
        buffer.extend_from_slice(&self.bytes);
        let mut sequence = first;
        for operation in &self.operations {
            sequence = sequence.wrapping_add(1);
            set_sequence(buffer, base + operation.start, sequence);
        }
        if let Some(last) = self.operations.last() {
            let flags = base + last.start + FLAGS;
            let [low, high] =
                (u16::from_ne_bytes([buffer[flags], buffer[flags + 1]]) | NLM_F_ACK).to_ne_bytes();
            buffer[flags] = low;
            buffer[flags + 1] = high;
        }
        let end = buffer.len();
        append(buffer, BATCH_END, NLM_F_REQUEST, None, SUBSYSTEM, |_| {});
        set_sequence(buffer, end, sequence.wrapping_add(1));
    }
}

/// Returns the feature that an expression needs besides nftables itself.
fn needs(expression: &Expression) -> Option<Feature> {
    match expression {
        Expression::Masquerade => Some(Feature::NftablesMasquerade),
        Expression::DestinationNat { .. } => Some(Feature::NftablesNat),
        Expression::DestinationType { .. } => Some(Feature::NftablesFib),
        Expression::ConnectionState { .. } => Some(Feature::NftablesConnections),
        Expression::Match { .. } => Some(Feature::NftablesCompat),
        _ => None,
    }
}

/// Writes the attributes of a message about one element.
pub(super) fn write_element(
    writer: &mut Writer<'_>,
    table: Table,
    set: &str,
    key: &Key,
    data: Option<&Key>,
    comment: Option<&str>,
) {
    writer.text(element::LIST_TABLE, table.name);
    writer.text(element::LIST_SET, set);
    writer.nest(element::LIST_ELEMENTS, |writer| {
        writer.nest(LIST_ENTRY, |writer| {
            writer.nest(element::KEY, |writer| writer.bytes(DATA_VALUE, &key.0));
            if let Some(data) = data {
                writer.nest(element::DATA, |writer| writer.bytes(DATA_VALUE, &data.0));
            }
            if let Some(comment) = comment {
                writer.bytes(element::USERDATA, &userdata::comment(comment));
            }
        });
    });
}

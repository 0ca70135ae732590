//! Queries of the ruleset.

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST};

use super::{
    NAME_LENGTH, Socket, Table,
    expression::Expression,
    set::{Element, Key, read_elements},
    transaction::write_element,
    userdata,
    wire::{chain, element, field, fields, message, rule, set, text},
};
use crate::{Result, route::Request};

/// A rule of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The kernel's number of the rule, for its removal.
    pub handle: u64,
    /// Its expressions.
    pub expressions: Vec<Expression>,
    /// Its comment, or an empty text.
    pub comment: String,
}

impl Socket {
    /// Returns true if the chain exists.
    pub fn has_chain(&mut self, table: Table, name: &str) -> Result<bool> {
        // The kernel has no such names, and reports them with an ambiguous error.
        if name.len() >= NAME_LENGTH {
            return Ok(false);
        }
        let object = format!("{table} {name}");
        let asked = self.query(
            Request::new("look up chain", &object),
            message::GET_CHAIN,
            NLM_F_REQUEST,
            table,
            |writer| {
                writer.text(chain::TABLE, table.name);
                writer.text(chain::NAME, name);
            },
            |_| (),
        );
        Ok(none_if_not_found(asked)?.is_some())
    }

    /// Lists the names of a table's chains; empty if the table is missing.
    pub fn chains(&mut self, table: Table) -> Result<Vec<String>> {
        let object = table.to_string();
        let names = self.dump(
            Request::new("list chains of table", &object),
            message::GET_CHAIN,
            table,
            |writer| writer.text(chain::TABLE, table.name),
            // The kernel lists the chains of all tables of the family.
            |bytes| match field(bytes, chain::TABLE) {
                Some(of) if text(of) == table.name => {
                    field(bytes, chain::NAME).map(text).into_iter().collect()
                }
                _ => Vec::new(),
            },
        );
        Ok(none_if_not_found(names)?.unwrap_or_default())
    }

    /// Lists the rules of a chain in order; empty if the chain is missing.
    pub fn rules(&mut self, table: Table, name: &str) -> Result<Vec<Rule>> {
        let object = format!("{table} {name}");
        let rules = self.dump(
            Request::new("list rules of chain", &object),
            message::GET_RULE,
            table,
            |writer| {
                writer.text(rule::TABLE, table.name);
                writer.text(rule::CHAIN, name);
            },
            // Kernels before 4.6 list all chains.
            |bytes| match field(bytes, rule::CHAIN) {
                Some(chain) if text(chain) == name => read_rule(bytes).into_iter().collect(),
                _ => Vec::new(),
            },
        );
        Ok(none_if_not_found(rules)?.unwrap_or_default())
    }

    /// Lists the names of a table's sets; empty if the table is missing.
    pub fn sets(&mut self, table: Table) -> Result<Vec<String>> {
        let object = table.to_string();
        let names = self.dump(
            Request::new("list sets of table", &object),
            message::GET_SET,
            table,
            |writer| writer.text(set::TABLE, table.name),
            |bytes| match field(bytes, set::TABLE) {
                Some(of) if text(of) == table.name => field(bytes, set::NAME).map(text).into_iter().collect(),
                _ => Vec::new(),
            },
        );
        Ok(none_if_not_found(names)?.unwrap_or_default())
    }

    /// Lists the elements of a set, unordered; empty if the set is missing.
    pub fn elements(&mut self, table: Table, name: &str) -> Result<Vec<Element>> {
        let object = format!("{table} {name}");
        let elements = self.dump(
            Request::new("list elements of set", &object),
            message::GET_ELEMENT,
            table,
            |writer| {
                writer.text(element::LIST_TABLE, table.name);
                writer.text(element::LIST_SET, name);
            },
            read_elements,
        );
        Ok(none_if_not_found(elements)?.unwrap_or_default())
    }

    /// Returns the element with this key, or `None` if the element or the set is missing.
    pub fn element(&mut self, table: Table, name: &str, key: &Key) -> Result<Option<Element>> {
        let object = format!("{table} {name}");
        let asked = self.query(
            Request::new("look up element of set", &object),
            message::GET_ELEMENT,
            NLM_F_REQUEST,
            table,
            |writer| write_element(writer, table, name, key, None, None),
            |payload| read_elements(fields(payload)),
        );
        Ok(none_if_not_found(asked)?
            .into_iter()
            .flatten()
            .flatten()
            .find(|element| element.key == *key))
    }

    fn dump<T>(
        &mut self,
        request: Request<'_>,
        kind: u16,
        table: Table,
        fill: impl Fn(&mut super::wire::Writer<'_>),
        read: impl Fn(&[u8]) -> Vec<T>,
    ) -> Result<Vec<T>> {
        let parts = self.query(
            request,
            kind,
            NLM_F_REQUEST | NLM_F_DUMP,
            table,
            fill,
            |payload| read(fields(payload)),
        )?;
        Ok(parts.into_iter().flatten().collect())
    }
}

fn none_if_not_found<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn read_rule(bytes: &[u8]) -> Option<Rule> {
    let handle = field(bytes, rule::HANDLE)?;
    Some(Rule {
        handle: u64::from_be_bytes(handle.try_into().ok()?),
        expressions: Expression::read_all(field(bytes, rule::EXPRESSIONS).unwrap_or_default()),
        comment: field(bytes, rule::USERDATA)
            .and_then(userdata::read_comment)
            .unwrap_or_default(),
    })
}

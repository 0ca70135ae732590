//! Rules that select the routing table of a packet.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, parse_u32};
use netlink_packet_route::{
    RouteNetlinkMessage,
    rule::{RuleAction, RuleAttribute, RuleMessage},
};

use crate::{
    Result,
    address::Family,
    route::{Request, Socket, attributes},
};

/// Length of `struct fib_rule_hdr`, which precedes the attributes of a rule.
const RULE_HEADER: usize = 12;
/// Offsets of the source's prefix length, and of the table if its number fits into a byte.
const SOURCE_LENGTH: usize = 2;
const TABLE: usize = 4;

/// Attribute numbers of `<linux/fib_rules.h>`. Attributes are read by number: a foreign rule with an unknown attribute
/// must not hide all the others.
mod attribute {
    pub(super) const SOURCE: u16 = 2;
    pub(super) const TABLE: u16 = 15;
}

/// A rule, reduced to source and table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The source of the packets; `None` for all packets.
    pub source: Option<IpNet>,
    /// The table that routes the packets; 0 if the rule names none.
    pub table: u32,
}

impl Rule {
    /// Returns a rule that routes packets from this address by the table.
    pub fn from_address(address: IpAddr, table: u32) -> Self {
        Rule {
            source: Some(IpNet::from(address)),
            table,
        }
    }

    fn message(&self, family: Family) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.header.family = Family::raw(Some(family));
        message.header.action = RuleAction::ToTable;
        message.attributes.push(RuleAttribute::Table(self.table));
        if let Some(source) = &self.source {
            message.header.src_len = source.prefix_len();
            message.attributes.push(RuleAttribute::Source(source.network()));
        }
        message
    }

    fn read(bytes: &[u8]) -> Option<Rule> {
        let length = *bytes.get(SOURCE_LENGTH)?;
        let mut rule = Rule {
            source: None,
            table: u32::from(*bytes.get(TABLE)?),
        };
        attributes(
            bytes.get(RULE_HEADER..).unwrap_or_default(),
            |kind, value| match kind {
                attribute::SOURCE => {
                    rule.source = address(value).and_then(|source| IpNet::new(source, length).ok());
                }
                attribute::TABLE => rule.table = parse_u32(value).unwrap_or(rule.table),
                _ => {}
            },
        );
        Some(rule)
    }

    fn description(&self) -> String {
        match &self.source {
            Some(source) => format!("from {source} table {}", self.table),
            None => format!("table {}", self.table),
        }
    }
}

fn address(value: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(value)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from))
        .ok()
}

impl Socket {
    /// Adds a rule before the existing ones. If the rule exists, the error [`is_exists`](crate::Error::is_exists).
    pub fn add_rule(&mut self, family: Family, rule: &Rule) -> Result<()> {
        let object = rule.description();
        self.execute(
            Request::new("add rule", &object),
            RouteNetlinkMessage::NewRule(rule.message(family)),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Removes the first matching rule.
    pub fn delete_rule(&mut self, family: Family, rule: &Rule) -> Result<()> {
        let object = rule.description();
        self.execute(
            Request::new("remove rule", &object),
            RouteNetlinkMessage::DelRule(rule.message(family)),
            0,
        )
    }

    /// Lists all rules of a family, in order.
    pub fn rules(&mut self, family: Family) -> Result<Vec<Rule>> {
        let mut question = RuleMessage::default();
        question.header.family = Family::raw(Some(family));
        self.dump(
            Request::new("list rules", ""),
            &RouteNetlinkMessage::GetRule(question),
            |bytes| Ok(Rule::read(bytes)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_is_read_in_both_forms_of_its_table() {
        let mut bytes = vec![2, 0, 32, 0, 100, 0, 0, 1, 0, 0, 0, 0];
        let short = Rule {
            source: None,
            table: 100,
        };
        assert_eq!(Rule::read(&bytes), Some(short));
        bytes.extend([8, 0, 2, 0, 10, 1, 2, 3]);
        bytes.extend([8, 0, 15, 0]);
        bytes.extend(1000_u32.to_ne_bytes());
        let long = Rule::from_address("10.1.2.3".parse().unwrap(), 1000);
        assert_eq!(Rule::read(&bytes), Some(long));
        assert_eq!(Rule::read(&bytes[..3]), None);
    }
}

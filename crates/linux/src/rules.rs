//! Rules that choose the routing table for a packet.

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

/// Length of `struct fib_rule_hdr`, after which the attributes of a rule begin.
const RULE_HEADER: usize = 12;
/// Where it has the length of the source's prefix, and the table if its number fits a byte.
const SOURCE_LENGTH: usize = 2;
const TABLE: usize = 4;

/// Attribute numbers of `<linux/fib_rules.h>`. They are read by number: a foreign rule with an unknown attribute
/// must not hide all the others.
mod attribute {
    pub(super) const SOURCE: u16 = 2;
    pub(super) const TABLE: u16 = 15;
}

/// A rule, as far as it is about sources and tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The source of the packets; any without one.
    pub source: Option<IpNet>,
    /// The table that routes them; 0 where the rule names none.
    pub table: u32,
}

impl Rule {
    /// Packets from this one address are routed by the table.
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

    fn words(&self) -> String {
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
    /// Adds a rule before those that are there. An error that [`is_exists`](crate::Error::is_exists) if it is there.
    pub fn add_rule(&mut self, family: Family, rule: &Rule) -> Result<()> {
        let object = rule.words();
        self.execute(
            Request::new("add rule", &object),
            RouteNetlinkMessage::NewRule(rule.message(family)),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Removes the first such rule.
    pub fn delete_rule(&mut self, family: Family, rule: &Rule) -> Result<()> {
        let object = rule.words();
        self.execute(
            Request::new("remove rule", &object),
            RouteNetlinkMessage::DelRule(rule.message(family)),
            0,
        )
    }

    /// All rules of a family, in their order.
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
    fn a_rule_is_read_in_either_form_of_its_table() {
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

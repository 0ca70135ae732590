//! The rules that admit addresses and isolate bridges.

use std::net::IpAddr;

use ipnet::IpNet;
use linux::nft::{ESTABLISHED_OR_RELATED, Expression, Family, Meta, Register, Rule, Table, Verdict};

use crate::{
    firewall::config::Config,
    iptables::Version,
    matches::{self, Side, compare, protocol},
    names::{
        IPTABLES_FILTER, IPTABLES_FORWARD,
        firewall::{
            ADDRESSES_IPV4, ADDRESSES_IPV6, ADMIN_COMMENT, ADMITTED_COMMENT, BRIDGES, CNI_FORWARD, COMMENT,
            FORWARD, ISOLATED, ISOLATION, MARK, SAME, TABLE_NAME, UNMARK,
        },
    },
};

/// Our table.
pub(super) const TABLE: Table = Table {
    family: Family::Inet,
    name: TABLE_NAME,
};
/// `struct xt_mark_mtinfo1` of iptables, with the padding that the kernel requires.
const MARK_MATCH: (&str, u32, usize) = ("mark", 1, 16);

/// A required rule.
pub(super) struct RequiredRule {
    pub(super) table: Table,
    pub(super) chain: String,
    pub(super) rule: Vec<Expression>,
    pub(super) comment: &'static str,
    pub(super) first: bool,
}

impl RequiredRule {
    fn of_ours(chain: &str, rule: Vec<Expression>) -> Self {
        RequiredRule {
            table: TABLE,
            chain: chain.to_owned(),
            rule,
            comment: "",
            first: false,
        }
    }

    pub(super) fn is_in(&self, rules: &[Rule]) -> bool {
        rules.iter().any(|rule| without_counters(rule) == self.rule)
    }
}

/// A rule without the counters that iptables adds.
pub(super) fn without_counters(rule: &Rule) -> Vec<Expression> {
    let mut rest = rule.expressions.clone();
    rest.retain(|expression| *expression != Expression::Other("counter".to_owned()));
    rest
}

/// The rules that admit addresses of a family: ours mark packets, and those in the iptables table accept marked ones.
pub(super) fn admitting(config: &Config, version: Version) -> Vec<RequiredRule> {
    let jump = |chain: &str| vec![Expression::Verdict(Verdict::Jump(chain.to_owned()))];
    let in_iptables = |chain: &str, rule, comment, first| RequiredRule {
        table: version.table(IPTABLES_FILTER),
        chain: chain.to_owned(),
        rule,
        comment,
        first,
    };
    vec![
        RequiredRule::of_ours(FORWARD, marking(version, Side::Source)),
        RequiredRule::of_ours(FORWARD, marking(version, Side::Destination)),
        RequiredRule::of_ours(UNMARK, unmarking()),
        in_iptables(IPTABLES_FORWARD, jump(CNI_FORWARD), COMMENT, true),
        in_iptables(CNI_FORWARD, jump(&config.admin_chain), ADMIN_COMMENT, true),
        in_iptables(CNI_FORWARD, accepting(), ADMITTED_COMMENT, false),
    ]
}

/// `ip saddr @<set> meta mark set meta mark | <bit>`, or for replies `ip daddr @<set> ct state established,related
/// ...`.
fn marking(version: Version, side: Side) -> Vec<Expression> {
    let (set, any) = match version {
        Version::V4 => (ADDRESSES_IPV4, IpAddr::from([0; 4])),
        Version::V6 => (ADDRESSES_IPV6, IpAddr::from([0; 16])),
    };
    let register = Register::FIRST;
    let mut rule = protocol(&IpNet::from(any));
    rule.extend([
        matches::address(side, version == Version::V4, register),
        Expression::Lookup {
            set: set.to_owned(),
            register,
            contained: true,
        },
    ]);
    if side == Side::Destination {
        rule.extend([
            Expression::ConnectionState { to: register },
            Expression::Mask {
                register,
                mask: ESTABLISHED_OR_RELATED.to_vec(),
            },
            compare(false, vec![0; 4]),
        ]);
    }
    rule.extend([
        load_mark(),
        Expression::Flip {
            register,
            mask: (!MARK).to_ne_bytes().to_vec(),
            flip: MARK.to_ne_bytes().to_vec(),
        },
        Expression::SetMark { from: register },
    ]);
    rule
}

/// `meta mark set meta mark & ~<bit>`.
fn unmarking() -> Vec<Expression> {
    let register = Register::FIRST;
    vec![
        load_mark(),
        Expression::Mask {
            register,
            mask: (!MARK).to_ne_bytes().to_vec(),
        },
        Expression::SetMark { from: register },
    ]
}

fn load_mark() -> Expression {
    Expression::Meta {
        meta: Meta::Mark,
        to: Register::FIRST,
    }
}

/// `-m mark --mark <bit>/<bit> -j ACCEPT` in the form of iptables, which cannot list a table with other expressions.
fn accepting() -> Vec<Expression> {
    let (name, revision, length) = MARK_MATCH;
    let mut data = [MARK.to_ne_bytes(), MARK.to_ne_bytes()].concat();
    data.resize(length, 0);
    vec![
        Expression::Match {
            name: name.to_owned(),
            revision,
            data,
        },
        Expression::Verdict(Verdict::Accept),
    ]
}

fn pair_of_interfaces() -> [Expression; 2] {
    [
        Expression::Meta {
            meta: Meta::InputInterfaceName,
            to: Register::FIRST,
        },
        Expression::Meta {
            meta: Meta::OutputInterfaceName,
            to: Register::SECOND,
        },
    ]
}

/// `iifname . oifname @isolated drop`, and `iifname @bridges oifname @bridges iifname . oifname != @same-bridge drop`.
pub(super) fn isolating() -> [RequiredRule; 2] {
    let lookup = |set: &str, contained| Expression::Lookup {
        set: set.to_owned(),
        register: Register::FIRST,
        contained,
    };
    let load = |meta| Expression::Meta {
        meta,
        to: Register::FIRST,
    };
    let drop = Expression::Verdict(Verdict::Drop);
    let mut within = pair_of_interfaces().to_vec();
    within.extend([lookup(ISOLATED, true), drop.clone()]);
    let mut between = vec![
        load(Meta::InputInterfaceName),
        lookup(BRIDGES, true),
        load(Meta::OutputInterfaceName),
        lookup(BRIDGES, true),
    ];
    between.extend(pair_of_interfaces());
    between.extend([lookup(SAME, false), drop]);
    [
        RequiredRule::of_ours(ISOLATION, within),
        RequiredRule::of_ours(ISOLATION, between),
    ]
}

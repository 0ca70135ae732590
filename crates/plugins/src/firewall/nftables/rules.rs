//! The rules that admit addresses and keep bridges apart.

use std::net::IpAddr;

use ipnet::IpNet;
use linux::nft::{ESTABLISHED_OR_RELATED, Expression, Meta, Register, Rule, Table, Verdict};

use super::TABLE;
use crate::{
    firewall::config::Config,
    iptables::Version,
    matches::{self, Side, compare, protocol},
    names::{
        IPTABLES_FILTER, IPTABLES_FORWARD,
        firewall::{
            ADDRESSES_IPV4, ADDRESSES_IPV6, ADMIN_COMMENT, ADMITTED_COMMENT, BRIDGES, CNI_FORWARD, COMMENT,
            FORWARD, ISOLATED, ISOLATION, MARK, SAME, UNMARK,
        },
    },
};

/// `struct xt_mark_mtinfo1` of iptables, with the room at its end that the kernel wants.
const MARK_MATCH: (&str, u32, usize) = ("mark", 1, 16);

/// A rule that there has to be.
pub(super) struct Wanted {
    pub(super) table: Table,
    pub(super) chain: String,
    pub(super) rule: Vec<Expression>,
    pub(super) comment: &'static str,
    pub(super) first: bool,
}

impl Wanted {
    fn of_ours(chain: &str, rule: Vec<Expression>) -> Self {
        Wanted {
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

/// iptables count what passes, with each rule that they make or change.
pub(super) fn without_counters(rule: &Rule) -> Vec<Expression> {
    let mut rest = rule.expressions.clone();
    rest.retain(|expression| *expression != Expression::Other("counter".to_owned()));
    rest
}

/// The rules that admit addresses of a family: ours mark, those in the table of iptables accept what is marked.
pub(super) fn admitting(config: &Config, version: Version) -> Vec<Wanted> {
    let jump = |chain: &str| vec![Expression::Verdict(Verdict::Jump(chain.to_owned()))];
    let in_iptables = |chain: &str, rule, comment, first| Wanted {
        table: version.table(IPTABLES_FILTER),
        chain: chain.to_owned(),
        rule,
        comment,
        first,
    };
    vec![
        Wanted::of_ours(FORWARD, marking(version, Side::Source)),
        Wanted::of_ours(FORWARD, marking(version, Side::Destination)),
        Wanted::of_ours(UNMARK, unmarking()),
        in_iptables(IPTABLES_FORWARD, jump(CNI_FORWARD), COMMENT, true),
        in_iptables(CNI_FORWARD, jump(&config.admin_chain), ADMIN_COMMENT, true),
        in_iptables(CNI_FORWARD, accepting(), ADMITTED_COMMENT, false),
    ]
}

/// `ip saddr @<set> meta mark set meta mark | <bit>`, or of answers `ip daddr @<set> ct state established,related ...`.
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

/// `-m mark --mark <bit>/<bit> -j ACCEPT`, as iptables write it: they refuse to list a table that has anything else.
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
pub(super) fn isolating() -> [Wanted; 2] {
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
        Wanted::of_ours(ISOLATION, within),
        Wanted::of_ours(ISOLATION, between),
    ]
}

//! Addresses and policies with the iptables programs, in upstream's format.

use std::net::IpAddr;

use ipnet::IpNet;

use super::config::{Config, Policy};
use crate::{
    iptables::{Result, Tables, Version, words},
    names::{
        IPTABLES_FILTER, IPTABLES_FORWARD,
        firewall::{
            ADMIN_COMMENT, CNI_FORWARD, COMMENT, ISOLATION_COMMENT, ISOLATION_STAGE_1, ISOLATION_STAGE_2,
        },
    },
    ruleset::Ruleset,
};

fn tables(ruleset: &Ruleset, version: Version) -> Tables<'_> {
    Tables {
        ruleset,
        version,
        table: IPTABLES_FILTER,
    }
}

fn version(address: &IpAddr) -> Version {
    Version::of(&IpNet::from(*address))
}

/// A rule with a comment.
fn commented(rule: &[&str], comment: &str) -> Vec<String> {
    let mut all = words(&["-m", "comment", "--comment", comment]);
    all.extend(words(rule));
    all
}

/// The rules of an address, which accept replies to it and all packets from it.
fn of_address(address: &IpAddr) -> [Vec<String>; 2] {
    let net = IpNet::from(*address).to_string();
    let answered = [
        "-m",
        "conntrack",
        "--ctstate",
        "RELATED,ESTABLISHED",
        "-j",
        "ACCEPT",
    ];
    [
        words(&[&["-d", &net][..], &answered[..]].concat()),
        words(&["-s", &net, "-j", "ACCEPT"]),
    ]
}

/// The shared rules, each the first of its chain.
fn shared(config: &Config) -> [(&'static str, Vec<String>); 2] {
    [
        (IPTABLES_FORWARD, commented(&["-j", CNI_FORWARD], COMMENT)),
        (
            CNI_FORWARD,
            commented(&["-j", &config.admin_chain], ADMIN_COMMENT),
        ),
    ]
}

pub(super) fn admit(ruleset: &Ruleset, config: &Config, addresses: &[IpAddr]) -> Result<()> {
    for address in addresses {
        let tables = tables(ruleset, version(address));
        tables.ensure_chain(CNI_FORWARD)?;
        tables.ensure_chain(&config.admin_chain)?;
        for (chain, rule) in shared(config) {
            tables.ensure_first(chain, &rule)?;
        }
        for rule in of_address(address) {
            tables.ensure_last(CNI_FORWARD, &rule)?;
        }
    }
    Ok(())
}

/// The first address with missing rules.
pub(super) fn missing(ruleset: &Ruleset, config: &Config, addresses: &[IpAddr]) -> Result<Option<IpAddr>> {
    for address in addresses {
        let tables = tables(ruleset, version(address));
        for (chain, rule) in shared(config) {
            if !tables.has(chain, &rule)? {
                return Ok(Some(*address));
            }
        }
        for rule in of_address(address) {
            if !tables.has(CNI_FORWARD, &rule)? {
                return Ok(Some(*address));
            }
        }
    }
    Ok(None)
}

/// Removes the rules of addresses from legacy tables. nftables holds those of the newer variant.
pub(super) fn remove_legacy(ruleset: &Ruleset, addresses: &[IpAddr]) -> Result<()> {
    for address in addresses {
        let version = version(address);
        if !version.has_legacy(IPTABLES_FILTER) {
            continue;
        }
        for rule in of_address(address) {
            tables(ruleset, version).remove(CNI_FORWARD, &rule)?;
        }
    }
    Ok(())
}

/// The rules of a policy: those at the start of their chain, then those at the end.
fn of_policy(policy: Policy, bridge: &str) -> [Vec<(&'static str, Vec<String>)>; 2] {
    let own = format!("{COMMENT} (ingressPolicy: {})", policy.name());
    let mut first = vec![
        (
            IPTABLES_FORWARD,
            commented(&["-j", ISOLATION_STAGE_1], ISOLATION_COMMENT),
        ),
        (
            ISOLATION_STAGE_1,
            commented(&["-i", bridge, "!", "-o", bridge, "-j", ISOLATION_STAGE_2], &own),
        ),
        (
            ISOLATION_STAGE_2,
            commented(&["-o", bridge, "-j", "DROP"], ISOLATION_COMMENT),
        ),
    ];
    if policy == Policy::Isolated {
        first.push((
            ISOLATION_STAGE_1,
            commented(&["-i", bridge, "-o", bridge, "-j", "DROP"], &own),
        ));
    }
    let last = [ISOLATION_STAGE_1, ISOLATION_STAGE_2]
        .map(|chain| (chain, commented(&["-j", "RETURN"], ISOLATION_COMMENT)));
    [first, last.to_vec()]
}

fn versions(addresses: &[IpAddr]) -> Vec<Version> {
    let mut versions: Vec<Version> = Vec::new();
    for address in addresses {
        let version = version(address);
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    versions
}

/// Adds the rules of a policy. Like upstream's, they are permanent, because other pods of the bridge rely on them.
pub(super) fn isolate(ruleset: &Ruleset, policy: Policy, bridge: &str, addresses: &[IpAddr]) -> Result<()> {
    for version in versions(addresses) {
        let tables = tables(ruleset, version);
        tables.ensure_chain(ISOLATION_STAGE_1)?;
        tables.ensure_chain(ISOLATION_STAGE_2)?;
        let [first, last] = of_policy(policy, bridge);
        for (chain, rule) in &first {
            tables.ensure_first(chain, rule)?;
        }
        for (chain, rule) in &last {
            tables.ensure_last(chain, rule)?;
        }
    }
    Ok(())
}

pub(super) fn is_isolated(
    ruleset: &Ruleset,
    policy: Policy,
    bridge: &str,
    addresses: &[IpAddr],
) -> Result<bool> {
    for version in versions(addresses) {
        for (chain, rule) in of_policy(policy, bridge).iter().flatten() {
            if !tables(ruleset, version).has(chain, rule)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    // cni-plugins#52
    #[test]
    fn rules_match_upstream() {
        let shown = |words: &[String]| words.join(" ");
        let [answers, own] = of_address(&"10.1.2.3".parse().unwrap());
        assert_eq!(
            shown(&answers),
            "-d 10.1.2.3/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
        );
        assert_eq!(shown(&own), "-s 10.1.2.3/32 -j ACCEPT");
        let [first, last] = of_policy(Policy::Isolated, "br0");
        let all: Vec<_> = first
            .iter()
            .chain(&last)
            .map(|(chain, rule)| format!("{chain} {}", shown(rule)))
            .collect();
        let (own, both) = (
            "-m comment --comment CNI firewall plugin rules (ingressPolicy: isolated)",
            "-m comment --comment CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)",
        );
        assert_eq!(
            all,
            [
                format!("FORWARD {both} -j CNI-ISOLATION-STAGE-1"),
                format!("CNI-ISOLATION-STAGE-1 {own} -i br0 ! -o br0 -j CNI-ISOLATION-STAGE-2"),
                format!("CNI-ISOLATION-STAGE-2 {both} -o br0 -j DROP"),
                format!("CNI-ISOLATION-STAGE-1 {own} -i br0 -o br0 -j DROP"),
                format!("CNI-ISOLATION-STAGE-1 {both} -j RETURN"),
                format!("CNI-ISOLATION-STAGE-2 {both} -j RETURN"),
            ]
        );
    }
}

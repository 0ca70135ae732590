//! Masquerading with the iptables programs, and removal of their and upstream's rules.

use ipnet::IpNet;

use super::Attachment;
use crate::{
    hash::hashed,
    iptables::{self, Result, Tables, Version},
    names::{
        IPTABLES_CHAIN_LENGTH, IPTABLES_NAT, IPTABLES_POSTROUTING,
        masquerade::{IPTABLES_CHAIN_PREFIX, MULTICAST_IPV4, MULTICAST_IPV6},
    },
    ruleset::Ruleset,
};

fn multicast(version: Version) -> IpNet {
    match version {
        Version::V4 => MULTICAST_IPV4,
        Version::V6 => MULTICAST_IPV6,
    }
}

fn chain(attachment: Attachment<'_>) -> String {
    let instance = format!("{}{}", attachment.network, attachment.container_id);
    hashed(IPTABLES_CHAIN_LENGTH, IPTABLES_CHAIN_PREFIX, &instance)
}

fn comment(attachment: Attachment<'_>) -> String {
    format!(
        "name: \"{}\" id: \"{}\"",
        attachment.network, attachment.container_id
    )
}

/// A rule: its chain, and its words.
type Rule = (String, Vec<String>);

/// The ordered rules of an address (cni-plugins §2.8).
fn rules(attachment: Attachment<'_>, address: &IpNet) -> [Rule; 3] {
    let chain = chain(attachment);
    let comment = comment(attachment);
    let rule = |of: &str, matches: &[&str], target: &str| {
        let words = matches
            .iter()
            .copied()
            .chain(["-j", target, "-m", "comment", "--comment", &comment]);
        (of.to_owned(), words.map(str::to_owned).collect())
    };
    let multicast = multicast(Version::of(address)).to_string();
    [
        rule(&chain, &["-d", &address.to_string()], "ACCEPT"),
        rule(&chain, &["!", "-d", &multicast], "MASQUERADE"),
        rule(IPTABLES_POSTROUTING, &["-s", &address.addr().to_string()], &chain),
    ]
}

fn tables<'a>(ruleset: &'a Ruleset, address: &IpNet) -> Tables<'a> {
    Tables {
        ruleset,
        version: Version::of(address),
        table: IPTABLES_NAT,
    }
}

pub(super) fn set_up(ruleset: &Ruleset, attachment: Attachment<'_>, addresses: &[IpNet]) -> Result<()> {
    for address in addresses {
        let tables = tables(ruleset, address);
        tables.ensure_chain(&chain(attachment))?;
        for (chain, words) in rules(attachment, address) {
            tables.ensure_last(&chain, &words)?;
        }
    }
    Ok(())
}

/// The first address with missing rules.
pub(super) fn missing(
    ruleset: &Ruleset,
    attachment: Attachment<'_>,
    addresses: &[IpNet],
) -> Result<Option<IpNet>> {
    for address in addresses {
        for (chain, words) in rules(attachment, address) {
            if !tables(ruleset, address).has(&chain, &words)? {
                return Ok(Some(*address));
            }
        }
    }
    Ok(None)
}

/// Removes the attachment's chains and all jumps to them.
pub(super) fn tear_down(ruleset: &mut Ruleset, attachment: Attachment<'_>) -> Result<()> {
    let chain = chain(attachment);
    for version in Version::ALL {
        iptables::remove_chain(ruleset, version, IPTABLES_NAT, &[IPTABLES_POSTROUTING], &chain)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTACHMENT: Attachment<'_> = Attachment {
        network: "test",
        ifname: "eth0",
        container_id: "1234",
    };

    #[test]
    fn rules_match_upstream() {
        assert_eq!(chain(ATTACHMENT), "CNI-2bbe0c48b91a7d1b8a6753a8");
        let shown = |address: &str| {
            rules(ATTACHMENT, &address.parse().unwrap())
                .map(|(chain, words)| format!("{chain} {}", words.join(" ")))
        };
        let comment = "-m comment --comment name: \"test\" id: \"1234\"";
        assert_eq!(
            shown("10.1.2.3/24"),
            [
                format!("CNI-2bbe0c48b91a7d1b8a6753a8 -d 10.1.2.3/24 -j ACCEPT {comment}"),
                format!("CNI-2bbe0c48b91a7d1b8a6753a8 ! -d 224.0.0.0/4 -j MASQUERADE {comment}"),
                format!("POSTROUTING -s 10.1.2.3 -j CNI-2bbe0c48b91a7d1b8a6753a8 {comment}"),
            ]
        );
        assert!(shown("fd00::3/64")[1].contains("! -d ff00::/8 -j MASQUERADE"));
    }
}

//! Additional conditions of a config, in the syntax of iptables or nft.

use cni::Error;
use ipnet::IpNet;
use linux::nft::{Expression, Meta, Register};

use crate::{
    masquerade::Backend,
    matches::{Side, compare, within},
};

/// Maximum size of an interface name.
const INTERFACE_NAME: usize = 16;

/// The backend of this syntax. `None` without conditions.
pub(super) fn backend_of(conditions: &[String]) -> Option<Backend> {
    let first = conditions.first()?;
    Some(if first.starts_with(['-', '!']) {
        Backend::Iptables
    } else {
        Backend::Nftables
    })
}

/// Parses nft conditions for rules of this family: `ip saddr`, `ip daddr`, `ip6 ...`, `iifname`, each compared with
/// one address, subnet or name.
pub(super) fn parse(conditions: &[String], is_ipv4: bool) -> Result<Vec<Expression>, Error> {
    let text = conditions.join(" ");
    let refused = |word: &str| {
        Error::internal(format!(
            "condition \"{word}\" of \"{text}\" is not one of ip saddr, ip daddr, ip6 saddr, ip6 daddr and iifname"
        ))
    };
    let mut words = text.split_whitespace().peekable();
    let mut steps = Vec::new();
    while let Some(word) = words.next() {
        let side = match word {
            "ip" | "ip6" if (word == "ip") == is_ipv4 => match words.next().unwrap_or_default() {
                "saddr" => Some(Side::Source),
                "daddr" => Some(Side::Destination),
                other => return Err(refused(other)),
            },
            "iifname" => None,
            other => return Err(refused(other)),
        };
        let equal = words.next_if(|word| ["==", "!="].contains(word)) != Some("!=");
        let value = words.next().unwrap_or_default();
        match side {
            Some(side) => {
                let net = subnet(value, is_ipv4).ok_or_else(|| refused(value))?;
                steps.extend(within(side, &net, equal));
            }
            None => steps.extend(came_in_by(value.trim_matches('"'), equal).ok_or_else(|| refused(value))?),
        }
    }
    Ok(steps)
}

fn subnet(text: &str, is_ipv4: bool) -> Option<IpNet> {
    let net = text
        .parse()
        .or_else(|_| text.parse().map(|address: std::net::IpAddr| IpNet::from(address)));
    net.ok().filter(|net| matches!(net, IpNet::V4(_)) == is_ipv4)
}

fn came_in_by(name: &str, equal: bool) -> Option<[Expression; 2]> {
    // A trailing star would be a wildcard.
    if name.is_empty() || name.len() >= INTERFACE_NAME || name.contains(['*', '"', '{', '@', '$']) {
        return None;
    }
    let mut value = name.as_bytes().to_vec();
    value.resize(INTERFACE_NAME, 0);
    let meta = Expression::Meta {
        meta: Meta::InputInterfaceName,
        to: Register::FIRST,
    };
    Some([meta, compare(equal, value)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(words: &[&str], is_ipv4: bool) -> Result<Vec<Expression>, Error> {
        let words: Vec<String> = words.iter().copied().map(str::to_owned).collect();
        parse(&words, is_ipv4)
    }

    #[test]
    fn conditions_match_nft() {
        let steps = parse_words(&["ip", "daddr", "!=", "192.0.2.0/24"], true).unwrap();
        let expected = within(Side::Destination, &"192.0.2.0/24".parse().unwrap(), false);
        assert_eq!(steps, expected);
        let steps = parse_words(&["iifname \"eth0\" ip6 saddr fd00::1"], false).unwrap();
        assert_eq!(steps.len(), 4);
        assert_eq!(parse_words(&[], true).unwrap(), []);
    }

    #[test]
    fn unknown_conditions_are_rejected() {
        for words in [
            "tcp dport 80",
            "ip protocol tcp",
            "ip daddr { 10.0.0.1 }",
            "ip6 daddr fd00::1",
            "ip daddr fd00::1",
            "ip daddr",
            "iifname eth*",
            "iifname",
            "; drop",
        ] {
            let error = parse_words(&[words], true).unwrap_err();
            assert!(error.msg.contains("is not one of ip saddr"), "{words}: {error}");
        }
    }
}

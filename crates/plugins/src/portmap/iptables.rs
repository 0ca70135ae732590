//! Port forwarding with the iptables programs, in upstream's format (cni-plugins §13).

use std::collections::BTreeMap;

use super::{
    config::Config,
    forward::{Forward, Mapping, Masquerade},
};
use crate::{
    hash::hashed,
    iptables::{self, Result, Tables, Version, words},
    names::{
        IPTABLES_CHAIN_LENGTH, IPTABLES_NAT, IPTABLES_POSTROUTING,
        portmap::{
            IPTABLES_ALL, IPTABLES_CHAIN_PREFIX, IPTABLES_ENTRIES, IPTABLES_MASQUERADE,
            IPTABLES_MASQUERADE_COMMENT, IPTABLES_OLD_CHAIN_PREFIX, IPTABLES_SET_MARK,
            IPTABLES_SET_MARK_COMMENT,
        },
    },
    record::Attachment,
    ruleset::Ruleset,
};

/// Maximum length of a comment, and the suffix of a shortened one.
const COMMENT_LENGTH: usize = 253;
const CUT: &str = "...";
/// Maximum number of ports per rule.
const PORTS: usize = 15;

fn chain(attachment: Attachment<'_>, prefix: &str) -> String {
    let instance = format!("{}{}", attachment.network, attachment.container_id);
    hashed(IPTABLES_CHAIN_LENGTH, prefix, &instance)
}

fn comment(attachment: Attachment<'_>) -> String {
    let Attachment {
        network,
        container_id,
        ..
    } = attachment;
    let mut comment = format!("dnat name: \"{network}\" id: \"{container_id}\"");
    if comment.len() > COMMENT_LENGTH {
        comment.truncate(comment.floor_char_boundary(COMMENT_LENGTH));
        comment.push_str(CUT);
    }
    comment
}

/// A rule: its chain, and its words.
type Rule = (String, Vec<String>);

/// The shared rules: those at the start of their chain, and the others.
struct Shared {
    first: Vec<Rule>,
    last: Vec<Rule>,
}

fn shared(config: &Config, forward: &Forward) -> Shared {
    let mut rules = Shared {
        first: Vec::new(),
        last: Vec::new(),
    };
    let rule = |chain: &str, text: &[&str]| (chain.to_owned(), words(text));
    for entry in IPTABLES_ENTRIES {
        let local = ["-m", "addrtype", "--dst-type", "LOCAL", "-j", IPTABLES_ALL];
        rules.last.push(rule(entry, &local));
    }
    if forward.masquerade == Masquerade::Nothing {
        return rules;
    }
    let mark = format!("{0:#x}/{0:#x}", 1_u32 << config.mark_bit);
    if config.external_mark_chain.is_none() {
        let comment = ["-m", "comment", "--comment", IPTABLES_SET_MARK_COMMENT];
        let set = ["-j", "MARK", "--set-xmark", &mark];
        rules
            .last
            .push(rule(IPTABLES_SET_MARK, &[&comment[..], &set[..]].concat()));
        let marked = ["-m", "mark", "--mark", &mark, "-j", "MASQUERADE"];
        rules.last.push(rule(IPTABLES_MASQUERADE, &marked));
        let comment = ["-m", "comment", "--comment", IPTABLES_MASQUERADE_COMMENT];
        let jump = ["-j", IPTABLES_MASQUERADE];
        rules
            .first
            .push(rule(IPTABLES_POSTROUTING, &[&comment[..], &jump[..]].concat()));
    }
    rules
}

/// The ordered rules of a pod.
fn rules(config: &Config, attachment: Attachment<'_>, forward: &Forward) -> Vec<Rule> {
    let own = chain(attachment, IPTABLES_CHAIN_PREFIX);
    let mut rules = Vec::new();
    let mut by_protocol: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for mapping in &forward.mappings {
        let ports = by_protocol.entry(mapping.protocol.name()).or_default();
        ports.push(mapping.host_port.to_string());
    }
    for (protocol, ports) in &by_protocol {
        for ports in ports.chunks(PORTS) {
            let mut rule = words(&[
                "-m",
                "comment",
                "--comment",
                &comment(attachment),
                "-m",
                "multiport",
            ]);
            rule.extend(words(&["-p", protocol, "--destination-ports", &ports.join(",")]));
            rule.extend(config.words(forward.is_ipv4()).iter().cloned());
            rule.extend(words(&["-j", &own]));
            rules.push((IPTABLES_ALL.to_owned(), rule));
        }
    }
    for mapping in &forward.mappings {
        rules.extend(
            mapping_rules(config, forward, mapping)
                .into_iter()
                .map(|rule| (own.clone(), rule)),
        );
    }
    rules
}

fn mapping_rules(config: &Config, forward: &Forward, mapping: &Mapping) -> Vec<Vec<String>> {
    let mut port = words(&[
        "-p",
        mapping.protocol.name(),
        "--dport",
        &mapping.host_port.to_string(),
    ]);
    if let Some(host) = mapping.host_ip {
        port.extend(words(&["-d", &host.to_string()]));
    }
    let rule = |more: &[&str]| {
        let mut rule = port.clone();
        rule.extend(words(more));
        rule
    };
    let mark = config.external_mark_chain.as_deref().unwrap_or(IPTABLES_SET_MARK);
    let address = forward.address.addr();
    let mut rules = Vec::new();
    match forward.masquerade {
        Masquerade::Nothing => {}
        Masquerade::Inner => {
            rules.push(rule(&["-s", &forward.address.to_string(), "-j", mark]));
            if forward.is_ipv4() {
                rules.push(rule(&["-s", "127.0.0.1", "-j", mark]));
            }
        }
        Masquerade::All => {
            let all = if forward.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
            rules.push(rule(&["-s", all, "-j", mark]));
        }
    }
    let to = std::net::SocketAddr::new(address, mapping.container_port).to_string();
    rules.push(rule(&["-j", "DNAT", "--to-destination", &to]));
    rules
}

fn tables(ruleset: &Ruleset, version: Version) -> Tables<'_> {
    Tables {
        ruleset,
        version,
        table: IPTABLES_NAT,
    }
}

pub(super) fn set_up(
    ruleset: &mut Ruleset,
    config: &Config,
    attachment: Attachment<'_>,
    forwards: &[Forward],
) -> Result<()> {
    for forward in forwards {
        let version = Version::of(&forward.address);
        // Removes rules of an earlier ADD, which would take precedence.
        let own = chain(attachment, IPTABLES_CHAIN_PREFIX);
        iptables::remove_chain(ruleset, version, IPTABLES_NAT, &[IPTABLES_ALL], &own)?;
        let tables = tables(ruleset, version);
        let shared = shared(config, forward);
        let rules = rules(config, attachment, forward);
        let mut chains = vec![IPTABLES_ALL, own.as_str()];
        if forward.masquerade != Masquerade::Nothing && config.external_mark_chain.is_none() {
            chains.extend([IPTABLES_SET_MARK, IPTABLES_MASQUERADE]);
        }
        for chain in chains {
            tables.ensure_chain(chain)?;
        }
        for (chain, rule) in &shared.first {
            tables.ensure_first(chain, rule)?;
        }
        for (chain, rule) in shared.last.iter().chain(&rules) {
            tables.ensure_last(chain, rule)?;
        }
    }
    Ok(())
}

/// The first chain with a missing rule.
pub(super) fn missing(
    ruleset: &Ruleset,
    config: &Config,
    attachment: Attachment<'_>,
    forwards: &[Forward],
) -> Result<Option<String>> {
    for forward in forwards {
        let tables = tables(ruleset, Version::of(&forward.address));
        let shared = shared(config, forward);
        let own = rules(config, attachment, forward);
        for (chain, rule) in shared.first.iter().chain(&shared.last).chain(&own) {
            if !tables.has(chain, rule)? {
                return Ok(Some(chain.clone()));
            }
        }
    }
    Ok(None)
}

/// Removes the pod's chains and all jumps to them.
pub(super) fn tear_down(ruleset: &mut Ruleset, attachment: Attachment<'_>) -> Result<()> {
    let own = chain(attachment, IPTABLES_CHAIN_PREFIX);
    let old = chain(attachment, IPTABLES_OLD_CHAIN_PREFIX);
    let mut outcome = Ok(());
    for version in Version::ALL {
        for (chain, from) in [(&own, &[IPTABLES_ALL][..]), (&old, &[IPTABLES_POSTROUTING][..])] {
            outcome = outcome.and(iptables::remove_chain(
                ruleset,
                version,
                IPTABLES_NAT,
                from,
                chain,
            ));
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::{super::forward::Protocol, *};

    const ATTACHMENT: Attachment<'_> = Attachment {
        network: "mynet",
        ifname: "net1",
        container_id: "abc",
    };

    fn config(more: &str) -> Config {
        let text = format!(r#"{{"type":"portmap","name":"n","backend":"iptables"{more}}}"#);
        super::super::config::from_text(&text)
    }

    fn forward(masquerade: Masquerade) -> Forward {
        let mapping = |protocol, host_port, host_ip: Option<&str>| Mapping {
            protocol,
            host_ip: host_ip.map(|ip| ip.parse().unwrap()),
            host_port,
            container_port: 80,
        };
        Forward {
            address: "10.1.2.3/24".parse().unwrap(),
            masquerade,
            conditions: String::new(),
            mappings: vec![
                mapping(Protocol::Udp, 53, Some("192.0.2.1")),
                mapping(Protocol::Tcp, 8080, None),
                mapping(Protocol::Tcp, 8081, None),
            ],
        }
    }

    fn shown(rules: &[Rule]) -> Vec<String> {
        rules
            .iter()
            .map(|(chain, words)| format!("{chain} {}", words.join(" ")))
            .collect()
    }

    #[test]
    fn rules_match_upstream() {
        let config = config(r#","conditionsV4":["!","-d","192.0.2.7"]"#);
        let entry = "CNI-HOSTPORT-DNAT -m comment --comment dnat name: \"mynet\" id: \"abc\" -m multiport";
        let own = "CNI-DN-e88f49d94512ff752ebe6";
        let mut forward = forward(Masquerade::Inner);
        forward.mappings.truncate(2);
        assert_eq!(
            shown(&rules(&config, ATTACHMENT, &forward)),
            [
                format!("{entry} -p tcp --destination-ports 8080 ! -d 192.0.2.7 -j {own}"),
                format!("{entry} -p udp --destination-ports 53 ! -d 192.0.2.7 -j {own}"),
                format!("{own} -p udp --dport 53 -d 192.0.2.1 -s 10.1.2.3/24 -j CNI-HOSTPORT-SETMARK"),
                format!("{own} -p udp --dport 53 -d 192.0.2.1 -s 127.0.0.1 -j CNI-HOSTPORT-SETMARK"),
                format!("{own} -p udp --dport 53 -d 192.0.2.1 -j DNAT --to-destination 10.1.2.3:80"),
                format!("{own} -p tcp --dport 8080 -s 10.1.2.3/24 -j CNI-HOSTPORT-SETMARK"),
                format!("{own} -p tcp --dport 8080 -s 127.0.0.1 -j CNI-HOSTPORT-SETMARK"),
                format!("{own} -p tcp --dport 8080 -j DNAT --to-destination 10.1.2.3:80"),
            ]
        );
        let shared = shared(&config, &forward);
        assert_eq!(
            shown(&shared.first),
            ["POSTROUTING -m comment --comment CNI portfwd requiring masquerade -j CNI-HOSTPORT-MASQ"]
        );
        assert_eq!(
            shown(&shared.last),
            [
                "PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
                "OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
                "CNI-HOSTPORT-SETMARK -m comment --comment CNI portfwd masquerade mark -j MARK --set-xmark 0x2000/0x2000",
                "CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE",
            ]
        );
    }

    #[test]
    fn marks_are_set_by_the_configured_chain() {
        let external = config(r#","externalSetMarkChain":"KUBE-MARK-MASQ""#);
        let all = shown(&rules(&external, ATTACHMENT, &forward(Masquerade::All)));
        assert!(all[0].contains("--destination-ports 8080,8081 "), "{all:?}");
        assert!(
            all.iter()
                .any(|rule| rule.ends_with("-s 0.0.0.0/0 -j KUBE-MARK-MASQ")),
            "{all:?}"
        );
        assert!(shared(&external, &forward(Masquerade::All)).first.is_empty());
        let none = shown(&rules(&config(""), ATTACHMENT, &forward(Masquerade::Nothing)));
        assert!(none.iter().all(|rule| !rule.contains("SETMARK")), "{none:?}");
        let bit = config(r#","markMasqBit":0"#);
        let shared = shown(&shared(&bit, &forward(Masquerade::Inner)).last);
        assert!(shared[2].ends_with("--set-xmark 0x1/0x1"), "{shared:?}");
    }

    #[test]
    fn long_comments_are_cut() {
        let network = "n".repeat(300);
        let long = comment(Attachment {
            network: &network,
            ..ATTACHMENT
        });
        assert!(long.len() == 256 && long.ends_with("n..."), "{long}");
    }
}

//! The ruleset as the real nft sees it.

use linux::nft::Socket;

use super::*;
use crate::testing::{alone, load, ruleset};

const ATTACHMENT: Attachment<'_> = Attachment {
    network: "unit-test",
    ifname: "eth0",
    container_id: "one",
};

fn config(more: &str) -> Config {
    let ports = r#"[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},
        {"hostPort":53,"containerPort":5353,"protocol":"udp","hostIP":"192.0.2.1"},
        {"hostPort":53,"containerPort":5353,"protocol":"udp","hostIP":"2001:db8::1"}]"#;
    config::from_text(&format!(
        r#"{{"runtimeConfig":{{"portMappings":{ports}}}{more}}}"#
    ))
}

fn forwards(config: &Config) -> Vec<Forward> {
    let result = br#"{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24"},{"address":"fd00::3/64"}]}"#;
    let result = CniResult::parse(result, cni::Version::LATEST).unwrap();
    config.forwards(&result, "eth0")
}

fn add(attachment: Attachment<'_>, config: &Config) -> Vec<Forward> {
    let forwards = forwards(config);
    let mut socket = Socket::open().unwrap();
    nftables::add(&mut socket, config, attachment, &forwards).unwrap();
    assert_eq!(
        nftables::missing(&mut socket, config, attachment, &forwards).unwrap(),
        None
    );
    forwards
}

/// The ruleset without white space at the begin of lines.
fn shown() -> String {
    let rules = ruleset();
    let lines: Vec<_> = rules.lines().map(str::trim).collect();
    lines.join("\n")
}

/// The parts of the ruleset in an order of their own: elements of sets have none.
fn comparable() -> Vec<String> {
    let rules = ruleset();
    let mut parts: Vec<_> = rules
        .split(['\n', '{', '}', ','])
        .map(|part| part.trim().to_owned())
        .collect();
    parts.sort();
    parts
}

// cni-plugins#47
#[test]
fn rules_have_the_specified_form() {
    alone("ports in nftables", || {
        add(ATTACHMENT, &config(""));
        let rules = shown();
        for part in [
            "table ip cni_hostport {\ncomment \"CNI portmap plugin\"",
            "table ip6 cni_hostport {",
            "chain hostports_all {\njump hostip_hostports\njump hostports\n}",
            "chain prerouting {\ntype nat hook prerouting priority dstnat; policy accept;\nfib daddr type local jump hostports_all\n}",
            "chain output {\ntype nat hook output priority -100; policy accept;\nfib daddr type local jump hostports_all\n}",
            "type nat hook postrouting priority srcnat; policy accept;",
            "dnat ip to ip daddr . meta l4proto . th dport map @hostip-ports comment \"ports of all containers\"\n\
             dnat ip to meta l4proto . th dport map @ports comment",
            "dnat ip6 to ip6 daddr . meta l4proto . th dport map @hostip-ports",
            "ip saddr . ip daddr @masqueraded-from masquerade",
            "ip6 saddr . ip6 daddr @masqueraded-from masquerade",
            "type inet_proto . inet_service : ipv4_addr . inet_service",
            "tcp . 8080 comment \"6fd94d501e58f0aa-",
            "net: unit-test, if: eth0, id: one\" : 10.1.2.3 . 80",
            "id: one\" : fd00::3 . 80",
            "192.0.2.1 . udp . 53 comment",
            "2001:db8::1 . udp . 53 comment",
            "10.1.2.3 . 10.1.2.3 comment",
            "127.0.0.1 . 10.1.2.3 comment",
            "fd00::3 . fd00::3 comment",
        ] {
            assert!(rules.contains(part), "{part} in {rules}");
        }
        // nft parses its own output of our rules.
        let printed = comparable();
        load(&format!("flush ruleset\n{}", ruleset()));
        assert_eq!(comparable(), printed);
        add(ATTACHMENT, &config(""));
        assert_eq!(comparable(), printed, "nothing is added twice");
    });
}

#[test]
fn conditions_have_separate_maps_removed_with_the_last_port() {
    alone("ports under conditions", || {
        let plain = config("");
        add(ATTACHMENT, &plain);
        let before = ruleset();
        let conditional = config(r#","snat":false,"conditionsV4":["ip","daddr","!=","192.0.2.7"]"#);
        let other = Attachment {
            container_id: "two",
            ..ATTACHMENT
        };
        let forwards = add(other, &conditional);
        let rules = shown();
        let wanted = "ip daddr != 192.0.2.7 dnat ip to meta l4proto . th dport map @ports-";
        assert!(rules.contains(wanted), "{rules}");
        assert!(!rules.contains("10.1.2.3 . 10.1.2.3 comment \"6fd94d501e58f0aa-two"));
        let mut socket = Socket::open().unwrap();
        nftables::remove_unused(&mut socket).unwrap();
        assert!(shown().contains(wanted), "they are in use");
        nftables::remove(&mut socket, other, &forwards).unwrap();
        nftables::remove_unused(&mut socket).unwrap();
        // The port of IPv6 has no conditions, so that it was the first container's until the other one took it.
        let lines = |text: &str| -> Vec<String> {
            let is_ipv4 = |line: &&str| !line.contains("fd00") && !line.contains("2001");
            text.lines().filter(is_ipv4).map(str::to_owned).collect()
        };
        let kept: Vec<_> = lines(&ruleset());
        assert!(kept.iter().all(|line| !line.contains("ports-")), "{kept:?}");
        assert!(before.contains("10.1.2.3 . 80") && ruleset().contains("10.1.2.3 . 80"));
    });
}

#[test]
fn a_thousand_ports_cost_no_more_than_one() {
    alone("many ports", || {
        let config_of = |number: u16| {
            config::from_text(&format!(
                r#"{{"runtimeConfig":{{"portMappings":[{{"hostPort":{number},"containerPort":80}}]}}}}"#
            ))
        };
        let spent = |number: u16| {
            let id = format!("container-{number}");
            let attachment = Attachment {
                container_id: &id,
                ..ATTACHMENT
            };
            let config = config_of(number);
            let forwards = forwards(&config);
            let mut socket = Socket::open().unwrap();
            nftables::add(&mut socket, &config, attachment, &forwards).unwrap();
            let added = socket.traffic().received;
            nftables::remove(&mut socket, attachment, &forwards).unwrap();
            (added, socket.traffic().received - added)
        };
        // The first one makes the table.
        spent(1);
        let few = spent(2);
        let mut socket = Socket::open().unwrap();
        for number in 3..1003 {
            let id = format!("container-{number}");
            let attachment = Attachment {
                container_id: &id,
                ..ATTACHMENT
            };
            let config = config_of(number);
            nftables::add(&mut socket, &config, attachment, &forwards(&config)[..1]).unwrap();
        }
        let many = spent(2000);
        assert!(
            many.0 < few.0 * 2 && many.1 < few.1 * 2,
            "{few:?} bytes became {many:?}"
        );
    });
}

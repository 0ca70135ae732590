//! The ruleset as the real nft and iptables see it.

use std::process::Command;

use super::*;
use crate::testing::{alone, install_iptables, output, ruleset};

const ATTACHMENT: Attachment<'_> = Attachment {
    network: "unit-test",
    ifname: "eth0",
    container_id: "one",
};

fn config() -> Config {
    Config {
        backend: None,
        admin_chain: "CNI-ADMIN".into(),
        zone: String::new(),
        policy: Policy::Open,
    }
}

fn addresses() -> Vec<IpAddr> {
    ["10.1.2.3", "fd00::3"]
        .map(|address| address.parse().unwrap())
        .into()
}

fn iptables(arguments: &[&str]) -> String {
    output(Command::new("/usr/local/sbin/iptables").args(arguments), "")
}

/// The ruleset without white space at the begin of lines.
fn shown() -> String {
    let rules = ruleset();
    let lines: Vec<_> = rules.lines().map(str::trim).collect();
    lines.join("\n")
}

// cni-plugins#52
#[test]
fn rules_have_the_specified_form() {
    alone("firewall in nftables", || {
        install_iptables("nft");
        let mut socket = Socket::open().unwrap();
        let (config, addresses) = (config(), addresses());
        for _ in 0..2 {
            admit(&mut socket, &config, ATTACHMENT, &addresses).unwrap();
            isolate(&mut socket, Policy::SameBridge, "br0").unwrap();
            isolate(&mut socket, Policy::Isolated, "br1").unwrap();
        }
        assert_eq!(
            missing(&mut socket, &config, ATTACHMENT, &addresses).unwrap(),
            None
        );
        let rules = shown();
        for (part, count) in [
            ("table inet cni_firewall {\ncomment \"CNI firewall plugin\"", 1),
            ("ip saddr @addresses meta mark set meta mark | 0x00001000", 1),
            (
                "ip daddr @addresses ct state established,related meta mark set meta mark | 0x00001000",
                1,
            ),
            ("ip6 saddr @addresses6 meta mark set meta mark | 0x00001000", 1),
            ("type filter hook forward priority filter - 1; policy accept;", 1),
            ("type filter hook forward priority filter - 2; policy accept;", 1),
            ("type filter hook forward priority filter + 1; policy accept;", 1),
            ("meta mark set meta mark & 0xffffefff", 1),
            ("iifname . oifname @isolated drop", 1),
            (
                "iifname @bridges oifname @bridges iifname . oifname != @same-bridge drop",
                1,
            ),
            ("10.1.2.3 comment \"6fd94d501e58f0aa-", 1),
            ("fd00::3 comment \"6fd94d501e58f0aa-", 1),
            ("\"br1\" . \"br1\" comment \"isolated\"", 2),
            ("jump CNI-FORWARD", 2),
            ("jump CNI-ADMIN", 2),
        ] {
            assert_eq!(rules.matches(part).count(), count, "{part} in {rules}");
        }
        // iptables list the rule, and add others behind it.
        let mark = "-A CNI-FORWARD -m mark --mark 0x1000/0x1000 -m comment";
        let listed = iptables(&["-S"]);
        for rule in ["-A FORWARD ", "-A CNI-FORWARD ", mark] {
            assert!(listed.contains(rule), "{rule} in {listed}");
        }
        iptables(&["-A", "CNI-ADMIN", "-s", "10.9.9.9", "-j", "DROP"]);
        iptables(&["-Z"]);
        admit(&mut socket, &config, ATTACHMENT, &addresses).unwrap();
        assert_eq!(
            iptables(&["-S"]).matches(mark).count(),
            1,
            "rules that were counted by are known"
        );
    });
}

#[test]
fn empty_table_is_removed() {
    alone("an empty firewall", || {
        let mut socket = Socket::open().unwrap();
        let (config, addresses) = (config(), addresses());
        sweep(&mut socket, || Ok(Vec::new())).unwrap();
        admit(&mut socket, &config, ATTACHMENT, &addresses).unwrap();
        isolate(&mut socket, Policy::Isolated, "br1").unwrap();
        remove(&mut socket, ATTACHMENT, &addresses).unwrap();
        sweep(&mut socket, || Ok(vec!["br1".to_owned()])).unwrap();
        assert!(is_isolated(&mut socket, Policy::Isolated, "br1").unwrap());
        sweep(&mut socket, || Ok(Vec::new())).unwrap();
        assert!(!ruleset().contains("cni_firewall"), "{}", ruleset());
        assert!(!is_isolated(&mut socket, Policy::Isolated, "br1").unwrap());
    });
}

#[test]
fn sweep_keeps_a_bridge_that_an_add_creates_meanwhile() {
    alone("a sweep during an ADD", || {
        let (mut socket, mut other) = (Socket::open().unwrap(), Socket::open().unwrap());
        isolate(&mut socket, Policy::Isolated, "gone").unwrap();
        let mut links = Vec::new();
        let list_before_add = || {
            let listed = links.clone();
            if links.is_empty() {
                links.push("br1".to_owned());
                isolate(&mut other, Policy::Isolated, "br1")?;
            }
            Ok(listed)
        };
        sweep(&mut socket, list_before_add).unwrap();
        assert!(is_isolated(&mut socket, Policy::Isolated, "br1").unwrap());
        assert!(!is_isolated(&mut socket, Policy::Isolated, "gone").unwrap());
    });
}

#[test]
fn del_keeps_an_address_of_another_attachment() {
    alone("firewall and reuse", || {
        let mut socket = Socket::open().unwrap();
        let (config, addresses) = (config(), addresses());
        let id = AttachmentId {
            container_id: "two".to_owned(),
            ifname: ATTACHMENT.ifname.to_owned(),
        };
        let other = id.to(ATTACHMENT.network);
        admit(&mut socket, &config, ATTACHMENT, &addresses).unwrap();
        admit(&mut socket, &config, other, &addresses).unwrap();
        remove(&mut socket, ATTACHMENT, &addresses).unwrap();
        search_and_remove(&mut socket, ATTACHMENT).unwrap();
        assert_eq!(missing(&mut socket, &config, other, &addresses).unwrap(), None);
        assert_eq!(
            missing(&mut socket, &config, ATTACHMENT, &addresses).unwrap(),
            Some(addresses[0])
        );
        let valid = [id.clone()].into();
        collect(&mut socket, "unit-test", &valid).unwrap();
        collect(&mut socket, "other-net", &BTreeSet::new()).unwrap();
        assert_eq!(missing(&mut socket, &config, other, &addresses).unwrap(), None);
        collect(&mut socket, "unit-test", &BTreeSet::new()).unwrap();
        assert!(!ruleset().contains("10.1.2.3"), "{}", ruleset());
    });
}

#[test]
fn a_thousand_addresses_cost_no_more_than_one() {
    alone("many admitted addresses", || {
        let config = config();
        let spent = |number: u32| {
            let id = format!("container-{number}");
            let attachment = Attachment {
                container_id: &id,
                ..ATTACHMENT
            };
            let address = [IpAddr::from((0x0a00_0000 + number).to_be_bytes())];
            let mut socket = Socket::open().unwrap();
            admit(&mut socket, &config, attachment, &address).unwrap();
            socket.traffic().received
        };
        // The first one makes the table.
        spent(1);
        let few = spent(2);
        for number in 3..1003 {
            spent(number);
        }
        let many = spent(2000);
        assert!(many < few * 2, "{few} bytes became {many}");
    });
}

mod backends;

use std::net::IpAddr;

use linux::{nft, route, routes::Route, sysctl::Key};
use rustix::mount::{MountFlags, mount};

use super::*;
use crate::hash::hashed;
use crate::testing::{Container, alone, install_iptables, load, output, ruleset};

fn set_up(backend: Backend, attachment: Attachment<'_>, addresses: &[IpNet]) -> Result<(), Error> {
    let choice = Choice::Only(backend);
    super::set_up(&mut Ruleset::default(), choice, attachment, addresses, |_| Ok(()))
}

fn tear_down(attachment: Attachment<'_>, known: Option<(Backend, &[IpNet])>) -> Result<(), Error> {
    super::tear_down(&mut Ruleset::default(), attachment, known)
}

fn check(backend: Backend, attachment: Attachment<'_>, addresses: &[IpNet]) -> Result<(), Error> {
    let choice = Choice::Only(backend);
    super::check(&mut Ruleset::default(), choice, attachment, addresses)
}

fn collect(network: &str, valid: &BTreeSet<AttachmentId>) -> Result<(), Error> {
    super::collect(&mut Ruleset::default(), network, valid)
}

const FIRST: Attachment<'_> = Attachment {
    network: "unit-test",
    ifname: "eth0",
    container_id: "one",
};
const SECOND: Attachment<'_> = Attachment {
    container_id: "two",
    ..FIRST
};
const FIRST_COMMENT: &str = "6fd94d501e58f0aa-287fc69eff0574a2, net: unit-test, if: eth0, id: one";

fn nets(addresses: &[&str]) -> Vec<IpNet> {
    addresses.iter().map(|address| address.parse().unwrap()).collect()
}

fn add(attachment: Attachment<'_>, addresses: &[&str]) {
    set_up(Backend::Nftables, attachment, &nets(addresses)).unwrap();
}

fn remove(attachment: Attachment<'_>, addresses: &[&str]) {
    tear_down(attachment, Some((Backend::Nftables, &nets(addresses)))).unwrap();
}

fn is_there(attachment: Attachment<'_>, addresses: &[&str]) -> bool {
    check(Backend::Nftables, attachment, &nets(addresses)).is_ok()
}

/// The commands of an upstream plugin for an address.
fn upstream(comment: &str, address: &str, subnet: &str) -> String {
    let version = if address.contains(':') { "ip6" } else { "ip" };
    format!(
        "table inet cni_plugins_masquerade {{
            comment \"Masquerading for plugins from github.com/containernetworking/plugins\"
            chain masq_checks {{
                comment \"Masquerade traffic from certain IPs to any (non-multicast) IP outside their subnet\"
            }}
            chain postrouting {{ type nat hook postrouting priority srcnat; }}
        }}
        flush chain inet cni_plugins_masquerade postrouting
        add rule inet cni_plugins_masquerade postrouting ip daddr == 224.0.0.0/4  return
        add rule inet cni_plugins_masquerade postrouting ip6 daddr == ff00::/8 return
        add rule inet cni_plugins_masquerade postrouting goto masq_checks
        add rule inet cni_plugins_masquerade masq_checks {version} saddr == {address} \
            {version} daddr != {subnet} masquerade comment \"{comment}\""
    )
}

// cni-plugins#22
#[test]
fn rules_have_the_specified_form_and_are_removed() {
    alone("masquerading by nftables", || {
        assert_eq!(FIRST.hash(), "6fd94d501e58f0aa-287fc69eff0574a2");
        let addresses = ["10.1.2.3/24", "10.1.2.4/24", "10.2.16.5/20", "fd00::5/64"];
        add(FIRST, &addresses);
        let printed = ruleset();
        for line in [
            "\tcomment \"Masquerading for plugins from github.com/containernetworking/plugins\"",
            "\t\tcomment \"Masquerade traffic from certain IPs to any (non-multicast) IP outside their subnet\"",
            "\t\ttype nat hook postrouting priority srcnat; policy accept;\n\t\tip daddr 224.0.0.0/4 return\n\
            \t\tip6 daddr ff00::/8 return\n\t\tgoto masq_checks\n",
            "\t\tip saddr @masq-6fd94d501e58f0aa-10.1.2.0-24 ip daddr != 10.1.2.0/24 masquerade comment \
            \"subnet: 10.1.2.0/24, net: unit-test\"\n",
            "\t\tip saddr @masq-6fd94d501e58f0aa-10.2.16.0-20 ip daddr != 10.2.16.0/20 masquerade",
            "\t\tip6 saddr @masq-6fd94d501e58f0aa-fd00__-64 ip6 daddr != fd00::/64 masquerade",
            &format!("\t\telements = {{ fd00::5 comment \"{FIRST_COMMENT}\" }}\n"),
            &format!("10.1.2.4 comment \"{FIRST_COMMENT}\""),
        ] {
            assert!(printed.contains(line), "{line}\nnot in\n{printed}");
        }
        assert!(is_there(FIRST, &addresses));
        add(FIRST, &addresses);
        assert_eq!(ruleset(), printed, "after a repeated ADD");

        // nft parses its own output, and we recognise the result as ours.
        load(&format!("flush ruleset\n{printed}"));
        assert_eq!(ruleset(), printed);
        add(FIRST, &addresses);
        assert_eq!(ruleset(), printed);

        add(SECOND, &["10.1.2.9/24"]);
        remove(SECOND, &["10.1.2.9/24"]);
        assert_eq!(ruleset(), printed);
        remove(FIRST, &addresses);
        assert!(!ruleset().contains("elements"), "{}", ruleset());
        assert!(!is_there(FIRST, &addresses[..1]));
        remove(FIRST, &addresses);
        tear_down(FIRST, None).unwrap();
    });
}

#[test]
fn comments_are_shortened_and_unquoted_for_nft() {
    alone("long names", || {
        let network = "n".repeat(200);
        let attachment = Attachment {
            network: &network,
            ifname: "e\"0",
            container_id: "one",
        };
        add(attachment, &["10.1.2.3/24"]);
        let printed = ruleset();
        load(&format!("flush ruleset\n{printed}"));
        assert_eq!(ruleset(), printed);
        assert!(is_there(attachment, &["10.1.2.3/24"]));
        tear_down(attachment, None).unwrap();
        assert!(!is_there(attachment, &["10.1.2.3/24"]));
    });
}

// cni-plugins#23
#[test]
fn address_taken_over_stays_with_the_new_attachment() {
    alone("an address taken over", || {
        let address = ["10.1.2.3/24"];
        add(FIRST, &address);
        add(SECOND, &address);
        assert!(is_there(SECOND, &address) && !is_there(FIRST, &address));
        remove(FIRST, &address);
        tear_down(FIRST, None).unwrap();
        assert!(is_there(SECOND, &address));

        // The first may also be an upstream plugin's.
        load(&upstream(FIRST_COMMENT, "10.1.2.3", "10.1.2.0/24"));
        tear_down(FIRST, None).unwrap();
        assert!(is_there(SECOND, &address));
        remove(SECOND, &address);
        assert!(!is_there(SECOND, &address));

        // Or the second.
        add(FIRST, &address);
        let comment = format!("{}, net: unit-test, if: eth0, id: two", SECOND.hash());
        load(&upstream(&comment, "10.1.2.3", "10.1.2.0/24"));
        remove(FIRST, &address);
        tear_down(FIRST, None).unwrap();
        assert!(is_there(SECOND, &address) && ruleset().contains(&comment));
    });
}

#[test]
fn upstream_and_our_rules_coexist() {
    alone("upstream masquerading", || {
        for counter in ["", "counter "] {
            let rule = upstream(FIRST_COMMENT, "10.1.2.3", "10.1.2.0/24")
                .replace("masquerade c", &format!("{counter}masquerade c"));
            load("flush ruleset");
            load(&rule);
            load(&upstream(
                "6fd94d501e58f0aa-aaaaaaaaaaaaaaaa, net: unit-test",
                "fd00::5",
                "fd00::/64",
            ));
            assert!(is_there(FIRST, &["10.1.2.3/24"]));
            let before = ruleset();
            // Neither our element nor the rule changes the other.
            add(SECOND, &["10.1.2.9/24", "fd00::9/64"]);
            load(&rule);
            let both = ruleset();
            assert_eq!(both.matches(FIRST_COMMENT).count(), 2, "{both}");
            assert_eq!(both.matches("goto masq_checks").count(), 1, "{both}");
            assert!(is_there(SECOND, &["10.1.2.9/24", "fd00::9/64"]), "{both}");
            tear_down(FIRST, None).unwrap();
            assert!(!ruleset().contains(FIRST_COMMENT), "{}", ruleset());
            assert!(
                ruleset().contains("6fd94d501e58f0aa-aaaaaaaaaaaaaaaa"),
                "{}",
                ruleset()
            );
            // An ADD of the same attachment replaces the rule too.
            load(&rule);
            add(FIRST, &["10.1.2.3/24"]);
            assert_eq!(ruleset().matches(FIRST_COMMENT).count(), 1, "{}", ruleset());
            assert!(before.contains(FIRST_COMMENT));
        }
        // A foreign rule in `postrouting` is repaired.
        load("flush chain inet cni_plugins_masquerade postrouting");
        assert!(!is_there(SECOND, &["10.1.2.9/24"]));
        add(SECOND, &["10.1.2.9/24"]);
        assert!(is_there(SECOND, &["10.1.2.9/24"]));
    });
}

#[test]
fn gc_keeps_valid_and_other_networks_leases() {
    alone("collected masquerading", || {
        let elsewhere = Attachment {
            network: "other",
            ..FIRST
        };
        add(elsewhere, &["10.1.2.3/24"]);
        add(FIRST, &["10.1.2.3/24", "fd00::3/64"]);
        add(SECOND, &["10.1.2.4/24", "10.3.0.4/16"]);
        load(&upstream(
            "6fd94d501e58f0aa-aaaaaaaaaaaaaaaa, net: unit-test",
            "10.1.2.7",
            "10.1.2.0/24",
        ));
        load(&upstream(FIRST_COMMENT, "10.1.2.8", "10.1.2.0/24"));
        load("add element inet cni_plugins_masquerade masq-6fd94d501e58f0aa-10.1.2.0-24 { 10.1.2.99 }");
        // More elements than fit into one message.
        let many: Vec<String> = (0..1200)
            .map(|number| format!("10.3.{}.{}/16", 1 + number / 200, 1 + number % 200))
            .collect();
        let many: Vec<IpNet> = many.iter().map(|address| address.parse().unwrap()).collect();
        for some in many.chunks(200) {
            set_up(Backend::Nftables, SECOND, some).unwrap();
        }

        let none = BTreeSet::new();
        let valid = BTreeSet::from([AttachmentId {
            container_id: "one".to_owned(),
            ifname: "eth0".to_owned(),
        }]);
        for _ in 0..2 {
            collect("unit-test", &valid).unwrap();
            let left = ruleset();
            assert!(is_there(elsewhere, &["10.1.2.3/24"]));
            assert!(is_there(FIRST, &["10.1.2.3/24", "fd00::3/64"]));
            assert!(left.contains("10.1.2.99") && left.contains("10.1.2.8"), "{left}");
            assert!(!left.contains("id: two"), "{left}");
            assert!(!left.contains("10.1.2.7") && !left.contains("10.3.0.0"), "{left}");
        }
        collect("unit-test", &none).unwrap();
        collect("other", &none).unwrap();
        let left = ruleset();
        assert_eq!(
            left.matches("\tset ").count(),
            1,
            "a foreign element keeps its set: {left}"
        );
        load("flush ruleset");
        collect("unit-test", &none).unwrap();
        assert_eq!(ruleset(), "");
    });
}

// cni-plugins#75
#[test]
fn sets_rules_and_chains_are_removed_with_the_last_address() {
    alone("unused masquerading", || {
        let remove_unused = |network: &str| super::remove_unused(&mut Ruleset::default(), network).unwrap();
        remove_unused("unit-test");
        assert_eq!(ruleset(), "", "there was nothing");
        let elsewhere = Attachment {
            network: "other",
            ..FIRST
        };
        add(elsewhere, &["10.1.2.3/24"]);
        let other_alone = ruleset();
        let addresses = ["10.1.2.3/24", "10.2.16.5/20", "fd00::5/64"];
        add(FIRST, &addresses);
        add(SECOND, &["10.1.2.4/24"]);
        remove(FIRST, &addresses);
        remove_unused("unit-test");
        let left = ruleset();
        assert!(is_there(SECOND, &["10.1.2.4/24"]), "{left}");
        assert!(!left.contains("10.2.16.0") && !left.contains("fd00"), "{left}");

        remove(SECOND, &["10.1.2.4/24"]);
        remove_unused("unit-test");
        assert_eq!(ruleset(), other_alone);
        remove(elsewhere, &["10.1.2.3/24"]);
        for _ in 0..2 {
            remove_unused("other");
            let left = ruleset();
            assert!(
                left.contains("table inet cni_plugins_masquerade"),
                "others share it: {left}"
            );
            assert!(!left.contains("\tset ") && !left.contains("\tchain "), "{left}");
        }
        // The next one begins anew.
        add(elsewhere, &["10.1.2.3/24"]);
        assert_eq!(ruleset(), other_alone);
    });
}

// cni-plugins#75
#[test]
fn foreign_rules_are_kept_without_masquerading() {
    alone("unused masquerading among others' rules", || {
        let begin_and_end = || {
            add(FIRST, &["10.1.2.3/24"]);
            remove(FIRST, &["10.1.2.3/24"]);
            super::remove_unused(&mut Ruleset::default(), "unit-test").unwrap();
        };
        load(&upstream(
            "6fd94d501e58f0aa-aaaaaaaaaaaaaaaa, net: unit-test",
            "10.1.2.7",
            "10.1.2.0/24",
        ));
        let before = ruleset();
        begin_and_end();
        assert_eq!(ruleset(), before);

        // A chain of another program may lead to ours.
        load("flush ruleset");
        add(FIRST, &["10.1.2.3/24"]);
        load("add chain inet cni_plugins_masquerade mine");
        load("add rule inet cni_plugins_masquerade mine jump masq_checks");
        begin_and_end();
        let left = ruleset();
        assert!(
            left.contains("jump masq_checks") && left.contains("goto masq_checks"),
            "{left}"
        );
        assert!(!left.contains("\tset "), "{left}");

        // A rule of another program keeps our set by looking it up.
        load("flush ruleset");
        add(FIRST, &["10.1.2.3/24"]);
        load("add chain inet cni_plugins_masquerade mine");
        load("add rule inet cni_plugins_masquerade mine ip saddr @masq-6fd94d501e58f0aa-10.1.2.0-24 accept");
        begin_and_end();
        assert!(ruleset().contains("\tset masq-"), "{}", ruleset());
        add(FIRST, &["10.1.2.3/24"]);
        assert!(is_there(FIRST, &["10.1.2.3/24"]));
    });
}

#[test]
fn parallel_calls_all_succeed() {
    alone("parallel masquerading", || {
        let namespace = linux::netns::NetNs::current().unwrap();
        let together = |work: fn(Attachment<'_>, &[IpNet])| {
            let start = std::sync::Barrier::new(24);
            std::thread::scope(|scope| {
                for number in 1..=24 {
                    let (namespace, start) = (&namespace, &start);
                    scope.spawn(move || {
                        let id = format!("c{number}");
                        let attachment = Attachment {
                            container_id: &id,
                            ..FIRST
                        };
                        let addresses = nets(&[&format!("10.1.2.{number}/24")]);
                        start.wait();
                        namespace.run(|| work(attachment, &addresses)).unwrap();
                    });
                }
            });
        };
        together(|attachment, addresses| set_up(Backend::Nftables, attachment, addresses).unwrap());
        let rules = ruleset();
        assert_eq!(rules.matches("goto masq_checks").count(), 1, "{rules}");
        assert_eq!(rules.matches("daddr != ").count(), 1, "{rules}");
        assert_eq!(rules.matches("id: c").count(), 24, "{rules}");
        together(|attachment, addresses| {
            tear_down(attachment, Some((Backend::Nftables, addresses))).unwrap();
        });
        assert!(!ruleset().contains("elements"), "{}", ruleset());
    });
}

#[test]
fn a_thousand_addresses_cost_no_more_than_one() {
    alone("masquerading of many addresses", || {
        let mut socket = nft::Socket::open().unwrap();
        let address = nets(&["10.1.0.1/16"]);
        let costs = |socket: &mut nft::Socket| {
            let before = socket.traffic();
            nftables::add(socket, FIRST, &address).unwrap();
            let between = socket.traffic();
            nftables::remove(socket, FIRST, &address).unwrap();
            let after = socket.traffic();
            [
                between.sent - before.sent,
                between.received - before.received,
                after.sent - between.sent,
                after.received - between.received,
            ]
        };
        nftables::add(&mut socket, SECOND, &nets(&["10.1.0.2/16"])).unwrap();
        let few = costs(&mut socket);
        for number in 0..1000 {
            let id = format!("many{number}");
            let attachment = Attachment {
                container_id: &id,
                ..FIRST
            };
            let address = format!("10.1.{}.{}/16", 1 + number / 200, 1 + number % 200);
            nftables::add(&mut socket, attachment, &nets(&[&address])).unwrap();
        }
        let many = costs(&mut socket);
        assert_eq!(few, many, "bytes to and from the kernel");
        println!(
            "bytes sent and received: ADD {:?}, DEL {:?}",
            &many[..2],
            &many[2..]
        );
    });
}

/// A node with a container at 10.1.2.3 and two beyond it: 192.0.2.2 outside, 10.1.2.9 in the container's subnet.
fn node() -> [Container; 3] {
    let mut here = route::Socket::open().unwrap();
    Key::new(&["net", "ipv4", "ip_forward"])
        .unwrap()
        .write("1")
        .unwrap();
    let mut make = |port: &str, address: &str, gateway: &str| {
        let mut container = Container::new(&mut here, port, &format!("{address}/32"));
        let outer = here.link_by_name(port).unwrap();
        here.add_address(&outer, format!("{gateway}/32").parse().unwrap())
            .unwrap();
        let lead = |link: u32, dst: String, gateway: Option<IpAddr>| Route {
            link: Some(link),
            gateway,
            scope: gateway.is_none().then_some(253),
            ..Route::to(dst.parse().unwrap())
        };
        here.add_route(&lead(outer.index, format!("{address}/32"), None))
            .unwrap();
        let eth0 = container.eth0.index;
        let inside = &mut container.socket;
        inside
            .add_route(&lead(eth0, format!("{gateway}/32"), None))
            .unwrap();
        inside
            .add_route(&lead(eth0, "0.0.0.0/0".into(), Some(gateway.parse().unwrap())))
            .unwrap();
        container
    };
    [
        make("vethpod", "10.1.2.3", "10.1.2.1"),
        make("vethout", "192.0.2.2", "192.0.2.1"),
        make("vethnear", "10.1.2.9", "10.1.2.2"),
    ]
}

/// The source of a datagram from the container, as `to` at `address` sees it.
fn source(from: &std::net::UdpSocket, to: &Container, address: &str) -> IpAddr {
    let receiver = to.udp();
    from.send_to(b"hello", (address, 7777)).unwrap();
    receiver.recv_from(&mut [0; 16]).unwrap().1.ip()
}

#[test]
fn packets_leaving_the_subnet_have_the_nodes_address() {
    alone("packets masqueraded by nftables", || {
        let [pod, outside, near] = node();
        add(FIRST, &["10.1.2.3/24"]);
        let from = pod.udp();
        assert_eq!(source(&from, &outside, "192.0.2.2").to_string(), "192.0.2.1");
        assert_eq!(source(&from, &near, "10.1.2.9").to_string(), "10.1.2.3");
        drop(from);
        remove(FIRST, &["10.1.2.3/24"]);
        // From another port: connections keep their address.
        let from = pod
            .ns
            .run(|| std::net::UdpSocket::bind("0.0.0.0:0"))
            .unwrap()
            .unwrap();
        assert_eq!(source(&from, &outside, "192.0.2.2").to_string(), "10.1.2.3");
    });
}

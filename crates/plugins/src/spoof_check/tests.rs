use linux::{nft::Traffic, route};

use super::*;
use crate::testing::{Container, alone, bridge, load, ruleset};

fn set_up(owner: Attachment<'_>, port: Port<'_>) -> Result<(), Error> {
    super::set_up(&mut Ruleset::default(), owner, port)
}

fn tear_down(owner: Attachment<'_>, known: Option<Port<'_>>) -> Result<(), Error> {
    super::tear_down(&mut Ruleset::default(), owner, known)
}

fn check(owner: Attachment<'_>, port: Port<'_>) -> Result<(), Error> {
    super::check(&mut Ruleset::default(), owner, port)
}

const OWNER: Attachment<'_> = Attachment {
    network: "test-net",
    container_id: "c1",
    ifname: "net1",
};
const OTHER: Attachment<'_> = Attachment {
    network: "test-net",
    container_id: "c2",
    ifname: "net1",
};
const PORT: Port<'_> = Port {
    name: "veth00000001",
    mac: Mac([2, 0, 0, 0, 0, 1]),
};
const OTHER_PORT: Port<'_> = Port {
    name: "veth00000002",
    mac: Mac([2, 0, 0, 0, 0, 2]),
};

/// The output of nft with these lines as elements.
fn expected(ports: &str, allowed: &str) -> String {
    format!(
        "table bridge nat {{
\tset macspoofchk-ports {{
\t\ttype ifname
\t\tcomment \"Ports that may send from the MAC of their container only\"
{ports}\t}}

\tset macspoofchk-allowed {{
\t\ttype ifname . ether_addr
\t\tcomment \"What these ports may send from\"
{allowed}\t}}

\tchain PREROUTING {{
\t\ttype filter hook prerouting priority dstnat; policy accept;
\t\tiifname @macspoofchk-ports iifname . ether saddr != @macspoofchk-allowed drop comment \"macspoofchk\"
\t}}
}}
"
    )
}

fn empty() -> String {
    expected("", "")
}

fn one() -> String {
    expected(
        "\t\telements = { \"veth00000001\" comment \"macspoofchk-c1-net1\" }\n",
        "\t\telements = { \"veth00000001\" . 02:00:00:00:00:01 comment \"macspoofchk-c1-net1\" }\n",
    )
}

/// The rules of an upstream plugin for an attachment.
fn upstream(reference: &str, port: &str, counter: &str) -> String {
    format!(
        "table bridge nat {{
            chain PREROUTING {{
                type filter hook prerouting priority -300; policy accept;
                iifname \"{port}\" {counter} jump cni-br-iface-{reference} comment \"macspoofchk-{reference}\"
            }}
            chain cni-br-iface-{reference} {{
                {counter} jump cni-br-iface-{reference}-mac comment \"macspoofchk-{reference}\"
            }}
            chain cni-br-iface-{reference}-mac {{
                ether saddr 02:00:00:00:00:09 {counter} return comment \"macspoofchk-{reference}\"
                {counter} drop comment \"macspoofchk-{reference}\"
            }}
        }}"
    )
}

#[test]
fn comments_match_upstream_if_nft_can_parse_them() {
    assert_eq!(OWNER.comment(), "macspoofchk-c1-net1");
    let (long, longer) = ("x".repeat(120), "x".repeat(121));
    let of = |container_id| Attachment {
        network: "test-net",
        container_id,
        ifname: "net1",
    };
    assert_eq!(of(&long).comment().len(), COMMENT_LENGTH);
    assert_ne!(of(&long).comment(), of(&longer).comment());
    let quoted = Attachment {
        network: "test-net",
        container_id: "c1",
        ifname: "net\"1",
    };
    assert!(
        quoted.comment().starts_with("macspoofchk-c1-net1-"),
        "{}",
        quoted.comment()
    );
}

// cni-plugins#30
#[test]
fn rules_have_the_specified_form_and_are_removed() {
    alone("spoof check", || {
        set_up(OWNER, PORT).unwrap();
        assert_eq!(ruleset(), one());
        check(OWNER, PORT).unwrap();
        set_up(OWNER, PORT).unwrap();
        assert_eq!(ruleset(), one(), "after a repeated ADD");

        set_up(OTHER, OTHER_PORT).unwrap();
        tear_down(OTHER, Some(OTHER_PORT)).unwrap();
        assert_eq!(ruleset(), one(), "the other's is gone");
        assert!(check(OTHER, OTHER_PORT).is_err());
        assert!(
            check(
                OWNER,
                Port {
                    mac: OTHER_PORT.mac,
                    ..PORT
                }
            )
            .is_err()
        );

        tear_down(OWNER, None).unwrap();
        assert_eq!(ruleset(), empty());
        for known in [None, Some(PORT)] {
            tear_down(OWNER, known).unwrap();
            assert_eq!(ruleset(), empty(), "gone already");
        }
    });
}

#[test]
fn nft_parses_its_output_of_our_rules() {
    alone("spoof check restored by nft", || {
        set_up(OWNER, PORT).unwrap();
        let printed = ruleset();
        load(&format!("flush ruleset\n{printed}"));
        assert_eq!(ruleset(), printed);
        // Restored rules are ours as well.
        set_up(OTHER, OTHER_PORT).unwrap();
        assert_eq!(ruleset().matches(" drop ").count(), 1, "{}", ruleset());
        tear_down(OTHER, Some(OTHER_PORT)).unwrap();
        tear_down(OWNER, Some(PORT)).unwrap();
        assert_eq!(ruleset(), empty());
    });
}

#[test]
fn del_without_any_resource_succeeds() {
    alone("spoof check of an empty ruleset", || {
        tear_down(OWNER, Some(PORT)).unwrap();
        tear_down(OWNER, None).unwrap();
        assert_eq!(ruleset(), "");
        set_up(OWNER, PORT).unwrap();
        load("flush ruleset");
        tear_down(OWNER, Some(PORT)).unwrap();
        // Partly removed by hand: the rest is removed too.
        set_up(OWNER, PORT).unwrap();
        load("flush set bridge nat macspoofchk-ports");
        tear_down(OWNER, Some(PORT)).unwrap();
        assert_eq!(ruleset(), empty());
        // Flushed chains are filled again.
        load("flush chain bridge nat PREROUTING");
        assert!(check(OWNER, PORT).is_err());
        set_up(OWNER, PORT).unwrap();
        assert_eq!(ruleset(), one());
    });
}

#[test]
fn reused_port_name_is_of_the_new_owner() {
    alone("spoof check of a reused port name", || {
        set_up(
            OTHER,
            Port {
                mac: OTHER_PORT.mac,
                ..PORT
            },
        )
        .unwrap();
        set_up(OWNER, PORT).unwrap();
        assert_eq!(ruleset(), one(), "and the old MAC is not allowed");
        tear_down(
            OTHER,
            Some(Port {
                mac: OTHER_PORT.mac,
                ..PORT
            }),
        )
        .unwrap();
        tear_down(OTHER, None).unwrap();
        assert_eq!(ruleset(), one());
    });
}

// cni-plugins#33
#[test]
fn upstream_rules_are_recognised_and_removed() {
    for counter in ["", "counter packets 12 bytes 3456"] {
        alone("upstream spoof check", move || {
            load("table bridge nat { chain mine { counter accept; }; }");
            load(&upstream("c2-net1", "veth00000002", counter));
            let others = ruleset();
            load(&upstream("c1-net1", "veth00000001", counter));
            check(OWNER, PORT).unwrap();
            tear_down(OWNER, None).unwrap();
            assert_eq!(ruleset(), others);

            // With a record too, as an ADD that is repeated has one; and an ADD replaces them.
            load(&upstream("c1-net1", "veth00000001", counter));
            tear_down(OWNER, Some(PORT)).unwrap();
            assert_eq!(ruleset(), others);
            load(&upstream("c1-net1", "veth00000001", counter));
            set_up(OWNER, PORT).unwrap();
            assert!(!ruleset().contains("cni-br-iface-c1"), "{}", ruleset());
            assert!(ruleset().contains("cni-br-iface-c2-net1-mac"), "{}", ruleset());
        });
    }
}

// cni-plugins#75
#[test]
fn rule_sets_and_chain_are_removed_with_the_last_port() {
    alone("unused spoof check", || {
        let remove_unused = || super::remove_unused(&mut Ruleset::default()).unwrap();
        remove_unused();
        assert_eq!(ruleset(), "", "there was nothing");
        set_up(OWNER, PORT).unwrap();
        set_up(OTHER, OTHER_PORT).unwrap();
        tear_down(OTHER, Some(OTHER_PORT)).unwrap();
        remove_unused();
        assert_eq!(ruleset(), one(), "a port is guarded");
        tear_down(OWNER, Some(PORT)).unwrap();
        for _ in 0..2 {
            remove_unused();
            assert_eq!(ruleset(), "table bridge nat {\n}\n");
        }
        // The next one begins anew.
        set_up(OWNER, PORT).unwrap();
        assert_eq!(ruleset(), one());
    });
}

// cni-plugins#75
#[test]
fn foreign_rules_are_kept_without_guarded_ports() {
    alone("unused spoof check among others' rules", || {
        let begin_and_end = || {
            set_up(OWNER, PORT).unwrap();
            tear_down(OWNER, Some(PORT)).unwrap();
            super::remove_unused(&mut Ruleset::default()).unwrap();
        };
        for foreign in [
            upstream("c2-net1", "veth00000002", "counter packets 1 bytes 2"),
            // Of an upstream plugin between the creation of its chains and of the rule that leads to them.
            "table bridge nat {
                chain PREROUTING { type filter hook prerouting priority -300; policy accept; }
                chain cni-br-iface-c2-net1 { }
            }"
            .to_owned(),
            "table bridge nat { chain mine { counter accept; }; set macspoofchk-others { type ifname; }; }"
                .to_owned(),
        ] {
            load("flush ruleset");
            load(&foreign);
            let before = ruleset();
            begin_and_end();
            let after = ruleset();
            assert!(!after.contains("macspoofchk-ports"), "{after}");
            // Beside a chain of others an empty one of ours may stay.
            let chain = "\n\tchain PREROUTING {\n\
                \t\ttype filter hook prerouting priority dstnat; policy accept;\n\t}\n";
            if before.contains("PREROUTING") {
                assert_eq!(after, before);
            } else {
                assert_eq!(after.replace(chain, ""), before);
            }
        }
        // A rule of another program keeps our set by looking it up.
        load("flush ruleset");
        set_up(OWNER, PORT).unwrap();
        load("add chain bridge nat mine");
        load("add rule bridge nat mine iifname @macspoofchk-ports accept");
        tear_down(OWNER, Some(PORT)).unwrap();
        let before = ruleset();
        super::remove_unused(&mut Ruleset::default()).unwrap();
        assert_eq!(ruleset(), before);
        set_up(OWNER, PORT).unwrap();
        check(OWNER, PORT).unwrap();
    });
}

#[test]
fn parallel_first_calls_add_one_rule() {
    alone("parallel spoof checks", || {
        let namespace = linux::netns::NetNs::current().unwrap();
        let call = |number: u8, work: fn(Attachment<'_>, Port<'_>)| {
            let id = format!("c{number}");
            let name = format!("veth{number:08x}");
            let owner = Attachment {
                network: "test-net",
                container_id: &id,
                ifname: "net1",
            };
            let mac = Mac([2, 0, 0, 0, 1, number]);
            namespace.run(|| work(owner, Port { name: &name, mac })).unwrap();
        };
        let together = |work: fn(Attachment<'_>, Port<'_>)| {
            let start = std::sync::Barrier::new(24);
            std::thread::scope(|scope| {
                for number in 0..24 {
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        call(number, work);
                    });
                }
            });
        };
        together(|owner, port| set_up(owner, port).unwrap());
        let rules = ruleset();
        assert_eq!(rules.matches(" drop ").count(), 1, "{rules}");
        assert_eq!(rules.matches("comment \"macspoofchk-c").count(), 48, "{rules}");
        together(|owner, port| tear_down(owner, Some(port)).unwrap());
        assert_eq!(ruleset(), empty());
    });
}

// cni-plugins#30
#[test]
fn frames_from_another_mac_are_dropped() {
    alone("frames under a spoof check", || {
        let mut here = route::Socket::open().unwrap();
        let br = bridge(&mut here, "br0");
        let mut pod = Container::on(&mut here, &br, PORT.name, "10.9.0.1/24");
        let receiver = Container::on(&mut here, &br, OTHER_PORT.name, "10.9.0.2/24");
        let own = pod.mac();
        let port = Port { mac: own, ..PORT };
        set_up(OWNER, port).unwrap();

        let (from, to) = (pod.udp(), receiver.udp());
        let send = |text: &str| from.send_to(text.as_bytes(), "10.9.0.255:7777").unwrap();
        let mut buffer = [0; 64];
        let mut receive = || {
            let length = to.recv(&mut buffer).unwrap();
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        };
        // The bridge learns and forwards at once as it has no spanning tree.
        send("own");
        assert_eq!(receive(), "own");
        pod.change_mac(Mac([2, 0, 0, 0, 0, 0x66]));
        send("spoofed");
        pod.change_mac(own);
        send("own again");
        assert_eq!(receive(), "own again");

        // Other ports are unchecked, and after DEL this one too.
        tear_down(OWNER, Some(port)).unwrap();
        pod.change_mac(Mac([2, 0, 0, 0, 0, 0x66]));
        send("unguarded");
        assert_eq!(receive(), "unguarded");
    });
}

// cni-plugins#32
#[test]
fn a_thousand_ports_cost_no_more_than_one() {
    alone("spoof checks of many ports", || {
        let cost = |socket: &mut Socket, work: &dyn Fn(&mut Socket)| {
            let before = socket.traffic();
            work(socket);
            let after = socket.traffic();
            Traffic {
                sent: after.sent - before.sent,
                received: after.received - before.received,
            }
        };
        let add_one = |socket: &mut Socket| add(socket, OWNER, PORT).unwrap();
        let remove_one = |socket: &mut Socket| remove(socket, OWNER, Some(PORT)).unwrap();
        let mut socket = Socket::open().unwrap();
        add(&mut socket, OTHER, OTHER_PORT).unwrap();
        let few = [cost(&mut socket, &add_one), cost(&mut socket, &remove_one)];

        for number in 0..1000_u16 {
            let id = format!("many{number}");
            let name = format!("many{number:08x}");
            let [high, low] = number.to_be_bytes();
            let owner = Attachment {
                network: "test-net",
                container_id: &id,
                ifname: "net1",
            };
            let mac = Mac([2, 1, 0, 0, high, low]);
            add(&mut socket, owner, Port { name: &name, mac }).unwrap();
        }
        assert_eq!(socket.elements(TABLE, PORTS).unwrap().len(), 1001);
        let many = [cost(&mut socket, &add_one), cost(&mut socket, &remove_one)];
        assert_eq!(few, many, "bytes to and from the kernel");
        println!("ADD {:?}, DEL {:?}", many[0], many[1]);
    });
}

//! Rules of the bridge plugin, as the real `nft` sees them.

use serde_json::{Value, json};

use crate::{
    stage::{Pod, finish, l2, l3, on_a_host, start, variables, with},
    testing::{install_iptables, load, ruleset},
};

fn guarded(config: &Value) -> Value {
    with(config, "macspoofchk", true.into())
}

/// Rules of the upstream plugin for a port, as it writes them.
fn upstream_spoof_check(pod: &Pod, port: &str, mac: &str) -> String {
    let id = format!("{}-net1", pod.id);
    let comment = format!("comment \"macspoofchk-{id}\"");
    format!(
        "table bridge nat {{
            chain PREROUTING {{
                type filter hook prerouting priority -300; policy accept;
                iifname \"{port}\" counter jump cni-br-iface-{id} {comment}
            }}
            chain cni-br-iface-{id} {{ jump cni-br-iface-{id}-mac {comment}; }}
            chain cni-br-iface-{id}-mac {{
                ether saddr {mac} return {comment}
                drop {comment}
            }}
        }}"
    )
}

// cni-plugins#30
#[test]
fn pod_with_spoofed_mac_is_blocked() {
    on_a_host("spoof check", |host| {
        let (sender, receiver) = (host.pod(), host.pod());
        let config = guarded(&l3("1.0.0", &["10.1.2.3/24"]));
        let result = host.add(&sender, &config);
        let other = guarded(&l3("1.0.0", &["10.1.2.4/24"]));
        host.add(&receiver, &other);
        host.check(&sender, &config, &result).success();

        receiver.with(|socket| {
            let lo = socket.link_by_name("lo")?;
            socket.set_up(&lo)
        });
        let (from, to) = (sender.udp(), receiver.udp());
        let heard = |word: &str| {
            from.send_to(word.as_bytes(), "10.1.2.255:7777").unwrap();
            // An accepted frame follows the one in question.
            receiver.udp_loopback("end");
            let mut words = Vec::new();
            loop {
                let mut buffer = [0; 16];
                let length = to.recv(&mut buffer).unwrap();
                match std::str::from_utf8(&buffer[..length]).unwrap() {
                    "end" => return words,
                    heard => words.push(heard.to_owned()),
                }
            }
        };
        assert_eq!(heard("own"), ["own"]);
        let own = sender.net1().mac.unwrap();
        sender.with(|socket| {
            let link = socket.link_by_name("net1")?;
            socket.set_mac(&link, "02:00:00:00:00:77".parse().unwrap())
        });
        assert_eq!(heard("foreign"), Vec::<String>::new());
        sender.with(|socket| {
            let link = socket.link_by_name("net1")?;
            socket.set_mac(&link, own)
        });
        assert_eq!(heard("own again"), ["own again"]);

        host.del(&sender, &config);
        let rules = ruleset();
        assert!(!rules.contains(&format!("macspoofchk-{}-", sender.id)), "{rules}");
        assert!(
            rules.contains(&format!("macspoofchk-{}-", receiver.id)),
            "{rules}"
        );
        host.del(&sender, &config);
    });
}

// cni-plugins#31
#[test]
fn a_failed_add_leaves_no_rules_and_lost_rules_are_no_error() {
    on_a_host("spoof check undone", |host| {
        let pod = host.pod();
        host.fake_ipam(&json!({ "cniVersion": "1.0.0" }));
        let failing = guarded(&with(&l2("1.0.0"), "ipam", json!({ "type": "fake" })));
        let refused = host.call("ADD", &pod, &failing);
        assert_eq!(refused.message(), "IPAM plugin returned missing IP config");
        let rules = ruleset();
        assert!(
            rules.contains("chain PREROUTING") && !rules.contains(&pod.id),
            "they were set up and removed: {rules}"
        );

        let config = guarded(&l2("1.0.0"));
        let result = host.add(&pod, &config);
        load("flush ruleset");
        let missing = host.check(&pod, &config, &result).message();
        assert!(missing.starts_with("spoof-check of port veth"), "{missing}");
        host.del(&pod, &config);
        assert!(pod.link("net1").is_none());
    });
}

// cni-plugins#33
#[test]
fn upstream_rules_are_removed_with_their_pod() {
    on_a_host("upstream spoof check", |host| {
        let (pod, other) = (host.pod(), host.pod());
        load(&upstream_spoof_check(&pod, "veth1", "02:00:00:00:00:01"));
        load(&upstream_spoof_check(&other, "veth2", "02:00:00:00:00:02"));
        host.del(&pod, &guarded(&l2("1.0.0")));
        let rules = ruleset();
        assert!(!rules.contains(&pod.id), "{rules}");
        let kept = format!("chain cni-br-iface-{}-net1-mac", other.id);
        assert!(rules.contains(&kept), "{rules}");
        // Without a path as well.
        let gone = host.pod_without_path(&other);
        host.del(&gone, &guarded(&l2("1.0.0")));
        assert!(!ruleset().contains(&other.id));
    });
}

/// A config whose addresses, of both families, are masqueraded.
fn masqueraded(addresses: &[&str]) -> Value {
    let config = with(&l3("1.1.0", addresses), "isGateway", true.into());
    with(&config, "ipMasq", true.into())
}

// cni-plugins#22
#[test]
fn addresses_are_masqueraded_from_add_to_del() {
    on_a_host("ipMasq", |host| {
        let (first, second) = (host.pod(), host.pod());
        let config = masqueraded(&["10.1.2.3/24", "fd00::3/64"]);
        let result = host.add(&first, &config);
        host.add(&second, &masqueraded(&["10.1.2.4/24", "fd00::4/64"]));
        host.check(&first, &config, &result).success();
        let rules = ruleset();
        for rule in [
            "ip daddr != 10.1.2.0/24 masquerade",
            "ip6 daddr != fd00::/64 masquerade",
        ] {
            assert_eq!(rules.matches(rule).count(), 1, "one rule a subnet: {rules}");
        }
        let comment = |pod: &Pod| format!("net: test-net, if: net1, id: {}", pod.id);
        assert_eq!(rules.matches(&comment(&first)).count(), 2, "{rules}");

        host.del(&first, &config);
        let rules = ruleset();
        assert!(!rules.contains(&comment(&first)), "{rules}");
        assert_eq!(rules.matches(&comment(&second)).count(), 2, "{rules}");

        let again = host.add(&first, &config);
        load("flush ruleset");
        let missing = host.check(&first, &config, &again).message();
        assert_eq!(missing, "masquerading of 10.1.2.3/24 not found");
        host.del(&first, &config);

        let unknown = with(&config, "ipMasqBackend", "pf".into());
        let refused = host.call("ADD", &first, &unknown).message();
        assert_eq!(refused, "unknown ipmasq backend \"pf\"");
        assert!(first.link("net1").is_none());
    });
}

// cni-plugins#22, the other backend
#[test]
fn configured_iptables_backend_is_used() {
    on_a_host("ipMasq by iptables", |host| {
        install_iptables("nft");
        let pod = host.pod();
        let config = with(&masqueraded(&["10.1.2.3/24"]), "ipMasqBackend", "iptables".into());
        let result = host.add(&pod, &config);
        host.check(&pod, &config, &result).success();
        let rules = ruleset();
        assert!(
            rules.contains("chain CNI-") && rules.contains("ip saddr 10.1.2.3"),
            "{rules}"
        );
        assert!(!rules.contains("cni_plugins_masquerade"), "{rules}");
        host.del(&pod, &config);
        assert!(!ruleset().contains("CNI-"), "{}", ruleset());
    });
}

// cni-plugins#23
#[test]
fn del_keeps_masquerading_of_another_attachment() {
    on_a_host("ipMasq and reuse", |host| {
        let (first, second) = (host.pod(), host.pod());
        let config = masqueraded(&["10.1.2.3/24"]);
        host.add(&first, &config);
        // The first one's DEL is late: its end of the bridge is gone, its rules are not.
        let result = host.add(&second, &config);
        host.del(&first, &config);
        host.check(&second, &config, &result).success();
        assert!(ruleset().contains(&format!("id: {}", second.id)));
        host.del(&second, &config);
        assert!(!ruleset().contains("10.1.2.3"), "{}", ruleset());
    });
}

/// Whether tables are all that is left of our rules.
fn is_bare(rules: &str) -> bool {
    !rules.contains("\tchain ") && !rules.contains("\tset ")
}

// cni-plugins#75
#[test]
fn rules_are_removed_with_the_networks_last_attachment() {
    on_a_host("the last DEL", |host| {
        let of =
            |network: &str, address: &str| with(&guarded(&masqueraded(&[address])), "name", network.into());
        let (first, second) = (of("test-net", "10.1.2.3/24"), of("test-net", "10.1.2.4/24"));
        let other = of("other-net", "10.1.2.5/24");
        let (one, two, three) = (host.pod(), host.pod(), host.pod());
        host.add(&three, &other);
        let other_alone = ruleset();
        for recorded in [true, false] {
            host.add(&one, &first);
            host.add(&two, &second);
            // The other network's attachment keeps its rules also when its record is lost.
            if !recorded {
                host.lose_records();
            }
            host.del(&one, &first);
            assert!(ruleset().contains(&two.id));
            host.del(&two, &second);
            assert_eq!(ruleset(), other_alone, "recorded {recorded}");
        }
        host.del(&three, &other);
        assert!(is_bare(&ruleset()), "{}", ruleset());
        host.add(&one, &first);
        host.del(&one, &first);
        assert!(is_bare(&ruleset()), "{}", ruleset());
        assert_eq!(host.records(), Vec::<String>::new());
    });
}

// cni-plugins#75
#[test]
fn unused_rules_are_removed_by_the_next_del_or_gc() {
    on_a_host("rules that stay", |host| {
        let config = guarded(&masqueraded(&["10.1.2.3/24"]));
        let pod = host.pod();
        // The end of a DEL that was killed before its last step.
        host.add(&pod, &config);
        let rules = ruleset();
        host.del(&pod, &config);
        let empty: Vec<_> = rules.lines().filter(|line| !line.contains("elements")).collect();
        let killed = format!("flush ruleset\n{}", empty.join("\n"));
        load(&killed);
        assert!(!is_bare(&ruleset()));
        host.del(&pod, &config);
        assert!(is_bare(&ruleset()), "{}", ruleset());
        load(&killed);
        host.gc(&with(&config, "cni.dev/valid-attachments", json!([])))
            .success();
        assert!(is_bare(&ruleset()), "{}", ruleset());
    });
}

// cni-plugins#75
#[test]
fn add_beside_the_last_del_keeps_its_rules() {
    on_a_host("ADD beside the last DEL", |host| {
        let old = guarded(&masqueraded(&["10.1.2.3/24"]));
        let new = guarded(&masqueraded(&["10.1.2.4/24"]));
        for _ in 0..20 {
            let (leaving, coming) = (host.pod(), host.pod());
            host.add(&leaving, &old);
            let del = start(
                "bridge",
                &variables("DEL", &leaving, "net1", ""),
                &old.to_string(),
            );
            let add = start("bridge", &variables("ADD", &coming, "net1", ""), &new.to_string());
            let result = finish(add).success();
            assert_eq!(finish(del).success(), Value::Null);
            host.check(&coming, &new, &result).success();
            host.del(&coming, &new);
            assert!(is_bare(&ruleset()), "{}", ruleset());
        }
    });
}

// cni-plugins#27, the rules
#[test]
fn del_without_namespace_removes_rules() {
    on_a_host("rules without a namespace", |host| {
        let config = guarded(&masqueraded(&["10.1.2.3/24"]));
        let other = guarded(&masqueraded(&["10.1.2.4/24"]));
        for recorded in [true, false] {
            let (vanished, unnamed) = (host.pod(), host.pod());
            host.add(&vanished, &config);
            host.add(&unnamed, &other);
            if !recorded {
                host.lose_records();
            }
            vanished.lose_path();
            host.del(&vanished, &config);
            let nowhere = host.pod_without_path(&unnamed);
            host.del(&nowhere, &other);
            let rules = ruleset();
            for pod in [&vanished, &unnamed] {
                assert!(!rules.contains(&pod.id), "recorded {recorded}: {rules}");
            }
        }
    });
}

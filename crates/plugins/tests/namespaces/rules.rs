//! What the bridge plugin asks of nftables, as the real `nft` sees it.

use serde_json::{Value, json};

use crate::{
    stage::{Pod, l2, l3, on_a_host, with},
    testing::{load, ruleset},
};

fn guarded(config: &Value) -> Value {
    with(config, "macspoofchk", true.into())
}

/// Rules of the established plugin for a port, as it writes them.
fn established_spoof_check(pod: &Pod, port: &str, mac: &str) -> String {
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
fn a_container_sends_from_its_own_mac_only() {
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
            // A frame that does get through comes after the one in question.
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
fn rules_of_the_established_plugin_go_with_their_container() {
    on_a_host("established spoof check", |host| {
        let (pod, other) = (host.pod(), host.pod());
        load(&established_spoof_check(&pod, "veth1", "02:00:00:00:00:01"));
        load(&established_spoof_check(&other, "veth2", "02:00:00:00:00:02"));
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

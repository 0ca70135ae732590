//! The bridge plugin: links, ports and their removal.

use serde_json::{Value, json};

use crate::stage::{Host, Pod, l2, l3, on_a_host, with};

fn name(interface: &Value) -> &str {
    interface["name"].as_str().unwrap()
}

// cni-plugins#10
#[test]
fn layer_2_attachment_is_added_and_removed() {
    on_a_host("layer 2", |host| {
        for plugin in ["bridge", "cnv-bridge"] {
            let pod = host.pod();
            let config = with(&l2("1.0.0"), "type", plugin.into());
            let result = host.add(&pod, &config);
            let interfaces = result["interfaces"].as_array().unwrap();
            assert_eq!(interfaces.len(), 3, "{result}");
            assert_eq!(result["ips"], Value::Null);

            let bridge = host.link("br0").unwrap();
            assert!(bridge.is_kind("bridge") && bridge.is_up());
            let outer = host.link(name(&interfaces[1])).unwrap();
            let digits = outer.name.strip_prefix("veth").unwrap();
            assert!(
                digits.len() == 8 && digits.bytes().all(|b| b"0123456789abcdef".contains(&b)),
                "{outer:?}"
            );
            assert_eq!(outer.master, Some(bridge.index));
            assert!(outer.is_up());
            for link in [&bridge, &outer] {
                let file = format!("/proc/sys/net/ipv6/conf/{}/accept_ra", link.name);
                assert_eq!(std::fs::read_to_string(file).unwrap().trim(), "0");
            }
            assert_eq!(outer.queues, (1, 1));
            let inner = pod.net1();
            assert!(inner.is_up() && inner.is_kind("veth"));
            assert_eq!(inner.queues, (1, 1));

            let mac = |link: &linux::link::Link| link.mac.unwrap().to_string();
            assert_eq!(interfaces[0], json!({ "name": "br0", "mac": mac(&bridge) }));
            assert_eq!(interfaces[1], json!({ "name": outer.name, "mac": mac(&outer) }));
            assert_eq!(
                interfaces[2],
                json!({ "name": "net1", "mac": mac(&inner), "sandbox": pod.path })
            );

            host.del(&pod, &config);
            assert!(pod.link("net1").is_none());
            assert!(host.link(&outer.name).is_none());
            assert!(host.link("br0").is_some(), "the bridge stays");
            host.del(&pod, &config);
        }
    });
}

// cni-plugins#12
#[test]
fn an_existing_bridge_is_used_and_another_link_is_not() {
    on_a_host("existing links", |host| {
        let bridge = linux::link::BridgeSpec {
            name: "br0",
            mtu: None,
            mac: None,
            vlan_filtering: false,
        };
        host.socket.create_bridge(&bridge).unwrap();
        let bridge = host.link("br0").unwrap();
        let index = bridge.index;
        // Set by hand, it does not follow the MTU of ports.
        let change = linux::link::LinkChange {
            mtu: Some(1300),
            ..Default::default()
        };
        host.socket.change_link(&bridge, "set MTU", &change).unwrap();
        let pod = host.pod();
        host.add(&pod, &with(&l2("1.0.0"), "mtu", 1400.into()));
        let bridge = host.link("br0").unwrap();
        assert_eq!((bridge.index, bridge.mtu), (index, 1300), "used, not changed");
        assert!(bridge.is_up());

        let pair = linux::link::VethSpec {
            name: "other",
            mac: None,
            mtu: None,
            peer_name: "other-peer",
            peer_ns: None,
        };
        host.socket.create_veth(&pair).unwrap();
        let pod = host.pod();
        let refused = host.call("ADD", &pod, &with(&l2("1.0.0"), "bridge", "other".into()));
        assert_eq!(
            refused.message(),
            "failed to create bridge \"other\": \"other\" already exists but is not a bridge"
        );
        assert!(pod.link("net1").is_none());
    });
}

// cni-plugins#14
#[test]
fn mtu_promiscuity_and_hairpin_are_set() {
    on_a_host("bridge and port settings", |host| {
        let pod = host.pod();
        let config = with(
            &with(&l2("1.1.0"), "mtu", 5000.into()),
            "promiscMode",
            true.into(),
        );
        let result = host.add(&pod, &config);
        let bridge = host.link("br0").unwrap();
        assert_eq!((bridge.mtu, bridge.promiscuity), (5000, 1));
        assert_eq!(pod.net1().mtu, 5000);
        let outer = host.link(name(&result["interfaces"][1])).unwrap();
        assert_eq!(outer.mtu, 5000);
        assert!(!outer.port.unwrap().hairpin);
        let mtus: Vec<_> = result["interfaces"]
            .as_array()
            .unwrap()
            .iter()
            .map(|i| i["mtu"].clone())
            .collect();
        assert_eq!(mtus, [5000, 5000, 5000]);

        let pod = host.pod();
        let config = with(
            &with(&l2("1.0.0"), "hairpinMode", true.into()),
            "bridge",
            "br1".into(),
        );
        let result = host.add(&pod, &config);
        assert!(
            host.link(name(&result["interfaces"][1]))
                .unwrap()
                .port
                .unwrap()
                .hairpin
        );
        assert_eq!(host.link("br1").unwrap().promiscuity, 0);

        let pod = host.pod();
        let refused = host.call("ADD", &pod, &with(&config, "promiscMode", true.into()));
        assert_eq!(
            refused.message(),
            "cannot set hairpin mode and promiscuous mode at the same time"
        );
    });
}

// cni-plugins#15
#[test]
fn mac_comes_from_the_source_with_precedence() {
    on_a_host("MAC addresses", |host| {
        let args = json!({ "cni": { "mac": "02:00:00:00:00:0b" } });
        let runtime = json!({ "mac": "02:00:00:00:00:0c" });
        let plain = l2("1.0.0");
        let with_args = with(&plain, "args", args);
        let with_all = with(&with_args, "runtimeConfig", runtime.clone());
        let with_runtime = with(&plain, "runtimeConfig", runtime);
        let argument = "IgnoreUnknown=1;K8S_POD_NAME=p;MAC=02:00:00:00:00:0a";
        for (config, arguments, expected) in [
            (&plain, argument, "02:00:00:00:00:0a"),
            (&with_args, "", "02:00:00:00:00:0b"),
            (&with_runtime, "", "02:00:00:00:00:0c"),
            (&with_all, argument, "02:00:00:00:00:0c"),
        ] {
            let pod = host.pod();
            let result = host.call_with("ADD", &pod, "net1", arguments, config).success();
            assert_eq!(pod.net1().mac.unwrap().to_string(), expected);
            assert_eq!(result["interfaces"][2]["mac"], expected);
        }
        let pod = host.pod();
        let before = host.veths().len();
        let refused = host.call_with("ADD", &pod, "net1", "MAC=nonsense", &plain);
        assert_eq!(
            refused.message(),
            "failed to make veth pair: address nonsense: invalid MAC address"
        );
        assert_eq!(host.veths().len(), before);
    });
}

// cni-plugins#16
#[test]
fn the_containers_end_can_be_left_down() {
    on_a_host("disableContainerInterface", |host| {
        let pod = host.pod();
        let config = with(&l2("1.0.0"), "disableContainerInterface", true.into());
        // The port cannot come up: an ADD that waited for it would fail.
        let result = host.add(&pod, &config);
        assert!(!pod.net1().is_up());
        assert!(host.link(name(&result["interfaces"][1])).is_some());
        host.check(&pod, &config, &result).success();

        let pod = host.pod();
        let refused = host.call(
            "ADD",
            &pod,
            &with(
                &l3("1.0.0", &["10.1.2.3/24"]),
                "disableContainerInterface",
                true.into(),
            ),
        );
        assert_eq!(
            refused.message(),
            "cannot use IPAM when DisableContainerInterface flag is set"
        );
    });
}

// cni-plugins#17
#[test]
fn isolated_ports_reach_only_those_that_are_not() {
    on_a_host("port isolation", |host| {
        let mut attach = |address: &str, isolated: bool| -> (Pod, Option<bool>) {
            let pod = host.pod();
            let config = with(&l3("1.0.0", &[address]), "portIsolation", isolated.into());
            let result = host.add(&pod, &config);
            let outer = host.link(name(&result["interfaces"][1])).unwrap();
            (pod, outer.port.unwrap().isolated)
        };
        let (first, isolated) = attach("10.1.2.1/24", true);
        assert_eq!(isolated, Some(true));
        let (second, _) = attach("10.1.2.2/24", true);
        let (open, isolated) = attach("10.1.2.3/24", false);
        assert_eq!(isolated, Some(false));

        let (first, second, open) = (first.udp(), second.udp(), open.udp());
        let receive = |socket: &std::net::UdpSocket| {
            let mut text = [0; 16];
            let (length, from) = socket.recv_from(&mut text).unwrap();
            (
                String::from_utf8_lossy(&text[..length]).into_owned(),
                from.ip().to_string(),
            )
        };
        // The open port receives a broadcast of an isolated port. The other isolated port would receive it before
        // any later packet of the open port.
        first.send_to(b"first", "10.1.2.255:7777").unwrap();
        assert_eq!(receive(&open), ("first".into(), "10.1.2.1".into()));
        open.send_to(b"open", "10.1.2.2:7777").unwrap();
        assert_eq!(receive(&second), ("open".into(), "10.1.2.3".into()));
        second.send_to(b"second", "10.1.2.3:7777").unwrap();
        assert_eq!(receive(&open), ("second".into(), "10.1.2.2".into()));
    });
}

// cni-plugins#20
#[test]
fn invalid_vlan_trunks_are_reported() {
    on_a_host("VLAN trunks", |host| {
        let pod = host.pod();
        for (item, text) in [
            (
                json!({ "minID": 0, "maxID": 10 }),
                "incorrect trunk minID parameter",
            ),
            (
                json!({ "minID": 10, "maxID": 4095 }),
                "incorrect trunk maxID parameter",
            ),
            (
                json!({ "minID": 10, "maxID": 9 }),
                "minID is greater than maxID in trunk parameter",
            ),
            (
                json!({ "maxID": 9 }),
                "minID and maxID should be configured simultaneously, minID is missing",
            ),
            (
                json!({ "minID": 9 }),
                "minID and maxID should be configured simultaneously, maxID is missing",
            ),
            (json!({ "id": 4095 }), "incorrect trunk id parameter"),
        ] {
            let refused = host.call("ADD", &pod, &with(&l2("1.0.0"), "vlanTrunk", json!([item])));
            assert_eq!(refused.message(), text);
        }
        assert!(
            host.link("br0").is_none(),
            "a config that is refused makes no bridge"
        );
    });
}

#[test]
fn vlans_work_or_the_missing_kernel_feature_is_named() {
    on_a_host("VLANs", |host| {
        let pod = host.pod();
        let outcome = host.call("ADD", &pod, &with(&l2("1.0.0"), "vlan", 100.into()));
        if outcome.code == 0 {
            assert!(host.link("br0").unwrap().bridge.unwrap().vlan_filtering);
            return;
        }
        assert!(
            outcome
                .message()
                .starts_with("failed to create bridge \"br0\": could not add \"br0\": ")
        );
        assert_eq!(
            outcome.json()["details"],
            "the kernel lacks CONFIG_BRIDGE_VLAN_FILTERING"
        );
        assert!(host.link("br0").is_none());

        // On an existing bridge without filtering, a VLAN would silently have no effect.
        host.add(&pod, &l2("1.0.0"));
        let pod = host.pod();
        let refused = host.call("ADD", &pod, &with(&l2("1.0.0"), "vlan", 100.into()));
        assert!(
            refused.message().contains("VLAN filtering turned off"),
            "{refused:?}"
        );
        let invalid = host.call("ADD", &pod, &with(&l2("1.0.0"), "vlan", (-1).into()));
        assert_eq!(
            invalid.message(),
            "invalid VLAN ID -1 (must be between 0 and 4094)"
        );
    });
}

#[test]
fn add_with_existing_interface_keeps_it() {
    on_a_host("occupied names", |host| {
        let pod = host.pod();
        host.add(&pod, &l2("1.0.0"));
        let before = pod.net1();
        let refused = host.call("ADD", &pod, &l2("1.0.0"));
        let message = refused.message();
        assert!(
            message.starts_with("container veth name (\"net1\") peer provided (\"veth"),
            "{message}"
        );
        assert!(message.ends_with("\") already exists"), "{message}");
        assert_eq!(pod.net1(), before);
        assert_eq!(host.veths().len(), 1);
    });
}

#[test]
fn containers_on_one_bridge_exchange_frames_at_once() {
    on_a_host("connectivity", |host| {
        let attach = |host: &mut Host, address: &str| {
            let pod = host.pod();
            host.add(&pod, &l3("1.0.0", &[address]));
            pod.udp()
        };
        let first = attach(host, "10.1.2.1/24");
        let second = attach(host, "10.1.2.2/24");
        second.send_to(b"hello", "10.1.2.1:7777").unwrap();
        let mut text = [0; 16];
        let (length, from) = first.recv_from(&mut text).unwrap();
        assert_eq!(
            (&text[..length], from.ip().to_string().as_str()),
            (&b"hello"[..], "10.1.2.2")
        );
    });
}

#[test]
fn concurrent_adds_and_dels_succeed() {
    on_a_host("parallel calls", |host| {
        let pods: Vec<_> = (0..12).map(|_| host.pod()).collect();
        let configs = (2..14).map(|n| {
            with(
                &l3("1.0.0", &[&format!("10.1.2.{n}/24")]),
                "isGateway",
                true.into(),
            )
        });
        let configs: Vec<_> = configs.collect();
        let calls = || pods.iter().zip(configs.iter().cloned());
        let results: Vec<_> = host
            .call_together(16, "ADD", calls())
            .iter()
            .map(crate::stage::Outcome::success)
            .collect();
        let mac = host.link("br0").unwrap().mac.unwrap().to_string();
        for ((pod, config), result) in calls().zip(&results) {
            assert_eq!(result["interfaces"][0]["mac"], mac);
            host.check(pod, &config, result).success();
        }
        assert_eq!(host.addresses("br0"), ["10.1.2.1/24"]);
        assert_eq!(host.veths().len(), pods.len());
        for outcome in host.call_together(16, "DEL", calls()) {
            outcome.success();
        }
        assert!(host.veths().is_empty());
    });
}

#[test]
fn del_during_namespace_removal_succeeds() {
    on_a_host("DEL without a namespace", |host| {
        let mut pod = host.pod();
        host.add(&pod, &l2("1.0.0"));
        // Something else at the path: the namespace is as gone as with nothing there.
        pod.path = "/run/plain-file".into();
        std::fs::write(&pod.path, "").unwrap();
        host.del(&pod, &l2("1.0.0"));
        assert!(
            pod.link("net1").is_none(),
            "the host's end is known from the record"
        );
        pod.path = "/run/nowhere/at/all".into();
        host.del(&pod, &l2("1.0.0"));
        let missing = host.call("ADD", &pod, &l2("1.0.0"));
        assert_eq!(
            missing.message(),
            "failed to open netns \"/run/nowhere/at/all\": failed to Statfs \"/run/nowhere/at/all\": no such file or directory"
        );
        pod.path = String::new();
        host.del(&pod, &l2("1.0.0"));
    });
}

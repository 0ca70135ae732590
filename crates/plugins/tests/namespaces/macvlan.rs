//! The macvlan plugin.

use std::net::UdpSocket;

use linux::{
    link::{KindState, Link, LinkChange, LinkKind, LinkSpec, MacVlanMode},
    routes::Route,
};
use serde_json::{Value, json};

use crate::{
    contract,
    stage::{Host, Pod, VERSIONS, on_a_host, with},
};

/// A config without addresses, on `eth0` of the host.
fn macvlan(version: &str) -> Value {
    json!({ "cniVersion": version, "name": "test-net", "type": "macvlan", "master": "eth0" })
}

/// The config with an address by `static`.
fn at(config: &Value, address: &str) -> Value {
    let ipam = json!({ "type": "static", "addresses": [{ "address": address }], "dns": { "nameservers": ["192.0.2.9"] } });
    with(config, "ipam", ipam)
}

/// A link of the host that macvlans can stand on: one end of a pair, both up.
fn parent(host: &mut Host, name: &str) -> Link {
    let peer_name = &format!("{name}-peer");
    let kind = LinkKind::Veth {
        peer_name,
        peer_ns: None,
    };
    host.socket.create_link(&LinkSpec::new(name, kind)).unwrap();
    for end in [name, peer_name] {
        let link = host.link(end).unwrap();
        host.socket.set_up(&link).unwrap();
    }
    host.link(name).unwrap()
}

fn receive(socket: &UdpSocket) -> (String, String) {
    let mut text = [0; 16];
    let (length, from) = socket.recv_from(&mut text).unwrap();
    let text = String::from_utf8_lossy(&text[..length]).into_owned();
    (text, from.ip().to_string())
}

// cni-plugins#46, cni-plugins#81
#[test]
fn link_plugins_keep_the_contract() {
    on_a_host("macvlan", |host| {
        parent(host, "eth0");
        contract::holds(host, &macvlan("1.1.0"));
    });
}

// cni-plugins#46
#[test]
fn containers_of_one_parent_exchange_packets_in_bridge_mode() {
    on_a_host("macvlans in bridge mode", |host| {
        parent(host, "eth0");
        let mut attach = |address: &str| {
            let pod = host.pod();
            let result = host.add(&pod, &at(&macvlan("1.0.0"), address));
            assert_eq!(pod.net1().kind_state, KindState::MacVlan(MacVlanMode::Bridge));
            // IPAM's resolver settings are not those of the config.
            assert_eq!(result["dns"], Value::Null);
            pod.udp()
        };
        let (first, second) = (attach("10.1.2.1/24"), attach("10.1.2.2/24"));
        second.send_to(b"hello", "10.1.2.1:7777").unwrap();
        assert_eq!(receive(&first), ("hello".into(), "10.1.2.2".into()));
    });
}

// cni-plugins#46
#[test]
fn a_layer_2_attachment_is_up_and_has_the_mode() {
    on_a_host("modes of macvlans", |host| {
        let eth0 = parent(host, "eth0");
        for (name, mode) in [
            ("bridge", MacVlanMode::Bridge),
            ("private", MacVlanMode::Private),
            ("vepa", MacVlanMode::Vepa),
            ("passthru", MacVlanMode::PassThru),
        ] {
            let pod = host.pod();
            let config = with(&macvlan("1.0.0"), "mode", name.into());
            let result = host.add(&pod, &config);
            let link = pod.net1();
            assert!(link.is_up() && link.is_kind("macvlan"));
            assert_eq!(
                (link.kind_state, link.peer),
                (KindState::MacVlan(mode), Some(eth0.index))
            );
            let mac = link.mac.unwrap().to_string();
            let interface = json!({ "name": "net1", "mac": mac, "sandbox": pod.path });
            assert_eq!(
                result,
                json!({ "cniVersion": "1.0.0", "interfaces": [interface] })
            );
            host.check(&pod, &config, &result).success();
            host.del(&pod, &config);
        }
        let pod = host.pod();
        for unknown in ["source", "Bridge", "x"] {
            let refused = host.call("ADD", &pod, &with(&macvlan("1.0.0"), "mode", unknown.into()));
            assert_eq!(refused.message(), format!("unknown macvlan mode: \"{unknown}\""));
        }
    });
}

// cni-plugins#46
#[test]
fn without_a_master_the_default_route_decides() {
    on_a_host("masters of macvlans", |host| {
        let mut config = macvlan("1.1.0");
        config.as_object_mut().unwrap().shift_remove("master");
        let pod = host.pod();
        let none = host.call("ADD", &pod, &config).message();
        assert_eq!(none, "no default route interface found");
        let missing = host.call("ADD", &pod, &macvlan("1.1.0")).message();
        assert!(
            missing.starts_with("failed to lookup master \"eth0\": "),
            "{missing}"
        );
        let status = |host: &Host, config: &Value| {
            let variables = [("CNI_COMMAND", "STATUS"), ("CNI_PATH", "/run/plugins")];
            host.run("macvlan", &variables, &config.to_string())
        };
        let (code, message) = status(host, &macvlan("1.1.0")).failure();
        assert_eq!(code, 50);
        assert!(
            message.starts_with("failed to lookup master \"eth0\": "),
            "{message}"
        );

        let other = parent(host, "other");
        let eth0 = parent(host, "eth0");
        host.socket
            .add_address(&eth0, "192.0.2.2/24".parse().unwrap())
            .unwrap();
        let default = Route {
            gateway: Some("192.0.2.1".parse().unwrap()),
            link: Some(eth0.index),
            ..Route::to("0.0.0.0/0".parse().unwrap())
        };
        host.socket.add_route(&default).unwrap();
        host.add(&pod, &config);
        assert_eq!(pod.net1().peer, Some(eth0.index));
        let named = host.pod();
        host.add(&named, &with(&config, "master", "other".into()));
        assert_eq!(named.net1().peer, Some(other.index));
        for config in [&config, &macvlan("1.1.0")] {
            assert_eq!(status(host, config).code, 0);
        }
    });
}

// cni-plugins#88
#[test]
fn default_route_of_ipv6_decides_on_a_node_without_ipv4() {
    on_a_host("masters of macvlans by IPv6", |host| {
        let mut config = macvlan("1.1.0");
        config.as_object_mut().unwrap().shift_remove("master");
        let eth0 = parent(host, "eth0");
        host.socket
            .add_address(&eth0, "fd00::2/64".parse().unwrap())
            .unwrap();
        let default = Route {
            link: Some(eth0.index),
            ..Route::to("::/0".parse().unwrap())
        };
        host.socket.add_route(&default).unwrap();
        let pod = host.pod();
        host.add(&pod, &config);
        assert_eq!(pod.net1().peer, Some(eth0.index));
    });
}

// cni-plugins#46
#[test]
fn the_mtu_is_that_of_the_master_or_less() {
    on_a_host("MTUs of macvlans", |host| {
        parent(host, "eth0");
        for (mtu, found) in [(0, 1500), (1500, 1500), (1280, 1280)] {
            let pod = host.pod();
            let result = host.add(&pod, &with(&macvlan("1.1.0"), "mtu", mtu.into()));
            assert_eq!(pod.net1().mtu, found);
            assert_eq!(result["interfaces"][0]["mtu"], found);
        }
        let pod = host.pod();
        for bad in [1501, -1] {
            let refused = host.call("ADD", &pod, &with(&macvlan("1.1.0"), "mtu", bad.into()));
            let text = format!("invalid MTU {bad}, must be [0, master MTU(1500)]");
            assert_eq!(refused.message(), text);
        }
        assert!(pod.link("net1").is_none());
    });
}

// cni-plugins#46
#[test]
fn mac_comes_from_the_source_with_precedence() {
    on_a_host("MAC addresses of macvlans", |host| {
        parent(host, "eth0");
        let plain = macvlan("1.0.0");
        let own = with(&plain, "mac", "02:00:00:00:00:0b".into());
        let all = with(&own, "runtimeConfig", json!({ "mac": "02:00:00:00:00:0c" }));
        let argument = "IgnoreUnknown=1;K8S_POD_NAME=p;MAC=02:00:00:00:00:0a";
        for (config, arguments, expected) in [
            (&plain, argument, "02:00:00:00:00:0a"),
            (&own, "", "02:00:00:00:00:0b"),
            (&own, argument, "02:00:00:00:00:0a"),
            (&all, argument, "02:00:00:00:00:0c"),
        ] {
            let pod = host.pod();
            let result = host.call_with("ADD", &pod, "net1", arguments, config).success();
            assert_eq!(pod.net1().mac.unwrap().to_string(), expected);
            assert_eq!(result["interfaces"][0]["mac"], expected);
            host.del(&pod, config);
        }
        let pod = host.pod();
        let refused = host
            .call_with("ADD", &pod, "net1", "MAC=nonsense", &plain)
            .message();
        assert_eq!(
            refused,
            "invalid args nonsense for MAC addr: address nonsense: invalid MAC address"
        );
    });
}

// cni-plugins#46
#[test]
fn the_master_may_be_in_the_container() {
    on_a_host("linkInContainer", |host| {
        parent(host, "eth0");
        let pod = host.pod();
        host.call_with("ADD", &pod, "inner0", "", &macvlan("1.0.0"))
            .success();
        let config = with(&macvlan("1.0.0"), "linkInContainer", true.into());
        let missing = host.call("ADD", &pod, &config).message();
        assert!(
            missing.starts_with("failed to lookup master \"eth0\": "),
            "{missing}"
        );
        let config = with(&config, "master", "inner0".into());
        let result = host.add(&pod, &config);
        let link = pod.net1();
        assert!(link.is_kind("macvlan") && link.is_up());
        host.check(&pod, &config, &result).success();
        host.del(&pod, &config);
        assert!(pod.link("net1").is_none() && pod.link("inner0").is_some());
        let config = with(&config, "master", "".into());
        let none = host.call("ADD", &pod, &config).message();
        assert_eq!(none, "no default route interface found");
    });
}

// cni-plugins#46
#[test]
fn only_names_in_the_pod_must_be_unused() {
    on_a_host("names of macvlans", |host| {
        parent(host, "eth0");
        parent(host, "net1");
        let pod = host.pod();
        host.add(&pod, &macvlan("1.0.0"));
        host.lose_records_of("macvlan");
        let before = host.state(&pod);
        let taken = host.call("ADD", &pod, &macvlan("1.0.0")).message();
        assert!(
            taken.starts_with("failed to rename macvlan to \"net1\": ") && taken.contains("file exists"),
            "{taken}"
        );
        assert_eq!(host.state(&pod), before);
        // Without a record the name identifies it.
        host.del(&pod, &macvlan("1.0.0"));
        assert!(pod.link("net1").is_none() && host.link("net1").is_some());
    });
}

// cni-plugins#9
#[test]
fn results_have_the_shape_of_the_configs_version() {
    on_a_host("macvlans in all versions", |host| {
        parent(host, "eth0");
        for version in VERSIONS {
            let pod = host.pod();
            let config = at(&macvlan(version), "10.1.2.3/24");
            let result = host.add(&pod, &config);
            let address = if version < "0.3.0" {
                &result["ip4"]["ip"]
            } else {
                &result["ips"][0]["address"]
            };
            assert_eq!(address, "10.1.2.3/24", "{result}");
            host.del(&pod, &config);
        }
        let pod = host.pod();
        let refused = host.call("ADD", &pod, &macvlan("0.2.0"));
        assert_eq!(refused.message(), "cannot convert: no valid IP addresses");
        assert!(pod.link("net1").is_none(), "a failed ADD leaves nothing");
    });
}

#[test]
fn check_compares_master_and_mode() {
    on_a_host("CHECK of macvlans", |host| {
        parent(host, "eth0");
        let check = |host: &mut Host, pod: &Pod, config: &Value, result: &Value| {
            host.check(pod, config, result).message()
        };
        let pod = host.pod();
        let config = macvlan("1.0.0");
        let result = host.add(&pod, &config);
        let mode = check(host, &pod, &with(&config, "mode", "vepa".into()), &result);
        assert_eq!(
            mode,
            "container macvlan mode bridge does not match expected value: vepa"
        );
        let master = check(host, &pod, &with(&config, "master", "eth9".into()), &result);
        assert!(
            master.starts_with("failed to lookup master \"eth9\": "),
            "{master}"
        );
        let link = pod.net1();
        pod.with(|socket| socket.set_mac(&link, "02:00:00:00:00:99".parse().unwrap()));
        let mac = check(host, &pod, &config, &result);
        assert_eq!(mac, "Interface net1 Mac doesn't match: 02:00:00:00:00:99");
        pod.with(|socket| socket.delete_link_by_name("net1"));
        let gone = check(host, &pod, &config, &result);
        assert_eq!(gone, "Cannot find container link net1");
        let bridge = LinkSpec {
            mac: link.mac,
            ..LinkSpec::new(
                "net1",
                LinkKind::Bridge {
                    vlan_filtering: false,
                },
            )
        };
        pod.with(|socket| socket.create_link(&bridge));
        let kind = check(host, &pod, &config, &result);
        assert_eq!(kind, "Error: Container interface net1 not of type macvlan");
        // It has another owner now.
        host.del(&pod, &config);
        assert!(pod.link("net1").is_some());
    });
}

// cni-plugins#91
#[test]
fn recorded_link_that_was_not_renamed_is_removed_alone() {
    on_a_host("macvlans with their first name", |host| {
        parent(host, "eth0");
        let config = macvlan("1.1.0");
        for collect in [false, true] {
            let pod = host.pod();
            host.add(&pod, &config);
            let records = host.records_of("macvlan");
            let own = format!("{}:net1", pod.id);
            let record = records.iter().find(|record| record.contains(&own)).unwrap();
            let record = record.replace('\\', "");
            let first = record.split("\"name\":\"").nth(1).unwrap();
            let first = first.split('"').next().unwrap();
            // An ADD whose link could be neither renamed nor deleted.
            let link = pod.net1();
            let name = LinkChange {
                name: Some(first),
                ..LinkChange::default()
            };
            pod.with(|socket| socket.set_down(&link));
            pod.with(|socket| socket.change_link(&link, "rename link", &name));
            // Another one took the name.
            host.call_with("ADD", &pod, "net2", "", &config).success();
            let other = pod.link("net2").unwrap();
            let name = LinkChange {
                name: Some("net1"),
                ..LinkChange::default()
            };
            pod.with(|socket| socket.set_down(&other));
            pod.with(|socket| socket.change_link(&other, "rename link", &name));
            if collect {
                host.gc(&with(&config, "cni.dev/valid-attachments", json!([])))
                    .success();
            } else {
                host.del(&pod, &config);
            }
            assert!(pod.link(first).is_none());
            assert_eq!(pod.net1().mac, other.mac);
        }
    });
}

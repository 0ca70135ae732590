//! The host-device plugin.

use linux::link::{Link, LinkChange, LinkKind, LinkSpec};
use serde_json::{Value, json};

use crate::stage::{Host, Pod, on_a_host, with};

fn device(version: &str) -> Value {
    json!({ "cniVersion": version, "name": "test-net", "type": "host-device", "device": "eth1" })
}

fn at(config: &Value, address: &str) -> Value {
    let ipam = json!({ "type": "static", "addresses": [{ "address": address }], "dns": { "nameservers": ["192.0.2.9"] } });
    with(config, "ipam", ipam)
}

/// `eth1`, a device that is up: one end of a pair, so that the end of a namespace deletes it.
fn eth1(host: &mut Host) -> Link {
    let kind = LinkKind::Veth {
        peer_name: "wire",
        peer_ns: None,
    };
    host.socket.create_link(&LinkSpec::new("eth1", kind)).unwrap();
    for name in ["eth1", "wire"] {
        let link = host.link(name).unwrap();
        host.socket.set_up(&link).unwrap();
    }
    host.link("eth1").unwrap()
}

/// The device is on the host as it was, but down.
fn is_back(host: &mut Host, pod: &Pod, up: bool) {
    let link = host.link("eth1").expect("eth1 on the host");
    assert_eq!((link.is_up(), link.alias.as_deref()), (up, None), "{link:?}");
    assert!(pod.link("net1").is_none() && pod.link("eth1").is_none());
    assert!(host.records().is_empty(), "{:?}", host.records());
}

fn set_alias(pod: &Pod, alias: &str) {
    let link = pod.net1();
    let change = LinkChange {
        alias: Some(alias),
        ..LinkChange::default()
    };
    pod.with(|socket| socket.change_link(&link, "set alias", &change));
}

// cni-plugins#52 (host-device)
#[test]
fn del_returns_the_device_under_its_old_name() {
    on_a_host("a round trip", |host| {
        let mac = eth1(host).mac.unwrap().to_string();
        let by_mac = {
            let mut config = device("1.0.0");
            config.as_object_mut().unwrap().shift_remove("device");
            with(&config, "hwaddr", mac.clone().into())
        };
        for (config, address) in [
            (device("1.0.0"), None),
            (by_mac, None),
            (at(&device("1.0.0"), "10.1.2.3/24"), Some("10.1.2.3/24")),
        ] {
            let pod = host.pod();
            let result = host.add(&pod, &config);
            assert!(host.link("eth1").is_none());
            let link = pod.net1();
            assert!(link.is_up());
            assert_eq!(
                link.alias.as_deref(),
                Some("eth1"),
                "as the upstream plugin's DEL expects it"
            );
            assert_eq!(
                result["interfaces"],
                json!([{ "name": "net1", "mac": mac, "sandbox": pod.path }])
            );
            assert_eq!(pod.addresses(), address.into_iter().collect::<Vec<_>>());
            assert_eq!(result["dns"], Value::Null);
            host.check(&pod, &config, &result).success();
            host.del(&pod, &config);
            is_back(host, &pod, false);
            host.del(&pod, &config);
        }
    });
}

// cni-plugins#52 (host-device)
#[test]
fn add_with_used_name_keeps_the_device_unchanged() {
    on_a_host("occupied names", |host| {
        eth1(host);
        let pod = host.pod();
        let foreign = LinkSpec::new(
            "net1",
            LinkKind::Bridge {
                vlan_filtering: false,
            },
        );
        pod.with(|socket| socket.create_link(&foreign));
        let before = host.state(&pod);
        let taken = host.call("ADD", &pod, &device("1.0.0")).message();
        assert_eq!(taken, "failed to move link: \"net1\": file exists");
        assert_eq!(host.state(&pod), before);
        let missing = host.call("ADD", &pod, &with(&device("1.0.0"), "device", "eth9".into()));
        assert!(
            missing
                .message()
                .starts_with("failed to find host device: look up link \"eth9\": "),
            "{missing:?}"
        );
        // The pod's own link with the device's name does not conflict.
        let pod = host.pod();
        let foreign = LinkSpec::new(
            "eth1",
            LinkKind::Bridge {
                vlan_filtering: false,
            },
        );
        pod.with(|socket| socket.create_link(&foreign));
        host.add(&pod, &device("1.0.0"));
        assert!(pod.net1().is_kind("veth"));
        host.del(&pod, &device("1.0.0"));
        assert!(host.link("eth1").is_some() && pod.link("eth1").unwrap().is_kind("bridge"));
    });
}

// cni-plugins#81 (host-device)
#[test]
fn a_failed_add_leaves_the_device_as_it_was() {
    on_a_host("failed moves", |host| {
        eth1(host);
        let pod = host.pod();
        host.fake_ipam(&json!({ "cniVersion": "1.0.0" }));
        let config = with(&device("1.0.0"), "ipam", json!({ "type": "fake" }));
        let refused = host.call("ADD", &pod, &config).message();
        assert_eq!(refused, "IPAM plugin returned missing IP config");
        assert_eq!(host.fake_calls(), ["ADD", "DEL"]);
        is_back(host, &pod, true);
        host.add(&pod, &device("1.0.0"));
    });
}

// cni-plugins#82
#[test]
fn device_moved_by_killed_add_is_returned() {
    on_a_host("killed moves", |host| {
        let config = device("1.1.0");
        let empty = with(&config, "cni.dev/valid-attachments", json!([]));
        for collect in [false, true] {
            // Killed before the move, and between the move and the new name.
            for moved in [false, true] {
                let link = eth1(host);
                let pod = host.pod();
                host.add(&pod, &config);
                let name = LinkChange {
                    name: Some("eth1"),
                    up: Some(false),
                    ..LinkChange::default()
                };
                let inner = pod.net1();
                pod.with(|socket| socket.set_down(&inner));
                pod.with(|socket| socket.change_link(&inner, "rename link", &name));
                if !moved {
                    let home = linux::netns::NetNs::current().unwrap();
                    let fd = std::os::fd::AsFd::as_fd(&home);
                    pod.with(|socket| socket.move_link(&inner, fd, "eth1"));
                }
                if collect {
                    assert_eq!(host.gc(&empty).code, 0);
                } else {
                    // The runtime has lost the path, the record knows it.
                    let without_path = host.pod_without_path(&pod);
                    host.del(&without_path, &config);
                }
                is_back(host, &pod, false);
                assert_eq!(host.link("eth1").unwrap().mac, link.mac);
                host.socket.delete_link_by_name("eth1").unwrap();
            }
        }
        // The kernel saves devices of hardware from a namespace that ends: under the name that they have there.
        let link = eth1(host);
        let pod = host.pod();
        host.add(&pod, &config);
        let home = linux::netns::NetNs::current().unwrap();
        let fd = std::os::fd::AsFd::as_fd(&home);
        let inner = pod.net1();
        pod.with(|socket| socket.move_link(&inner, fd, "net1"));
        pod.lose_path();
        host.del(&pod, &config);
        is_back(host, &pod, false);
        assert_eq!(host.link("eth1").unwrap().mac, link.mac);
    });
}

#[test]
fn del_with_record_does_not_need_the_alias() {
    on_a_host("a changed alias", |host| {
        let config = device("1.0.0");
        for alias in ["x", ""] {
            let link = eth1(host);
            let pod = host.pod();
            host.add(&pod, &config);
            set_alias(&pod, alias);
            host.del(&pod, &config);
            is_back(host, &pod, false);
            assert_eq!(host.link("eth1").unwrap().mac, link.mac);
            host.socket.delete_link_by_name("eth1").unwrap();
        }
    });
}

// cni-plugins#82
#[test]
fn del_without_record_uses_the_alias() {
    on_a_host("moves without a record", |host| {
        eth1(host);
        let pod = host.pod();
        let config = device("1.0.0");
        host.add(&pod, &config);
        host.lose_records_of("host-device");
        set_alias(&pod, "");
        let unknown = host.call("DEL", &pod, &config).message();
        assert_eq!(
            unknown,
            "failed to find original ifname for \"net1\" (alias is not set)"
        );
        set_alias(&pod, "eth1");
        host.del(&pod, &config);
        is_back(host, &pod, false);
    });
}

#[test]
fn repeated_add_changes_nothing() {
    on_a_host("a second move", |host| {
        eth1(host);
        let pod = host.pod();
        let config = device("1.0.0");
        host.add(&pod, &config);
        let before = host.state(&pod);
        let refused = host.call("ADD", &pod, &config).message();
        assert_eq!(refused, "failed to move link: \"net1\": file exists");
        assert_eq!(host.state(&pod), before);
    });
}

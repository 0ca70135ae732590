//! CHECK of the bridge plugin: passes after ADD, and finds every difference.

use linux::{
    link::LinkChange,
    port::PortChange,
    routes::{MAIN_TABLE, Route},
};
use serde_json::{Value, json};

use crate::stage::{Host, Pod, l2, l3, on_a_host, with};

/// Attaches a container, damages the attachment, and returns the error of CHECK.
fn after(host: &mut Host, config: &Value, spoil: impl FnOnce(&mut Host, &Pod, &str)) -> String {
    let pod = host.pod();
    let result = host.add(&pod, config);
    host.check(&pod, config, &result).success();
    let outer = result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    spoil(host, &pod, &outer);
    let message = host.check(&pod, config, &result).message();
    host.del(&pod, config);
    message
}

// cni-plugins#26
#[test]
fn check_detects_changes() {
    on_a_host("CHECK", |host| {
        let mut l3 = l3("1.0.0", &["10.1.2.3/24", "2001:db8::3/64"]);
        l3["ipam"]["routes"] =
            json!([{ "dst": "10.9.0.0/16", "gw": "10.1.2.1" }, { "dst": "0.0.0.0/0", "gw": "10.1.2.1" }]);
        let l2 = l2("1.0.0");

        for config in [&l2, &l3] {
            let removed = after(host, config, |_, pod, _| {
                pod.with(|s| s.delete_link_by_name("net1"));
            });
            assert_eq!(removed, "Cannot find container link net1");
            let mac = after(host, config, |_, pod, _| {
                let link = pod.net1();
                pod.with(|s| s.set_mac(&link, "02:00:00:00:00:99".parse().unwrap()));
            });
            assert_eq!(mac, "Interface net1 Mac doesn't match: 02:00:00:00:00:99");
            let promisc = after(host, config, |host, _, _| {
                let bridge = host.link("br0").unwrap();
                host.socket.set_promiscuous(&bridge, true).unwrap();
            });
            assert_eq!(
                promisc,
                "Bridge interface br0 configured Promisc Mode false doesn't match current state: true "
            );
            let bridge = host.link("br0").unwrap();
            host.socket.set_promiscuous(&bridge, false).unwrap();
            let off = after(host, config, |host, _, outer| {
                let link = host.link(outer).unwrap();
                host.socket.set_master(&link, 0).unwrap();
            });
            assert_eq!(off, "CNI veth created for bridge br0 was not found");
        }

        for address in ["10.1.2.3/24", "2001:db8::3/64"] {
            let message = after(host, &l3, |_, pod, _| {
                let link = pod.net1();
                pod.with(|s| s.delete_address(&link, address.parse().unwrap()));
            });
            assert_eq!(
                message,
                format!("Failed to match addr {address} on interface net1")
            );
        }
        for dst in ["10.9.0.0/16", "0.0.0.0/0"] {
            let message = after(host, &l3, |_, pod, _| {
                pod.with(|s| s.delete_route(&Route::to(dst.parse().unwrap())));
            });
            assert_eq!(
                message,
                format!("Expected Route {dst} via 10.1.2.1 not found in routing table")
            );
        }
        let subnet = after(host, &l3, |_, pod, _| {
            let subnet = Route {
                table: Some(MAIN_TABLE),
                ..Route::to("2001:db8::/64".parse().unwrap())
            };
            pod.with(|s| s.delete_route(&subnet));
        });
        assert_eq!(subnet, "Failed to find Gateway  for interface net1");
    });
}

#[test]
fn check_compares_port_and_state() {
    on_a_host("CHECK of ports", |host| {
        let change = |change: PortChange| {
            move |host: &mut Host, _: &Pod, outer: &str| {
                let link = host.link(outer).unwrap();
                host.socket.change_port(&link, "change", change).unwrap();
            }
        };
        let off = PortChange {
            hairpin: Some(false),
            isolated: Some(false),
        };
        let hairpin = after(host, &with(&l2("1.0.0"), "hairpinMode", true.into()), change(off));
        assert!(hairpin.contains("hairpin mode true"), "{hairpin}");
        let isolated = after(
            host,
            &with(&l2("1.0.0"), "portIsolation", true.into()),
            change(off),
        );
        assert!(isolated.contains("isolation true"), "{isolated}");
        let on = PortChange {
            isolated: Some(true),
            ..PortChange::default()
        };
        let isolated = after(host, &l2("1.0.0"), change(on));
        assert!(isolated.contains("isolation false"), "{isolated}");
        let down = after(host, &l2("1.0.0"), |_, pod, _| {
            let link = pod.net1();
            pod.with(|s| s.set_down(&link));
        });
        assert_eq!(down, "Interface net1 is down");
    });
}

#[test]
fn check_with_result_of_another_attachment_fails() {
    on_a_host("CHECK without a result", |host| {
        let config = l2("1.0.0");
        let pod = host.pod();
        assert_eq!(
            host.call("CHECK", &pod, &config).message(),
            "Required prevResult missing"
        );
        let mut result = host.add(&pod, &config);
        result["interfaces"][2]["sandbox"] = "/run/netns/other".into();
        assert_eq!(
            host.check(&pod, &config, &result).message(),
            format!(
                "Sandbox in prevResult /run/netns/other doesn't match configured netns: {}",
                pod.path
            )
        );
        result["interfaces"][0]["name"] = "br7".into();
        assert_eq!(
            host.check(&pod, &config, &result).message(),
            "prevResult has no interface \"br0\""
        );
        // A bridge that was replaced by something else under its name.
        let bridge = host.link("br0").unwrap();
        let other = host.pod();
        let result = host.add(&other, &config);
        host.socket
            .change_link(
                &bridge,
                "rename",
                &LinkChange {
                    name: Some("away"),
                    ..LinkChange::default()
                },
            )
            .unwrap();
        assert_eq!(
            host.check(&pod, &config, &result).message(),
            "Bridge interface br0 not found"
        );
    });
}

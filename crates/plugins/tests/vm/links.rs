//! Plugins with links that the kernels of many machines lack.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use linux::{
    address::Family,
    link::{IpVlanMode, KindState, Link, LinkKind, LinkSpec, MacVlanMode},
};
use serde_json::{Value, json};

use crate::{
    at, contract, in_the_vm,
    stage::{Host, with},
};

/// A config without addresses, on `eth0` of the host.
fn config(plugin: &str) -> Value {
    json!({ "cniVersion": "1.1.0", "name": "test-net", "type": plugin, "master": "eth0", "vlanId": 100 })
}

/// `eth0` of the host, that is up: one end of a pair.
fn eth0(host: &mut Host) -> Link {
    let kind = LinkKind::Veth {
        peer_name: "eth1",
        peer_ns: None,
    };
    host.socket.create_link(&LinkSpec::new("eth0", kind)).unwrap();
    for name in ["eth0", "eth1"] {
        let link = host.link(name).unwrap();
        host.socket.set_up(&link).unwrap();
    }
    host.link("eth0").unwrap()
}

// cni-plugins#52 (vlan), cni-plugins#81
#[test]
fn a_vlan_on_the_driver_keeps_the_contract() {
    in_the_vm("the vlan plugin's contract", |host| {
        eth0(host);
        contract::holds_unless_killed(host, &config("vlan"));
    });
}

// cni-plugins#52 (ipvlan), cni-plugins#81
#[test]
fn an_ipvlan_on_the_driver_keeps_the_contract() {
    in_the_vm("the ipvlan plugin's contract", |host| {
        eth0(host);
        contract::holds_unless_killed(host, &config("ipvlan"));
    });
}

// cni-plugins#52 (dummy), cni-plugins#81
#[test]
fn a_dummy_on_the_driver_keeps_the_contract() {
    in_the_vm("the dummy plugin's contract", |host| {
        contract::holds_unless_killed(host, &config("dummy"));
    });
}

// cni-plugins#52 (vlan)
#[test]
fn a_vlan_has_its_tag_its_mtu_and_the_resolver_of_the_config() {
    in_the_vm("vlans", |host| {
        let parent = eth0(host);
        let pod = host.pod();
        let mut config = at(&config("vlan"), "10.1.2.3/24");
        config["ipam"]["dns"] = json!({ "nameservers": ["192.0.2.9"] });
        config["dns"] = json!({ "domain": "example" });
        config["mtu"] = 1400.into();
        let result = host.add(&pod, &config);
        let link = pod.net1();
        assert!(link.is_kind("vlan") && link.is_up());
        assert_eq!(
            (link.kind_state, link.mtu, link.peer),
            (KindState::Vlan(100), 1400, Some(parent.index))
        );
        assert_eq!(result["dns"], json!({ "domain": "example" }));
        assert_eq!(result["interfaces"].as_array().unwrap().len(), 1);
        host.check(&pod, &config, &result).success();
        let id = host
            .check(&pod, &with(&config, "vlanId", 7.into()), &result)
            .message();
        assert_eq!(id, "container VLAN ID 100 does not match expected value: 7");
        let mtu = host
            .check(&pod, &with(&config, "mtu", 1300.into()), &result)
            .message();
        assert_eq!(
            mtu,
            "Error: Tuning configured MTU of net1 is 1300, current value is 1400"
        );
        // DEL does not access the parent.
        host.socket.delete_link_by_name("eth0").unwrap();
        host.del(&pod, &config);
        assert!(!host.state(&pod).contains(&pod.id));

        eth0(host);
        let pod = host.pod();
        host.script("fake", r#"echo '{"code":11,"msg":"later"}'; exit 1"#);
        let refused = host.call("ADD", &pod, &with(&config, "ipam", json!({ "type": "fake" })));
        assert_eq!(refused.message(), "failed to execute IPAM delegate: later");
        let refused = host.call("ADD", &pod, &with(&config, "mtu", 1501.into()));
        assert_eq!(
            refused.message(),
            "invalid MTU 1501, must be [0, master MTU(1500)]"
        );
        assert!(pod.link("net1").is_none());
    });
}

// cni-plugins#52 (ipvlan)
#[test]
fn an_ipvlan_has_its_mode_and_the_addresses_of_the_plugin_before_it() {
    in_the_vm("ipvlans", |host| {
        eth0(host);
        for (name, mode) in [
            ("l2", IpVlanMode::L2),
            ("l3", IpVlanMode::L3),
            ("l3s", IpVlanMode::L3s),
        ] {
            let pod = host.pod();
            let config = with(&at(&config("ipvlan"), "10.1.2.3/24"), "mode", name.into());
            let result = host.add(&pod, &config);
            assert_eq!(pod.net1().kind_state, KindState::IpVlan(mode));
            host.check(&pod, &config, &result).success();
            let other = if name == "l3" { "l2" } else { "l3" };
            let differs = host.check(&pod, &with(&config, "mode", other.into()), &result);
            assert_eq!(
                differs.message(),
                format!("Container IPVlan mode {name} does not match expected value: {other}")
            );
            host.del(&pod, &config);
        }
        let pod = host.pod();
        let mut chained = config("ipvlan");
        chained.as_object_mut().unwrap().shift_remove("master");
        chained["prevResult"] = json!({
            "cniVersion": "1.0.0", "interfaces": [{ "name": "eth0" }],
            "ips": [{ "address": "10.1.2.3/24", "gateway": "10.1.2.1" }], "routes": [{ "dst": "0.0.0.0/0" }]
        });
        let result = host.add(&pod, &chained);
        assert_eq!(pod.addresses(), ["10.1.2.3/24"]);
        assert_eq!(pod.routes(Family::V4).len(), 1);
        assert_eq!(result["interfaces"][0]["name"], "net1");
        assert_eq!(result["ips"][0]["interface"], 0);
        host.check(&pod, &chained, &result).success();
        host.del(&pod, &chained);
        assert!(pod.link("net1").is_none());
        chained["prevResult"]["interfaces"] = json!([]);
        assert_eq!(
            host.call("ADD", &pod, &chained).message(),
            "chained master failure. PrevResult lacks a single named interface"
        );
    });
}

/// Addresses and routes of `net1`, and a VRF's table: one line each.
fn tables(pod: &crate::stage::Pod) -> Vec<String> {
    let index = pod.net1().index;
    let mut lines: Vec<_> = pod
        .with(|socket| {
            let mut routes = socket.routes(Family::V4)?;
            routes.extend(socket.routes(Family::V6)?);
            Ok(routes)
        })
        .into_iter()
        .filter(|route| route.link == Some(index) && route.gateway.is_some())
        .map(|route| format!("{route} in {}", route.table.unwrap()))
        .collect();
    lines.sort();
    lines
}

// cni-plugins#52 (vrf)
#[test]
fn interfaces_come_into_a_vrf_with_their_routes_and_leave_it() {
    in_the_vm("VRFs", |host| {
        eth0(host);
        let pod = host.pod();
        let mut config = config("macvlan");
        config["ipam"] = json!({
            "type": "static",
            "addresses": [{ "address": "10.1.2.3/24", "gateway": "10.1.2.1" }, { "address": "fd00::3/64", "gateway": "fd00::1" }],
            "routes": [{ "dst": "10.9.0.0/16" }, { "dst": "fd09::/64" }]
        });
        let result = host.add(&pod, &config);
        let mut vrf = json!({ "cniVersion": "1.0.0", "name": "test-net", "type": "vrf", "vrfname": "blue" });
        vrf["prevResult"] = with(&result, "cniVersion", "1.0.0".into());
        let passed = host.add(&pod, &vrf);
        assert_eq!(passed["ips"], result["ips"]);
        let blue = pod.link("blue").unwrap();
        assert!(blue.is_up());
        assert_eq!(blue.kind_state, KindState::Vrf(1));
        assert_eq!(pod.net1().master, Some(blue.index));
        assert_eq!(pod.addresses(), ["10.1.2.3/24", "fd00::3/64"]);
        assert_eq!(
            tables(&pod),
            ["10.9.0.0/16 via 10.1.2.1 in 1", "fd09::/64 via fd00::1 in 1"]
        );
        host.call("CHECK", &pod, &vrf).success();
        let twice = host.call("ADD", &pod, &vrf).message();
        assert_eq!(
            twice,
            "cmdAdd failed: interface net1 has already a master set: blue"
        );
        assert_eq!(pod.net1().master, Some(blue.index));

        // A second interface, in the same VRF and in others.
        let second = |name: &str, table: u32| {
            let mut vrf = with(&vrf, "vrfname", name.into());
            vrf["table"] = table.into();
            host.call_with("ADD", &pod, "net2", "", &vrf)
        };
        host.call_with("ADD", &pod, "net2", "", &crate::at(&config, "10.2.0.3/24"))
            .success();
        assert_eq!(
            second("blue", 7).message(),
            "cmdAdd failed: VRF blue already exist with different routing table 1"
        );
        assert_eq!(pod.link("net2").unwrap().master, None);
        assert_eq!(
            second("net1", 0).message(),
            "cmdAdd failed: link net1 is not a VRF"
        );
        second("red", 0).success();
        assert_eq!(pod.link("red").unwrap().kind_state, KindState::Vrf(2));
        let red = with(&vrf, "vrfname", "red".into());
        host.call_with("DEL", &pod, "net2", "", &red).success();
        assert!(pod.link("red").is_none());
        second("blue", 1).success();
        let elsewhere = host.call_with("CHECK", &pod, "net2", "", &with(&red, "vrfname", "blue".into()));
        elsewhere.success();
        host.del(&pod, &vrf);
        assert!(pod.link("blue").is_some(), "net2 is in it");
        assert_eq!(pod.net1().master, None);
        let gone = host.call("CHECK", &pod, &vrf).message();
        assert_eq!(gone, "interface net1 is not in VRF blue");
        host.call_with("DEL", &pod, "net2", "", &vrf).success();
        assert!(pod.link("blue").is_none());
        host.del(&pod, &vrf);
        pod.lose_path();
        host.del(&pod, &vrf);
    });
}

// cni-plugins#70 (auto MAC, owner and group)
#[test]
fn macvtap_has_the_kernels_device_node() {
    in_the_vm("macvtaps", |host| {
        let parent = eth0(host);
        let name = plugins::macvtap::link_name("eth0Mvp99");
        let mode = MacVlanMode::Bridge;
        let device = LinkSpec {
            parent: Some(parent.index),
            ..LinkSpec::new(&name, LinkKind::MacVtap { mode })
        };
        host.socket.create_link(&device).unwrap();
        let made = host.link(&name).unwrap();
        let node = format!("/dev/tap{}", made.index);
        assert!(Path::new(&node).exists(), "devtmpfs has the node");
        let pod = host.pod();
        let mut config = config("macvtap");
        config["deviceID"] = "eth0Mvp99".into();
        let result = host.add(&pod, &config);
        let link = pod.net1();
        assert!(link.is_kind("macvtap") && link.is_up());
        assert_eq!(
            (link.index, link.mac, link.kind_state, link.peer),
            (made.index, made.mac, KindState::MacVlan(mode), Some(parent.index))
        );
        let mac = link.mac.unwrap().to_string();
        let interface = json!({ "name": "net1", "mac": mac, "mtu": 1500, "sandbox": pod.path });
        assert_eq!(
            result,
            json!({ "cniVersion": "1.1.0", "interfaces": [interface] })
        );
        let found = fs::metadata(&node).unwrap();
        assert_eq!((found.uid(), found.gid()), (107, 107));
        // The kernel removes its own object: the plugin has no step for it.
        let records = host.records_of("macvtap").join("\n");
        assert!(
            records.contains("macvtap") && !records.contains("node"),
            "{records}"
        );
        host.check(&pod, &config, &result).success();
        host.del(&pod, &config);
        assert!(pod.link("net1").is_none() && !Path::new(&node).exists());
        host.del(&pod, &config);
    });
}

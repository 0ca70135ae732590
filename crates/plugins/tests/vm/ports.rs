//! The VLANs of a container's port.

use std::fs;

use linux::{link::BridgeSpec, vlan::PortVlan};
use rustix::mount::{MountFlags, mount};
use serde_json::json;

use crate::{
    access, attach, in_the_vm, outer,
    stage::{Host, l2, with},
    trunk, vlans,
};

fn bridge(host: &mut Host, vlan_filtering: bool) {
    let spec = BridgeSpec {
        name: "br0",
        mtu: None,
        mac: None,
        vlan_filtering,
    };
    host.socket.create_bridge(&spec).unwrap();
}

/// Sets the VLAN that new ports of `br0` are given.
fn set_default(id: u16) {
    let write = |name: &str, value: u16| {
        fs::write(format!("/sys/class/net/br0/bridge/{name}"), value.to_string()).unwrap();
    };
    // It cannot be changed while the bridge filters.
    write("vlan_filtering", 0);
    write("default_pvid", id);
    write("vlan_filtering", 1);
}

// cni-plugins#18
#[test]
fn port_with_vlan_leaves_the_default_vlan() {
    in_the_vm("access ports", |host| {
        let (pod, vlans) = attach(host, &access(100));
        assert_eq!(vlans, ["100 PVID untagged"]);
        assert!(host.link("br0").unwrap().bridge.unwrap().vlan_filtering);
        assert!(pod.net1().is_up());
        host.del(&pod, &access(100));
        assert!(pod.link("net1").is_none());
        assert_eq!(host.veths(), []);

        let preserved = with(&access(100), "preserveDefaultVlan", true.into());
        let (_, vlans) = attach(host, &preserved);
        assert_eq!(vlans, ["1 untagged", "100 PVID untagged"]);
        let (_, vlans) = attach(host, &access(1));
        assert_eq!(vlans, ["1 PVID untagged"]);
        let (_, vlans) = attach(host, &access(4094));
        assert_eq!(vlans, ["4094 PVID untagged"]);

        let pod = host.pod();
        for bad in [4095, -1] {
            let message = host
                .call("ADD", &pod, &with(&l2("1.0.0"), "vlan", bad.into()))
                .message();
            assert_eq!(
                message,
                format!("invalid VLAN ID {bad} (must be between 0 and 4094)")
            );
        }
    });
}

#[test]
fn node_default_applies_without_config_key() {
    in_the_vm("the node's defaults", |host| {
        fs::write("/run/plugins/weft-bridge.json", r#"{"preserveDefaultVlan":true}"#).unwrap();
        let (_, vlans) = attach(host, &access(100));
        assert_eq!(vlans, ["1 untagged", "100 PVID untagged"]);
        let (_, vlans) = attach(host, &with(&access(100), "preserveDefaultVlan", false.into()));
        assert_eq!(vlans, ["100 PVID untagged"]);
        let (_, vlans) = attach(host, &trunk(json!([{ "id": 5 }])));
        assert_eq!(vlans, ["1 PVID untagged", "5"]);
        fs::write("/run/plugins/weft-bridge.json", "{").unwrap();
        let pod = host.pod();
        let message = host.call("ADD", &pod, &access(100)).message();
        assert!(
            message.starts_with("failed to read \"/run/plugins/weft-bridge.json\": "),
            "{message}"
        );
        // No other pod requests it.
        attach(host, &l2("1.0.0"));
    });
}

#[test]
fn port_without_vlans_is_in_the_default_vlan() {
    in_the_vm("ports without VLANs", |host| {
        bridge(host, true);
        let (_, vlans) = attach(host, &l2("1.0.0"));
        assert_eq!(vlans, ["1 PVID untagged"]);
        let (_, vlans) = attach(host, &trunk(json!([])));
        assert_eq!(vlans, ["1 PVID untagged"]);
    });
}

// cni-plugins#19
#[test]
fn a_trunk_carries_its_vlans_tagged_and_one_untagged() {
    in_the_vm("trunk ports", |host| {
        let items = json!([{ "id": 101 }, { "minID": 200, "maxID": 210 }]);
        let tagged: Vec<String> = [101]
            .into_iter()
            .chain(200..=210)
            .map(|id: u16| id.to_string())
            .collect();
        let (_, found) = attach(host, &trunk(items.clone()));
        assert_eq!(found, [&["1 PVID untagged".to_owned()], &tagged[..]].concat());
        let (_, found) = attach(host, &with(&trunk(items.clone()), "vlan", 100.into()));
        assert_eq!(found, [&["100 PVID untagged".to_owned()], &tagged[..]].concat());
        let preserved = with(
            &with(&trunk(items), "vlan", 100.into()),
            "preserveDefaultVlan",
            true.into(),
        );
        let (_, found) = attach(host, &preserved);
        let untagged = ["1 untagged", "100 PVID untagged"].map(str::to_owned);
        assert_eq!(found, [&untagged, &tagged[..]].concat());
        // The native VLAN may be among those of the trunk.
        let (_, found) = attach(
            host,
            &with(&trunk(json!([{ "minID": 5, "maxID": 6 }])), "vlan", 6.into()),
        );
        assert_eq!(found, ["5", "6 PVID untagged"]);
    });
}

#[test]
fn a_trunk_may_carry_every_vlan() {
    in_the_vm("full trunks", |host| {
        let all = json!([{ "minID": 1, "maxID": 4094 }]);
        let (_, found) = attach(host, &with(&trunk(all), "vlan", 4094.into()));
        assert_eq!(found.len(), 4094);
        assert_eq!((&*found[0], &*found[4093]), ("1", "4094 PVID untagged"));
        // As many messages parts as there can be: no two VLANs make a range.
        let odd: Vec<_> = (1..=4093).step_by(2).map(|id| json!({ "id": id })).collect();
        let (_, found) = attach(host, &trunk(odd.into()));
        assert_eq!(found.len(), 2047);
        assert_eq!((&*found[0], &*found[2046]), ("1 PVID untagged", "4093"));
    });
}

#[test]
fn the_default_vlan_is_the_one_of_the_bridge() {
    in_the_vm("default VLANs", |host| {
        bridge(host, true);
        // A sysfs shows the links of the namespace that it was mounted in.
        mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None).unwrap();
        set_default(5);
        let preserved = with(&access(100), "preserveDefaultVlan", true.into());
        let (_, found) = attach(host, &access(100));
        assert_eq!(found, ["100 PVID untagged"]);
        let (_, found) = attach(host, &preserved);
        assert_eq!(found, ["5 untagged", "100 PVID untagged"]);
        set_default(0);
        for config in [access(100), preserved] {
            let (_, found) = attach(host, &config);
            assert_eq!(found, ["100 PVID untagged"]);
        }
    });
}

// cni-plugins#12
#[test]
fn vlans_on_a_bridge_that_does_not_filter_are_refused() {
    in_the_vm("bridges without filtering", |host| {
        bridge(host, false);
        let pod = host.pod();
        for config in [access(100), trunk(json!([])), trunk(json!([{ "id": 5 }]))] {
            assert_eq!(
                host.call("ADD", &pod, &config).message(),
                "failed to create bridge \"br0\": \"br0\" has VLAN filtering turned off, so that VLANs would have no effect"
            );
        }
        assert!(pod.link("net1").is_none());
        assert_eq!(host.veths(), []);
        assert!(!host.link("br0").unwrap().bridge.unwrap().vlan_filtering);
    });
}

#[test]
fn check_detects_changed_vlans() {
    in_the_vm("CHECK of VLANs", |host| {
        let config = with(&trunk(json!([{ "minID": 5, "maxID": 6 }])), "vlan", 100.into());
        let mut spoilt = |spoil: fn(&mut Host, &linux::link::Link)| {
            let pod = host.pod();
            let result = host.add(&pod, &config);
            host.check(&pod, &config, &result).success();
            let port = host.link(outer(&result)).unwrap();
            spoil(host, &port);
            let message = host.check(&pod, &config, &result).message();
            message.replace(&port.name, "PORT")
        };
        let moved = spoilt(|host, port| {
            host.socket.delete_port_vlans(port, &[100]).unwrap();
            host.socket
                .add_port_vlans(port, &[PortVlan::access(200)])
                .unwrap();
        });
        assert_eq!(moved, "Port PORT is not in VLAN 100 as configured");
        let tagged = spoilt(|host, port| {
            host.socket
                .add_port_vlans(port, &[PortVlan::tagged(100)])
                .unwrap();
            assert_eq!(vlans(host, &port.name), ["5", "6", "100"]);
        });
        assert_eq!(tagged, "Port PORT is not in VLAN 100 as configured");
        let lacking = spoilt(|host, port| host.socket.delete_port_vlans(port, &[6]).unwrap());
        assert_eq!(lacking, "Port PORT is not in VLAN 6 as configured");
    });
}

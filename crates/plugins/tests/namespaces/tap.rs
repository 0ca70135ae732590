//! The tap plugin.

use std::fs;

use linux::{
    link::{KindState, LinkKind, LinkSpec},
    tap::{TapSpec, create_tap},
};
use serde_json::{Value, json};

use crate::{
    contract,
    stage::{on_a_host, with},
};

fn tap(version: &str) -> Value {
    json!({ "cniVersion": version, "name": "test-net", "type": "tap" })
}

// cni-plugins#81
#[test]
fn link_plugins_keep_the_contract() {
    on_a_host("tap", |host| contract::holds(host, &tap("1.1.0")));
}

// cni-plugins#52 (tap)
#[test]
fn device_has_configured_properties() {
    on_a_host("keys of tap", |host| {
        let pod = host.pod();
        let mut config = tap("1.1.0");
        let keys = json!({
            "mtu": 1400, "mac": "02:00:00:00:00:0b", "owner": 107, "group": 108, "multiQueue": true,
            "dns": { "domain": "example" }
        });
        for (key, value) in keys.as_object().unwrap() {
            config[key] = value.clone();
        }
        let result = host.add(&pod, &config);
        let link = pod.net1();
        assert!(link.is_up() && link.kind_state == KindState::Tap, "{link:?}");
        assert_eq!(
            (link.mtu, link.mac.unwrap().to_string().as_str()),
            (1400, "02:00:00:00:00:0b")
        );
        let interface =
            json!({ "name": "net1", "mac": "02:00:00:00:00:0b", "mtu": 1400, "sandbox": pod.path });
        assert_eq!(
            result,
            json!({ "cniVersion": "1.1.0", "interfaces": [interface], "dns": { "domain": "example" } })
        );
        // A sysfs shows the links of the namespace that it was mounted in.
        let read = |file: &str| {
            let show = || {
                linux::process::unshare_mounts().unwrap();
                let none = rustix::mount::MountFlags::empty();
                rustix::mount::mount("sysfs", "/sys", "sysfs", none, None).unwrap();
                fs::read_to_string(format!("/sys/class/net/net1/{file}")).unwrap()
            };
            let ns = &pod.ns;
            std::thread::scope(|scope| scope.spawn(|| ns.run(show).unwrap()).join().unwrap())
        };
        assert_eq!((read("owner").trim(), read("group").trim()), ("107", "108"));
        // IFF_TAP, IFF_MULTI_QUEUE, IFF_NO_PI, IFF_VNET_HDR and that it stays.
        let flags = u32::from_str_radix(read("tun_flags").trim().trim_start_matches("0x"), 16).unwrap();
        assert_eq!(flags & 0x5902, 0x5902, "{flags:x}");
        host.check(&pod, &config, &result).success();
        host.del(&pod, &config);
        assert!(pod.link("net1").is_none());

        let argument = "IgnoreUnknown=1;MAC=02:00:00:00:00:0a";
        let result = host.call_with("ADD", &pod, "net1", argument, &config).success();
        assert_eq!(result["interfaces"][0]["mac"], "02:00:00:00:00:0a");
    });
}

// cni-plugins#52 (tap)
#[test]
fn device_is_a_port_of_the_pods_bridge() {
    on_a_host("tap in a bridge", |host| {
        let pod = host.pod();
        let config = with(&tap("1.0.0"), "bridge", "inner0".into());
        let before = host.state(&pod);
        let missing = host.call("ADD", &pod, &config).message();
        assert!(missing.starts_with("failed to get bridge inner0: "), "{missing}");
        assert_eq!(host.state(&pod), before);
        let bridge = LinkSpec::new(
            "inner0",
            LinkKind::Bridge {
                vlan_filtering: false,
            },
        );
        pod.with(|socket| socket.create_link(&bridge));
        let result = host.add(&pod, &config);
        let master = pod.link("inner0").unwrap().index;
        assert_eq!(pod.net1().master, Some(master));
        host.check(&pod, &config, &result).success();
        let link = pod.net1();
        pod.with(|socket| socket.set_master(&link, 0));
        let off = host.check(&pod, &config, &result).message();
        assert_eq!(off, "net1 is no port of bridge inner0");
        host.del(&pod, &config);
        assert!(pod.link("net1").is_none() && pod.link("inner0").is_some());
    });
}

#[test]
fn other_devices_are_distinguished_from_taps() {
    on_a_host("what is no tap", |host| {
        let pod = host.pod();
        let config = tap("1.0.0");
        let result = host.add(&pod, &config);
        let taken = host.call("ADD", &pod, &config).message();
        assert_eq!(taken, "failed to rename tap to \"net1\": file exists");
        let mac = pod.net1().mac;
        pod.with(|socket| socket.delete_link_by_name("net1"));
        let bridge = LinkSpec {
            mac,
            ..LinkSpec::new(
                "net1",
                LinkKind::Bridge {
                    vlan_filtering: false,
                },
            )
        };
        pod.with(|socket| socket.create_link(&bridge));
        let kind = host.check(&pod, &config, &result).message();
        assert_eq!(kind, "Error: Container interface net1 not of type tap");
        let labelled = host.pod();
        let refused = host.call(
            "ADD",
            &labelled,
            &with(&config, "selinuxContext", "a:b:c:s0".into()),
        );
        // Without SELinux labels are unsupported. A host may also lack the program.
        let message = refused.message();
        assert!(
            message.starts_with("failed set socket label: ")
                || message == "failed to create tap: ip not found",
            "{message}"
        );
        assert!(labelled.link("net1").is_none());
    });
}

#[test]
fn repeated_add_of_device_fails() {
    on_a_host("tap devices", |host| {
        let spec = TapSpec {
            name: "tap0",
            multi_queue: false,
            owner: None,
            group: None,
        };
        create_tap(&spec).unwrap();
        assert_eq!(host.link("tap0").unwrap().kind_state, KindState::Tap);
        let again = create_tap(&spec).unwrap_err();
        assert!(again.is_in_use(), "{again}");
    });
}

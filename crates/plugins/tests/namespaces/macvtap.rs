//! The macvtap plugin, on links that a device plugin made on the host.

use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::Path,
    time::{Duration, Instant},
};

use linux::{
    link::{Link, LinkKind, LinkSpec, MacVlanMode},
    route::Socket,
    tap::{DeviceNumber, macvtap_device},
};
use plugins::macvtap::link_name;
use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, major, makedev, minor, mknodat, utimensat},
    mount::{MountFlags, mount},
};
use serde_json::{Value, json};

use crate::{
    dice::Dice,
    stage::{Host, PLUGINS, Pod, VERSIONS, on_a_host, with},
};

const DEVICE: &str = "dataplaneMvp0";
/// Number of kills of a call.
const ROUNDS: u32 = 24;

/// A config with the device that multus adds.
fn macvtap(version: &str) -> Value {
    json!({ "cniVersion": version, "name": "test-net", "type": "macvtap", "deviceID": DEVICE })
}

/// Runs `test` on a host with a link to stand on and a `/dev` of its own, without the kernel's nodes: those of all
/// namespaces are in one folder. Prints the reason if the kernel has no macvtap.
fn with_macvtap(name: &'static str, test: impl FnOnce(&mut Host) + Send + 'static) {
    on_a_host(name, move |host| {
        own_folder("/dev");
        let kind = LinkKind::Veth {
            peer_name: "eth1",
            peer_ns: None,
        };
        host.socket.create_link(&LinkSpec::new("eth0", kind)).unwrap();
        for name in ["eth0", "eth1"] {
            let link = host.link(name).unwrap();
            host.socket.set_up(&link).unwrap();
        }
        match make(host, "mvt") {
            Err(error) if error.is_unsupported() => println!("skipped: {name}: {error}"),
            made => {
                made.unwrap();
                host.socket.delete_link_by_name("mvt").unwrap();
                test(host);
            }
        }
    });
}

fn own_folder(path: &str) {
    mount("tmpfs", path, "tmpfs", MountFlags::empty(), None).unwrap();
}

fn make(host: &mut Host, name: &str) -> linux::Result<()> {
    let kind = LinkKind::MacVtap {
        mode: MacVlanMode::Bridge,
    };
    let spec = LinkSpec {
        parent: Some(host.link("eth0").unwrap().index),
        ..LinkSpec::new(name, kind)
    };
    host.socket.create_link(&spec)
}

/// Allocates a device as the device plugin does: an old link is deleted, the new one is up.
fn allocate(host: &mut Host, device: &str) -> Link {
    let name = link_name(device);
    if host.link(&name).is_some() {
        host.socket.delete_link_by_name(&name).unwrap();
    }
    make(host, &name).unwrap();
    let link = host.link(&name).unwrap();
    host.socket.set_up(&link).unwrap();
    link
}

/// The device, the user and the group of the node of a link.
fn node(index: u32) -> Option<(DeviceNumber, u32, u32)> {
    let found = fs::symlink_metadata(format!("/dev/tap{index}")).ok()?;
    assert!(found.file_type().is_char_device());
    let number = DeviceNumber {
        major: major(found.rdev()),
        minor: minor(found.rdev()),
    };
    Some((number, found.uid(), found.gid()))
}

fn is_detached(host: &Host, pod: &Pod) {
    let name = link_name(DEVICE);
    assert!(pod.link("net1").is_none() && pod.link(&name).is_none());
    assert!(host.records().is_empty(), "{:?}", host.records());
    assert_eq!(fs::read_dir("/dev").unwrap().count(), 0);
}

// cni-plugins#70 (auto MAC, DEL twice)
#[test]
fn macvtap_moves_to_the_pod_and_is_deleted_with_the_attachment() {
    with_macvtap("macvtap", |host| {
        for version in VERSIONS.into_iter().filter(|version| *version >= "0.3.0") {
            let pod = host.pod();
            let device = allocate(host, DEVICE);
            let config = macvtap(version);
            let result = host.add(&pod, &config);
            let link = pod.net1();
            assert!(link.is_up() && link.is_kind("macvtap"));
            assert_eq!((link.index, link.mac), (device.index, device.mac));
            assert!(host.link(&device.name).is_none());
            let mut interface =
                json!({ "name": "net1", "mac": link.mac.unwrap().to_string(), "sandbox": pod.path });
            if version == "1.1.0" {
                interface["mtu"] = 1500.into();
            }
            assert_eq!(
                (&result["cniVersion"], &result["interfaces"]),
                (&json!(version), &json!([interface]))
            );
            let number = pod.ns.run(|| macvtap_device(link.index)).unwrap().unwrap();
            assert_eq!(node(link.index), Some((number, 107, 107)));
            if version >= "0.4.0" {
                host.check(&pod, &config, &result).success();
            }
            host.del(&pod, &config);
            is_detached(host, &pod);
            host.del(&pod, &config);
        }
        let pod = host.pod();
        allocate(host, DEVICE);
        let refused = host.call("ADD", &pod, &macvtap("0.2.0")).message();
        assert_eq!(refused, "cannot convert: no valid IP addresses");
        is_detached(host, &pod);
    });
}

// cni-plugins#70 (MAC argument, mtu, promisc, owner and group)
#[test]
fn macvtap_has_configured_properties() {
    with_macvtap("keys of macvtap", |host| {
        let pod = host.pod();
        let device = allocate(host, DEVICE);
        let mut config = macvtap("1.1.0");
        let keys = json!({
            "mtu": 1400, "promiscMode": true, "owner": 1000, "group": 0,
            "ipam": { "type": "none-of-ours" }, "dns": { "domain": "example" }
        });
        for (key, value) in keys.as_object().unwrap() {
            config[key] = value.clone();
        }
        let arguments = "IgnoreUnknown=1;K8S_POD_NAME=p;MAC=02:00:00:00:00:0a";
        let result = host.call_with("ADD", &pod, "net1", arguments, &config).success();
        let link = pod.net1();
        assert!(link.is_promiscuous());
        let mac = "02:00:00:00:00:0a";
        assert_eq!((link.mtu, link.mac.unwrap().to_string().as_str()), (1400, mac));
        assert_eq!(result["interfaces"][0]["mac"], mac);
        assert_eq!(result["dns"], json!({ "domain": "example" }));
        let (_, user, group) = node(device.index).unwrap();
        assert_eq!((user, group), (1000, 0));
        host.check(&pod, &config, &result).success();
        // The IPAM plugin is not called for a macvtap.
        host.del(&pod, &config);
        is_detached(host, &pod);

        let own = with(&macvtap("1.0.0"), "mac", "02:00:00:00:00:0b".into());
        let both = with(&own, "runtimeConfig", json!({ "mac": "02:00:00:00:00:0c" }));
        for (config, expected) in [(own, "02:00:00:00:00:0b"), (both, "02:00:00:00:00:0c")] {
            allocate(host, DEVICE);
            let pod = host.pod();
            let result = host.add(&pod, &config);
            assert_eq!(pod.net1().mac.unwrap().to_string(), expected);
            assert_eq!(result["interfaces"][0]["mac"], expected);
            host.del(&pod, &config);
        }
        let refused = host.call_with("ADD", &pod, "net1", "MAC=x", &macvtap("1.0.0"));
        assert_eq!(
            refused.message(),
            "invalid args x for MAC addr: address x: invalid MAC address"
        );
    });
}

// cni-plugins#70 (IFNAME, longer device id, deviceID missing)
#[test]
fn device_is_found_by_its_id_of_any_length() {
    with_macvtap("device IDs of macvtap", |host| {
        let long = format!("{}Mvp99", "d".repeat(300));
        let pod = host.pod();
        let device = allocate(host, &long);
        let config = with(&macvtap("1.0.0"), "deviceID", long.into());
        host.call_with("ADD", &pod, "ifname-of-15-ch", "", &config)
            .success();
        assert_eq!(pod.link("ifname-of-15-ch").unwrap().index, device.index);
        host.call_with("DEL", &pod, "ifname-of-15-ch", "", &config)
            .success();
        assert!(pod.link("ifname-of-15-ch").is_none());

        for none in [json!(null), json!("")] {
            let refused = host.call("ADD", &pod, &with(&config, "deviceID", none));
            assert_eq!(refused.message(), "deviceID is required");
        }
        let outcome = host.call("ADD", &pod, &macvtap("1.0.0"));
        let begin = "failed to lookup device \"mvtcc7b47d9091b\": ";
        assert!(outcome.message().starts_with(begin), "{outcome:?}");
        // The sysfs of a kernel without the driver.
        own_folder("/sys");
        let outcome = host.call("ADD", &pod, &macvtap("1.0.0"));
        assert!(outcome.message().starts_with(begin), "{outcome:?}");
        let details =
            "the kernel module macvtap is not loaded: the device plugin has made no macvtap on this host";
        assert_eq!(outcome.json()["details"], details);

        let bridge = LinkKind::Bridge {
            vlan_filtering: false,
        };
        let foreign = LinkSpec::new("mvtcc7b47d9091b", bridge);
        host.socket.create_link(&foreign).unwrap();
        let refused = host.call("ADD", &pod, &macvtap("1.0.0")).message();
        assert_eq!(refused, format!("{begin}not of type macvtap"));
        assert!(host.link("mvtcc7b47d9091b").is_some());
        is_detached(host, &pod);
    });
}

#[test]
fn failed_add_leaves_nothing_and_second_add_changes_nothing() {
    with_macvtap("failures of macvtap", |host| {
        let pod = host.pod();
        allocate(host, DEVICE);
        let refused = host
            .call("ADD", &pod, &with(&macvtap("1.0.0"), "mtu", 70_000.into()))
            .message();
        let begin = "failed to set the macvtap MTU for mvtcc7b47d9091b: ";
        assert!(refused.starts_with(begin), "{refused}");
        is_detached(host, &pod);
        assert!(host.link(&link_name(DEVICE)).is_none());
        let refused = host.call("ADD", &pod, &with(&macvtap("1.0.0"), "mtu", (-1).into()));
        assert_eq!(refused.message(), "invalid MTU -1");

        let device = allocate(host, DEVICE);
        host.add(&pod, &macvtap("1.0.0"));
        let before = host.state(&pod);
        let again = host.call("ADD", &pod, &macvtap("1.0.0")).message();
        assert_eq!(again, "failed to rename macvtap to \"net1\": file exists");
        assert_eq!(host.state(&pod), before);
        assert!(node(device.index).is_some());

        // Of another network: the device stays with its pod.
        let next = allocate(host, DEVICE);
        let other = with(&macvtap("1.0.0"), "name", "other-net".into());
        let taken = host.call("ADD", &pod, &other).message();
        assert_eq!(taken, "failed to rename macvtap to \"net1\": file exists");
        assert_eq!(host.link(&next.name).unwrap().index, next.index);
        host.del(&pod, &macvtap("1.0.0"));
        is_detached(host, &pod);
    });
}

#[test]
fn device_with_another_index_in_the_pod_is_refused() {
    with_macvtap("index of macvtap", |host| {
        let pod = host.pod();
        let device = allocate(host, DEVICE);
        while pod
            .with(Socket::links)
            .iter()
            .all(|link| link.index != device.index)
        {
            let name = format!("br{}", pod.with(Socket::links).len());
            let bridge = LinkKind::Bridge {
                vlan_filtering: false,
            };
            pod.with(|socket| socket.create_link(&LinkSpec::new(&name, bridge)));
        }
        let refused = host.call("ADD", &pod, &macvtap("1.0.0")).message();
        let end = format!("the container was promised /dev/tap{}", device.index);
        assert!(
            refused.starts_with("failed to move iface mvtcc7b47d9091b: its index is ")
                && refused.ends_with(&end),
            "{refused}"
        );
        is_detached(host, &pod);
    });
}

// cni-plugins#70 (vanished netns)
#[test]
fn del_without_path_record_and_namespace_deletes_macvtap() {
    with_macvtap("ends of macvtap", |host| {
        let config = macvtap("1.1.0");
        let pod = host.pod();
        allocate(host, DEVICE);
        host.add(&pod, &config);
        let without_path = host.pod_without_path(&pod);
        host.del(&without_path, &config);
        is_detached(host, &pod);

        allocate(host, DEVICE);
        host.add(&pod, &config);
        host.lose_records_of("macvtap");
        host.del(&pod, &config);
        assert!(pod.link("net1").is_none());

        allocate(host, DEVICE);
        host.add(&pod, &config);
        pod.lose_path();
        host.del(&pod, &config);
        assert!(host.records().is_empty(), "{:?}", host.records());
    });
}

#[test]
fn stale_node_of_reused_index_keeps_its_owner() {
    with_macvtap("nodes of macvtap", |host| {
        let pod = host.pod();
        let device = allocate(host, DEVICE);
        let path = format!("/dev/tap{}", device.index);
        // `/dev/null` stands for the device of another pod.
        let wrong = makedev(1, 3);
        mknodat(CWD, &path, FileType::CharacterDevice, Mode::RUSR, wrong).unwrap();
        host.add(&pod, &macvtap("1.0.0"));
        let number = pod.ns.run(|| macvtap_device(device.index)).unwrap().unwrap();
        assert_eq!(node(device.index), Some((number, 107, 107)));
        // It has another owner now.
        fs::remove_file(&path).unwrap();
        mknodat(CWD, &path, FileType::CharacterDevice, Mode::RUSR, wrong).unwrap();
        host.del(&pod, &macvtap("1.0.0"));
        assert!(Path::new(&path).exists() && pod.link("net1").is_none());
    });
}

#[test]
fn check_detects_changes() {
    with_macvtap("CHECK of macvtap", |host| {
        let mut config = with(&macvtap("1.0.0"), "mtu", 1400.into());
        config["promiscMode"] = true.into();
        let mut after = |spoil: &dyn Fn(&Pod, &Link)| {
            let pod = host.pod();
            allocate(host, DEVICE);
            let result = host.add(&pod, &config);
            spoil(&pod, &pod.net1());
            let message = host.check(&pod, &config, &result).message();
            host.del(&pod, &config);
            message
        };
        let down = after(&|pod, link| pod.with(|socket| socket.set_down(link)));
        assert_eq!(down, "Interface net1 is down");
        let mac = after(&|pod, link| {
            pod.with(|socket| socket.set_mac(link, "02:00:00:00:00:99".parse().unwrap()));
        });
        assert_eq!(mac, "Interface net1 Mac doesn't match: 02:00:00:00:00:99");
        let mtu = after(&|pod, link| {
            let change = linux::link::LinkChange {
                mtu: Some(1300),
                ..linux::link::LinkChange::default()
            };
            pod.with(|socket| socket.change_link(link, "set MTU", &change));
        });
        assert_eq!(
            mtu,
            "Error: Tuning configured MTU of net1 is 1400, current value is 1300"
        );
        let promiscuous = after(&|pod, link| pod.with(|socket| socket.set_promiscuous(link, false)));
        assert_eq!(promiscuous, "net1 is not in promiscuous mode");
        let gone = after(&|pod, link| pod.with(|socket| socket.delete_link(link)));
        assert_eq!(gone, "Cannot find container link net1");
        let kind = after(&|pod, link| {
            pod.with(|socket| socket.delete_link(link));
            let bridge = LinkKind::Bridge {
                vlan_filtering: false,
            };
            let foreign = LinkSpec {
                mac: link.mac,
                ..LinkSpec::new("net1", bridge)
            };
            pod.with(|socket| socket.create_link(&foreign));
        });
        assert_eq!(kind, "Error: Container interface net1 not of type macvtap");
    });
}

/// A device node like the kernel's, of this age.
fn old_node(link: &Link, age: Duration) {
    let path = format!("/dev/tap{}", link.index);
    mknodat(CWD, &path, FileType::CharacterDevice, Mode::RUSR, makedev(1, 3)).unwrap();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap();
    let made = Timespec {
        tv_sec: i64::try_from(now.checked_sub(age).unwrap().as_secs()).unwrap(),
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: made,
        last_modification: made,
    };
    utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

#[test]
fn gc_removes_attachments_that_are_not_valid_and_old_links_without_a_pod() {
    with_macvtap("GC of macvtap", |host| {
        own_folder("/var/lib");
        let checkpoint = Path::new("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint");
        let note = |devices: &[&str]| {
            let entry = json!({
                "PodUID": "u", "ContainerName": "c", "AllocResp": "",
                "ResourceName": "macvtap.network.kubevirt.io/dataplane", "DeviceIDs": { "-1": devices }
            });
            let text =
                json!({ "Data": { "PodDeviceEntries": [entry], "RegisteredDevices": {} }, "Checksum": 1 });
            fs::create_dir_all(checkpoint.parent().unwrap()).unwrap();
            fs::write(checkpoint, text.to_string()).unwrap();
        };
        let config = macvtap("1.1.0");
        let (keep, lose) = (host.pod(), host.pod());
        for pod in [&keep, &lose] {
            allocate(host, DEVICE);
            host.add(pod, &config);
        }
        let (old, young, taken) = (
            allocate(host, "dataplaneMvp1"),
            allocate(host, "dataplaneMvp2"),
            allocate(host, "dataplaneMvp3"),
        );
        let long = Duration::from_secs(61);
        old_node(&old, long);
        old_node(&young, Duration::from_secs(5));
        old_node(&taken, long);
        let left = |host: &mut Host| [&old, &young, &taken].map(|link| host.link(&link.name).is_some());
        let valid = json!([{ "containerID": keep.id, "ifname": "net1" }]);
        let valid = with(&config, "cni.dev/valid-attachments", valid);
        let collect = |host: &Host, config: &Value| {
            let outcome = host.gc(config);
            assert_eq!((outcome.code, outcome.stdout.as_str()), (0, ""), "{outcome:?}");
            outcome.stderr
        };

        assert!(collect(host, &config).contains("removed nothing"));
        assert!(lose.link("net1").is_some());
        // Without kubelet's checkpoint the allocated devices are unknown.
        assert_eq!(collect(host, &valid), "");
        assert!(lose.link("net1").is_none() && keep.link("net1").is_some());
        assert_eq!(left(host), [true, true, true]);
        note(&["dataplaneMvp0", "dataplaneMvp3"]);
        fs::write(checkpoint, "{").unwrap();
        let said = collect(host, &valid);
        assert!(said.contains("removed no macvtap without a pod"), "{said}");
        assert_eq!(left(host), [true, true, true]);
        note(&["dataplaneMvp0", "dataplaneMvp3"]);
        assert_eq!(collect(host, &valid), "");
        assert_eq!(left(host), [false, true, true]);
        assert!(keep.link("net1").is_some());
    });
}

#[test]
fn del_after_killed_add_removes_everything() {
    with_macvtap("killed calls of macvtap", |host| {
        let (pod, config) = (host.pod(), macvtap("1.0.0"));
        allocate(host, DEVICE);
        let began = Instant::now();
        host.add(&pod, &config);
        let adding = began.elapsed();
        host.del(&pod, &config);
        let mut dice = Dice::new();
        for round in 0..ROUNDS {
            allocate(host, DEVICE);
            if round % 2 == 0 {
                host.call_and_kill("ADD", &pod, &config, dice.part_of(adding));
            } else {
                host.add(&pod, &config);
                host.call_and_kill("DEL", &pod, &config, dice.part_of(adding));
            }
            host.del(&pod, &config);
            is_detached(host, &pod);
        }
    });
}

#[test]
fn status_succeeds_without_a_device() {
    on_a_host("STATUS of macvtap", |host| {
        let variables = [("CNI_COMMAND", "STATUS"), ("CNI_PATH", PLUGINS)];
        let config = json!({ "cniVersion": "1.1.0", "name": "test-net", "type": "macvtap" });
        assert_eq!(host.run("macvtap", &variables, &config.to_string()).code, 0);
    });
}

//! Allocated devices: links and their nodes.

use crate::kubelet::Kubelet;
use crate::node::{Node, names};
use linux::link::{KindState, LinkChange, LinkKind, LinkSpec, MacVlanMode};
use linux::tap::macvtap_device;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, major, makedev, minor, mknodat, utimensat,
};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const PRIVATE: &str = r#"[{"name": "dataplane", "lowerDevice": "lower", "mode": "private"}]"#;
/// The links of `dataplaneMvp0`, of a device without a pod, and of one whose allocation kubelet may not have recorded yet.
const LINK: &str = "mvtcc7b47d9091b";
const ABANDONED: &str = "mvt20074e9ae08d";
const YOUNG: &str = "mvt0123456789ab";

#[test]
fn allocated_device_is_a_macvtap_with_a_node() {
    // cni-plugins#66, cni-plugins#68 (the mode)
    Node::run("allocation", async |mut node| {
        let lower = node.lower("lower");
        let queue = LinkChange {
            tx_queue_len: Some(1234),
            ..LinkChange::default()
        };
        node.socket.change_link(&lower, "set queue", &queue).unwrap();
        let mut kubelet = Kubelet::start(&node.kubelet_dir());
        let plugin = node.plugin(PRIVATE);
        kubelet.registered().await;
        let mut indexes = Vec::new();
        // The second allocation creates the link again.
        for _ in 0..2 {
            let allocated = kubelet.allocate("dataplane", &["dataplaneMvp0"]).await.unwrap();
            let link = node.socket.link_by_name(LINK).unwrap();
            assert!(link.is_kind("macvtap") && link.is_up(), "{link:?}");
            assert_eq!(link.kind_state, KindState::MacVlan(MacVlanMode::Private));
            assert_eq!((link.peer, link.tx_queue_len), (Some(lower.index), 1234));
            let [container] = allocated.containers.as_slice() else {
                panic!("{allocated:?}")
            };
            let [device] = container.devices.as_slice() else {
                panic!("{allocated:?}")
            };
            let path = format!("/dev/tap{}", link.index);
            assert_eq!((&device.host_path, &device.container_path), (&path, &path));
            assert_eq!(device.permissions, "rw");
            // The directory is no devtmpfs, so the plugin created the node.
            let made = std::fs::metadata(node.device_dir().join(&path["/dev/".len()..])).unwrap();
            let number = macvtap_device(link.index).unwrap();
            assert_eq!(
                (major(made.rdev()), minor(made.rdev())),
                (number.major, number.minor)
            );
            indexes.push(link.index);
        }
        assert_ne!(indexes[0], indexes[1]);
        plugin.stop().await;
    });
}

#[test]
fn failed_allocation_leaves_no_link() {
    Node::run("failed allocation", async |mut node| {
        let mut kubelet = Kubelet::start(&node.kubelet_dir());
        let plugin = node.plugin(PRIVATE);
        kubelet.registered().await;
        let absent = kubelet
            .allocate("dataplane", &["dataplaneMvp0"])
            .await
            .unwrap_err();
        let text = absent.to_string();
        assert!(
            text.contains("failed to lookup lowerDevice \"lower\": "),
            "{text}"
        );
        node.lower("lower");
        // The directory accepts no device nodes.
        std::fs::remove_dir(node.device_dir()).unwrap();
        let failed = kubelet
            .allocate("dataplane", &["dataplaneMvp0"])
            .await
            .unwrap_err();
        let text = failed.to_string();
        assert!(
            text.contains("failed to create macvtap: cannot create its device "),
            "{text}"
        );
        assert_eq!(node.socket.find_link(LINK).unwrap(), None);
        std::fs::create_dir(node.device_dir()).unwrap();
        kubelet.allocate("dataplane", &["dataplaneMvp0"]).await.unwrap();
        assert_eq!(names(&node.device_dir()).len(), 1);
        plugin.stop().await;
    });
}

/// Makes a device node of this age.
fn make_node(path: &Path, age: Duration) {
    mknodat(CWD, path, FileType::CharacterDevice, Mode::RUSR, makedev(1, 3)).unwrap();
    let made = (SystemTime::now() - age).duration_since(UNIX_EPOCH).unwrap();
    let made = Timespec {
        tv_sec: made.as_secs().try_into().unwrap(),
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: made,
        last_modification: made,
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

#[test]
fn start_deletes_macvtaps_without_a_pod() {
    Node::run("sweep", async |mut node| {
        let lower = node.lower("lower");
        for name in [LINK, ABANDONED, YOUNG, "macvtap0"] {
            let kind = LinkKind::MacVtap {
                mode: MacVlanMode::Bridge,
            };
            let spec = LinkSpec {
                parent: Some(lower.index),
                ..LinkSpec::new(name, kind)
            };
            node.socket.create_link(&spec).unwrap();
            let index = node.socket.link_by_name(name).unwrap().index;
            make_node(
                &node.device_dir().join(format!("tap{index}")),
                Duration::from_secs(if name == YOUNG { 0 } else { 90 }),
            );
        }
        let checkpoint = node.kubelet_dir().join("kubelet_internal_checkpoint");
        let mut kept = Vec::new();
        for text in [
            "broken",
            r#"{"Data": {"PodDeviceEntries": [{"PodUID": "u", "ContainerName": "c",
                "ResourceName": "macvtap.network.kubevirt.io/dataplane", "DeviceIDs": {"-1": ["dataplaneMvp0"]}}]}}"#,
        ] {
            std::fs::write(&checkpoint, text).unwrap();
            let mut kubelet = Kubelet::start(&node.kubelet_dir());
            let plugin = node.plugin(PRIVATE);
            kubelet.registered().await;
            plugin.stop().await;
            let found = [LINK, ABANDONED, YOUNG, "macvtap0"]
                .map(|name| node.socket.find_link(name).unwrap().is_some());
            kept.push(found);
        }
        assert_eq!(kept, [[true; 4], [true, false, true, true]]);
    });
}

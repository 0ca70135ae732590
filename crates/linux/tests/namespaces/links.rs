//! Links, ports and namespaces.

use std::{os::fd::AsFd as _, panic::AssertUnwindSafe, process::Command};

use linux::{
    Feature,
    link::{BridgeSpec, LinkChange, Mac, OperState, VethSpec, delete_link_and_leave},
    netns::NetNs,
    port::PortChange,
    route::Socket,
};

use crate::support::{alone, bridge, neighbourhood};

#[test]
fn veth_pair_spans_namespaces_with_one_queue_on_each_end() {
    alone("a veth pair", || {
        let home = NetNs::current().unwrap();
        let pod = NetNs::create_anonymous().unwrap();
        assert!(!pod.same_as(&home));
        let mut inside = pod.run(Socket::open).unwrap().unwrap();
        let mut here = Socket::open().unwrap();
        let mac: Mac = "02:00:00:00:00:07".parse().unwrap();
        let spec = VethSpec {
            name: "net1.100",
            mac: Some(mac),
            mtu: Some(1400),
            peer_name: "veth01234567",
            peer_ns: Some(home.as_fd()),
        };
        inside.create_veth(&spec).unwrap();

        let inner = inside.link_by_name("net1.100").unwrap();
        let outer = here.link_by_name("veth01234567").unwrap();
        assert_eq!((inner.mac, inner.mtu, outer.mtu), (Some(mac), 1400, 1400));
        assert_eq!((inner.queues, outer.queues), ((1, 1), (1, 1)));
        assert_eq!(inner.peer, Some(outer.index), "{inner:?}");
        assert!(inner.is_kind("veth") && outer.is_kind("veth"));
        assert!(!inner.is_up() && !outer.is_up());
        assert_eq!(
            here.find_link("net1.100").unwrap(),
            None,
            "the inner end is in the other namespace"
        );

        let again = inside.create_veth(&spec).unwrap_err();
        assert!(again.is_exists(), "{again}");
        assert!(
            again
                .to_string()
                .starts_with("create veth \"net1.100\": file exists"),
            "{again}"
        );

        inside.delete_link_by_name("net1.100").unwrap();
        assert_eq!(
            here.find_link("veth01234567").unwrap(),
            None,
            "the other end is removed too"
        );
        assert!(inside.delete_link_by_name("net1.100").unwrap_err().is_not_found());
    });
}

#[test]
fn thread_returns_from_a_namespace_after_a_panic() {
    alone("a visit that panics", || {
        let home = NetNs::current().unwrap();
        let away = NetNs::create_anonymous().unwrap();
        let visit = std::panic::catch_unwind(AssertUnwindSafe(|| {
            away.run(|| {
                assert!(NetNs::current().unwrap().same_as(&away));
                panic!("on purpose");
            })
        }));
        assert!(visit.is_err());
        assert!(NetNs::current().unwrap().same_as(&home));
    });
}

#[test]
fn port_flags_are_set() {
    alone("bridge ports", || {
        let mut here = Socket::open().unwrap();
        let br = bridge(&mut here, "br0");
        assert!(br.bridge.is_some() && br.is_up());
        let pod = neighbourhood(&mut here, "vethport");
        here.set_master(&pod.outer, br.index).unwrap();
        for (hairpin, isolated) in [(true, false), (false, true)] {
            let change = PortChange {
                hairpin: Some(hairpin),
                isolated: Some(isolated),
            };
            here.change_port(&pod.outer, "set port flags of", change).unwrap();
            let port = here.link_by_index(pod.outer.index).unwrap();
            let state = port.port.unwrap();
            assert_eq!((state.hairpin, state.isolated), (hairpin, Some(isolated)));
            assert_eq!(port.master, Some(br.index));
        }
        here.set_master(&pod.outer, 0).unwrap();
        let free = here.link_by_index(pod.outer.index).unwrap();
        assert_eq!((free.master, free.port), (None, None));
    });
}

#[test]
fn change_link_applies_all_changes() {
    alone("link changes", || {
        let mut here = Socket::open().unwrap();
        let br = bridge(&mut here, "br0");
        let mac: Mac = "02:00:00:00:00:11".parse().unwrap();
        let change = LinkChange {
            mac: Some(mac),
            mtu: Some(1300),
            promiscuous: Some(true),
            all_multicast: Some(true),
            tx_queue_len: Some(77),
            ..LinkChange::default()
        };
        here.change_link(&br, "change link", &change).unwrap();
        let br = here.link_by_name("br0").unwrap();
        assert_eq!(
            (br.mac, br.mtu, br.tx_queue_len, br.promiscuity),
            (Some(mac), 1300, 77, 1)
        );
        assert!(br.is_promiscuous() && br.is_all_multicast() && br.is_up());
        here.set_promiscuous(&br, false).unwrap();
        here.set_down(&br).unwrap();
        let br = here.link_by_name("br0").unwrap();
        assert!(!br.is_promiscuous() && br.is_all_multicast() && !br.is_up());
        let names: Vec<_> = here.links().unwrap().into_iter().map(|link| link.name).collect();
        assert!(
            names.contains(&"lo".to_owned()) && names.contains(&"br0".to_owned()),
            "{names:?}"
        );
    });
}

#[test]
fn bridge_with_vlans_is_created_or_names_the_missing_feature() {
    alone("VLAN filtering", || {
        let mut here = Socket::open().unwrap();
        match here.create_bridge(&BridgeSpec {
            name: "br0",
            mtu: None,
            mac: None,
            vlan_filtering: true,
        }) {
            Ok(()) => {
                let state = here.link_by_name("br0").unwrap().bridge.unwrap();
                assert!(state.vlan_filtering);
                assert_eq!(state.default_vlan, Some(1));
            }
            Err(error) => {
                assert_eq!(
                    error.missing_feature(),
                    Some(Feature::BridgeVlanFiltering),
                    "{error}"
                );
                assert_eq!(here.find_link("br0").unwrap(), None);
            }
        }
    });
}

#[test]
fn kind_without_a_driver_differs_from_a_kind_that_needs_settings() {
    alone("kinds of links", || {
        let mut here = Socket::open().unwrap();
        here.create_bare("br0", "bridge", "CONFIG_BRIDGE").unwrap();
        assert!(here.link_by_name("br0").unwrap().is_kind("bridge"));
        let bare = here
            .create_bare("macvlan0", "macvlan", "CONFIG_MACVLAN")
            .unwrap_err();
        assert!(!bare.is_unsupported(), "{bare}");
        let none = here.create_bare("none0", "weft-none", "CONFIG_NONE").unwrap_err();
        assert_eq!(
            none.missing_feature(),
            Some(Feature::Driver("CONFIG_NONE")),
            "{none}"
        );
    });
}

#[test]
fn error_contains_the_kernels_message() {
    alone("extended acknowledgements", || {
        let mut here = Socket::open().unwrap();
        let br = bridge(&mut here, "br0");
        let giant = LinkChange {
            mtu: Some(1 << 20),
            ..LinkChange::default()
        };
        let error = here.change_link(&br, "set MTU of link", &giant).unwrap_err();
        assert_eq!(
            error.to_string(),
            "set MTU of link \"br0\": invalid argument: mtu greater than device maximum"
        );
        let error = here.link_by_name("nothere").unwrap_err();
        assert!(error.is_not_found());
        assert_eq!(error.to_string(), "look up link \"nothere\": no such device");
    });
}

#[test]
fn operstate_is_down_until_both_ends_are_up() {
    alone("operational state", || {
        let mut here = Socket::open().unwrap();
        let mut pod = neighbourhood(&mut here, "vethstate");
        here.set_up(&pod.outer).unwrap();
        let state = here.link_by_index(pod.outer.index).unwrap().operstate;
        assert_ne!(state, OperState::Up);
        pod.inside.set_up(&pod.inner).unwrap();
        let deadline = crate::support::far_deadline();
        let link = linux::monitor::wait_operstate_up(&mut here, &pod.outer, deadline).unwrap();
        assert_eq!(link.operstate, OperState::Up);
    });
}

#[test]
fn thread_enters_another_root_and_returns() {
    use std::path::Path;
    let here = || (std::env::current_dir().unwrap(), Path::new("/usr").exists());
    let usr = Path::new("/usr");
    alone("another root", move || {
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let left = linux::process::with_root(usr, || {
            assert_eq!(here(), (Path::new("/").to_owned(), false));
            assert!(Path::new("/bin").is_dir());
            std::thread::spawn(move || {
                wait.recv().unwrap();
                here()
            })
        });
        assert!(
            here().1 && here().0 != Path::new("/"),
            "back in the directory of the test"
        );
        go_on.send(()).unwrap();
        let stayed = left.unwrap().join().unwrap();
        assert_eq!(
            stayed,
            (Path::new("/").to_owned(), false),
            "its thread keeps the root"
        );
        let panicked = std::panic::catch_unwind(|| linux::process::with_root(usr, || panic!("on purpose")));
        assert!(panicked.is_err() && here().1, "back after a panic");
        let error = linux::process::with_root(Path::new("/no/root"), || ()).unwrap_err();
        assert!(error.to_string().contains("/no/root") && here().1, "{error}");
    });
    assert!(here().1);
    alone("no root", || {
        let pwd = linux::process::with_root(Path::new("/"), || Command::new("/bin/pwd").output().unwrap());
        assert_eq!(pwd.unwrap().stdout, b"/\n");
    });
}

/// A spared thread that cannot return ends, and so does the work of code that catches its panic and checks.
#[test]
fn thread_that_cannot_return_is_lost() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    alone("a thread that cannot return", || {
        linux::thread::spare_this_thread();
        let caught = std::panic::catch_unwind(|| {
            linux::process::with_root(std::path::Path::new("/usr"), || {
                let mut sets = capabilities(None).unwrap();
                sets.effective.remove(CapabilitySet::SYS_CHROOT);
                set_capabilities(None, sets).unwrap();
            })
        });
        assert!(caught.is_err());
        assert!(linux::thread::is_lost());
    });
}

#[test]
fn name_with_a_zero_byte_is_refused() {
    alone("a zero byte", || {
        let mut socket = Socket::open().unwrap();
        for name in ["lo\0x", "\0"] {
            let error = socket.find_link(name).unwrap_err();
            assert!(error.to_string().ends_with("a zero byte in the name"), "{error}");
            let spec = BridgeSpec {
                name,
                mac: None,
                mtu: None,
                vlan_filtering: false,
            };
            socket.create_bridge(&spec).unwrap_err();
            socket.delete_link_by_name(name).unwrap_err();
        }
    });
}

#[test]
fn cookies_of_namespaces_differ() {
    alone("numbers of namespaces", || {
        let namespaces = [(); 3].map(|()| NetNs::create_anonymous().unwrap());
        let numbers = namespaces.each_ref().map(|ns| ns.cookie().unwrap());
        assert_eq!(numbers, namespaces.each_ref().map(|ns| ns.cookie().unwrap()));
        drop(namespaces);
        let later = NetNs::create_anonymous().unwrap().cookie().unwrap();
        assert!(!numbers.contains(&later), "{numbers:?} {later}");
        assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2]);
    });
}

#[test]
fn removed_link_is_invisible_before_the_kernel_frees_it() {
    alone("a link that is removed in the background", || {
        let home = NetNs::current().unwrap();
        let mut here = Socket::open().unwrap();
        let bridge = bridge(&mut here, "br0");
        for _ in 0..5 {
            let mut pod = neighbourhood(&mut here, "veth0");
            here.set_master(&pod.outer, bridge.index).unwrap();
            delete_link_and_leave("veth0").unwrap();
            assert_eq!(here.find_link("veth0").unwrap(), None);
            assert_eq!(pod.inside.find_link("eth0").unwrap(), None);
            // The name is free in both namespaces.
            let again = VethSpec {
                name: "eth0",
                mac: None,
                mtu: None,
                peer_name: "veth0",
                peer_ns: Some(home.as_fd()),
            };
            pod.inside.create_veth(&again).unwrap();
            pod.ns.run(|| delete_link_and_leave("eth0").unwrap()).unwrap();
            assert_eq!(here.find_link("veth0").unwrap(), None);
        }
        let missing = delete_link_and_leave("veth0").unwrap_err();
        assert!(missing.is_not_found(), "{missing}");
    });
}

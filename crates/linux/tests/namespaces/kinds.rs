//! Links of all kinds.

use std::{net::IpAddr, os::fd::AsFd as _};

use linux::{
    link::{IpVlanMode, IpVlanSharing, KindState, LinkChange, LinkKind, LinkSpec, MacVlanMode, Vxlan},
    netns::NetNs,
    route::Socket,
};

use crate::support::{alone, neighbourhood};

/// Each kind of link, with the kernel's report.
fn kinds() -> [(&'static str, LinkKind<'static>, KindState); 8] {
    let vxlan = Vxlan {
        id: 77,
        port: 4789,
        local: Some(IpAddr::from([192, 0, 2, 1])),
        learning: false,
    };
    [
        (
            "macvlan",
            LinkKind::MacVlan {
                mode: MacVlanMode::Private,
                broadcast_queue: Some(100),
            },
            KindState::MacVlan(MacVlanMode::Private),
        ),
        (
            "macvtap",
            LinkKind::MacVtap {
                mode: MacVlanMode::Vepa,
            },
            KindState::MacVlan(MacVlanMode::Vepa),
        ),
        (
            "ipvlan",
            LinkKind::IpVlan {
                mode: IpVlanMode::L3s,
                sharing: IpVlanSharing::Private,
            },
            KindState::IpVlan(IpVlanMode::L3s),
        ),
        ("vlan", LinkKind::Vlan { id: 100 }, KindState::Vlan(100)),
        ("dummy", LinkKind::Dummy, KindState::None),
        ("vrf", LinkKind::Vrf { table: 1000 }, KindState::Vrf(1000)),
        ("vxlan", LinkKind::Vxlan(vxlan), KindState::Vxlan(vxlan)),
        (
            "bridge",
            LinkKind::Bridge {
                vlan_filtering: false,
            },
            KindState::None,
        ),
    ]
}

/// A kernel may lack drivers. The kernel of the virtual machine has all drivers, and the tests of the plugins run
/// there.
#[test]
fn link_of_each_kind_is_created_in_another_namespace_or_its_feature_is_missing() {
    alone("kinds of links", || {
        let mut here = Socket::open().unwrap();
        // The parent lives as long as this namespace.
        let neighbour = neighbourhood(&mut here, "parent");
        let parent = &neighbour.outer;
        here.set_up(parent).unwrap();
        for (name, kind, state) in kinds() {
            let away = NetNs::create_anonymous().unwrap();
            let mut there = away.run(Socket::open).unwrap().unwrap();
            let spec = LinkSpec {
                // A dummy, a VRF and a bridge have no parent.
                parent: (!matches!(name, "dummy" | "vrf" | "bridge")).then_some(parent.index),
                namespace: Some(away.as_fd()),
                mtu: Some(1400),
                ..LinkSpec::new("new0", kind)
            };
            match here.create_link(&spec) {
                Ok(()) => {
                    let link = there.link_by_name("new0").unwrap();
                    assert!(link.is_kind(name) && !link.is_up(), "{link:?}");
                    assert_eq!((link.kind_state, link.mtu), (state, 1400), "{link:?}");
                    assert_eq!(here.find_link("new0").unwrap(), None);
                    let again = there.create_link(&LinkSpec::new(
                        "new0",
                        LinkKind::Bridge {
                            vlan_filtering: false,
                        },
                    ));
                    assert!(again.unwrap_err().is_exists());
                }
                Err(error) => assert!(error.is_unsupported(), "{name}: {error}"),
            }
        }
    });
}

#[test]
fn link_is_moved_and_renamed_in_one_step() {
    alone("moving links", || {
        let home = NetNs::current().unwrap();
        let mut here = Socket::open().unwrap();
        // The device lives as long as this namespace.
        let neighbour = neighbourhood(&mut here, "device");
        let device = &neighbour.outer;
        let away = NetNs::create_anonymous().unwrap();
        let mut there = away.run(Socket::open).unwrap().unwrap();
        here.set_up(device).unwrap();
        let alias = LinkChange {
            alias: Some("device"),
            ..LinkChange::default()
        };
        here.change_link(device, "set alias of link", &alias).unwrap();
        here.move_link(device, away.as_fd(), "net1").unwrap();
        assert_eq!(here.find_link("device").unwrap(), None);
        let moved = there.link_by_name("net1").unwrap();
        assert_eq!(moved.alias.as_deref(), Some("device"));
        assert!(!moved.is_up());

        // Both the new and the old name are taken there, so the link stays.
        let other = neighbourhood(&mut here, "net1");
        let second = &other.outer;
        let taken = here.move_link(second, away.as_fd(), "net1").unwrap_err();
        assert!(taken.is_exists(), "{taken}");
        assert_eq!(here.link_by_name("net1").unwrap().index, second.index);

        let unnamed = LinkChange {
            alias: Some(""),
            ..LinkChange::default()
        };
        there.change_link(&moved, "set alias of link", &unnamed).unwrap();
        there.move_link(&moved, home.as_fd(), "device").unwrap();
        let back = here.link_by_name("device").unwrap();
        assert_eq!(back.alias, None);
        assert!(back.is_kind("veth"));
    });
}

use proptest::prelude::*;

use super::*;
use crate::desired::{Masquerade, Peers};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn mac(last: u8) -> Mac {
    Mac([0x0a, 0x57, 192, 0, 2, last])
}

const VXLAN: Vxlan = Vxlan {
    id: 7765,
    port: 4789,
    local: None,
    learning: false,
};

fn tunnel() -> Tunnel {
    Tunnel {
        vxlan: VXLAN,
        mac: mac(1),
        mtu: 1450,
        addresses: [net("10.1.0.0/32")].into(),
        neighbours: [(ip("10.1.2.0"), mac(9))].into(),
        hosts: [(mac(9), ip("198.51.100.9"))].into(),
    }
}

fn direct() -> Hop {
    Hop::Direct {
        gateway: ip("192.0.2.2"),
        link: 2,
    }
}

fn through() -> Hop {
    Hop::Tunnel {
        gateway: ip("10.1.2.0"),
    }
}

fn desired(routes: &[(&str, Hop)], tunnel: Option<Tunnel>) -> Desired {
    Desired {
        routes: routes.iter().map(|(range, hop)| (net(range), *hop)).collect(),
        tunnel,
        unreachable: BTreeSet::new(),
        masquerade: Masquerade::default(),
        mtu: None,
        links: BTreeSet::new(),
        problems: BTreeSet::new(),
        peers: Peers::default(),
    }
}

fn both() -> Desired {
    desired(
        &[("10.1.1.0/24", direct()), ("10.1.2.0/24", through())],
        Some(tunnel()),
    )
}

/// Applies a change as the kernel does.
fn apply(observed: &mut Observed, change: &Change) {
    let on_tunnel = |observed: &Observed| observed.tunnel.as_ref().unwrap().index;
    let route = |observed: &Observed, range: &IpNet, hop: &Hop| {
        let (gateway, link) = match hop {
            Hop::Direct { gateway, link } => (*gateway, *link),
            Hop::Tunnel { gateway } => (*gateway, on_tunnel(observed)),
        };
        Route {
            gateway: Some(gateway),
            link: Some(link),
            protocol: Some(ROUTE_PROTOCOL),
            priority: range.addr().is_ipv6().then_some(1024),
            ..Route::to(*range)
        }
    };
    match change {
        Change::DeleteRoute(gone) => {
            let at = observed
                .routes
                .iter()
                .position(|route| route == gone)
                .expect("the route exists");
            observed.routes.remove(at);
        }
        Change::DeleteTunnel => {
            let index = on_tunnel(observed);
            observed.routes.retain(|route| route.link != Some(index));
            observed.tunnel = None;
        }
        Change::CreateTunnel { vxlan, mac, mtu } => {
            assert_eq!(observed.tunnel, None);
            observed.tunnel = Some(ObservedTunnel {
                index: 77,
                vxlan: Some(*vxlan),
                mac: Some(*mac),
                mtu: *mtu,
                is_up: false,
                addresses: BTreeSet::new(),
                neighbours: BTreeMap::new(),
                hosts: BTreeSet::new(),
            });
        }
        Change::AddRoute(range, hop) => {
            assert!(
                !observed.routes.iter().any(|route| route.dst == *range),
                "{range}"
            );
            observed.routes.push(route(observed, range, hop));
        }
        Change::ReplaceRoute(range, hop) => {
            let new = route(observed, range, hop);
            let old = observed
                .routes
                .iter_mut()
                .find(|route| route.dst == *range)
                .expect("the route exists");
            assert_eq!(
                old.protocol,
                Some(ROUTE_PROTOCOL),
                "an administrator's route is replaced"
            );
            *old = new;
        }
        change => {
            let tunnel = observed.tunnel.as_mut().expect("the tunnel");
            match change {
                Change::SetTunnel { mtu } => (tunnel.mtu, tunnel.is_up) = (*mtu, true),
                Change::AddAddress(net) => assert!(tunnel.addresses.insert(*net)),
                Change::DeleteAddress(net) => assert!(tunnel.addresses.remove(net)),
                Change::SetHost(entry) => {
                    tunnel.hosts.retain(|(mac, _)| *mac != entry.mac);
                    tunnel.hosts.insert((entry.mac, entry.host));
                }
                Change::DeleteHost(entry) => assert!(tunnel.hosts.remove(&(entry.mac, entry.host))),
                Change::SetNeighbour(ip, mac) => drop(tunnel.neighbours.insert(*ip, *mac)),
                Change::DeleteNeighbour(ip) => assert!(tunnel.neighbours.remove(ip).is_some()),
                other => panic!("{other:?}"),
            }
        }
    }
}

fn settle(desired: &Desired, observed: &mut Observed) -> Vec<String> {
    let (changes, _) = difference(desired, observed);
    for change in &changes {
        apply(observed, change);
    }
    changes.iter().map(ToString::to_string).collect()
}

#[test]
fn empty_host_gets_all_changes_in_order_and_then_none() {
    let mut observed = Observed::default();
    assert_eq!(
        settle(&both(), &mut observed),
        [
            "create weft.vxlan, id 7765 port 4789",
            "set weft.vxlan up with MTU 1450",
            "add address 10.1.0.0/32",
            "set 0a:57:c0:00:02:09 at 198.51.100.9",
            "set neighbour 10.1.2.0 to 0a:57:c0:00:02:09",
            "add route 10.1.1.0/24 via 192.0.2.2",
            "add route 10.1.2.0/24 via 10.1.2.0 through weft.vxlan",
        ]
    );
    assert!(settle(&both(), &mut observed).is_empty());
}

#[test]
fn removed_node_loses_its_routes_and_the_last_one_the_tunnel() {
    let mut observed = Observed::default();
    settle(&both(), &mut observed);
    let mut two = both();
    two.routes.insert(net("10.1.3.0/24"), direct());
    settle(&two, &mut observed);
    assert_eq!(
        settle(&both(), &mut observed),
        ["remove route 10.1.3.0/24 via 192.0.2.2"]
    );
    assert_eq!(
        settle(&desired(&[], None), &mut observed),
        [
            "remove route 10.1.1.0/24 via 192.0.2.2",
            "remove route 10.1.2.0/24 via 10.1.2.0",
            "remove weft.vxlan"
        ]
    );
    assert_eq!(observed, Observed::default());
}

#[test]
fn moved_route_is_replaced_without_a_gap() {
    let mut observed = Observed::default();
    settle(&both(), &mut observed);
    let elsewhere = Hop::Direct {
        gateway: ip("192.0.2.7"),
        link: 2,
    };
    let moved = desired(
        &[("10.1.1.0/24", elsewhere), ("10.1.2.0/24", through())],
        Some(tunnel()),
    );
    assert_eq!(
        settle(&moved, &mut observed),
        ["replace route 10.1.1.0/24 via 192.0.2.7"]
    );
}

#[test]
fn routes_of_others_stay_and_are_reported() {
    let theirs = |dst: &str, protocol| Route {
        gateway: Some(ip("192.0.2.99")),
        link: Some(2),
        protocol: Some(protocol),
        ..Route::to(net(dst))
    };
    let metric = Route {
        priority: Some(50),
        ..theirs("10.1.4.0/24", 4)
    };
    let mut observed = Observed {
        routes: vec![theirs("10.1.1.0/24", 4), theirs("10.1.3.0/24", 3), metric],
        unreachable: Vec::new(),
        tunnel: None,
    };
    let before = observed.routes.clone();
    let wanted = desired(&[("10.1.1.0/24", direct())], None);
    let (changes, problems) = difference(&wanted, &observed);
    assert!(changes.is_empty(), "{changes:?}");
    let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        ["another program's route leads to the pod range 10.1.1.0/24: no route of Weft for it"]
    );
    // A route with another metric coexists with ours.
    let (changes, problems) = difference(&desired(&[("10.1.4.0/24", direct())], None), &observed);
    assert!(changes.len() == 1 && problems.is_empty(), "{changes:?}");
    settle(&desired(&[], None), &mut observed);
    assert_eq!(observed.routes, before);
}

#[test]
fn foreign_route_that_refuses_packets_prevents_ours_and_is_reported() {
    let blackhole = |dst: &str, priority| Route {
        unreachable: true,
        protocol: Some(3),
        priority,
        ..Route::to(net(dst))
    };
    let ours = Route {
        protocol: Some(ROUTE_PROTOCOL),
        priority: Some(LAST_PRIORITY),
        ..blackhole("10.1.4.0/24", None)
    };
    let observed = Observed {
        unreachable: vec![
            blackhole("10.1.1.0/24", None),
            blackhole("10.1.3.0/24", Some(50)),
            blackhole("fd00:1:0:1::/64", Some(1024)),
            ours,
        ],
        ..Observed::default()
    };
    let ranges = ["10.1.1.0/24", "10.1.3.0/24", "10.1.4.0/24", "fd00:1:0:1::/64"];
    let (changes, problems) = difference(&desired(&ranges.map(|range| (range, direct())), None), &observed);
    let prevented =
        ["10.1.1.0/24", "fd00:1:0:1::/64"].map(|range| Problem::ForeignRoute { range: net(range) });
    assert_eq!(problems, prevented.into());
    let added = ["10.1.3.0/24", "10.1.4.0/24"].map(|range| Change::AddRoute(net(range), direct()));
    assert_eq!(changes, [&added[..], &[Change::DeleteRoute(ours)]].concat());
}

#[test]
fn drift_of_the_tunnel_is_repaired() {
    let mut observed = Observed::default();
    settle(&both(), &mut observed);
    let there = observed.tunnel.as_mut().unwrap();
    there.is_up = false;
    there.addresses = [net("10.9.9.9/32")].into();
    there.hosts = [(mac(9), ip("198.51.100.66")), (mac(8), ip("198.51.100.8"))].into();
    there.neighbours = [(ip("10.1.2.0"), mac(7)), (ip("10.1.9.0"), mac(9))].into();
    let broken = observed.clone();
    settle(&both(), &mut observed);
    assert_ne!(observed, broken);
    assert!(settle(&both(), &mut observed).is_empty());
    assert_eq!(observed.tunnel.as_ref().unwrap().neighbours, tunnel().neighbours);
}

#[test]
fn tunnel_gets_its_new_address_before_it_loses_the_old_one() {
    let mut observed = Observed::default();
    settle(&both(), &mut observed);
    let mut moved = both();
    moved.tunnel.as_mut().unwrap().addresses = [net("10.1.9.0/32")].into();
    assert_eq!(
        settle(&moved, &mut observed),
        ["add address 10.1.9.0/32", "remove address 10.1.0.0/32"]
    );
}

#[test]
fn tunnel_with_other_settings_is_created_again_with_its_routes() {
    let mut observed = Observed::default();
    settle(&both(), &mut observed);
    let other = Tunnel {
        vxlan: Vxlan { port: 8472, ..VXLAN },
        ..tunnel()
    };
    let wanted = Desired {
        tunnel: Some(other),
        ..both()
    };
    let steps = settle(&wanted, &mut observed);
    assert_eq!(
        steps[..2],
        ["remove weft.vxlan", "create weft.vxlan, id 7765 port 8472"]
    );
    assert_eq!(
        steps.last().unwrap(),
        "add route 10.1.2.0/24 via 10.1.2.0 through weft.vxlan"
    );
    assert!(settle(&wanted, &mut observed).is_empty());
}

#[test]
fn link_of_another_kind_with_the_tunnels_name_stays() {
    let foreign = ObservedTunnel {
        index: 5,
        vxlan: None,
        mac: Some(mac(5)),
        mtu: 1500,
        is_up: false,
        addresses: [net("192.0.2.5/24")].into(),
        neighbours: BTreeMap::new(),
        hosts: BTreeSet::new(),
    };
    let observed = Observed {
        routes: Vec::new(),
        unreachable: Vec::new(),
        tunnel: Some(foreign),
    };
    let (changes, _) = difference(&both(), &observed);
    assert!(
        matches!(
            changes[..],
            [
                Change::CreateTunnel { .. },
                Change::AddRoute(_, Hop::Direct { .. }),
                Change::AddRoute(_, Hop::Tunnel { .. })
            ]
        ),
        "{changes:?}"
    );
    assert!(difference(&desired(&[], None), &observed).0.is_empty());
}

fn any_hop() -> impl Strategy<Value = Hop> {
    prop_oneof![
        (1_u8..4, 1_u32..3).prop_map(|(n, link)| Hop::Direct {
            gateway: IpAddr::from([192, 0, 2, n]),
            link
        }),
        (0_u8..4).prop_map(|n| Hop::Tunnel {
            gateway: IpAddr::from([10, 1, n, 0])
        }),
    ]
}

fn any_desired() -> impl Strategy<Value = Desired> {
    let routes = prop::collection::btree_map(0_u8..6, any_hop(), 0..6);
    (routes, 1_u8..3, prop::bool::ANY).prop_map(|(routes, own, port)| {
        let routes: BTreeMap<_, _> = routes
            .into_iter()
            .map(|(n, hop)| (IpNet::new(IpAddr::from([10, 1, n, 0]), 24).unwrap(), hop))
            .collect();
        let gateways = routes.values().filter_map(|hop| match hop {
            Hop::Tunnel { gateway } => Some(*gateway),
            Hop::Direct { .. } => None,
        });
        let neighbours: BTreeMap<_, _> = gateways.map(|gateway| (gateway, mac(9))).collect();
        let tunnel = (!neighbours.is_empty()).then(|| Tunnel {
            vxlan: Vxlan {
                port: if port { 8472 } else { 4789 },
                ..VXLAN
            },
            mac: mac(own),
            neighbours,
            ..super::tests::tunnel()
        });
        Desired {
            routes,
            tunnel,
            ..desired(&[], None)
        }
    })
}

proptest! {
    #[test]
    fn any_state_settles_in_one_pass_even_after_a_kill(
        first in any_desired(), second in any_desired(), killed in 0_usize..12,
    ) {
        let mut observed = Observed::default();
        settle(&first, &mut observed);
        // The daemon is killed after some changes.
        let (changes, _) = difference(&second, &observed);
        for change in changes.iter().take(killed) {
            apply(&mut observed, change);
        }
        settle(&second, &mut observed);
        prop_assert!(settle(&second, &mut observed).is_empty());
        let mut fresh = Observed::default();
        settle(&second, &mut fresh);
        let sorted = |observed: &Observed| {
            let mut routes: Vec<_> = observed.routes.iter().map(|route| format!("{route:?}")).collect();
            routes.sort();
            (routes, observed.tunnel.clone())
        };
        prop_assert_eq!(sorted(&observed), sorted(&fresh));
    }
}

// cluster-network#99
#[test]
fn own_ranges_are_unreachable_and_routes_of_others_stay() {
    let wanted = Desired {
        unreachable: [net("10.1.0.0/24"), net("fd00:1::/64")].into(),
        ..desired(&[], None)
    };
    let route = |range: &str, protocol, priority| Route {
        unreachable: true,
        protocol: Some(protocol),
        priority: Some(priority),
        ..Route::to(net(range))
    };
    let steps = |unreachable: Vec<Route>| {
        let observed = Observed {
            unreachable,
            ..Observed::default()
        };
        let (changes, problems) = difference(&wanted, &observed);
        assert!(problems.is_empty(), "{problems:?}");
        changes.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        steps(vec![
            route("10.1.9.0/24", ROUTE_PROTOCOL, u32::MAX),
            route("10.1.8.0/24", 4, 0)
        ]),
        [
            "remove unreachable route 10.1.9.0/24",
            "add unreachable route 10.1.0.0/24",
            "add unreachable route fd00:1::/64",
        ]
    );
    let ours = |range| route(range, ROUTE_PROTOCOL, u32::MAX);
    assert!(steps(vec![ours("10.1.0.0/24"), ours("fd00:1::/64")]).is_empty());
}

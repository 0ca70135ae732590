use proptest::prelude::*;

use super::*;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn node(name: &str, ranges: &[&str], addresses: &[&str]) -> Node {
    Node {
        name: name.to_owned(),
        ranges: ranges.iter().map(|range| net(range)).collect(),
        addresses: addresses.iter().map(|address| ip(address)).collect(),
        ..Node::default()
    }
}

fn own() -> Node {
    node(
        "own",
        &["10.1.0.0/24", "fd00:1::/64"],
        &["192.0.2.1", "2001:db8::1"],
    )
}

/// A link to the segment and the gateway.
fn host() -> Host {
    Host {
        links: vec![HostLink {
            index: 2,
            mtu: 1500,
            addresses: vec![net("192.0.2.1/24"), net("2001:db8::1/64")],
            is_default: true,
            is_up: true,
        }],
    }
}

fn choices() -> Choices {
    Choices {
        vxlan_id: 7765,
        vxlan_port: 4789,
        cluster: Vec::new(),
        mtu: None,
    }
}

fn decide(nodes: &[Node]) -> Desired {
    desired(nodes, &own(), &host(), &choices())
}

fn direct(gateway: &str) -> Hop {
    Hop::Direct {
        gateway: ip(gateway),
        link: 2,
    }
}

fn tunnel(gateway: &str) -> Hop {
    Hop::Tunnel { gateway: ip(gateway) }
}

fn shown(desired: &Desired) -> Vec<String> {
    desired.problems.iter().map(ToString::to_string).collect()
}

#[test]
fn node_on_the_segment_is_the_next_hop_of_its_pods() {
    let near = node(
        "near",
        &["10.1.1.0/24", "fd00:1:0:1::/64"],
        &["192.0.2.2", "2001:db8::2"],
    );
    let desired = decide(&[near, own()]);
    let routes = [
        (net("10.1.1.0/24"), direct("192.0.2.2")),
        (net("fd00:1:0:1::/64"), direct("2001:db8::2")),
    ];
    assert_eq!(desired.routes, routes.into());
    assert_eq!((desired.tunnel, desired.mtu), (None, Some(1500)));
    assert_eq!(desired.peers, Peers { direct: 1, tunnel: 0 });
    assert_eq!(desired.links, [2].into());
    assert!(desired.problems.is_empty());
}

#[test]
fn node_on_another_segment_is_reached_through_the_tunnel() {
    let far = node(
        "far",
        &["10.1.2.0/24", "fd00:1:0:2::/64"],
        &["198.51.100.9", "2001:db8:9::9"],
    );
    let desired = decide(&[far]);
    let routes = [
        (net("10.1.2.0/24"), tunnel("10.1.2.0")),
        (net("fd00:1:0:2::/64"), tunnel("fd00:1:0:2::")),
    ];
    assert_eq!(desired.routes, routes.into());
    let far_mac: Mac = "0a:57:c6:33:64:09".parse().unwrap();
    assert_eq!(
        desired.tunnel,
        Some(Tunnel {
            vxlan: Vxlan {
                id: 7765,
                port: 4789,
                local: Some(ip("192.0.2.1")),
                learning: false
            },
            mac: "0a:57:c0:00:02:01".parse().unwrap(),
            mtu: 1450,
            addresses: [net("10.1.0.0/32"), net("fd00:1::/128")].into(),
            neighbours: [(ip("10.1.2.0"), far_mac), (ip("fd00:1:0:2::"), far_mac)].into(),
            hosts: [(far_mac, ip("198.51.100.9"))].into(),
        })
    );
    assert_eq!(desired.mtu, Some(1450));
    assert_eq!(desired.peers, Peers { direct: 0, tunnel: 1 });
}

#[test]
fn hop_is_chosen_for_each_node_and_family() {
    let near = node("near", &["10.1.1.0/24"], &["192.0.2.2"]);
    let far = node("far", &["10.1.2.0/24"], &["198.51.100.9"]);
    // The node has IPv6 pods, but only an IPv4 address.
    let mixed = node("mixed", &["10.1.3.0/24", "fd00:1:0:3::/64"], &["192.0.2.3"]);
    let desired = decide(&[near, far, mixed]);
    let routes = [
        (net("10.1.1.0/24"), direct("192.0.2.2")),
        (net("10.1.2.0/24"), tunnel("10.1.2.0")),
        (net("10.1.3.0/24"), direct("192.0.2.3")),
        (net("fd00:1:0:3::/64"), tunnel("fd00:1:0:3::")),
    ];
    assert_eq!(desired.routes, routes.into());
    assert_eq!(desired.peers, Peers { direct: 2, tunnel: 2 });
    assert!(desired.problems.is_empty());
}

#[test]
fn subnet_without_an_address_of_the_node_is_no_segment() {
    // Another site also uses the subnet of a local bridge.
    let mut host = host();
    host.links.push(HostLink {
        index: 9,
        mtu: 1400,
        addresses: vec![net("172.17.0.1/16")],
        is_default: false,
        is_up: true,
    });
    let far = node("far", &["10.1.2.0/24"], &["172.17.0.7"]);
    let desired = desired(&[far], &own(), &host, &choices());
    assert_eq!(desired.routes[&net("10.1.2.0/24")], tunnel("10.1.2.0"));
    assert_eq!((desired.links, desired.mtu), ([2].into(), Some(1450)));
}

#[test]
fn second_subnet_of_a_link_is_another_segment() {
    // The other node does not know this subnet: for it, the InternalIP of this node is on another segment.
    let mut host = host();
    host.links[0].addresses.push(net("203.0.113.1/24"));
    let far = node("far", &["10.1.1.0/24"], &["203.0.113.5"]);
    let second = Node {
        addresses: [own().addresses, vec![ip("203.0.113.1")]].concat(),
        ..own()
    };
    for own in [own(), second] {
        let desired = desired(std::slice::from_ref(&far), &own, &host, &choices());
        assert_eq!(desired.routes[&net("10.1.1.0/24")], tunnel("10.1.1.0"));
    }
}

#[test]
fn link_that_is_down_is_no_segment_and_its_events_count() {
    let mut host = host();
    host.links[0].is_up = false;
    let near = node("near", &["10.1.1.0/24"], &["192.0.2.2"]);
    let desired = desired(&[near], &own(), &host, &choices());
    assert_eq!(desired.routes[&net("10.1.1.0/24")], tunnel("10.1.1.0"));
    assert_eq!(desired.links, [2].into());
}

#[test]
fn node_without_pods_of_a_family_needs_no_tunnel_for_it() {
    let own = node("own", &["10.1.0.0/24"], &["192.0.2.1"]);
    let near = node("near", &["10.1.1.0/24", "fd00:1:0:1::/64"], &["192.0.2.2"]);
    let desired = desired(&[near], &own, &host(), &choices());
    assert_eq!(desired.routes, [(net("10.1.1.0/24"), direct("192.0.2.2"))].into());
    assert_eq!((desired.tunnel, desired.mtu), (None, Some(1500)));
    assert!(desired.problems.is_empty());
}

#[test]
fn tunnel_of_ipv6_nodes_uses_ipv6() {
    let own = node("own", &["fd00:1::/64"], &["2001:db8::1"]);
    let far = node("far", &["fd00:1:0:2::/64"], &["2001:db8:9::9"]);
    let desired = desired(&[far], &own, &host(), &choices());
    let there = desired.tunnel.unwrap();
    assert_eq!(there.vxlan.local, Some(ip("2001:db8::1")));
    assert_eq!((there.mtu, desired.mtu), (1430, Some(1430)));
    assert_eq!(
        there.hosts.values().copied().collect::<Vec<_>>(),
        [ip("2001:db8:9::9")]
    );
    // Locally administered, unicast, and different on each node.
    assert_eq!(there.mac.0[0], 0x0a);
    assert_ne!(there.mac, *there.hosts.keys().next().unwrap());
}

// cluster-network#85
#[test]
fn mtu_is_the_least_of_the_links_to_other_nodes() {
    let mut host = host();
    host.links[0].mtu = 9000;
    host.links[0].is_default = false;
    host.links.push(HostLink {
        index: 3,
        mtu: 1492,
        addresses: vec![net("203.0.113.1/30")],
        is_default: true,
        is_up: true,
    });
    let near = node("near", &["10.1.1.0/24"], &["192.0.2.2"]);
    let far = node("far", &["10.1.2.0/24"], &["198.51.100.9"]);
    let decide = |nodes: &[Node], choices: &Choices| desired(nodes, &own(), &host, choices);
    assert_eq!(decide(&[near], &choices()).mtu, Some(1492));
    let tunneled = decide(std::slice::from_ref(&far), &choices());
    assert_eq!((tunneled.mtu, tunneled.tunnel.unwrap().mtu), (Some(1442), 8950));
    let chosen = Choices {
        mtu: Some(1280),
        ..choices()
    };
    assert_eq!(decide(&[far], &chosen).mtu, Some(1280));
    let own_v6 = node("own", &["fd00:1::/64"], &["2001:db8::1"]);
    let far_v6 = node("far", &["fd00:1:0:2::/64"], &["2001:db8:9::9"]);
    assert_eq!(desired(&[far_v6], &own_v6, &host, &choices()).mtu, Some(1422));
    assert_eq!(desired(&[], &own(), &Host::default(), &choices()).mtu, None);
}

#[test]
fn mtu_of_a_link_that_is_down_does_not_count() {
    for mtu in [1280, 9000] {
        let mut host = host();
        let mut former = host.links[0].clone();
        (former.index, former.mtu) = (1, mtu);
        (former.is_up, former.is_default) = (false, false);
        host.links.insert(0, former);
        let far = node("far", &["10.1.1.0/24"], &["198.51.100.9"]);
        let found = desired(&[far], &own(), &host, &choices());
        assert_eq!((found.mtu, found.tunnel.unwrap().mtu), (Some(1450), 1450));
    }
}

#[test]
fn masquerade_excludes_pods_and_nodes_of_the_segment() {
    let near = node("near", &["10.1.1.0/24"], &["192.0.2.2"]);
    // Routers between the segments have no routes to pods.
    let far = node("far", &["10.1.2.0/24"], &["198.51.100.9"]);
    let masquerade = decide(&[near.clone(), far.clone()]).masquerade;
    assert_eq!(masquerade.pods, [net("10.1.0.0/24"), net("fd00:1::/64")].into());
    let inside = [
        "10.1.0.0/24",
        "10.1.1.0/24",
        "10.1.2.0/24",
        "192.0.2.2/32",
        "fd00:1::/64",
    ];
    assert_eq!(masquerade.inside, inside.map(net).into());
    let chosen = Choices {
        cluster: vec![net("10.1.0.0/16"), net("fd00:1::/48")],
        ..choices()
    };
    let masquerade = desired(&[near, far], &own(), &host(), &chosen).masquerade;
    assert_eq!(
        masquerade.inside,
        ["10.1.0.0/16", "192.0.2.2/32", "fd00:1::/48"].map(net).into()
    );
}

// cluster-network#78
#[test]
fn node_that_claims_a_range_of_others_gets_no_route() {
    let old = Node {
        created: 1,
        ..node("z-old", &["10.1.1.0/24"], &["192.0.2.2"])
    };
    let thief = |ranges: &[&str]| Node {
        created: 2,
        ..node("a-thief", ranges, &["192.0.2.66"])
    };
    for (claims, text) in [
        (
            "10.1.1.0/24",
            "node a-thief claims the pod range 10.1.1.0/24, which overlaps one of node z-old: no route for it",
        ),
        (
            "10.1.1.7/32",
            "node a-thief claims the pod range 10.1.1.7/32, which overlaps one of node z-old: no route for it",
        ),
        (
            "10.1.0.0/16",
            "node a-thief claims the pod range 10.1.0.0/16, which overlaps one of node own: no route for it",
        ),
        (
            "10.1.0.64/26",
            "node a-thief claims the pod range 10.1.0.64/26, which overlaps one of node own: no route for it",
        ),
        (
            "0.0.0.0/0",
            "node a-thief claims the pod range 0.0.0.0/0, which contains the node address 192.0.2.1: no route for it",
        ),
        (
            "192.0.2.2/32",
            "node a-thief claims the pod range 192.0.2.2/32, which contains the node address 192.0.2.2: no route for it",
        ),
    ] {
        let desired = decide(&[old.clone(), thief(&[claims, "10.1.9.0/24"])]);
        let routes = [
            (net("10.1.1.0/24"), direct("192.0.2.2")),
            (net("10.1.9.0/24"), direct("192.0.2.66")),
        ];
        assert_eq!(desired.routes, routes.into(), "{claims}");
        assert_eq!(shown(&desired), [text]);
    }
    let chosen = Choices {
        cluster: vec![net("10.1.0.0/16")],
        ..choices()
    };
    let outside = desired(
        &[thief(&["203.0.113.0/24"])],
        &node("own", &["10.1.0.0/24"], &[]),
        &host(),
        &chosen,
    );
    assert!(outside.routes.is_empty());
    assert_eq!(
        shown(&outside),
        [
            "node a-thief claims the pod range 203.0.113.0/24, which is outside of --cluster-cidr: no route for it"
        ]
    );
}

// cluster-network#78
#[test]
fn address_in_a_range_of_an_older_node_does_not_refuse_the_range() {
    let aged = |created, node| Node { created, ..node };
    let victim = aged(1, node("victim", &["10.1.1.0/24"], &["192.0.2.2"]));
    let claims_of = |addresses: &[&str]| aged(2, node("a-young", &["10.1.9.0/24"], addresses));
    let to_victim = (net("10.1.1.0/24"), direct("192.0.2.2"));
    for (addresses, text) in [
        (
            &["10.1.1.7"][..],
            "node a-young has the InternalIP 10.1.1.7, which is in the pod range 10.1.1.0/24 of node victim: no route to \
             its pods through this address",
        ),
        (
            &["10.1.0.7"],
            "node a-young has the InternalIP 10.1.0.7, which is in the pod range 10.1.0.0/24 of node own: no route to its \
             pods through this address",
        ),
        (
            &["192.0.2.1"],
            "node a-young has the InternalIP 192.0.2.1, which is an address of this node: no route to its pods through \
             this address",
        ),
    ] {
        let desired = decide(&[victim.clone(), claims_of(addresses)]);
        assert_eq!(desired.routes, [to_victim].into(), "{addresses:?}");
        assert_eq!(
            (desired.tunnel.clone(), shown(&desired)),
            (None, vec![text.to_owned()])
        );
    }
    // A second address of this kind costs the node no route, because no route leads through it.
    let desired = decide(&[victim.clone(), claims_of(&["192.0.2.66", "10.1.1.7"])]);
    let to_young = (net("10.1.9.0/24"), direct("192.0.2.66"));
    assert_eq!(desired.routes, [to_victim, to_young].into());
    assert_eq!(desired.problems.len(), 1);
    // The address of an older node, of this node, and of the node itself refuse the range.
    let old = aged(0, node("old", &[], &["10.1.1.7"]));
    let itself = aged(1, node("itself", &["10.1.1.0/24"], &["10.1.1.7"]));
    for nodes in [vec![victim, old], vec![itself]] {
        let desired = decide(&nodes);
        assert!(desired.routes.is_empty(), "{desired:?}");
        let text = shown(&desired).into_iter().next().unwrap();
        assert!(
            text.ends_with("contains the node address 10.1.1.7: no route for it"),
            "{text}"
        );
    }
}

// cluster-network#78
#[test]
fn address_of_a_link_of_this_node_is_no_next_hop() {
    let mut host = host();
    host.links.push(HostLink {
        index: 9,
        addresses: vec![net("192.0.2.100/32"), net("203.0.113.1/24")],
        ..HostLink::default()
    });
    for address in ["192.0.2.100", "203.0.113.1"] {
        let twin = node("twin", &["10.1.2.0/24"], &[address]);
        let desired = desired(&[twin], &own(), &host, &choices());
        assert!(
            desired.routes.is_empty() && desired.tunnel.is_none(),
            "{desired:?}"
        );
        let text = shown(&desired).concat();
        assert!(
            text.contains(&format!("{address}, which is an address of this node")),
            "{text}"
        );
    }
}

#[test]
fn older_node_keeps_its_address_in_the_tunnel() {
    // These addresses have the same digest.
    let twins = [ip("2001:db8:9::c2cc"), ip("2001:db8:9::ccb1")];
    assert_eq!(mac(&twins[0]), mac(&twins[1]));
    let own = node("own", &["fd00:1::/64"], &["2001:db8::1"]);
    for (old, young) in [(twins[0], twins[1]), (twins[1], twins[0])] {
        let with = |created, name: &str, range: &str, address| Node {
            created,
            addresses: vec![address],
            ..node(name, &[range], &[])
        };
        // The range of the younger node comes first.
        let nodes = [
            with(2, "young", "fd00:1:0:2::/64", young),
            with(1, "z-old", "fd00:1:0:9::/64", old),
        ];
        let desired = desired(&nodes, &own, &host(), &choices());
        assert_eq!(desired.tunnel.as_ref().unwrap().hosts, [(mac(&old), old)].into());
        assert_eq!(
            desired.routes.keys().collect::<Vec<_>>(),
            [&net("fd00:1:0:9::/64")]
        );
        assert!(
            shown(&desired)
                .concat()
                .starts_with("node young has the same address")
        );
    }
    let young = node("young", &["fd00:1:0:2::/64"], &["2001:db8:9::ccb1"]);
    let own = node("own", &["fd00:1::/64"], &["2001:db8:9::c2cc"]);
    let desired = desired(&[young], &own, &host(), &choices());
    assert!(desired.routes.is_empty() && desired.problems.len() == 1);
}

#[test]
fn range_of_this_node_that_an_older_node_has_is_reported_as_such() {
    let own = Node { created: 5, ..own() };
    let old = node("old", &["10.1.0.0/24"], &["192.0.2.2"]);
    let desired = desired(&[old], &own, &host(), &choices());
    assert!(desired.routes.is_empty());
    assert_eq!(
        shown(&desired),
        [
            "node old is older than this node and has the pod range 10.1.0.0/24, which overlaps one of this node: other \
             nodes send packets for pods of this node to node old"
        ]
    );
}

#[test]
fn defective_node_is_reported_and_the_others_are_reached() {
    let near = node("near", &["10.1.1.0/24"], &["192.0.2.2"]);
    let nowhere = node("nowhere", &["10.1.2.0/24"], &[]);
    let v6 = node("v6", &["10.1.6.0/24"], &["2001:db8::6"]);
    let odd = Node {
        unreadable: vec!["10.1.0.0/33\n".to_owned()],
        ..node("odd", &["10.1.3.0/24"], &["192.0.2.3"])
    };
    let twin = |name: &str, range: &str| node(name, &[range], &["198.51.100.9"]);
    let desired = decide(&[
        near,
        nowhere,
        v6,
        odd,
        twin("t1", "10.1.4.0/24"),
        twin("t2", "10.1.5.0/24"),
    ]);
    assert_eq!(desired.routes.len(), 4);
    assert_eq!(
        shown(&desired),
        [
            "pods of node v6 in 10.1.6.0/24 are unreachable: the nodes are not on one segment, and the tunnel connects \
             only nodes that both have an IPv4 InternalIP, or both have none",
            "pods of node nowhere in 10.1.2.0/24 are unreachable: the node has no InternalIP yet",
            "node odd: \"10.1.0.0/33\\n\" is not a pod range or an address, ignored",
        ]
    );
}

fn any_net() -> impl Strategy<Value = IpNet> {
    // Few bits, so that overlaps are frequent.
    prop_oneof![
        (0_u32..64, 24_u8..=32).prop_map(|(bits, length)| {
            let address = std::net::Ipv4Addr::from(0x0a01_0000 | bits << 6);
            IpNet::new(address.into(), length).unwrap().trunc()
        }),
        (0_u128..16, 60_u8..=72).prop_map(|(bits, length)| {
            let address = std::net::Ipv6Addr::from(0xfd00_u128 << 112 | bits << 62);
            IpNet::new(address.into(), length).unwrap().trunc()
        }),
    ]
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0_u8..20).prop_map(|n| IpAddr::from([192, 0, 2, n])),
        (0_u8..20).prop_map(|n| IpAddr::from([198, 51, 100, n])),
        (0_u16..20).prop_map(|n| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n])),
        (0_u8..4).prop_map(|n| IpAddr::from([10, 1, 3, n])),
    ]
}

prop_compose! {
    fn any_node()(
        created in 0_i64..4,
        name in "[a-h]",
        ranges in prop::collection::vec(any_net(), 0..3),
        addresses in prop::collection::vec(any_address(), 0..3),
    ) -> Node {
        Node { created, name, ranges, addresses, unreadable: Vec::new() }
    }
}

proptest! {
    #[test]
    fn routes_of_any_nodes_never_overlap_nor_contain_own_pods_or_nodes(
        nodes in prop::collection::vec(any_node(), 0..12),
    ) {
        // Names of Nodes are unique.
        let mut names = BTreeSet::new();
        let mut nodes = nodes;
        nodes.retain(|node| names.insert(node.name.clone()));
        let own = own();
        let decided = desired(&nodes, &own, &host(), &choices());
        let ranges: Vec<_> = decided.routes.keys().collect();
        for (at, range) in ranges.iter().enumerate() {
            for other in ranges[at + 1..].iter().copied().chain(&own.ranges) {
                prop_assert!(!range.contains(other) && !other.contains(*range), "{range} and {other}");
            }
            for address in &own.addresses {
                prop_assert!(!range.contains(address), "{range} and {address}");
            }
        }
        // No route leads through an address of a pod or of this node.
        let far = decided.tunnel.iter().flat_map(|tunnel| tunnel.hosts.values().copied());
        let near = decided.routes.values().filter_map(|hop| match hop {
            Hop::Direct { gateway, .. } => Some(*gateway),
            Hop::Tunnel { .. } => None,
        });
        for address in far.chain(near) {
            prop_assert!(!own.addresses.contains(&address));
            for range in ranges.iter().copied().chain(&own.ranges) {
                prop_assert!(!range.contains(&address), "{range} and {address}");
            }
        }
        // The tunnel has a neighbour for each route into it, and no others.
        let into: BTreeSet<_> = decided
            .routes
            .values()
            .filter_map(|hop| match hop {
                Hop::Tunnel { gateway } => Some(*gateway),
                Hop::Direct { .. } => None,
            })
            .collect();
        let tunnel = decided.tunnel.as_ref();
        let known: BTreeSet<_> = tunnel.map(|it| it.neighbours.keys().copied().collect()).unwrap_or_default();
        prop_assert_eq!(into, known);
        for mac in tunnel.iter().flat_map(|it| it.neighbours.values()) {
            prop_assert!(tunnel.is_some_and(|it| it.hosts.contains_key(mac)));
        }
        // The order in which Nodes are listed does not matter.
        nodes.reverse();
        prop_assert_eq!(desired(&nodes, &own, &host(), &choices()), decided);
    }
}

/// Addresses of a node: each `InternalIP` has the prefix length of its segment. The last one is no `InternalIP`.
fn any_end(number: u8) -> impl Strategy<Value = (Node, Host)> {
    let nets = [
        format!("192.0.2.{number}/24"),
        format!("198.51.100.{number}/24"),
        format!("2001:db8::{number}/64"),
        format!("2001:db8:9::{number}/64"),
    ];
    let ranges = [format!("10.1.{number}.0/24"), format!("fd00:1:0:{number}::/64")];
    let addresses = prop::sample::subsequence(nets.to_vec(), 1..=4).prop_shuffle();
    let ranges = prop::sample::subsequence(ranges.to_vec(), 1..=2);
    (addresses, ranges).prop_map(move |(addresses, ranges)| {
        let mut nets: Vec<_> = addresses.iter().map(|address| net(address)).collect();
        let node = Node {
            addresses: nets.iter().map(IpNet::addr).collect(),
            ranges: ranges.iter().map(|range| net(range)).collect(),
            ..node(&number.to_string(), &[], &[])
        };
        nets.push(net(&format!("203.0.113.{number}/24")));
        let links = nets.into_iter().zip(2..).map(|(net, index)| HostLink {
            index,
            mtu: 1500,
            addresses: vec![net],
            is_default: false,
            is_up: true,
        });
        let host = Host {
            links: links.collect(),
        };
        (node, host)
    })
}

proptest! {
    #[test]
    fn any_two_nodes_agree_on_the_tunnel((one, at_one) in any_end(1), (two, at_two) in any_end(2)) {
        let from_one = desired([&two], &one, &at_one, &choices());
        let from_two = desired([&one], &two, &at_two, &choices());
        for (sender, receiver) in [(&from_one, &from_two), (&from_two, &from_one)] {
            let Some(tunnel) = sender.tunnel.as_ref().filter(|tunnel| !tunnel.hosts.is_empty()) else {
                continue;
            };
            let there = receiver.tunnel.as_ref();
            prop_assert!(there.is_some(), "{sender:?} sends and {receiver:?} has no tunnel");
            for (mac, host) in &tunnel.hosts {
                prop_assert!(there.is_some_and(|there| there.mac == *mac && there.vxlan.local == Some(*host)));
            }
        }
        // Nodes on one segment need no tunnel.
        let is_near = |segment: &str| {
            let on = |node: &Node| node.addresses.first().is_some_and(|it| net(segment).contains(it));
            on(&one) && on(&two) && [&one, &two].iter().all(|node| node.addresses.len() == 1)
        };
        let is_ipv4 = |node: &Node| node.ranges.iter().all(|range| range.addr().is_ipv4());
        if is_near("192.0.2.0/24") && is_ipv4(&one) && is_ipv4(&two) {
            prop_assert_eq!((from_one.tunnel, from_two.tunnel), (None, None));
        }
    }
}

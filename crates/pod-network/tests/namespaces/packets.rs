//! Reachability between pods, nodes and the outside: the path and the source address.

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use linux::{address::Family, netns::NetNs};
use pod_network::{Node, Peers, names::ROUTE_PROTOCOL};

use crate::network::{Host, Network, Segment, exchange, in_a_network, udp};

const NEAR: [&str; 2] = ["192.0.2.254/24", "2001:db8:1::fe/64"];
const FAR: [&str; 2] = ["198.51.100.254/24", "2001:db8:2::fe/64"];

/// Two nodes on one segment, and one on another.
struct Cluster {
    near: Segment,
    hosts: Vec<Host>,
}

fn cluster(network: &mut Network) -> Cluster {
    let near = network.segment("near", &NEAR);
    let far = network.segment("far", &FAR);
    let hosts = vec![
        network.node(
            &near,
            "a",
            &["192.0.2.1/24", "2001:db8:1::1/64"],
            &["10.1.0.0/24", "fd00:1::/64"],
        ),
        network.node(
            &near,
            "b",
            &["192.0.2.2/24", "2001:db8:1::2/64"],
            &["10.1.1.0/24", "fd00:1:0:1::/64"],
        ),
        network.node(
            &far,
            "c",
            &["198.51.100.3/24", "2001:db8:2::3/64"],
            &["10.1.2.0/24", "fd00:1:0:2::/64"],
        ),
    ];
    Cluster { near, hosts }
}

fn nodes(hosts: &[Host]) -> Vec<Node> {
    hosts.iter().map(|host| host.node.clone()).collect()
}

// cluster-network#75
#[test]
fn pods_reach_each_other_directly_and_through_the_tunnel_in_both_families() {
    in_a_network("pods of three nodes", |network| {
        let mut hosts = cluster(network).hosts;
        let all = nodes(&hosts);
        for host in &mut hosts {
            let arranged = host.arrange(&all);
            assert!(arranged.problems.is_empty(), "{arranged:#?}");
            let peers = match host.node.name.as_str() {
                "c" => Peers { direct: 0, tunnel: 2 },
                _ => Peers { direct: 1, tunnel: 1 },
            };
            assert_eq!((arranged.peers, arranged.mtu), (peers, Some(1450)));
            let again = host.arrange(&all);
            assert!(again.changes.is_empty(), "no changes: {:#?}", again.changes);
        }
        let pods: Vec<_> = hosts.iter_mut().map(|host| host.pod(7)).collect();
        for is_ipv4 in [true, false] {
            let sockets: Vec<_> = pods
                .iter()
                .map(|pod| udp(&pod.ns, pod.address(is_ipv4), 7000))
                .collect();
            for (from, sender) in sockets.iter().enumerate() {
                for receiver in sockets
                    .iter()
                    .enumerate()
                    .filter(|(to, _)| *to != from)
                    .map(|(_, it)| it)
                {
                    let seen = exchange(sender, receiver);
                    assert_eq!(seen, pods[from].address(is_ipv4), "the pod's own address");
                }
            }
            // Pods also answer packets from the hosts.
            for host in &hosts {
                let any = if is_ipv4 { "0.0.0.0" } else { "::" };
                let sender = udp(&host.ns, any.parse().unwrap(), 7001);
                for receiver in &sockets {
                    exchange(&sender, receiver);
                }
            }
        }
    });
}

// cluster-network#77
#[test]
fn packets_that_leave_the_cluster_are_masqueraded_except_to_nodes_of_the_segment() {
    in_a_network("masquerading", |network| {
        let mut hosts = cluster(network).hosts;
        let all = nodes(&hosts);
        for host in &mut hosts {
            host.arrange(&all);
        }
        let pod = hosts[0].pod(7);
        let router = NetNs::current().unwrap();
        for (is_ipv4, outside) in [(true, "192.0.2.254"), (false, "2001:db8:1::fe")] {
            let sender = udp(&pod.ns, pod.address(is_ipv4), 7000);
            let address_of = |host: &Host| {
                let mut addresses = host.node.addresses.iter().copied();
                addresses.find(|address| address.is_ipv4() == is_ipv4).unwrap()
            };
            let outside = udp(&router, outside.parse().unwrap(), 7000);
            assert_eq!(
                exchange(&sender, &outside),
                address_of(&hosts[0]),
                "outside of the cluster"
            );
            let near = udp(&hosts[1].ns, address_of(&hosts[1]), 7002);
            assert_eq!(
                exchange(&sender, &near),
                pod.address(is_ipv4),
                "a node of the segment"
            );
            let own = udp(&hosts[0].ns, address_of(&hosts[0]), 7002);
            assert_eq!(
                exchange(&sender, &own),
                pod.address(is_ipv4),
                "the pod's own node"
            );
            // The router between the segments has no route back to a pod.
            let far = udp(&hosts[2].ns, address_of(&hosts[2]), 7002);
            assert_eq!(
                exchange(&sender, &far),
                address_of(&hosts[0]),
                "a node on another segment"
            );
        }
    });
}

// cluster-network#76
#[test]
fn removed_node_loses_its_routes_and_new_node_is_reached() {
    in_a_network("nodes register and leave", |network| {
        let Cluster { near, mut hosts } = cluster(network);
        let administrator = "10.99.0.0/24";
        let foreign = linux::routes::Route {
            gateway: Some("192.0.2.2".parse().unwrap()),
            link: Some(hosts[0].eth0.index),
            protocol: Some(4),
            ..linux::routes::Route::to(administrator.parse().unwrap())
        };
        hosts[0].socket.add_route(&foreign).unwrap();
        let before = hosts[0].routes();
        let all = nodes(&hosts);
        hosts[0].arrange(&all);
        assert!(hosts[0].tunnel().is_some());
        let without_c = &all[..2];
        let gone = hosts[0].arrange(without_c);
        assert_eq!((gone.ranges.len(), gone.mtu), (2, Some(1500)), "{gone:#?}");
        assert!(hosts[0].tunnel().is_none(), "no node needs the tunnel");

        let mut new = network.node(&near, "d", &["192.0.2.4/24"], &["10.1.3.0/24"]);
        let all: Vec<_> = without_c.iter().cloned().chain([new.node.clone()]).collect();
        for host in hosts.iter_mut().take(2).chain([&mut new]) {
            host.arrange(&all);
        }
        let (one, other) = (hosts[0].pod(7), new.pod(7));
        exchange(
            &udp(&one.ns, one.address(true), 7000),
            &udp(&other.ns, other.address(true), 7000),
        );
        // A new daemon without other nodes: it finds its routes by observation alone.
        let own = hosts[0].node.clone();
        hosts[0].kernel = hosts[0].ns.run(pod_network::Kernel::open).unwrap().unwrap();
        hosts[0].arrange(&[own]);
        let leftovers: Vec<_> = hosts[0]
            .routes()
            .into_iter()
            .filter(|route| route.contains("proto 87"))
            .collect();
        assert!(leftovers.is_empty(), "{leftovers:?}");
        assert!(before.iter().any(|route| route.starts_with(administrator)));
        assert!(
            hosts[0]
                .routes()
                .iter()
                .any(|route| route.starts_with(administrator))
        );
    });
}

// cluster-network#99
#[test]
fn connection_to_an_address_without_a_pod_is_refused_at_once() {
    in_a_network("addresses without a pod", |network| {
        let mut hosts = cluster(network).hosts;
        let all = nodes(&hosts);
        for host in &mut hosts {
            host.arrange(&all);
        }
        let pods: Vec<_> = hosts.iter_mut().map(|host| host.pod(7)).collect();
        // From the node itself, and from pods on the segment and behind the tunnel.
        for from in [&hosts[0].ns, &pods[0].ns, &pods[1].ns, &pods[2].ns] {
            for address in ["10.1.0.99", "fd00:1::99"] {
                let socket = SocketAddr::new(address.parse().unwrap(), 80);
                let connect = || TcpStream::connect_timeout(&socket, Duration::from_mins(1));
                let error = from.run(connect).unwrap().expect_err("no pod answers");
                assert!(
                    [ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable].contains(&error.kind()),
                    "{address}: {error}"
                );
            }
        }
        // An event restores the routes, and removal deletes them.
        for family in [Family::V4, Family::V6] {
            let mut ours = hosts[0].socket.all_routes(family).unwrap();
            ours.retain(|route| route.unreachable && route.protocol == Some(ROUTE_PROTOCOL));
            assert_eq!(ours.len(), 1, "{ours:?}");
            hosts[0].socket.delete_route(&ours[0]).unwrap();
        }
        assert_eq!(hosts[0].arrange(&all).changes.len(), 2);
        hosts[0]
            .ns
            .run(pod_network::Kernel::open)
            .unwrap()
            .unwrap()
            .clear();
        for family in [Family::V4, Family::V6] {
            let left = hosts[0].socket.all_routes(family).unwrap();
            assert!(
                !left.iter().any(|route| route.protocol == Some(ROUTE_PROTOCOL)),
                "{left:?}"
            );
        }
    });
}

// cluster-network#84
#[test]
fn removal_restores_the_node() {
    in_a_network("removal", |network| {
        let mut hosts = cluster(network).hosts;
        let all = nodes(&hosts);
        let before = hosts[0].routes();
        hosts[0].arrange(&all);
        assert_ne!(hosts[0].routes(), before);
        let folder = tempfile::tempdir().unwrap();
        let conflist = folder.path().join("10-weft.conflist");
        std::fs::write(&conflist, "{}").unwrap();
        for _ in 0..2 {
            hosts[0]
                .ns
                .run(|| pod_network::remove(&conflist))
                .unwrap()
                .unwrap();
            assert!(!conflist.exists());
            assert_eq!(hosts[0].routes(), before);
            assert!(hosts[0].tunnel().is_none());
            let mut rules = hosts[0].ns.run(linux::nft::Socket::open).unwrap().unwrap();
            assert!(rules.chains(pod_network::names::TABLE).unwrap().is_empty());
        }
    });
}

#[test]
fn ipv6_nodes_reach_each_other_through_the_tunnel() {
    in_a_network("IPv6 alone", |network| {
        let near = network.segment("near", &NEAR[1..]);
        let far = network.segment("far", &FAR[1..]);
        let mut hosts = [
            network.node(&near, "a", &["2001:db8:1::1/64"], &["fd00:1::/64"]),
            network.node(&far, "c", &["2001:db8:2::3/64"], &["fd00:1:0:2::/64"]),
        ];
        let all = nodes(&hosts);
        for host in &mut hosts {
            assert_eq!(host.arrange(&all).mtu, Some(1430));
        }
        let [one, other] = hosts.each_mut().map(|host| host.pod(7));
        let seen = exchange(
            &udp(&one.ns, one.address(false), 7000),
            &udp(&other.ns, other.address(false), 7000),
        );
        assert_eq!(seen, one.address(false));
    });
}

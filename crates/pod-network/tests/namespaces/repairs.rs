//! Repair of drift that other programs cause.

use linux::{
    link::LinkChange,
    nft,
    routes::{MAIN_TABLE, Route},
};
use pod_network::names::{ROUTE_PROTOCOL, TABLE, TUNNEL};

use crate::network::{Host, exchange, in_a_network, udp};

/// A kind of damage: its name, and the function that does it.
type Damage = (&'static str, fn(&mut Host));

#[test]
fn damage_of_any_kind_is_repaired_by_one_pass() {
    in_a_network("repairs", |network| {
        let near = network.segment("near", &["192.0.2.254/24"]);
        let far = network.segment("far", &["198.51.100.254/24"]);
        let mut hosts = [
            network.node(&near, "a", &["192.0.2.1/24"], &["10.1.0.0/24"]),
            network.node(&near, "b", &["192.0.2.2/24"], &["10.1.1.0/24"]),
            network.node(&far, "c", &["198.51.100.3/24"], &["10.1.2.0/24"]),
        ];
        let all: Vec<_> = hosts.iter().map(|host| host.node.clone()).collect();
        for host in &mut hosts {
            host.arrange(&all);
        }
        let pods: Vec<_> = hosts.iter_mut().map(|host| host.pod(7)).collect();
        let sockets: Vec<_> = pods
            .iter()
            .map(|pod| udp(&pod.ns, pod.address(true), 7000))
            .collect();
        let damages: [Damage; 8] = [
            ("routes removed", |host| {
                let routes = host.socket.routes(linux::address::Family::V4).unwrap();
                for route in routes
                    .iter()
                    .filter(|route| route.protocol == Some(ROUTE_PROTOCOL))
                {
                    host.socket.delete_route(route).unwrap();
                }
            }),
            ("tunnel removed", |host| {
                host.socket.delete_link_by_name(TUNNEL).unwrap();
            }),
            ("tunnel down", |host| {
                let tunnel = host.tunnel().unwrap();
                host.socket.set_down(&tunnel).unwrap();
            }),
            ("address of the tunnel removed", |host| {
                let tunnel = host.tunnel().unwrap();
                let address = "10.1.0.0/32".parse().unwrap();
                host.socket.delete_address(&tunnel, address).unwrap();
            }),
            ("tunnel with another MTU and neighbour", |host| {
                let tunnel = host.tunnel().unwrap();
                let change = LinkChange {
                    mtu: Some(1300),
                    ..LinkChange::default()
                };
                host.socket.change_link(&tunnel, "set MTU", &change).unwrap();
                let wrong = "02:00:00:00:00:01".parse().unwrap();
                host.socket
                    .set_neighbour(&tunnel, "10.1.2.0".parse().unwrap(), wrong)
                    .unwrap();
            }),
            ("uplink down and up", |host| {
                let eth0 = host.eth0.clone();
                host.socket.set_down(&eth0).unwrap();
                host.socket.set_up(&eth0).unwrap();
                let default = Route {
                    gateway: Some("192.0.2.254".parse().unwrap()),
                    link: Some(eth0.index),
                    ..Route::to("0.0.0.0/0".parse().unwrap())
                };
                host.socket.add_route(&default).unwrap();
            }),
            ("packet rules flushed", |host| {
                let mut rules = host.ns.run(nft::Socket::open).unwrap().unwrap();
                let mut flush = nft::Transaction::new();
                flush.delete_table(TABLE);
                rules.commit(&flush).unwrap();
            }),
            ("a route of ours with another gateway", |host| {
                let astray = Route {
                    gateway: Some("192.0.2.77".parse().unwrap()),
                    link: Some(host.eth0.index),
                    protocol: Some(ROUTE_PROTOCOL),
                    table: Some(MAIN_TABLE),
                    ..Route::to("10.1.1.0/24".parse().unwrap())
                };
                host.socket.replace_route(&astray).unwrap();
            }),
        ];
        let whole = hosts[0].routes();
        for (name, damage) in damages {
            damage(&mut hosts[0]);
            let repaired = hosts[0].arrange(&all);
            assert!(!repaired.changes.is_empty(), "{name}");
            let again = hosts[0].arrange(&all);
            assert!(again.changes.is_empty(), "{name}: {:#?}", again.changes);
            // Events of the tunnel's addresses wake the daemon.
            assert!(again.links.contains(&hosts[0].tunnel().unwrap().index), "{name}");
            // A tunnel that was created again has another index.
            assert_eq!(hosts[0].routes().len(), whole.len(), "{name}");
            for other in &sockets[1..] {
                exchange(&sockets[0], other);
                exchange(other, &sockets[0]);
            }
        }
    });
}

#[test]
fn route_of_the_administrator_stays_and_ours_is_not_added() {
    in_a_network("foreign routes", |network| {
        let near = network.segment("near", &["192.0.2.254/24", "2001:db8:1::fe/64"]);
        let mut host = network.node(
            &near,
            "a",
            &["192.0.2.1/24", "2001:db8:1::1/64"],
            &["10.1.0.0/24", "fd00:1::/64"],
        );
        let other = network.node(
            &near,
            "b",
            &["192.0.2.2/24", "2001:db8:1::2/64"],
            &["10.1.1.0/24", "fd00:1:0:1::/64"],
        );
        for (dst, gateway) in [
            ("10.1.1.0/24", "192.0.2.99"),
            ("fd00:1:0:1::/64", "2001:db8:1::99"),
        ] {
            let route = Route {
                gateway: Some(gateway.parse().unwrap()),
                link: Some(host.eth0.index),
                protocol: Some(4),
                ..Route::to(dst.parse().unwrap())
            };
            host.socket.add_route(&route).unwrap();
        }
        // Another node's range has a route that refuses packets.
        let third = network.node(&near, "c", &["192.0.2.3/24"], &["10.1.2.0/24"]);
        let refusing = Route {
            unreachable: true,
            ..Route::to("10.1.2.0/24".parse().unwrap())
        };
        host.socket.add_route(&refusing).unwrap();
        let before = host.routes();
        let nodes = [other.node, third.node];
        let arranged = host.arrange(&nodes);
        assert_eq!(arranged.problems.len(), 3, "{arranged:#?}");
        assert_eq!(host.routes(), before);
        let again = host.arrange(&nodes);
        assert!(again.changes.is_empty(), "{again:#?}");
    });
}

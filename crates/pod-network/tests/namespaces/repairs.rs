//! What somebody else breaks on the host.

use linux::{
    link::LinkChange,
    nft,
    routes::{MAIN_TABLE, Route},
};
use pod_network::names::{ROUTE_PROTOCOL, TABLE, TUNNEL};

use crate::world::{Host, exchange, in_a_world, udp};

/// A way to break something, in words and done.
type Break = (&'static str, fn(&mut Host));

#[test]
fn whatever_is_broken_is_whole_again_after_one_look() {
    in_a_world("repairs", |world| {
        let near = world.segment("near", &["192.0.2.254/24"]);
        let far = world.segment("far", &["198.51.100.254/24"]);
        let mut hosts = [
            world.node(&near, "a", &["192.0.2.1/24"], &["10.1.0.0/24"]),
            world.node(&near, "b", &["192.0.2.2/24"], &["10.1.1.0/24"]),
            world.node(&far, "c", &["198.51.100.3/24"], &["10.1.2.0/24"]),
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
        let breaks: [Break; 7] = [
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
            ("a route of ours led astray", |host| {
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
        for (what, damage) in breaks {
            damage(&mut hosts[0]);
            let repaired = hosts[0].arrange(&all);
            assert!(!repaired.changes.is_empty(), "{what}");
            let again = hosts[0].arrange(&all);
            assert!(again.changes.is_empty(), "{what}: {:#?}", again.changes);
            // A tunnel that was made anew has another index.
            assert_eq!(hosts[0].routes().len(), whole.len(), "{what}");
            for other in &sockets[1..] {
                exchange(&sockets[0], other);
                exchange(other, &sockets[0]);
            }
        }
    });
}

#[test]
fn a_route_of_the_administrator_stays_where_ours_would_be() {
    in_a_world("foreign routes", |world| {
        let near = world.segment("near", &["192.0.2.254/24", "2001:db8:1::fe/64"]);
        let mut host = world.node(
            &near,
            "a",
            &["192.0.2.1/24", "2001:db8:1::1/64"],
            &["10.1.0.0/24", "fd00:1::/64"],
        );
        let other = world.node(
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
        let before = host.routes();
        let arranged = host.arrange(std::slice::from_ref(&other.node));
        assert_eq!(arranged.problems.len(), 2, "{arranged:#?}");
        assert_eq!(host.routes(), before);
        let again = host.arrange(&[other.node]);
        assert!(again.changes.is_empty(), "{again:#?}");
    });
}

//! Addresses, routes, neighbours and settings.

use ipnet::IpNet;
use linux::{
    address::Family,
    link::{LinkKind, LinkSpec, Mac, Vxlan},
    neighbour::Forwarding,
    netns::NetNs,
    route::Socket,
    routes::{MAIN_TABLE, Route},
    sysctl::Key,
};

use crate::support::{alone, neighbourhood};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

#[test]
fn addresses_are_added_listed_and_removed() {
    alone("addresses", || {
        let mut here = Socket::open().unwrap();
        let mut pod = neighbourhood(&mut here, "vethaddr");
        for address in ["10.1.2.3/24", "10.9.9.9/32", "2001:db8::5/64"] {
            pod.inside.add_address(&pod.inner, net(address)).unwrap();
            let again = pod.inside.add_address(&pod.inner, net(address)).unwrap_err();
            assert!(again.is_exists(), "{again}");
        }
        let list = |socket: &mut Socket, family| {
            let mut found: Vec<_> = socket
                .addresses(&pod.inner, family)
                .unwrap()
                .into_iter()
                .map(|a| a.net.to_string())
                .collect();
            found.sort();
            found
        };
        assert_eq!(
            list(&mut pod.inside, Some(Family::V4)),
            ["10.1.2.3/24", "10.9.9.9/32"]
        );
        assert_eq!(
            list(&mut pod.inside, None),
            ["10.1.2.3/24", "10.9.9.9/32", "2001:db8::5/64"]
        );
        pod.inside.delete_address(&pod.inner, net("10.1.2.3/24")).unwrap();
        assert_eq!(list(&mut pod.inside, Some(Family::V4)), ["10.9.9.9/32"]);
        assert!(
            pod.inside
                .delete_address(&pod.inner, net("10.1.2.3/24"))
                .unwrap_err()
                .is_not_found()
        );
    });
}

#[test]
fn routes_keep_metric_table_scope_and_path_properties() {
    alone("routes", || {
        let mut here = Socket::open().unwrap();
        let mut pod = neighbourhood(&mut here, "vethroute");
        here.set_up(&pod.outer).unwrap();
        pod.inside.add_address(&pod.inner, net("10.1.2.3/24")).unwrap();
        pod.inside.add_address(&pod.inner, net("2001:db8::5/64")).unwrap();
        pod.inside.set_up(&pod.inner).unwrap();
        let link = Some(pod.inner.index);

        let plain = Route {
            gateway: Some("10.1.2.1".parse().unwrap()),
            link,
            ..Route::to(net("0.0.0.0/0"))
        };
        let rich = Route {
            priority: Some(77),
            table: Some(1000),
            mtu: Some(1280),
            advmss: Some(1200),
            ..Route {
                gateway: plain.gateway,
                link,
                ..Route::to(net("10.77.0.0/16"))
            }
        };
        let near = Route {
            link,
            scope: Some(253),
            ..Route::to(net("10.78.0.0/16"))
        };
        for route in [plain, rich, near] {
            pod.inside.add_route(&route).unwrap();
            assert!(pod.inside.add_route(&route).unwrap_err().is_exists(), "{route}");
        }
        let second = Route {
            gateway: Some("10.1.2.2".parse().unwrap()),
            ..plain
        };
        pod.inside.add_route(&second).unwrap();

        let routes = pod.inside.routes(Family::V4).unwrap();
        let with = |dst: &str| {
            routes
                .iter()
                .filter(|route| route.dst == net(dst))
                .collect::<Vec<_>>()
        };
        assert_eq!(with("0.0.0.0/0").len(), 2, "two next hops: {routes:#?}");
        assert_eq!(with("0.0.0.0/0")[0].table, Some(MAIN_TABLE));
        let found = with("10.77.0.0/16")[0];
        assert_eq!((found.priority, found.table), (Some(77), Some(1000)));
        assert_eq!((found.mtu, found.advmss), (Some(1280), Some(1200)));
        assert_eq!(with("10.78.0.0/16")[0].scope, Some(253));

        for hop in ["2001:db8::1", "2001:db8::2"] {
            let route = Route {
                gateway: Some(hop.parse().unwrap()),
                link,
                ..Route::to(net("::/0"))
            };
            pod.inside.add_route(&route).unwrap();
        }
        let routes = pod.inside.routes(Family::V6).unwrap();
        let defaults: Vec<_> = routes.iter().filter(|route| route.dst == net("::/0")).collect();
        assert_eq!(defaults.len(), 2, "{routes:#?}");

        pod.inside.delete_route(&rich).unwrap();
        assert!(
            !pod.inside
                .routes(Family::V4)
                .unwrap()
                .iter()
                .any(|route| route.dst == rich.dst)
        );
        assert!(pod.inside.delete_route(&rich).unwrap_err().is_not_found());
    });
}

#[test]
fn permanent_neighbour_is_listed_until_removed() {
    alone("neighbours", || {
        let mut here = Socket::open().unwrap();
        let pod = neighbourhood(&mut here, "vethneigh");
        let mac: Mac = "02:00:00:00:00:09".parse().unwrap();
        let ip = "10.1.2.9".parse().unwrap();
        here.set_up(&pod.outer).unwrap();
        here.set_neighbour(&pod.outer, ip, mac).unwrap();
        let found = here.neighbours(&pod.outer, Family::V4).unwrap();
        assert!(
            found
                .iter()
                .any(|n| n.ip == ip && n.mac == Some(mac) && n.permanent),
            "{found:?}"
        );
        here.delete_neighbour(&pod.outer, ip).unwrap();
        let found = here.neighbours(&pod.outer, Family::V4).unwrap();
        assert!(!found.iter().any(|n| n.ip == ip && n.permanent), "{found:?}");
    });
}

#[test]
fn hosts_of_a_vxlan_are_set_listed_and_removed() {
    alone("hosts of a VXLAN", || {
        let mut here = Socket::open().unwrap();
        for (name, host, other) in [
            ("vx4", "192.0.2.9", "192.0.2.10"),
            ("vx6", "2001:db8::9", "2001:db8::a"),
        ] {
            let vxlan = Vxlan {
                id: 77,
                port: 4789,
                local: Some(
                    if name == "vx4" { "192.0.2.1" } else { "2001:db8::1" }
                        .parse()
                        .unwrap(),
                ),
                learning: false,
            };
            match here.create_link(&LinkSpec::new(name, LinkKind::Vxlan(vxlan))) {
                Err(error) if error.is_unsupported() => {
                    println!("skipped: {error}");
                    return;
                }
                done => done.unwrap(),
            }
            let link = here.link_by_name(name).unwrap();
            let entry = |host: &str| Forwarding {
                mac: "02:00:00:00:00:09".parse().unwrap(),
                host: host.parse().unwrap(),
            };
            assert_eq!(here.forwardings(&link).unwrap(), []);
            here.set_forwarding(&link, entry(host)).unwrap();
            assert_eq!(here.forwardings(&link).unwrap(), [entry(host)]);
            here.set_forwarding(&link, entry(other)).unwrap();
            assert_eq!(here.forwardings(&link).unwrap(), [entry(other)]);
            here.delete_forwarding(&link, entry(other)).unwrap();
            assert_eq!(here.forwardings(&link).unwrap(), []);
            assert!(
                here.delete_forwarding(&link, entry(other))
                    .unwrap_err()
                    .is_not_found()
            );
        }
    });
}

#[test]
fn route_is_removed_only_with_its_protocol() {
    alone("protocols of routes", || {
        let mut here = Socket::open().unwrap();
        let pod = neighbourhood(&mut here, "vethproto");
        here.add_address(&pod.outer, net("192.0.2.1/24")).unwrap();
        here.add_address(&pod.outer, net("2001:db8::1/64")).unwrap();
        here.set_up(&pod.outer).unwrap();
        for (dst, gateway) in [("10.9.0.0/24", "192.0.2.9"), ("fd00:9::/64", "2001:db8::9")] {
            let ours = Route {
                gateway: Some(gateway.parse().unwrap()),
                link: Some(pod.outer.index),
                protocol: Some(87),
                ..Route::to(net(dst))
            };
            here.add_only_route(&ours).unwrap();
            let other = Route {
                protocol: Some(4),
                ..ours
            };
            assert!(here.add_only_route(&other).unwrap_err().is_exists());
            let find = |here: &mut Socket| {
                let all = here.routes(Family::of(&ours.dst.addr())).unwrap();
                all.into_iter().find(|route| route.dst == ours.dst)
            };
            assert_eq!(find(&mut here).unwrap().protocol, Some(87));
            assert!(here.delete_route(&other).unwrap_err().is_not_found());
            here.delete_route(&ours).unwrap();
            assert_eq!(find(&mut here), None);
        }
        // A gateway outside of the link's subnets.
        let onlink = Route {
            gateway: Some("10.9.1.0".parse().unwrap()),
            link: Some(pod.outer.index),
            onlink: true,
            ..Route::to(net("10.9.1.0/24"))
        };
        here.add_only_route(&onlink).unwrap();
        let all = here.routes(Family::V4).unwrap();
        assert!(
            all.iter().any(|route| route.dst == onlink.dst && route.onlink),
            "{all:?}"
        );
    });
}

#[test]
fn settings_are_those_of_the_threads_namespace() {
    alone("settings", || {
        let mut here = Socket::open().unwrap();
        let pod = neighbourhood(&mut here, "vethset");
        let value = || Key::ipv4("eth0", "arp_notify").unwrap().read();
        assert!(
            value().unwrap_err().is_not_found(),
            "eth0 is in the other namespace"
        );
        let inside = pod.ns.run(|| {
            Key::ipv4("eth0", "arp_notify").unwrap().write("1").unwrap();
            value().unwrap()
        });
        assert_eq!(inside.unwrap(), "1");
        assert!(NetNs::current().unwrap().same_as(&NetNs::current().unwrap()));
    });
}

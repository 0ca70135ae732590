//! The work of multus itself in a pod's network namespace, here a namespace of the test's own. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot continue has failed; helpers are part of the tests"
)]

#[path = "../built/mod.rs"]
mod built;
mod doctor;
mod in_process;
#[path = "../api/runtime.rs"]
mod runtime;

use ipnet::IpNet;
use linux::address::Family;
use linux::link::VethSpec;
use linux::netns::NetNs;
use linux::route::Socket;
use linux::routes::Route;
use multus::attach::netns::{KernelNetns, PodNetns as _};
use multus::networks::default_route::{DefaultRoute, RouteAction, RouteActions};
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};

/// A pod with the interfaces `eth0` and `net1`, one IPv4 and one IPv6 network each.
struct Pod {
    held: NetNs,
    socket: Socket,
    indexes: [u32; 2],
}

impl Pod {
    fn new() -> Self {
        let held = NetNs::create_anonymous().unwrap();
        let mut socket = held.run(Socket::open).unwrap().unwrap();
        let indexes = [("eth0", "peer0", 0), ("net1", "peer1", 1)].map(|(name, peer_name, number)| {
            let spec = VethSpec {
                name,
                mac: None,
                mtu: None,
                peer_name,
                peer_ns: None,
            };
            socket.create_veth(&spec).unwrap();
            for end in [name, peer_name] {
                let link = socket.link_by_name(end).unwrap();
                socket.set_up(&link).unwrap();
            }
            let link = socket.link_by_name(name).unwrap();
            for address in [format!("10.{number}.0.2/24"), format!("fd0{number}::2/64")] {
                socket.add_address(&link, address.parse().unwrap()).unwrap();
            }
            link.index
        });
        Self {
            held,
            socket,
            indexes,
        }
    }

    fn netns(&self) -> KernelNetns {
        KernelNetns::new(&format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            self.held.as_fd().as_raw_fd()
        ))
    }

    fn add_default(&mut self, interface: usize, gateway: &str) {
        let gateway: IpAddr = gateway.parse().unwrap();
        let everything = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
        let route = Route {
            gateway: Some(gateway),
            link: Some(self.indexes[interface]),
            ..Route::to(everything.parse().unwrap())
        };
        self.socket.add_route(&route).unwrap();
    }

    /// The default routes of both families: which interface, over which gateway.
    fn defaults(&mut self) -> Vec<(usize, String)> {
        let mut routes = self.socket.routes(Family::V4).unwrap();
        routes.extend(self.socket.routes(Family::V6).unwrap());
        let everything: [IpNet; 2] = ["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()];
        let defaults = routes.into_iter().filter(|route| everything.contains(&route.dst));
        defaults
            .filter_map(|route| {
                let interface = self.indexes.iter().position(|index| Some(*index) == route.link)?;
                Some((
                    interface,
                    route
                        .gateway
                        .map(|gateway| gateway.to_string())
                        .unwrap_or_default(),
                ))
            })
            .collect()
    }
}

const KEEP: RouteActions = RouteActions {
    v4: RouteAction::Keep,
    v6: RouteAction::Keep,
};

#[test]
fn requested_gateway_is_only_default_route() {
    // multus#54
    let mut pod = Pod::new();
    pod.add_default(0, "10.0.0.1");
    pod.add_default(0, "fd00::1");
    pod.add_default(1, "10.1.0.1");
    let mut netns = pod.netns();
    let gateway = "10.1.0.254".parse().unwrap();
    netns
        .reroute(
            "eth0",
            RouteActions {
                v4: RouteAction::Remove,
                ..KEEP
            },
        )
        .unwrap();
    netns
        .reroute(
            "net1",
            RouteActions {
                v4: RouteAction::Replace(gateway),
                ..KEEP
            },
        )
        .unwrap();
    assert_eq!(
        pod.defaults(),
        [(1, "10.1.0.254".to_owned()), (0, "fd00::1".to_owned())]
    );

    // Once more changes nothing.
    netns
        .reroute(
            "net1",
            RouteActions {
                v4: RouteAction::Replace(gateway),
                ..KEEP
            },
        )
        .unwrap();
    assert_eq!(
        pod.defaults(),
        [(1, "10.1.0.254".to_owned()), (0, "fd00::1".to_owned())]
    );
}

#[test]
fn families_are_independent() {
    // multus#55
    let mut pod = Pod::new();
    pod.add_default(0, "10.0.0.1");
    pod.add_default(0, "fd00::1");
    let mut netns = pod.netns();
    netns
        .reroute(
            "eth0",
            RouteActions {
                v6: RouteAction::Remove,
                ..KEEP
            },
        )
        .unwrap();
    netns
        .reroute(
            "net1",
            RouteActions {
                v6: RouteAction::Replace("fd01::1".parse().unwrap()),
                ..KEEP
            },
        )
        .unwrap();
    assert_eq!(
        pod.defaults(),
        [(0, "10.0.0.1".to_owned()), (1, "fd01::1".to_owned())]
    );
}

#[test]
fn other_tables_and_destinations_are_kept() {
    let mut pod = Pod::new();
    pod.add_default(0, "10.0.0.1");
    let everything: IpNet = "0.0.0.0/0".parse().unwrap();
    let other = Route {
        gateway: Some("10.0.0.1".parse().unwrap()),
        link: Some(pod.indexes[0]),
        table: Some(100),
        ..Route::to(everything)
    };
    pod.socket.add_route(&other).unwrap();
    let before = pod.socket.routes(Family::V4).unwrap().len();
    pod.netns()
        .reroute(
            "eth0",
            RouteActions {
                v4: RouteAction::Remove,
                ..KEEP
            },
        )
        .unwrap();
    let left = pod.socket.routes(Family::V4).unwrap();
    assert_eq!(left.len(), before - 1);
    assert!(
        left.iter()
            .any(|route| route.dst == everything && route.table == Some(100))
    );
}

#[test]
fn removed_default_route_is_restored() {
    let mut pod = Pod::new();
    pod.add_default(0, "10.0.0.1");
    pod.add_default(0, "fd00::1");
    let everything: IpNet = "0.0.0.0/0".parse().unwrap();
    let on_link = Route {
        link: Some(pod.indexes[1]),
        priority: Some(50),
        ..Route::to(everything)
    };
    pod.socket.add_route(&on_link).unwrap();
    let mut netns = pod.netns();
    let all = netns.defaults().unwrap();
    let metrics: Vec<_> = all
        .iter()
        .map(|route| (&*route.interface, route.metric))
        .collect();
    assert!(metrics.contains(&("net1", Some(50))), "{metrics:?}");
    assert_eq!(all.len(), 3);
    let before = pod.socket.routes(Family::V4).unwrap();
    let both = RouteActions {
        v4: RouteAction::Remove,
        v6: RouteAction::Remove,
    };
    for interface in ["eth0", "net1"] {
        netns.reroute(interface, both).unwrap();
    }
    assert_eq!(netns.defaults().unwrap(), []);
    for route in &all {
        // Twice, because a call may be cut off.
        netns.restore(route).unwrap();
        netns.restore(route).unwrap();
    }
    assert_eq!(netns.defaults().unwrap(), all);
    assert_eq!(pod.socket.routes(Family::V4).unwrap().len(), before.len());
    let gone = DefaultRoute {
        interface: "gone".into(),
        ..all[0].clone()
    };
    netns.restore(&gone).unwrap_err();
}

#[test]
fn missing_namespace_is_named() {
    // multus#35, multus#36
    let pod = Pod::new();
    let mut netns = pod.netns();
    assert!(netns.has("eth0").unwrap());
    assert!(!netns.has("net2").unwrap());
    let error = KernelNetns::new("/nowhere/at/all")
        .has("eth0")
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("validateIfName: no net namespace /nowhere/at/all found: failed to Statfs "),
        "{error}"
    );
}

//! The egress-router plugin: a client, the router, and an external system, each in a namespace of its own.
//!
//! ```text
//! client 10.244.0.3 ──ptp── host ──ptp── 10.244.0.2 router 192.0.2.10 ──macvlan── gateway 192.0.2.1 = 203.0.113.26
//! ```

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd as _,
    time::Duration,
};

use linux::{
    address::Family,
    link::{LinkKind, LinkSpec},
    routes::{MAIN_TABLE, Route},
};
use serde_json::{Value, json};

use crate::{
    stage::{Host, Pod, bind, on_a_host, with},
    testing::{nft, ruleset},
};

const DEADLINE: Duration = Duration::from_mins(1);

/// The addresses of one family.
struct Addresses {
    client: &'static str,
    router: &'static str,
    /// Gateway of the pods.
    host: &'static str,
    all: &'static str,
    own: &'static str,
    prefix: u8,
    gateway: &'static str,
    external: &'static str,
    fallback: &'static str,
}

const V4: Addresses = Addresses {
    client: "10.244.0.3",
    router: "10.244.0.2",
    host: "10.244.0.1",
    all: "0.0.0.0/0",
    own: "192.0.2.10",
    prefix: 24,
    gateway: "192.0.2.1",
    external: "203.0.113.26",
    fallback: "203.0.113.9",
};
const V6: Addresses = Addresses {
    client: "fd00:244::3",
    router: "fd00:244::2",
    host: "fd00:244::1",
    all: "::/0",
    own: "2001:db8::10",
    prefix: 64,
    gateway: "2001:db8::1",
    external: "2001:db8:1::26",
    fallback: "2001:db8:1::9",
};

/// The config that the operator renders.
fn config(of: &Addresses) -> Value {
    json!({
        "cniVersion": "0.4.0", "type": "egress-router", "name": "egress-router-cni-nad",
        "interfaceArgs": { "master": "uplink" },
        "ip": {
            "addresses": [format!("{}/{}", of.own, of.prefix)],
            "destinations": [format!("8080 TCP {} 80", of.external), format!("53 UDP {}", of.external)],
            "fallbackIP": of.fallback,
            "gateway": of.gateway,
        },
        "log_file": "/tmp/egress-router-log", "log_level": "debug",
    })
}

/// A pod with `eth0` in the network of the cluster.
fn pod(host: &mut Host, address: &str, of: &Addresses) -> Pod {
    let pod = host.pod();
    let ipam = json!({
        "type": "static", "addresses": [{ "address": format!("{address}/{}", of.prefix), "gateway": of.host }],
        "routes": [{ "dst": of.all }],
    });
    let network = json!({ "cniVersion": "1.0.0", "name": "cluster", "type": "ptp", "ipam": ipam });
    host.call_with("ADD", &pod, "eth0", "", &network).success();
    pod
}

/// The external system at the other end of the host's link `uplink`. It has no route to the cluster.
fn external(host: &mut Host, of: &Addresses) -> Pod {
    let external = host.pod();
    let kind = LinkKind::Veth {
        peer_name: "wire",
        peer_ns: Some(external.ns.as_fd()),
    };
    host.socket.create_link(&LinkSpec::new("uplink", kind)).unwrap();
    let uplink = host.link("uplink").unwrap();
    host.socket.set_up(&uplink).unwrap();
    external.set_sysctl("net/ipv6/conf/all/disable_ipv6", "0");
    let (wire, lo) = (external.link("wire").unwrap(), external.link("lo").unwrap());
    external.with(|socket| {
        socket.set_up(&lo)?;
        socket.set_up(&wire)?;
        socket.add_own_address(&wire, format!("{}/{}", of.gateway, of.prefix).parse().unwrap())?;
        let width = if of.prefix == 64 { 128 } else { 32 };
        for address in [of.external, of.fallback] {
            socket.add_own_address(&lo, format!("{address}/{width}").parse().unwrap())?;
        }
        Ok(())
    });
    external
}

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// Connects to a port of the router, and returns the address that the external system sees.
fn connect(client: &Pod, external: &Pod, port: u16, to: SocketAddr, of: &Addresses) -> String {
    let listener = bind(&external.ns, || TcpListener::bind(to));
    let stream = client
        .ns
        .run(|| TcpStream::connect_timeout(&at(of.router, port), DEADLINE))
        .unwrap();
    let mut stream = stream.expect("a connection");
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let (mut accepted, peer) = listener.accept().unwrap();
    accepted.write_all(b"hello").unwrap();
    let mut text = [0; 5];
    stream.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"hello");
    peer.ip().to_string()
}

fn exchange(client: &Pod, external: &Pod, port: u16, to: SocketAddr, of: &Addresses) -> String {
    let socket = |pod: &Pod, address: SocketAddr| {
        let socket = bind(&pod.ns, || UdpSocket::bind(address));
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        socket
    };
    let server = socket(external, to);
    let sender = socket(client, at(of.client, 0));
    sender.send_to(b"question", at(of.router, port)).unwrap();
    let mut text = [0; 16];
    let (_, peer) = server.recv_from(&mut text).unwrap();
    server.send_to(b"answer", peer).unwrap();
    let (length, from) = sender.recv_from(&mut text).unwrap();
    assert_eq!(&text[..length], b"answer");
    assert_eq!(from, at(of.router, port));
    peer.ip().to_string()
}

fn redirects(host: &mut Host, of: &Addresses, is_without_default: bool) {
    let external = external(host, of);
    let client = pod(host, of.client, of);
    let router = pod(host, of.router, of);
    // A strict filter of return paths accepts clients and answers.
    router.set_sysctl("net/ipv4/conf/all/rp_filter", "1");
    if is_without_default {
        // Multus deletes the default route of `eth0` before it calls the plugin.
        router.with(|socket| {
            let family = Family::of(&of.client.parse().unwrap());
            let default = socket.routes(family)?;
            let default = default.iter().find(|route| route.dst.prefix_len() == 0);
            socket.delete_route(default.expect("a default route"))
        });
    }
    let config = config(of);
    let result = host.add(&router, &config);
    assert_eq!(result["ips"][0]["address"], format!("{}/{}", of.own, of.prefix));
    for _ in 0..2 {
        let to = at(of.external, 80);
        assert_eq!(connect(&client, &external, 8080, to, of), of.own);
    }
    let to = at(of.external, 53);
    assert_eq!(exchange(&client, &external, 53, to, of), of.own);
    let to = at(of.fallback, 9999);
    assert_eq!(connect(&client, &external, 9999, to, of), of.own);
    let to = at(of.fallback, 80);
    assert_eq!(exchange(&client, &external, 80, to, of), of.own);
    host.check(&router, &config, &result).success();
}

// cluster-network#117, cluster-network#118
#[test]
fn connections_leave_with_the_address_of_the_router() {
    on_a_host("an egress router", |host| redirects(host, &V4, false));
}

// cluster-network#118
#[test]
fn answers_return_without_a_default_route_of_the_cluster() {
    on_a_host("an egress router of multus", |host| redirects(host, &V4, true));
}

// cluster-network#117
#[test]
fn router_redirects_ipv6() {
    on_a_host("an egress router of IPv6", |host| redirects(host, &V6, false));
}

/// Default routes of the main table.
fn defaults(pod: &Pod) -> Vec<String> {
    let mut routes: Vec<Route> = pod.routes(Family::V4);
    routes.retain(|route| route.dst.prefix_len() == 0 && route.table == Some(MAIN_TABLE));
    routes
        .iter()
        .map(|route| format!("{route} dev {}", route.link.unwrap_or_default()))
        .collect()
}

// cluster-network#119
#[test]
fn check_detects_a_missing_route_and_missing_rules() {
    on_a_host("CHECK of an egress router", |host| {
        let _external = external(host, &V4);
        let router = pod(host, V4.router, &V4);
        let config = config(&V4);
        let result = host.add(&router, &config);
        host.check(&router, &config, &result).success();
        let default = Route {
            gateway: Some(V4.gateway.parse().unwrap()),
            link: Some(router.net1().index),
            ..Route::to(V4.all.parse().unwrap())
        };
        router.with(|socket| socket.delete_route(&default));
        let missing = host.check(&router, &config, &result).message();
        assert_eq!(missing, "the default route via 192.0.2.1 dev net1 is missing");
        router.with(|socket| socket.add_route(&default));
        host.check(&router, &config, &result).success();
        let flush = ["flush", "table", "ip", "egress_cni"];
        router.ns.run(|| nft(&flush, "")).unwrap();
        let missing = host.check(&router, &config, &result).message();
        assert_eq!(missing, "chain ip egress_cni prerouting has no rules");
    });
}

// cluster-network#119
#[test]
fn pod_has_its_former_routes_after_del() {
    on_a_host("the end of an egress router", |host| {
        let _external = external(host, &V4);
        let router = pod(host, V4.router, &V4);
        let (before, state) = (defaults(&router), host.state(&router));
        assert_eq!(before.len(), 1, "{before:?}");
        let config = config(&V4);
        host.add(&router, &config);
        assert_eq!(
            defaults(&router),
            [format!("0.0.0.0/0 via 192.0.2.1 dev {}", router.net1().index)]
        );
        host.del(&router, &config);
        host.del(&router, &config);
        assert_eq!(defaults(&router), before);
        assert_eq!(host.state(&router), state);
        assert_eq!(router.ns.run(ruleset).unwrap(), "");
    });
}

// cluster-network#119
#[test]
fn default_route_of_another_network_survives_del() {
    on_a_host("an egress router without the default route", |host| {
        let _external = external(host, &V4);
        let router = pod(host, V4.router, &V4);
        let config = config(&V4);
        host.add(&router, &config);
        let eth0 = router.link("eth0").unwrap().index;
        let other = Route {
            gateway: Some(V4.host.parse().unwrap()),
            link: Some(eth0),
            priority: Some(7),
            ..Route::to(V4.all.parse().unwrap())
        };
        router.with(|socket| socket.add_route(&other));
        host.del(&router, &config);
        assert_eq!(
            defaults(&router),
            [format!("0.0.0.0/0 via 10.244.0.1 dev {eth0}")]
        );
        let kept: Vec<_> = router
            .routes(Family::V4)
            .iter()
            .map(|route| route.priority)
            .collect();
        assert!(kept.contains(&Some(7)), "{kept:?}");
    });
}

// cluster-network#119
#[test]
fn failed_add_changes_nothing() {
    on_a_host("a failed egress router", |host| {
        let _external = external(host, &V6);
        let router = pod(host, V6.router, &V6);
        let state = host.state(&router);
        let config = config(&V6);
        let mut wrong = config.clone();
        // The kernel refuses the pod's own address, at the last route.
        wrong["ip"]["gateway"] = json!(V6.own);
        let failed = host.call("ADD", &router, &wrong).message();
        assert!(failed.starts_with("failed to add route ::/0"), "{failed}");
        assert_eq!(host.state(&router), state);
        let refused = host
            .call("ADD", &router, &with(&config, "ip", json!({})))
            .message();
        assert_eq!(refused, "unable to parse IP address \"\"");
        assert_eq!(host.state(&router), state);
        assert_eq!(router.ns.run(ruleset).unwrap(), "");
    });
}

//! The ptp plugin.

use std::{fs, net::UdpSocket, time::Duration};

use linux::{address::Family, routes::Route};
use serde_json::{Value, json};

use crate::{
    contract,
    stage::{Host, Pod, on_a_host, with},
    testing::ruleset,
};

/// A config without addresses.
fn ptp() -> Value {
    json!({ "cniVersion": "1.1.0", "name": "test-net", "type": "ptp" })
}

/// The config with addresses by `static`: each with its gateway.
fn at(addresses: &[(&str, &str)]) -> Value {
    let addresses: Vec<_> = addresses
        .iter()
        .map(|(address, gateway)| json!({ "address": address, "gateway": gateway }))
        .collect();
    let ipam = json!({
        "type": "static", "addresses": addresses, "routes": [{ "dst": "0.0.0.0/0" }], "dns": { "nameservers": ["192.0.2.9"] }
    });
    with(&ptp(), "ipam", ipam)
}

/// Routes of the main table to these destinations, in words.
fn routes(all: &[Route], wanted: &[&str]) -> Vec<String> {
    let mut found: Vec<_> = all
        .iter()
        .filter(|route| route.table == Some(254) && wanted.contains(&route.dst.to_string().as_str()))
        .map(|route| {
            let source = route.source.map(|source| format!(" from {source}"));
            format!("{route}{}", source.unwrap_or_default())
        })
        .collect();
    found.sort();
    found
}

// cni-plugins#81
#[test]
fn link_plugins_keep_the_contract() {
    on_a_host("ptp", |host| contract::holds(host, &ptp()));
}

#[test]
fn pod_reaches_only_the_host() {
    on_a_host("ptp in both families", |host| {
        let pod = host.pod();
        let config = at(&[("10.1.2.3/24", "10.1.2.1"), ("fd00::3/64", "fd00::1")]);
        let result = host.add(&pod, &config);
        let outer = host.veths().remove(0);
        let (inner, mac) = (pod.net1(), |link: &linux::link::Link| {
            link.mac.unwrap().to_string()
        });
        assert_eq!(
            result["interfaces"],
            json!([
                { "name": outer.name, "mac": mac(&outer), "mtu": 1500 },
                { "name": "net1", "mac": mac(&inner), "mtu": 1500, "sandbox": pod.path }
            ])
        );
        assert_eq!(result["ips"][0]["interface"], 1);
        assert_eq!(result["dns"], json!({ "nameservers": ["192.0.2.9"] }));
        assert_eq!(outer.peer, Some(inner.index));

        let inside = pod.with(|socket| {
            let mut all = socket.routes(Family::V4)?;
            all.extend(socket.routes(Family::V6)?);
            Ok(all)
        });
        let wanted = [
            "10.1.2.0/24",
            "10.1.2.1/32",
            "fd00::/64",
            "fd00::1/128",
            "0.0.0.0/0",
        ];
        assert_eq!(
            routes(&inside, &wanted),
            [
                "0.0.0.0/0 via 10.1.2.1",
                "10.1.2.0/24 via 10.1.2.1 from 10.1.2.3",
                "10.1.2.1/32 from 10.1.2.3",
                "fd00::/64 via fd00::1 from fd00::3",
                "fd00::1/128 from fd00::3"
            ]
        );
        assert_eq!(host.addresses(&outer.name), ["10.1.2.1/32", "fd00::1/128"]);
        let mut outside = host.socket.routes(Family::V4).unwrap();
        outside.extend(host.socket.routes(Family::V6).unwrap());
        let to_pod = routes(&outside, &["10.1.2.3/32", "fd00::3/128"]);
        assert_eq!(to_pod, ["10.1.2.3/32", "fd00::3/128"]);
        for file in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            assert_eq!(
                fs::read_to_string(format!("/proc/sys/net/{file}"))
                    .unwrap()
                    .trim(),
                "1"
            );
        }

        // Another container of the same subnet is reached by way of the host.
        let other = host.pod();
        host.add(&other, &at(&[("10.1.2.4/24", "10.1.2.1")]));
        let (first, second) = (pod.udp(), other.udp());
        second.send_to(b"hello", "10.1.2.3:7777").unwrap();
        let mut text = [0; 16];
        let (length, from) = first.recv_from(&mut text).unwrap();
        assert_eq!(
            (&text[..length], from.ip().to_string().as_str()),
            (&b"hello"[..], "10.1.2.4")
        );
        let on_host = UdpSocket::bind("10.1.2.1:7777").unwrap();
        on_host.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        on_host.send_to(b"host", "10.1.2.3:7777").unwrap();
        let (length, from) = first.recv_from(&mut text).unwrap();
        assert_eq!(
            (&text[..length], from.ip().to_string().as_str()),
            (&b"host"[..], "10.1.2.1")
        );

        host.check(&pod, &config, &result).success();
        host.del(&pod, &config);
        assert!(pod.link("net1").is_none() && host.link(&outer.name).is_none());
    });
}

#[test]
fn mtu_dns_and_masquerading_match_the_config() {
    on_a_host("keys of ptp", |host| {
        let pod = host.pod();
        let mut config = at(&[("10.1.2.3/24", "10.1.2.1")]);
        config["mtu"] = 1300.into();
        config["dns"] = json!({ "nameservers": [] });
        config["ipMasq"] = true.into();
        let before = host.state(&pod);
        let result = host.add(&pod, &config);
        assert_eq!(result["dns"], Value::Null);
        assert_eq!((pod.net1().mtu, host.veths()[0].mtu), (1300, 1300));
        assert!(ruleset().contains(&pod.id), "{}", ruleset());
        host.check(&pod, &config, &result).success();
        host.del(&pod, &config);
        assert!(!ruleset().contains(&pod.id), "{}", ruleset());
        assert_eq!(host.state(&pod), before);
        let refused = host.call("ADD", &pod, &with(&config, "ipMasqBackend", "pf".into()));
        assert_eq!(refused.message(), "unknown ipmasq backend \"pf\"");
    });
}

#[test]
fn an_address_without_a_gateway_is_refused() {
    on_a_host("ptp without gateways", |host| {
        let pod = host.pod();
        let ipam = json!({ "type": "static", "addresses": [{ "address": "10.1.2.3/24" }] });
        let refused = host.call("ADD", &pod, &with(&ptp(), "ipam", ipam)).message();
        assert_eq!(refused, "IPAM plugin returned no gateway for 10.1.2.3/24");
        assert_eq!(
            host.call("ADD", &pod, &ptp()).message(),
            "no plugin name provided"
        );
        assert!(pod.link("net1").is_none() && host.veths().is_empty() && host.records().is_empty());
    });
}

#[test]
fn check_compares_peer_and_host_routes() {
    on_a_host("CHECK of ptp", |host| {
        let config = at(&[("10.1.2.3/24", "10.1.2.1")]);
        let mut after = |spoil: &dyn Fn(&mut Host, &Pod)| {
            let pod = host.pod();
            let result = host.add(&pod, &config);
            host.check(&pod, &config, &result).success();
            let outer = host.veths().remove(0).name;
            spoil(host, &pod);
            let message = host.check(&pod, &config, &result).message();
            host.del(&pod, &config);
            message.replace(&outer, "OUTER")
        };
        let route = after(&|host, _| {
            let route = Route::to("10.1.2.3/32".parse().unwrap());
            host.socket.delete_route(&route).unwrap();
        });
        assert_eq!(route, "Expected Route 10.1.2.3/32 not found in routing table");
        let renamed = after(&|host, _| {
            let outer = host.veths().remove(0);
            host.socket.set_down(&outer).unwrap();
            let change = linux::link::LinkChange {
                name: Some("other"),
                ..linux::link::LinkChange::default()
            };
            host.socket.change_link(&outer, "rename link", &change).unwrap();
        });
        assert_eq!(renamed, "OUTER is not the other end of net1");
    });
}

//! The sbr plugin, chained after bridge.

use std::{net::UdpSocket, time::Duration};

use linux::{address::Family, routes::Route, rules::Rule};
use serde_json::{Value, json};

use crate::stage::{Host, Pod, VERSIONS, l3, on_a_host, with};

/// Destination of the packets: beyond the subnets of the container.
const BEYOND: &str = "192.0.2.1";

/// A config of `bridge` for a bridge and one address each with its gateway.
fn network(bridge: &str, addresses: &[(&str, &str)]) -> Value {
    let addresses: Vec<_> = addresses
        .iter()
        .map(|(address, gateway)| json!({ "address": address, "gateway": gateway }))
        .collect();
    let ipam = json!({ "type": "static", "addresses": addresses, "routes": [{ "dst": "10.99.0.0/16" }] });
    let config = with(&l3("1.1.0", &[]), "bridge", bridge.into());
    with(&config, "ipam", ipam)
}

fn sbr(result: &Value, settings: &Value) -> Value {
    let mut config =
        json!({ "cniVersion": "1.1.0", "name": "test-net", "type": "sbr", "prevResult": result });
    for (key, value) in settings.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

/// The rules that are not the kernel's own.
fn rules(pod: &Pod) -> Vec<String> {
    let of = |family| pod.with(|socket| socket.rules(family));
    let rules: Vec<Rule> = [of(Family::V4), of(Family::V6)].concat();
    let mut shown: Vec<_> = rules
        .iter()
        .filter_map(|rule| Some(format!("{} table {}", rule.source?, rule.table)))
        .collect();
    shown.sort();
    shown
}

/// Routes of an interface in all tables but the local one, link-local ones left out.
fn routes(pod: &Pod, ifname: &str) -> Vec<String> {
    let link = pod.link(ifname).unwrap().index;
    let of = |family| pod.with(|socket| socket.routes(family));
    let routes: Vec<Route> = [of(Family::V4), of(Family::V6)].concat();
    let mut shown: Vec<_> = routes
        .iter()
        .filter(|route| route.link == Some(link) && !route.dst.to_string().starts_with("fe80:"))
        .map(|route| format!("{route} table {}", route.table.unwrap()))
        .collect();
    shown.sort();
    shown
}

/// Sends a word from an address of the container to a socket of the host, which receives it.
fn is_heard(pod: &Pod, heard: &UdpSocket, from: &str, word: &str) {
    let socket = pod.ns.run(|| UdpSocket::bind((from, 0))).unwrap().unwrap();
    socket
        .send_to(word.as_bytes(), heard.local_addr().unwrap())
        .unwrap();
    let mut buffer = [0; 16];
    let (length, sender) = heard.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], word.as_bytes());
    assert_eq!(sender.ip().to_string(), from);
}

/// A pod whose `net1` has an unreachable default gateway, and whose `net2` has the host as gateway.
fn with_two_networks(host: &mut Host) -> (Pod, Value, Value) {
    let lo = host.socket.link_by_name("lo").unwrap();
    host.socket
        .add_address(&lo, format!("{BEYOND}/32").parse().unwrap())
        .unwrap();
    let pod = host.pod();
    let mut dead = network("br0", &[("10.1.2.3/24", "10.1.2.254")]);
    dead["ipam"]["routes"] = json!([{ "dst": "0.0.0.0/0" }]);
    host.add(&pod, &dead);
    let config = with(
        &network("br1", &[("10.7.0.2/24", "10.7.0.1"), ("fd07::2/64", "fd07::1")]),
        "isGateway",
        true.into(),
    );
    let result = host.call_with("ADD", &pod, "net2", "", &config).success();
    (pod, config, result)
}

// cni-plugins#52, sbr with several addresses; cni-plugins#83
#[test]
fn packets_leave_by_the_interface_of_their_source() {
    on_a_host("sbr", |host| {
        let (pod, bridge, result) = with_two_networks(host);
        let before = routes(&pod, "net2");
        let config = sbr(&result, &json!({}));
        let call = |verb: &str| host.call_with(verb, &pod, "net2", "", &config);
        assert_eq!(call("ADD").success(), result);
        assert_eq!(rules(&pod), ["10.7.0.2/32 table 100", "fd07::2/128 table 101"]);
        assert_eq!(
            routes(&pod, "net2"),
            [
                "0.0.0.0/0 via 10.7.0.1 table 100",
                "10.7.0.0/24 table 100",
                "10.99.0.0/16 via 10.7.0.1 table 100",
                "::/0 via fd07::1 table 101",
                "fd07::/64 table 101",
            ]
        );
        let heard = UdpSocket::bind((BEYOND, 0)).unwrap();
        heard.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        is_heard(&pod, &heard, "10.7.0.2", "by net2");

        call("CHECK").success();
        let whole = with(&bridge, "prevResult", result.clone());
        host.call_with("CHECK", &pod, "net2", "", &whole).success();
        pod.with(|socket| {
            let rule = Rule::from_address("10.7.0.2".parse().unwrap(), 100);
            socket.delete_rule(Family::V4, &rule)
        });
        assert_eq!(call("CHECK").message(), "no rule for source 10.7.0.2 found");

        // A second ADD finds the routes that the first one moved.
        assert_eq!(call("ADD").success(), result);
        is_heard(&pod, &heard, "10.7.0.2", "again");
        call("CHECK").success();

        for _ in 0..2 {
            assert_eq!(call("DEL").success(), Value::Null);
            assert_eq!(rules(&pod), Vec::<String>::new());
        }
        assert_eq!(routes(&pod, "net2"), before);
        pod.with(|socket| socket.delete_link_by_name("net2"));
        assert_eq!(call("DEL").success(), Value::Null);
        pod.lose_path();
        assert_eq!(call("DEL").success(), Value::Null);
        assert_eq!(host.records_of("sbr"), Vec::<String>::new());
    });
}

// cni-plugins#52, sbr with fixed gateways, hints and a table
#[test]
fn gateways_hints_and_table_match_the_config() {
    on_a_host("sbr settings", |host| {
        let (pod, _, result) = with_two_networks(host);
        let call =
            |verb: &str, settings: Value| host.call_with(verb, &pod, "net2", "", &sbr(&result, &settings));
        let fixed = json!({ "gateways": ["10.7.0.9"], "addSourceHints": true });
        call("ADD", fixed.clone()).success();
        assert_eq!(
            routes(&pod, "net2"),
            [
                "0.0.0.0/0 via 10.7.0.9 table 100",
                "10.7.0.0/24 table 100",
                "10.7.0.0/24 table 254",
                "10.99.0.0/16 via 10.7.0.1 table 100",
                "::/0 via fd07::1 table 101",
                "fd07::/64 table 101",
                "fd07::/64 table 254",
            ]
        );
        let hinted = pod.with(|socket| socket.routes(Family::V6));
        let source = hinted
            .iter()
            .find(|route| route.table == Some(254) && route.dst.to_string() == "fd07::/64")
            .and_then(|route| route.source);
        assert_eq!(source, Some("fd07::2".parse().unwrap()));
        call("DEL", fixed).success();

        let there = routes(&pod, "net2");
        call("ADD", json!({ "table": 777 })).success();
        assert_eq!(rules(&pod), ["10.7.0.2/32 table 777", "fd07::2/128 table 777"]);
        assert_eq!(routes(&pod, "net2"), there);
        call("CHECK", json!({ "table": 777 })).success();
        // Rules of the upstream plugin, which has no record.
        host.lose_records_of("sbr");
        call("DEL", json!({})).success();
        assert_eq!(rules(&pod), Vec::<String>::new());

        let bad = json!({ "gateways": ["10.7.0.1", "10.7.0.2"] });
        assert_eq!(
            call("ADD", bad).message(),
            "gateways list cannot contain more than 2 entries (one IPv4, one IPv6)"
        );
        let unchained = json!({ "cniVersion": "1.1.0", "name": "test-net", "type": "sbr" });
        assert_eq!(
            host.call("ADD", &pod, &unchained).message(),
            "This plugin must be called as chained plugin"
        );
    });
}

// cni-plugins#83
#[test]
fn gc_removes_rules_of_invalid_attachments() {
    on_a_host("GC of sbr", |host| {
        let (pod, _, result) = with_two_networks(host);
        let config = sbr(&result, &json!({}));
        host.call_with("ADD", &pod, "net2", "", &config).success();
        let valid = json!([{ "containerID": pod.id, "ifname": "net2" }]);
        for (valid, left) in [(valid, 2), (json!([]), 0)] {
            host.gc(&with(&config, "cni.dev/valid-attachments", valid))
                .success();
            assert_eq!(rules(&pod).len(), left);
            assert_eq!(host.records_of("sbr").len(), left / 2);
        }
        let without_a_list = host.gc(&config);
        assert_eq!(without_a_list.success(), Value::Null);
        assert!(without_a_list.stderr.contains("cni.dev/valid-attachments"));
    });
}

#[test]
fn results_pass_through_in_every_version() {
    on_a_host("sbr in every version", |host| {
        for version in VERSIONS {
            let pod = host.pod();
            let result = host.add(&pod, &l3(version, &["10.1.2.3/24"]));
            let config =
                json!({ "cniVersion": version, "name": "test-net", "type": "sbr", "prevResult": result });
            assert_eq!(host.add(&pod, &config), result, "{version}");
            assert_eq!(rules(&pod), ["10.1.2.3/32 table 100"]);
            host.del(&pod, &config);
            assert_eq!(rules(&pod), Vec::<String>::new());
        }
    });
}

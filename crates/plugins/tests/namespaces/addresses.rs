//! Layer 3: addresses, gateways, routes, announcements; and the plugin `static` by itself.

use std::{
    num::{NonZeroU16, NonZeroU32},
    time::Duration,
};

use linux::address::Family;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType, sockopt};
use serde_json::{Value, json};

use crate::stage::{Host, Pod, l2, l3, on_a_host, with};

fn gateway(version: &str, addresses: &[&str]) -> Value {
    with(&l3(version, addresses), "isDefaultGateway", true.into())
}

fn defaults(pod: &Pod, family: Family) -> Vec<String> {
    let routes = pod.routes(family);
    routes
        .iter()
        .filter(|r| r.dst.prefix_len() == 0)
        .map(|r| r.gateway.unwrap().to_string())
        .collect()
}

fn sysctl(path: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/{path}"))
        .unwrap()
        .trim()
        .to_owned()
}

// cni-plugins#11
#[test]
fn the_bridge_is_the_default_gateway_of_both_families() {
    on_a_host("default gateway", |host| {
        let cases: [(&[&str], &[&str]); 3] = [
            (&["10.1.2.2/24"], &["10.1.2.1/24"]),
            (&["2001:db8::2/64"], &["10.1.2.1/24", "2001:db8::1/64"]),
            (
                &["10.1.2.3/24", "2001:db8::3/64"],
                &["10.1.2.1/24", "2001:db8::1/64"],
            ),
        ];
        let mut bridge_mac = None;
        let mut pods = Vec::new();
        for (addresses, on_bridge) in cases {
            let pod = host.pod();
            let config = gateway("1.0.0", addresses);
            let result = host.add(&pod, &config);
            assert_eq!(pod.addresses(), addresses);
            assert_eq!(host.addresses("br0"), on_bridge);
            for (family, wanted) in [(Family::V4, "10.1.2.1"), (Family::V6, "2001:db8::1")] {
                let of_family = addresses
                    .iter()
                    .any(|a| a.contains(':') == (family == Family::V6));
                let expected: &[&str] = if of_family { &[wanted] } else { &[] };
                assert_eq!(defaults(&pod, family), expected, "{result}");
            }
            assert_eq!(result["ips"][0]["interface"], 2);

            let bridge = host.link("br0").unwrap();
            let outer = result["interfaces"][1]["mac"].as_str().unwrap();
            assert_ne!(bridge.mac.unwrap().to_string(), outer);
            assert_eq!(*bridge_mac.get_or_insert(bridge.mac), bridge.mac, "pods come");
            assert_eq!(result["interfaces"][0]["mac"], bridge.mac.unwrap().to_string());
            host.check(&pod, &config, &result).success();
            pods.push((pod, config));
        }
        assert_eq!(sysctl("net/ipv4/ip_forward"), "1");
        assert_eq!(sysctl("net/ipv6/conf/all/forwarding"), "1");
        for (pod, config) in &pods {
            host.del(pod, config);
            assert_eq!(Some(host.link("br0").unwrap().mac), bridge_mac, "pods go");
        }
    });
}

// cni-plugins#11, a bridge that others made
#[test]
fn bridge_without_mac_gets_its_own() {
    on_a_host("bridge without MAC", |host| {
        // A bridge that follows its ports loses its MAC with the last one.
        let spec = linux::link::BridgeSpec {
            name: "br0",
            mtu: None,
            mac: None,
            vlan_filtering: false,
        };
        host.socket.create_bridge(&spec).unwrap();
        let pod = host.pod();
        host.add(&pod, &l2("1.0.0"));
        host.del(&pod, &l2("1.0.0"));
        assert!(host.link("br0").unwrap().mac.unwrap().is_zero());
        let config = gateway("1.0.0", &["10.1.2.2/24"]);
        let result = host.add(&pod, &config);
        let mac = host.link("br0").unwrap().mac.unwrap();
        assert!(!mac.is_zero());
        assert_eq!(result["interfaces"][0]["mac"], mac.to_string());
        assert_ne!(result["interfaces"][1]["mac"], mac.to_string());
        host.check(&pod, &config, &result).success();
        host.del(&pod, &config);
        assert_eq!(host.link("br0").unwrap().mac, Some(mac));
    });
}

#[test]
fn default_route_without_gateway_is_not_duplicated() {
    on_a_host("one default route", |host| {
        let pod = host.pod();
        let mut config = gateway("1.0.0", &["10.1.2.2/24"]);
        config["ipam"]["routes"] = json!([{ "dst": "0.0.0.0/0" }]);
        let result = host.add(&pod, &config);
        assert_eq!(defaults(&pod, Family::V4), ["10.1.2.1"]);
        assert_eq!(
            result["routes"],
            json!([{ "dst": "0.0.0.0/0", "gw": "10.1.2.1" }])
        );
    });
}

// cni-plugins#13
#[test]
fn other_bridge_address_is_replaced_only_with_force_address() {
    on_a_host("forceAddress", |host| {
        let one = |host: &mut Host, address: &str, force: bool| {
            let pod = host.pod();
            let config = with(&l3("1.0.0", &[address]), "isGateway", true.into());
            let config = with(&config, "forceAddress", force.into());
            let outcome = host.call("ADD", &pod, &config);
            if outcome.code != 0 {
                assert!(pod.link("net1").is_none(), "a failed ADD leaves nothing");
            }
            outcome
        };
        // The gateway is the first address of the subnet.
        one(host, "10.0.0.9/8", false).success();
        assert_eq!(host.addresses("br0"), ["10.0.0.1/8"]);
        let refused = one(host, "10.1.9.9/16", false);
        assert_eq!(
            refused.message(),
            "failed to set bridge addr: \"br0\" already has an IP address different from 10.1.0.1/16"
        );
        assert_eq!(host.addresses("br0"), ["10.0.0.1/8"]);
        one(host, "10.1.9.9/16", true).success();
        assert_eq!(host.addresses("br0"), ["10.1.0.1/16"]);

        one(host, "2001:db8::9/64", false).success();
        one(host, "2001:db8:1::9/64", false).success();
        assert_eq!(
            host.addresses("br0"),
            ["10.1.0.1/16", "2001:db8:1::1/64", "2001:db8::1/64"]
        );
        let refused = one(host, "2001:db8::9/48", false);
        assert_eq!(
            refused.message(),
            "failed to set bridge addr: \"br0\" already has an IP address different from 2001:db8::1/48"
        );
        assert_eq!(
            host.addresses("br0"),
            ["10.1.0.1/16", "2001:db8:1::1/64", "2001:db8::1/64"]
        );
        one(host, "2001:db8::9/48", true).success();
        assert_eq!(
            host.addresses("br0"),
            ["10.1.0.1/16", "2001:db8:1::1/64", "2001:db8::1/48"]
        );
    });
}

// cni-plugins#25
#[test]
fn resolver_settings_of_the_config_override_those_of_ipam() {
    on_a_host("resolver settings", |host| {
        let mut config = l3("1.0.0", &["10.1.2.3/24"]);
        config["ipam"]["dns"] = json!({ "nameservers": ["10.1.2.1"], "domain": "example" });
        let pod = host.pod();
        let kept = host.add(&pod, &config);
        assert_eq!(
            kept["dns"],
            json!({ "nameservers": ["10.1.2.1"], "domain": "example" })
        );
        let pod = host.pod();
        let overridden = host.add(&pod, &with(&config, "dns", json!({ "nameservers": [] })));
        assert_eq!(overridden["dns"], Value::Null);
    });
}

// cni-plugins#28
#[test]
fn duplicate_address_is_detected_if_configured() {
    on_a_host("duplicate address detection", |host| {
        let config = |detect: bool| with(&gateway("1.0.0", &["2001:db8::5/64"]), "enabledad", detect.into());
        let first = host.pod();
        host.add(&first, &config(true));
        assert_eq!(first.sysctl("net/ipv6/conf/net1/accept_dad"), "1");

        let second = host.pod();
        let refused = host.call("ADD", &second, &config(true)).message();
        assert_eq!(
            refused,
            "failed to settle addresses for \"net1\": link net1 has address 2001:db8::5 in DADFAILED state"
        );
        assert!(second.link("net1").is_none(), "a failed ADD leaves nothing");

        host.add(&second, &config(false));
        assert_eq!(second.sysctl("net/ipv6/conf/net1/accept_dad"), "0");
    });
}

// cni-plugins#29
#[test]
fn routes_are_installed_as_ipam_describes_them() {
    on_a_host("routes", |host| {
        let pod = host.pod();
        let mut config = l3("1.1.0", &["10.1.2.2/24", "2001:db8::2/64"]);
        config["ipam"]["routes"] = json!([
            { "dst": "2001:db8:7::/48", "gw": "2001:db8::7", "priority": 77, "table": 1000 },
            { "dst": "2001:db8:9::/48", "gw": "2001:db8::7" },
            { "dst": "2001:db8:9::/48", "gw": "2001:db8::8" },
            { "dst": "10.7.0.0/16", "gw": "10.1.2.7", "priority": 77, "table": 1000, "mtu": 1280, "advmss": 1200 },
            { "dst": "10.8.0.0/16", "scope": 253 },
            { "dst": "10.9.0.0/16", "gw": "10.1.2.7" },
            { "dst": "10.9.0.0/16", "gw": "10.1.2.8" }
        ]);
        let result = host.add(&pod, &config);
        let mut routes = pod.with(|socket| socket.routes(Family::V4));
        routes.extend(pod.with(|socket| socket.routes(Family::V6)));
        let to = |dst: &str| {
            routes
                .iter()
                .filter(|r| r.dst.to_string() == dst)
                .collect::<Vec<_>>()
        };
        let first = to("10.7.0.0/16");
        assert_eq!(first.len(), 1, "{routes:#?}");
        assert_eq!((first[0].priority, first[0].table), (Some(77), Some(1000)));
        assert_eq!((first[0].mtu, first[0].advmss), (Some(1280), Some(1200)));
        assert_eq!(first[0].gateway.unwrap().to_string(), "10.1.2.7");
        assert_eq!(
            (to("10.8.0.0/16")[0].scope, to("10.8.0.0/16")[0].gateway),
            (Some(253), None)
        );
        let first = to("2001:db8:7::/48");
        assert_eq!(first.len(), 1, "{routes:#?}");
        assert_eq!((first[0].priority, first[0].table), (Some(77), Some(1000)));
        for (dst, gateways) in [
            ("10.9.0.0/16", ["10.1.2.7", "10.1.2.8"]),
            ("2001:db8:9::/48", ["2001:db8::7", "2001:db8::8"]),
        ] {
            let mut both: Vec<_> = to(dst).iter().map(|r| r.gateway.unwrap().to_string()).collect();
            both.sort();
            assert_eq!(both, gateways);
        }
        host.check(&pod, &config, &result).success();
    });
}

#[test]
fn invalid_route_is_described_and_undone() {
    on_a_host("bad routes", |host| {
        let pod = host.pod();
        let mut config = l3("1.0.0", &["10.1.2.2/24"]);
        config["ipam"]["routes"] = json!([{ "dst": "10.7.0.0/16", "gw": "10.99.99.99" }]);
        let message = host.call("ADD", &pod, &config).message();
        assert!(
            message.starts_with(
                "failed to add route '10.7.0.0/16 via 10.99.99.99 dev net1 metric 0 (Scope: global, Table: 254)': "
            ),
            "{message}"
        );
        assert!(pod.link("net1").is_none());
        assert!(host.veths().is_empty());
    });
}

#[test]
fn assigned_addresses_are_announced() {
    on_a_host("announcements", |host| {
        // The bridge exists before, so that there is something to listen on.
        let first = host.pod();
        host.add(&first, &l2("1.0.0"));
        let all = Protocol::from_raw(NonZeroU32::from(NonZeroU16::new(0x0003_u16.to_be()).unwrap()));
        let wire = rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, Some(all)).unwrap();
        sockopt::set_socket_timeout(&wire, sockopt::Timeout::Recv, Some(Duration::from_mins(1))).unwrap();

        let pod = host.pod();
        let result = host.add(&pod, &l3("1.0.0", &["10.1.2.3/24", "2001:db8::3/64"]));
        let mac = pod.net1().mac.unwrap();
        assert_eq!(result["interfaces"][2]["mac"], mac.to_string());
        let (mut arp, mut advertisement) = (false, false);
        let ip6: std::net::Ipv6Addr = "2001:db8::3".parse().unwrap();
        let mut buffer = [0; 2048];
        while !(arp && advertisement) {
            let (length, _) = rustix::net::recv(&wire, &mut buffer[..], RecvFlags::empty())
                .unwrap_or_else(|e| panic!("ARP {arp}, neighbour advertisement {advertisement}: {e}"));
            let frame = &buffer[..length];
            arp |= length >= 42
                && frame[6..12] == mac.0
                && frame[12..14] == [0x08, 0x06]
                && frame[28..32] == [10, 1, 2, 3]
                && frame[38..42] == [10, 1, 2, 3];
            advertisement |= length >= 78
                && frame[12..14] == [0x86, 0xdd]
                && frame[54] == 136
                && frame[62..78] == ip6.octets();
        }
    });
}

#[test]
fn ipv6_disabled_on_the_node_is_enabled_in_the_pod() {
    on_a_host("disabled IPv6", |host| {
        let pod = host.pod();
        pod.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1");
        pod.set_sysctl("net/ipv6/conf/lo/disable_ipv6", "1");
        host.add(&pod, &l3("1.0.0", &["10.1.2.3/24", "2001:db8::3/64"]));
        assert_eq!(pod.addresses(), ["10.1.2.3/24", "2001:db8::3/64"]);
        for link in ["lo", "net1"] {
            assert_eq!(pod.sysctl(&format!("net/ipv6/conf/{link}/disable_ipv6")), "0");
        }
        assert_eq!(pod.sysctl("net/ipv6/conf/net1/keep_addr_on_down"), "1");
        assert_eq!(pod.sysctl("net/ipv4/conf/net1/arp_notify"), "1");
    });
}

// cni-plugins#44
#[test]
fn static_takes_addresses_from_every_source() {
    on_a_host("static", |host| {
        let pod = host.pod();
        let plain = json!({
            "cniVersion": "1.0.0", "name": "n", "type": "static",
            "ipam": {
                "type": "static",
                "addresses": [{ "address": "10.1.2.3/24", "gateway": "10.1.2.1" }],
                "routes": [{ "dst": "10.9.0.0/16" }],
                "dns": { "nameservers": ["10.1.2.1"] }
            }
        });
        let result = host.add(&pod, &plain);
        assert_eq!(
            result["ips"],
            json!([{ "address": "10.1.2.3/24", "gateway": "10.1.2.1" }])
        );
        assert_eq!(result["routes"], json!([{ "dst": "10.9.0.0/16" }]));
        assert_eq!(result["dns"], json!({ "nameservers": ["10.1.2.1"] }));
        assert_eq!(result["interfaces"], Value::Null);

        let add = |args: &str, config: &Value| host.call_with("ADD", &pod, "net1", args, config);
        let env = "IgnoreUnknown=1;IP=10.5.0.5/16,2001:db8::5/64;GATEWAY=10.5.0.1";
        let result = add(env, &plain).success();
        let expected = json!([
            { "address": "10.1.2.3/24", "gateway": "10.1.2.1" },
            { "address": "10.5.0.5/16", "gateway": "10.5.0.1" },
            { "address": "2001:db8::5/64" }
        ]);
        assert_eq!(result["ips"], expected);
        let args = with(&plain, "args", json!({ "cni": { "ips": ["10.6.0.6/16"] } }));
        assert_eq!(
            add(env, &args).success()["ips"],
            json!([{ "address": "10.6.0.6/16" }])
        );
        let runtime = with(&args, "runtimeConfig", json!({ "ips": ["10.7.0.7/16"] }));
        assert_eq!(
            add(env, &runtime).success()["ips"],
            json!([{ "address": "10.7.0.7/16" }])
        );

        let bad = |config: &Value, args: &str| add(args, config).message();
        let listed = with(
            &plain,
            "ipam",
            json!({ "addresses": [{ "address": "10.1.2.3" }] }),
        );
        assert_eq!(
            bad(&listed, ""),
            "the 'address' field is expected to be in CIDR notation, got: '10.1.2.3'"
        );
        assert_eq!(
            bad(&plain, "IP=10.5.0.5"),
            "the 'ip' field is expected to be in CIDR notation, got: '10.5.0.5'"
        );
        for key in ["args", "runtimeConfig"] {
            let ips = json!({ "ips": ["10.6.0.6"] });
            let value = if key == "args" { json!({ "cni": ips }) } else { ips };
            assert_eq!(
                bad(&with(&plain, key, value), ""),
                "an entry in the 'ips' field is NOT in CIDR notation, got: '10.6.0.6'"
            );
        }
        host.check(
            &pod,
            &plain,
            &json!({ "ips": [{ "address": "10.1.2.3/24", "gateway": "10.1.2.1" }] }),
        )
        .success();
        let changed = json!({ "ips": [{ "address": "10.1.2.3/24", "gateway": "10.1.2.9" }] });
        assert_eq!(
            host.check(&pod, &plain, &changed).message(),
            "static: Failed to match addr 10.1.2.3 on interface net1"
        );
        host.del(&pod, &plain);
        let status = |config: &Value| host.call("STATUS", &pod, &with(config, "cniVersion", "1.1.0".into()));
        status(&plain).success();
        assert_eq!(
            status(&listed).message(),
            "the 'address' field is expected to be in CIDR notation, got: '10.1.2.3'"
        );
    });
}

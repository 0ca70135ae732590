//! The portmap plugin, chained after bridge.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

use linux::netns::NetNs;
use serde_json::{Value, json};

use crate::{
    stage::{Host, Pod, VERSIONS, bind, l3, on_a_host, with},
    testing::{install_iptables, load, nft, ruleset},
};

/// Timeout of a connection.
const TIMEOUT: Duration = Duration::from_mins(1);

/// A container on a bridge whose gateway is the host.
fn attached(host: &mut Host, bridge: &str, address: &str) -> (Pod, Value) {
    let pod = host.pod();
    let config = with(&l3("1.1.0", &[address]), "isDefaultGateway", true.into());
    // Where rules see what bridges pass on, a container's way to itself ends at its own port otherwise.
    let config = with(&config, "hairpinMode", true.into());
    let result = host.add(&pod, &with(&config, "bridge", bridge.into()));
    pod.with(|socket| {
        let lo = socket.link_by_name("lo")?;
        socket.set_up(&lo)
    });
    (pod, result)
}

fn portmap(result: &Value, ports: &Value) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "test-net", "type": "portmap", "prevResult": result,
        "capabilities": { "portMappings": true }, "runtimeConfig": { "portMappings": ports },
    })
}

fn tcp(host_port: u16, container_port: u16) -> Value {
    json!({ "hostPort": host_port, "containerPort": container_port, "protocol": "tcp" })
}

/// A connection from a namespace to an address reaches port 80 of the container, and is answered.
fn is_answered(from: &NetNs, container: &Pod, address: &str) {
    let listener = bind(&container.ns, || TcpListener::bind("0.0.0.0:80"));
    let address: SocketAddr = address.parse().unwrap();
    let connect = || TcpStream::connect_timeout(&address, TIMEOUT);
    let mut client = from.run(connect).unwrap().unwrap_or_else(|error| {
        panic!("{address}: {error}\n{}", ruleset());
    });
    let (mut server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    }
    client.write_all(b"ask").unwrap();
    let mut buffer = [0; 3];
    server.read_exact(&mut buffer).unwrap();
    server.write_all(b"yes").unwrap();
    client.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"yes");
}

/// Whether a connection from a namespace is refused at once, as by a host without a listener.
fn is_refused(from: &NetNs, address: &str) -> bool {
    let address: SocketAddr = address.parse().unwrap();
    let connect = || TcpStream::connect_timeout(&address, TIMEOUT);
    let error = from.run(connect).unwrap().unwrap_err();
    error.kind() == std::io::ErrorKind::ConnectionRefused
}

// cni-plugins#48
#[test]
fn ports_are_reached_from_everywhere() {
    on_a_host("portmap packets", |host| {
        install_iptables("nft");
        let here = NetNs::current().unwrap();
        for backend in ["", "nftables", "iptables"] {
            let (pod, result) = attached(host, "br0", "10.1.2.3/24");
            let (outside, _) = attached(host, "br1", "10.7.0.2/24");
            let config = with(
                &portmap(&result, &json!([tcp(8080, 80)])),
                "backend",
                backend.into(),
            );
            assert_eq!(host.add(&pod, &config), result);
            is_answered(&outside.ns, &pod, "10.7.0.1:8080");
            is_answered(&here, &pod, "127.0.0.1:8080");
            is_answered(&here, &pod, "10.1.2.1:8080");
            is_answered(&pod.ns, &pod, "10.1.2.1:8080");
            host.check(&pod, &config, &result).success();
            for _ in 0..2 {
                host.del(&pod, &config);
                assert!(is_refused(&outside.ns, "10.7.0.1:8080"), "{backend}");
                assert!(is_refused(&here, "127.0.0.1:8080"), "{backend}");
            }
            assert_eq!(host.records_of("portmap"), Vec::<String>::new());
            for (pod, bridge) in [(&pod, "br0"), (&outside, "br1")] {
                host.del(pod, &with(&l3("1.1.0", &[]), "bridge", bridge.into()));
            }
        }
    });
}

// cni-plugins#48
#[test]
fn reused_udp_port_reaches_the_last_pod() {
    on_a_host("a port that changes hands", |host| {
        let (outside, _) = attached(host, "br1", "10.7.0.2/24");
        let client = outside
            .ns
            .run(|| UdpSocket::bind("10.7.0.2:4000"))
            .unwrap()
            .unwrap();
        let ports = json!([{ "hostPort": 5353, "containerPort": 7777, "protocol": "udp" }]);
        let (first, result) = attached(host, "br0", "10.1.2.3/24");
        let of_first = portmap(&result, &ports);
        let heard = |pod: &UdpSocket, word: &str| {
            client.send_to(word.as_bytes(), "10.7.0.1:5353").unwrap();
            let mut buffer = [0; 16];
            let length = pod.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], word.as_bytes());
        };
        let at_first = first.udp();
        host.add(&first, &of_first);
        heard(&at_first, "first");
        let (second, result) = attached(host, "br0", "10.1.2.4/24");
        let of_second = portmap(&result, &ports);
        let at_second = second.udp();
        host.add(&second, &of_second);
        heard(&at_second, "second");
        // The first one's DEL is late.
        host.del(&first, &of_first);
        heard(&at_second, "still the second");
        host.check(&second, &of_second, &result).success();
    });
}

// cni-plugins#48
#[test]
fn concurrent_calls_all_succeed() {
    on_a_host("portmap at once", |host| {
        let pods: Vec<_> = (2..22)
            .map(|number| attached(host, "br0", &format!("10.1.2.{number}/24")))
            .collect();
        let configs: Vec<_> = pods
            .iter()
            .zip(8000..)
            .map(|((_, result), port)| portmap(result, &json!([tcp(port, 80)])))
            .collect();
        let calls = || pods.iter().map(|(pod, _)| pod).zip(configs.iter().cloned());
        for outcome in host.call_together(8, "ADD", calls()) {
            outcome.success();
        }
        assert_eq!(ruleset().matches(" : 10.1.2.").count(), 20, "{}", ruleset());
        for outcome in host.call_together(8, "DEL", calls().chain(calls())) {
            outcome.success();
        }
        assert!(!ruleset().contains(" : 10.1.2."), "{}", ruleset());
    });
}

// cni-plugins#47
#[test]
fn ruleset_matches_the_config() {
    on_a_host("portmap rules", |host| {
        let (pod, result) = attached(host, "br0", "10.1.2.3/24");
        let dual = with(
            &result,
            "ips",
            json!([{ "address": "10.1.2.3/24" }, { "address": "fd00::3/64" }]),
        );
        let ports = json!([
            tcp(8080, 80),
            { "hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "192.0.2.1" },
            { "hostPort": 54, "containerPort": 53, "protocol": "udp", "hostIP": "0.0.0.0" },
        ]);
        let config = portmap(&dual, &ports);
        host.add(&pod, &config);
        let rules = ruleset();
        for (part, count) in [
            (" : 10.1.2.3 . 80", 1),
            (" : fd00::3 . 80", 1),
            ("192.0.2.1 . 17 . 53", 1),
            ("17 . 54", 1),
            (" : fd00::3 . 53", 0),
            ("127.0.0.1 . 10.1.2.3", 1),
            ("10.1.2.3 . 10.1.2.3", 1),
            ("fd00::3 . fd00::3", 1),
        ] {
            assert_eq!(rules.matches(part).count(), count, "{part} in {rules}");
        }
        assert_eq!(
            std::fs::read_to_string("/proc/sys/net/ipv4/conf/br0/route_localnet")
                .unwrap()
                .trim(),
            "1"
        );
        host.check(&pod, &config, &dual).success();
        nft(&["flush", "map", "ip", "cni_hostport", "hostip-ports"], "");
        let missing = host.check(&pod, &config, &dual).message();
        assert_eq!(missing, "missing hostport rules in \"hostports\" chain");
        host.add(&pod, &config);
        nft(&["flush", "chain", "ip6", "cni_hostport", "masquerading"], "");
        let missing = host.check(&pod, &config, &dual).message();
        assert_eq!(missing, "missing hostport rules in \"masquerading\" chain");

        // Other settings replace the former ones.
        host.add(&pod, &with(&config, "snat", false.into()));
        let rules = ruleset();
        assert!(
            !rules.contains("10.1.2.3 . 10.1.2.3") && rules.contains("10.1.2.3 . 80"),
            "{rules}"
        );
        let all = with(&config, "masqAll", true.into());
        host.add(&pod, &all);
        let rules = ruleset();
        assert!(rules.contains("ip daddr @masqueraded masquerade"), "{rules}");
        host.check(&pod, &all, &dual).success();

        host.del(&pod, &all);
        let rules = ruleset();
        assert!(
            !rules.contains(&pod.id) && rules.contains("chain hostports"),
            "{rules}"
        );
        let nothing = portmap(&dual, &json!([]));
        assert_eq!(host.add(&pod, &nothing), dual);
        host.check(&pod, &nothing, &dual).success();
        host.del(&pod, &nothing);
    });
}

// cni-plugins#49
#[test]
fn bad_configs_change_nothing() {
    on_a_host("portmap configs", |host| {
        let (pod, result) = attached(host, "br0", "10.1.2.3/24");
        let config = portmap(&result, &json!([tcp(8080, 80)]));
        for (config, text) in [
            (
                portmap(&result, &json!([tcp(0, 80)])),
                "Invalid host port number: 0",
            ),
            (
                portmap(
                    &result,
                    &json!([{ "hostPort": 1, "containerPort": -1, "protocol": "tcp" }]),
                ),
                "Invalid container port number: -1",
            ),
            (
                with(&config, "markMasqBit", 32.into()),
                "MasqMarkBit must be between 0 and 31",
            ),
            (
                with(&config, "backend", "pf".into()),
                "unrecognized backend \"pf\"",
            ),
        ] {
            let refused = host.call("ADD", &pod, &config).message();
            assert_eq!(refused, format!("failed to parse config: {text}"));
            // A refused config does not prevent DEL.
            host.del(&pod, &config);
        }
        let mut unchained = config.clone();
        unchained.as_object_mut().unwrap().shift_remove("prevResult");
        assert_eq!(
            host.call("ADD", &pod, &unchained).message(),
            "must be called as chained plugin"
        );
        assert!(!ruleset().contains("cni_hostport"), "{}", ruleset());
    });
}

/// The rules of an upstream plugin for a container.
fn upstream(id: &str, address: &str) -> String {
    format!(
        "table ip cni_hostport {{
            chain hostports {{ tcp dport 8080 dnat to {address}:80 comment \"{id}\"; }}
            chain hostip_hostports {{ ip daddr 192.0.2.1 udp dport 53 dnat to {address}:53 comment \"{id}\"; }}
            chain hostports_all {{ jump hostip_hostports; jump hostports; }}
            chain prerouting {{
                type nat hook prerouting priority dstnat;
                fib daddr type local jump hostports_all
            }}
            chain output {{
                type nat hook output priority -100;
                fib daddr type local jump hostports_all
            }}
            chain masquerading {{
                type nat hook postrouting priority srcnat;
                ip saddr {address} ip daddr {address} masquerade comment \"{id}\"
                ip saddr 127.0.0.1 ip daddr {address} masquerade comment \"{id}\"
            }}
        }}
        table ip nat {{
            chain CNI-HOSTPORT-DNAT {{ tcp dport 8080 jump {chain}; }}
            chain {chain} {{ tcp dport 8080 dnat to {address}:80; }}
        }}",
        chain = chain(id),
    )
}

/// The chain of an upstream plugin, from its name in the rules of `iptables`.
fn chain(id: &str) -> String {
    use sha2::{Digest as _, Sha512};
    let digest = Sha512::digest(format!("test-net{id}"));
    let text: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("CNI-DN-{}", &text[..21])
}

// cni-plugins#85
#[test]
fn upstream_rules_are_recognised_and_removed() {
    on_a_host("upstream portmap", |host| {
        let (pod, result) = attached(host, "br0", "10.1.2.3/24");
        let (other, _) = attached(host, "br0", "10.1.2.4/24");
        load(&upstream(&pod.id, "10.1.2.3"));
        load(&upstream(&other.id, "10.1.2.4"));
        let ports = json!([
            tcp(8080, 80),
            { "hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "192.0.2.1" },
        ]);
        let config = portmap(&result, &ports);
        host.check(&pod, &config, &result).success();
        let gone = host.pod_without_path(&pod);
        host.del(&gone, &config);
        let rules = ruleset();
        assert!(
            !rules.contains("10.1.2.3") && !rules.contains(&chain(&pod.id)),
            "{rules}"
        );
        assert_eq!(rules.matches("10.1.2.4").count(), 6, "{rules}");
        assert!(rules.contains(&chain(&other.id)), "{rules}");

        // Our rules are beside them: the jump to them is shared.
        let ways_in = |rules: &str| rules.matches("fib daddr type local jump hostports_all").count();
        let before = ways_in(&rules);
        let (third, result) = attached(host, "br0", "10.1.2.5/24");
        let config = portmap(&result, &json!([tcp(8081, 80)]));
        host.add(&third, &config);
        let rules = ruleset();
        assert_eq!(ways_in(&rules), before, "{rules}");
        is_answered(&NetNs::current().unwrap(), &third, "127.0.0.1:8081");
        let valid = json!([{ "containerID": other.id, "ifname": "net1" }]);
        host.gc(&with(&config, "cni.dev/valid-attachments", valid))
            .success();
        let rules = ruleset();
        assert!(!rules.contains("10.1.2.5"), "{rules}");
        assert_eq!(rules.matches("10.1.2.4").count(), 6, "{rules}");
    });
}

// cni-plugins#85
#[test]
fn ports_without_a_record_are_found_and_those_without_an_attachment_collected() {
    on_a_host("GC of portmap", |host| {
        let (first, result) = attached(host, "br0", "10.1.2.3/24");
        let of_first = portmap(&result, &json!([tcp(8080, 80)]));
        let (second, result) = attached(host, "br0", "10.1.2.4/24");
        let of_second = portmap(&result, &json!([tcp(8081, 80)]));
        for (recorded, by_gc) in [(true, true), (false, true), (false, false)] {
            host.add(&first, &of_first);
            host.add(&second, &of_second);
            if !recorded {
                host.lose_records_of("portmap");
            }
            if by_gc {
                let valid = json!([{ "containerID": second.id, "ifname": "net1" }]);
                host.gc(&with(&of_first, "cni.dev/valid-attachments", valid))
                    .success();
            } else {
                host.del(&first, &of_first);
            }
            let rules = ruleset();
            assert!(
                !rules.contains("10.1.2.3") && rules.contains("10.1.2.4"),
                "{rules}"
            );
            host.check(&second, &of_second, &result).success();
        }
        let other = with(&of_first, "name", "other-net".into());
        host.gc(&with(&other, "cni.dev/valid-attachments", json!([])))
            .success();
        assert!(ruleset().contains("10.1.2.4"), "another network's");
        host.gc(&with(&of_first, "cni.dev/valid-attachments", json!([])))
            .success();
        assert!(!ruleset().contains("10.1.2.4"));
    });
}

#[test]
fn iptables_rules_match_upstream() {
    for variant in ["nft", "legacy"] {
        on_a_host("portmap by iptables", move |host| {
            install_iptables(variant);
            let (pod, result) = attached(host, "br0", "10.1.2.3/24");
            let config = with(
                &portmap(&result, &json!([tcp(8080, 80)])),
                "backend",
                "iptables".into(),
            );
            // A second ADD begins anew.
            host.add(&pod, &config);
            host.add(&pod, &config);
            host.check(&pod, &config, &result).success();
            let listed = || {
                let output = std::process::Command::new("/usr/local/sbin/iptables")
                    .args(["-t", "nat", "-S"])
                    .output()
                    .unwrap();
                String::from_utf8(output.stdout).unwrap()
            };
            let own = chain(&pod.id);
            let rules = listed();
            assert_eq!(
                rules.matches("--to-destination 10.1.2.3:80").count(),
                1,
                "{rules}"
            );
            assert_eq!(rules.matches(&format!("-j {own}")).count(), 1, "{rules}");
            assert!(!ruleset().contains("cni_hostport"), "{variant}");
            host.del(&pod, &config);
            let rules = listed();
            assert!(
                !rules.contains(&own) && rules.contains("CNI-HOSTPORT-DNAT"),
                "{rules}"
            );
        });
    }
}

#[test]
fn results_pass_through_in_every_version() {
    on_a_host("portmap in every version", |host| {
        for version in VERSIONS {
            let pod = host.pod();
            let result = host.add(&pod, &l3(version, &["10.1.2.3/24"]));
            let config = with(
                &portmap(&result, &json!([tcp(8080, 80)])),
                "cniVersion",
                version.into(),
            );
            assert_eq!(host.add(&pod, &config), result, "{version}");
            assert!(ruleset().contains("10.1.2.3 . 80"), "{version}");
            host.del(&pod, &config);
            assert!(!ruleset().contains("10.1.2.3 . 80"), "{version}");
        }
    });
}

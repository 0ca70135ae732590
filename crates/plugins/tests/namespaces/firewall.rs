//! The firewall plugin, chained after bridge.

use std::{
    fs,
    io::ErrorKind,
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    process::Command,
    time::Duration,
};

use linux::netns::NetNs;
use serde_json::{Value, json};

use crate::{
    stage::{Host, Pod, bind, l3, on_a_host, with},
    testing::{install_iptables, load, nft, output, ruleset},
};

/// Timeout of a connection.
const TIMEOUT: Duration = Duration::from_mins(1);

fn network(bridge: &str, address: &str) -> Value {
    let config = with(&l3("1.1.0", &[address]), "isDefaultGateway", true.into());
    with(&config, "bridge", bridge.into())
}

/// A container on a bridge whose gateway is the host.
fn attached(host: &mut Host, bridge: &str, address: &str) -> (Pod, Value) {
    let pod = host.pod();
    let result = host.add(&pod, &network(bridge, address));
    pod.with(|socket| {
        let lo = socket.link_by_name("lo")?;
        socket.set_up(&lo)
    });
    (pod, result)
}

fn firewall(result: &Value, settings: &Value) -> Value {
    let mut config =
        json!({ "cniVersion": "1.1.0", "name": "test-net", "type": "firewall", "prevResult": result });
    for (key, value) in settings.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn iptables(arguments: &[&str]) -> String {
    output(Command::new("/usr/local/sbin/iptables").args(arguments), "")
}

/// Whether a connection succeeds; if not, it is refused at once.
fn reaches(from: &NetNs, to: &NetNs, address: &str) -> bool {
    let address: SocketAddr = address.parse().unwrap();
    let _listener = bind(to, || TcpListener::bind(address));
    match from
        .run(|| TcpStream::connect_timeout(&address, TIMEOUT))
        .unwrap()
    {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => false,
        Err(error) => panic!("{address}: {error}\n{}", ruleset()),
    }
}

// cni-plugins#52, firewall
#[test]
fn pods_packets_pass_a_host_with_drop_policy() {
    for (variant, backend) in [
        ("nft", ""),
        ("nft", "nftables"),
        ("nft", "iptables"),
        ("legacy", "iptables"),
        ("legacy", ""),
    ] {
        on_a_host("firewall packets", move |host| {
            install_iptables(variant);
            let case = format!("{variant} {backend:?}");
            iptables(&["-A", "FORWARD", "-j", "REJECT"]);
            let (outside, _) = attached(host, "br1", "10.7.0.2/24");
            let (pod, result) = attached(host, "br0", "10.1.2.3/24");
            let out = || reaches(&pod.ns, &outside.ns, "10.7.0.2:80");
            let config = firewall(&result, &json!({ "backend": backend }));
            assert!(!out(), "{case}");
            let missing = host.check(&pod, &config, &result).message();
            assert_eq!(missing, "firewall rules for 10.1.2.3 not found", "{case}");
            for _ in 0..2 {
                assert_eq!(host.add(&pod, &config), result);
            }
            host.check(&pod, &config, &result).success();
            assert!(out(), "{case}");
            assert!(!reaches(&outside.ns, &pod.ns, "10.1.2.3:80"), "{case}");

            let of_admin = ["CNI-ADMIN", "-d", "10.7.0.2", "-j", "REJECT"];
            iptables(&[&["-A"][..], &of_admin].concat());
            assert!(!out(), "{case}: the administrator's rules come first");
            iptables(&[&["-D"][..], &of_admin].concat());
            assert!(out(), "{case}");

            let listed = iptables(&["-S"]);
            let own = listed.matches("10.1.2.3/32").count();
            let by_iptables = backend == "iptables" || variant == "legacy";
            assert_eq!(own, if by_iptables { 2 } else { 0 }, "{case}: {listed}");
            assert_eq!(ruleset().contains("cni_firewall"), !by_iptables, "{case}");
            let gone = host.pod_without_path(&pod);
            for _ in 0..2 {
                host.del(&gone, &config);
                assert!(!out(), "{case}");
            }
            assert!(!iptables(&["-S"]).contains("10.1.2.3"), "{case}");
            assert_eq!(host.records_of("firewall"), Vec::<String>::new());
        });
    }
}

// cni-plugins#52, policies
#[test]
fn bridges_with_policy_are_isolated() {
    for backend in ["", "iptables"] {
        on_a_host("ingress policies", move |host| {
            install_iptables("nft");
            let (open, _) = attached(host, "br2", "10.8.0.2/24");
            let mut pods = Vec::new();
            for (bridge, address, policy) in [
                ("br0", "10.1.2.3/24", "same-bridge"),
                ("br0", "10.1.2.4/24", "same-bridge"),
                ("br1", "10.7.0.2/24", "isolated"),
            ] {
                let (pod, result) = attached(host, bridge, address);
                let settings = json!({ "backend": backend, "ingressPolicy": policy });
                let config = firewall(&result, &settings);
                let missing = host.check(&pod, &config, &result).message();
                assert_eq!(missing, format!("firewall rules for {} not found", &address[..8]));
                host.add(&pod, &config);
                host.check(&pod, &config, &result).success();
                pods.push(pod);
            }
            let [first, second, other] = pods.as_slice() else {
                panic!("three containers")
            };
            assert!(reaches(&first.ns, &open.ns, "10.8.0.2:80"));
            assert!(reaches(&open.ns, &other.ns, "10.7.0.2:80"));
            assert!(reaches(&first.ns, &second.ns, "10.1.2.4:80"));

            let hears = |from: &Pod, to: &Pod, address: &str| {
                let receiver = to.udp();
                from.udp().send_to(b"word", (address, 7777)).unwrap();
                // An accepted word would arrive before this one, which stays in the container.
                to.udp_loopback("end");
                let mut buffer = [0; 16];
                let length = receiver.recv(&mut buffer).unwrap();
                &buffer[..length] == b"word"
            };
            assert!(hears(first, second, "10.1.2.4"), "{backend}");
            assert!(!hears(first, other, "10.7.0.2"), "{backend}");
            assert!(!hears(other, first, "10.1.2.3"), "{backend}");
        });
    }
}

/// Rules of the upstream plugin for an address, as iptables make them.
fn upstream(address: &str) {
    let net = format!("{address}/32");
    for rule in [
        &["-N", "CNI-FORWARD"][..],
        &[
            "-I",
            "FORWARD",
            "-m",
            "comment",
            "--comment",
            "CNI firewall plugin rules",
            "-j",
            "CNI-FORWARD",
        ],
        &[
            "-A",
            "CNI-FORWARD",
            "-d",
            &net,
            "-m",
            "conntrack",
            "--ctstate",
            "RELATED,ESTABLISHED",
            "-j",
            "ACCEPT",
        ],
        &["-A", "CNI-FORWARD", "-s", &net, "-j", "ACCEPT"],
    ] {
        let mut command = Command::new("/usr/local/sbin/iptables");
        // The chain may be there.
        let _ = command.args(rule).output().unwrap();
    }
}

// cni-plugins#86
#[test]
fn upstream_rules_are_recognised_and_removed() {
    for variant in ["nft", "legacy"] {
        on_a_host("upstream firewall", move |host| {
            install_iptables(variant);
            let (pod, result) = attached(host, "br0", "10.1.2.3/24");
            let config = firewall(&result, &json!({}));
            for address in ["10.1.2.3", "10.1.2.4", "10.1.2.30"] {
                upstream(address);
            }
            if variant == "nft" {
                host.check(&pod, &config, &result).success();
            }
            let gone = host.pod_without_path(&pod);
            host.del(&gone, &config);
            let listed = iptables(&["-S"]);
            assert!(!listed.contains("10.1.2.3/32"), "{variant}: {listed}");
            for other in ["10.1.2.4/32", "10.1.2.30/32"] {
                assert_eq!(listed.matches(other).count(), 2, "{variant}: {listed}");
            }
            // Our ADD replaces them.
            upstream("10.1.2.3");
            host.add(&pod, &config);
            let expected = if variant == "nft" { 0 } else { 2 };
            assert_eq!(
                iptables(&["-S"]).matches("10.1.2.3/32").count(),
                expected,
                "{variant}"
            );
            host.check(&pod, &config, &result).success();
        });
    }
}

// cni-plugins#86
#[test]
fn gc_removes_resources_without_attachment() {
    on_a_host("GC of firewall", |host| {
        install_iptables("nft");
        let (first, result) = attached(host, "br0", "10.1.2.3/24");
        let of_first = firewall(&result, &json!({ "ingressPolicy": "isolated" }));
        let (second, result) = attached(host, "br1", "10.7.0.2/24");
        let of_second = firewall(&result, &json!({}));
        for recorded in [true, false] {
            host.add(&first, &of_first);
            host.add(&second, &of_second);
            if !recorded {
                host.lose_records_of("firewall");
            }
            let other = with(&of_first, "name", "other-net".into());
            host.gc(&with(&other, "cni.dev/valid-attachments", json!([])))
                .success();
            assert!(ruleset().contains("10.1.2.3"), "another network's");
            let valid = json!([{ "containerID": second.id, "ifname": "net1" }]);
            host.gc(&with(&of_first, "cni.dev/valid-attachments", valid))
                .success();
            let rules = ruleset();
            assert!(
                !rules.contains("10.1.2.3") && rules.contains("10.7.0.2"),
                "{rules}"
            );
            assert!(
                rules.contains("\"br0\" . \"br0\""),
                "the bridge has other containers perhaps"
            );
            host.check(&second, &of_second, &result).success();
        }
        host.del(&first, &network("br0", "10.1.2.3/24"));
        let bridge = host.link("br0").unwrap();
        host.socket.delete_link(&bridge).unwrap();
        host.gc(&with(&of_second, "cni.dev/valid-attachments", json!([])))
            .success();
        assert!(!ruleset().contains("cni_firewall"), "{}", ruleset());
    });
}

#[test]
fn running_firewalld_is_used() {
    on_a_host("firewalld", |host| {
        install_iptables("nft");
        let program = "/usr/local/sbin/firewall-cmd";
        fs::write(
            program,
            "#!/bin/sh\n[ \"$1\" = --state ] || echo \"$@\" >> /run/firewalld.calls\n[ ! -e /run/firewalld.down ]\n",
        )
        .unwrap();
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
        let calls = || {
            let calls = fs::read_to_string("/run/firewalld.calls").unwrap_or_default();
            let _ = fs::remove_file("/run/firewalld.calls");
            calls
        };
        let (pod, result) = attached(host, "br0", "10.1.2.3/24");
        for (settings, zone) in [
            (json!({}), "trusted"),
            (json!({ "firewalldZone": "pods" }), "pods"),
        ] {
            let config = firewall(&result, &settings);
            host.add(&pod, &config);
            assert_eq!(calls(), format!("--zone={zone} --add-source=10.1.2.3/32\n"));
            host.check(&pod, &config, &result).success();
            assert_eq!(calls(), format!("--zone={zone} --query-source=10.1.2.3/32\n"));
            // The record counts.
            host.del(&pod, &firewall(&result, &json!({})));
            assert_eq!(calls(), format!("--zone={zone} --remove-source=10.1.2.3/32\n"));
        }
        assert!(!ruleset().contains("10.1.2.3"), "{}", ruleset());

        let config = firewall(&result, &json!({}));
        host.add(&pod, &config);
        fs::write("/run/firewalld.down", "").unwrap();
        let failed = host.check(&pod, &config, &result).message();
        assert_eq!(failed, "firewall rules for 10.1.2.3 not found");
        let ended = host.call("DEL", &pod, &config);
        assert_eq!(ended.success(), Value::Null);
        assert!(ended.stderr.contains("--remove-source"), "{ended:?}");
        // It is not used if it does not run.
        host.add(&pod, &config);
        assert!(ruleset().contains("10.1.2.3"), "{}", ruleset());
        let named = firewall(&result, &json!({ "backend": "firewalld" }));
        let refused = host.call("ADD", &pod, &named).message();
        assert!(
            refused.starts_with("failed to set up firewall: firewall-cmd "),
            "{refused}"
        );
    });
}

#[test]
fn errors_and_versions_match_upstream() {
    on_a_host("firewall configs", |host| {
        let (pod, result) = attached(host, "br0", "10.1.2.3/24");
        let config = firewall(&result, &json!({}));
        for version in ["0.4.0", "1.0.0", "1.1.0"] {
            let config = with(&config, "cniVersion", version.into());
            assert_eq!(host.add(&pod, &config)["ips"][0]["address"], "10.1.2.3/24");
            host.check(&pod, &config, &result).success();
            nft(&["flush", "chain", "ip", "filter", "CNI-FORWARD"], "");
            let missing = host.check(&pod, &config, &result).message();
            assert_eq!(missing, "firewall rules for 10.1.2.3 not found");
            host.del(&pod, &config);
            load("flush ruleset");
        }
        let refused = host.call("ADD", &pod, &with(&config, "cniVersion", "0.3.1".into()));
        assert_eq!(refused.failure(), (1, "incompatible CNI versions".into()));
        let closed = firewall(&result, &json!({ "ingressPolicy": "closed" }));
        assert_eq!(
            host.call("ADD", &pod, &closed).message(),
            "unknown ingress policy: \"closed\""
        );
        let mut unchained = config.clone();
        unchained.as_object_mut().unwrap().shift_remove("prevResult");
        assert_eq!(
            host.call("ADD", &pod, &unchained).message(),
            "missing prevResult from earlier plugin"
        );
        let nowhere = with(&result, "interfaces", json!([]));
        let nowhere = with(&nowhere, "ips", json!([{ "address": "10.1.2.3/24" }]));
        let isolated = firewall(&nowhere, &json!({ "ingressPolicy": "isolated" }));
        assert_eq!(
            host.call("ADD", &pod, &isolated).message(),
            "prevResult has no interface for the ingress policy"
        );
        assert!(
            !ruleset().contains("10.1.2.3"),
            "a failed ADD leaves nothing: {}",
            ruleset()
        );
        assert_eq!(host.records_of("firewall"), Vec::<String>::new());
    });
}

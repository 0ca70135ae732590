//! Plugins answer any input by the protocol: a result, nothing, or an error with a code. A plugin never
//! panics, and it never ends the process, because that may be a daemon with other calls at work.
//!
//! The plugins run in this process, on a host with an empty root directory, so that no path exists.

use std::{
    fs,
    os::fd::{AsFd as _, AsRawFd as _},
};

use cni::{Error, env::Variables, json::Node, plugin::dispatch, result::CniResult, version::Version};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestRunner},
};
use rustix::mount::mount_bind;
use serde_json::{Map, Value, json};

use crate::stage::{Host, Pod, on_a_host};

/// Calls of each plugin.
const CASES: u32 = 500;
/// Path of the container's namespace for the plugins.
const NETNS: &str = "/ns";

/// Makes a folder with a container's namespace and `/proc` the root directory of this thread.
fn enclose(pod: &Pod) {
    let root = "/run/root";
    fs::create_dir_all(format!("{root}/proc")).unwrap();
    mount_bind("/proc", format!("{root}/proc")).unwrap();
    fs::write(format!("{root}{NETNS}"), "").unwrap();
    let fd = pod.ns.as_fd().as_raw_fd();
    mount_bind(format!("/proc/thread-self/fd/{fd}"), format!("{root}{NETNS}")).unwrap();
    rustix::process::chroot(root).unwrap();
    rustix::process::chdir("/").unwrap();
}

/// Configs that plugins accept, to begin with.
#[allow(clippy::too_many_lines, reason = "a list")]
fn configs() -> Vec<Value> {
    let previous = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{ "name": "br0", "mac": "02:00:00:00:00:01" }, { "name": "veth0" },
                       { "name": "net1", "mac": "02:00:00:00:00:02", "sandbox": NETNS }],
        "ips": [{ "address": "10.1.2.3/24", "gateway": "10.1.2.1", "interface": 2 }],
        "routes": [{ "dst": "0.0.0.0/0", "gw": "10.1.2.1" }], "dns": { "nameservers": ["10.1.2.1"] }
    });
    let legacy =
        json!({ "ip4": { "ip": "10.1.2.3/24", "gateway": "10.1.2.1", "routes": [{ "dst": "::/0" }] } });
    let ipam = json!({
        "type": "static", "addresses": [{ "address": "10.1.2.3/24", "gateway": "10.1.2.1" }, { "address": "fd00::3/64" }],
        "routes": [{ "dst": "10.9.0.0/16", "gw": "10.1.2.9", "mtu": 1300, "priority": 7, "table": 100, "scope": 0 }],
        "dns": { "nameservers": ["10.1.2.1"], "search": ["a.b"] }
    });
    let bridge = json!({
        "cniVersion": "1.1.0", "name": "n", "type": "bridge", "bridge": "br0", "isDefaultGateway": true, "mtu": 1400,
        "forceAddress": true, "hairpinMode": true, "promiscMode": false, "vlan": 0, "vlanTrunk": [{ "minID": 1, "maxID": 5, "id": 9 }],
        "portIsolation": false, "enabledad": false, "ipam": ipam.clone(), "prevResult": previous.clone(),
        "runtimeConfig": { "mac": "02:00:00:00:00:05", "ips": ["10.1.2.7/24"] }, "args": { "cni": { "mac": "02:00:00:00:00:06" } },
        "cni.dev/valid-attachments": [{ "containerID": "c", "ifname": "net1" }]
    });
    let valid = json!([{ "containerID": "c", "ifname": "net1" }]);
    let ports = json!([
        { "hostPort": 8080, "containerPort": 80, "protocol": "tcp" },
        { "hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "192.0.2.1" },
        { "hostPort": 53, "containerPort": 53, "protocol": "sctp", "hostIP": "::" },
    ]);
    vec![
        json!({
            "cniVersion": "1.1.0", "name": "n", "type": "firewall", "prevResult": previous.clone(), "ingressPolicy": "isolated",
            "iptablesAdminChainName": "ADMIN", "firewalldZone": "zone", "backend": "", "cni.dev/valid-attachments": valid.clone()
        }),
        json!({
            "cniVersion": "0.4.0", "name": "n", "type": "firewall", "prevResult": previous.clone(), "backend": "iptables",
            "ingressPolicy": "same-bridge"
        }),
        json!({
            "cniVersion": "1.1.0", "name": "n", "type": "portmap", "prevResult": previous.clone(), "masqAll": true, "snat": true,
            "markMasqBit": 3, "conditionsV4": ["ip", "daddr", "!=", "192.0.2.0/28", "iifname", "eth0"], "conditionsV6": ["ip6 saddr fd00::1"],
            "backend": "nftables", "runtimeConfig": { "portMappings": ports.clone() }, "cni.dev/valid-attachments": valid.clone()
        }),
        json!({
            "cniVersion": "1.0.0", "name": "n", "type": "portmap", "prevResult": previous.clone(), "externalSetMarkChain": "X",
            "conditionsV4": ["!", "-d", "10.0.0.1"], "runtimeConfig": { "portMappings": ports }
        }),
        json!({
            "cniVersion": "1.1.0", "name": "n", "type": "sbr", "prevResult": previous.clone(), "gateways": ["10.1.2.1", "fd00::1"],
            "addSourceHints": true, "cni.dev/valid-attachments": valid.clone()
        }),
        json!({
            "cniVersion": "1.1.0", "name": "n", "type": "bandwidth", "prevResult": previous.clone(), "ingressRate": 8000,
            "ingressBurst": 16000, "egressRate": 8000, "egressBurst": 16000, "cni.dev/valid-attachments": valid,
            "runtimeConfig": { "bandwidth": { "ingressRate": 8, "ingressBurst": 8, "egressRate": 0, "egressBurst": 0 } }
        }),
        json!({ "cniVersion": "1.0.0", "name": "n", "type": "bridge", "bridge": "br0", "disableContainerInterface": true }),
        json!({ "cniVersion": "0.2.0", "name": "n", "type": "bridge", "ipam": ipam.clone(), "prevResult": legacy.clone() }),
        bridge,
        json!({
            "cniVersion": "1.1.0", "name": "n", "type": "tuning", "prevResult": previous.clone(), "mac": "02:00:00:00:00:07", "mtu": 1300,
            "promisc": true, "allmulti": true, "txQLen": 10, "dataDir": "/data", "runtimeConfig": { "mac": "02:00:00:00:00:08" },
            "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1", "net.core.somaxconn": "10" },
            "args": { "cni": { "sysctl": { "net.ipv4.ip_forward": "0" }, "mtu": 1280, "promisc": false } },
            "cni.dev/valid-attachments": [{ "containerID": "c", "ifname": "net1" }]
        }),
        json!({ "cniVersion": "0.4.0", "name": "n", "type": "tuning", "prevResult": legacy, "mtu": 1300 }),
        json!({
            "cniVersion": "1.1.0", "name": "n", "type": "static", "ipam": ipam, "runtimeConfig": { "ips": ["10.1.2.7/24"] },
            "args": { "cni": { "ips": ["10.1.2.8/24", "fd00::8/64"] } }, "capabilities": { "ips": true }
        }),
        json!({
            "cniVersion": "1.0.0", "name": "n", "type": "host-local", "ipam": {
                "type": "host-local", "dataDir": "/leases", "resolvConf": "/resolv.conf", "subnet": "10.1.2.0/24",
                "rangeStart": "10.1.2.5", "rangeEnd": "10.1.2.9", "gateway": "10.1.2.1", "routes": [{ "dst": "0.0.0.0/0" }],
                "ranges": [[{ "subnet": "fd00::/64", "rangeStart": "fd00::5", "gateway": "fd00::1" }]]
            },
            "runtimeConfig": { "ipRanges": [[{ "subnet": "10.3.0.0/16" }]], "ips": ["10.1.2.7"] }, "args": { "cni": { "ips": ["10.1.2.8"] } }
        }),
        json!({
            "cniVersion": "1.1.0", "name": "n", "type": "macvlan", "master": "br0", "mode": "vepa", "mtu": 1280, "bcqueuelen": 7,
            "linkInContainer": false, "mac": "02:00:00:00:00:09", "dns": { "nameservers": ["10.1.2.1"] },
            "runtimeConfig": { "mac": "02:00:00:00:00:05" }, "cni.dev/valid-attachments": [{ "containerID": "c", "ifname": "net1" }]
        }),
        json!({
            "cniVersion": "1.1.0", "name": "n", "type": "egress-router", "interfaceType": "macvlan", "log_level": "debug",
            "interfaceArgs": { "master": "br0", "mode": "vepa", "mtu": "1280" }, "dns": { "nameservers": ["10.1.2.1"] },
            "ip": { "addresses": ["192.0.2.2/24"], "gateway": "192.0.2.1", "fallbackIP": "203.0.113.9",
                    "destinations": ["80 TCP 203.0.113.26 8080", "53 udp 203.0.113.27", "203.0.113.28"] },
            "cni.dev/valid-attachments": [{ "containerID": "c", "ifname": "net1" }]
        }),
        json!({ "cniVersion": "1.1.0", "name": "n", "type": "ipvlan", "master": "br0", "mode": "l3s", "mtu": 1280, "linkInContainer": true,
                "ipam": { "type": "static", "addresses": [{ "address": "10.1.2.3/24" }] } }),
        json!({ "cniVersion": "1.0.0", "name": "n", "type": "vlan", "master": "br0", "vlanId": 7, "mtu": 1280, "linkInContainer": false,
                "ipam": { "type": "static", "addresses": [{ "address": "10.1.2.3/24" }] } }),
        json!({ "cniVersion": "1.1.0", "name": "n", "type": "dummy", "ipam": { "type": "static", "addresses": [{ "address": "10.1.2.3/24" }] } }),
        json!({ "cniVersion": "1.1.0", "name": "n", "type": "ptp", "mtu": 1280, "ipMasq": true, "ipMasqBackend": "nftables",
                "dns": { "search": [] }, "prevResult": previous.clone(),
                "ipam": { "type": "static", "addresses": [{ "address": "10.1.2.3/24", "gateway": "10.1.2.1" }] } }),
        json!({ "cniVersion": "1.1.0", "name": "n", "type": "tap", "multiQueue": true, "owner": 0, "group": 0, "mtu": 1280, "bridge": "br0",
                "mac": "02:00:00:00:00:09", "selinuxContext": "", "runtimeConfig": { "mac": "02:00:00:00:00:05" } }),
        json!({ "cniVersion": "1.1.0", "name": "n", "type": "macvtap", "deviceID": "dataplaneMvp0", "mtu": 1280, "promiscMode": true,
                "owner": 107, "group": 107, "mac": "02:00:00:00:00:09", "runtimeConfig": { "mac": "02:00:00:00:00:05" },
                "cni.dev/valid-attachments": [{ "containerID": "c", "ifname": "net1" }] }),
        json!({ "cniVersion": "1.0.0", "name": "n", "type": "host-device", "device": "eth0", "hwaddr": "02:00:00:00:00:09",
                "kernelpath": "/sys/devices/pci0000:00", "pciBusID": "0000:00:03.0", "runtimeConfig": { "deviceID": "x" } }),
        json!({ "cniVersion": "1.1.0", "name": "n", "type": "ovs", "bridge": "br0", "vlan": 7, "trunk": [{ "minID": 1, "maxID": 5, "id": 9 }],
                "vlan_mode": "native-tagged", "mtu": 1400, "ofport_request": 5, "interface_type": "system", "configuration_path": "/x",
                "socket_file": "unix:/s", "link_state_check_retries": 5, "link_state_check_interval": 600, "ipam": ipam.clone(),
                "args": { "cni": { "mac": "02:00:00:00:00:06", "ovnPort": "p" } }, "runtimeConfig": { "mac": "02:00:00:00:00:05" } }),
        json!({ "cniVersion": "1.1.0", "name": "n", "type": "ovs-mirror-producer", "bridge": "br0", "socket_file": "tcp:127.0.0.1:1",
                "mirrors": [{ "name": "m", "ingress": true, "egress": false }], "prevResult": previous.clone() }),
        json!({ "cniVersion": "1.1.0", "name": "n", "type": "ovs-mirror-consumer", "bridge": "br0", "mirrors": [{ "name": "m" }],
                "prevResult": previous.clone() }),
        json!({ "cniVersion": "1.0.0", "name": "n", "type": "vrf", "vrfname": "blue", "table": 7, "prevResult": previous.clone() }),
        json!({ "name": "n", "type": "loopback" }),
        json!({}),
    ]
}

/// One damage to a document. `place` selects the damaged value.
#[derive(Debug, Clone)]
struct Damage {
    place: prop::sample::Index,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Remove,
    Replace(String),
    /// Another entry of the same key, in another letter case.
    Double(String),
    Rename(String),
    Bury(usize),
    /// A byte of the printed text.
    Byte(u8),
    Cut,
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "null",
            "true",
            "[]",
            "{}",
            "0",
            "-1",
            "1.5",
            "1e999",
            "4095",
            "65536",
            "4294967296",
            "\"\"",
            "99999999999999999999999999",
            "-9223372036854775809",
            "[[[]]]",
            "[null]",
            "{\"\":null}",
            "\"../../../etc/x\"",
            "\"\\u0000\"",
            "\"a\\u0000b\"",
            "\"sixteen-letters-\"",
            "\"IFNAME\"",
            "\"\\ud800\"",
            "\"10.1.2.3/33\"",
            "\"fd00::/0\"",
            "\"0.0.0.0/0\"",
            "\"255.255.255.255/32\"",
            "\"ff:ff:ff:ff:ff:ff\"",
            "\"lo\"",
            "\"0.3.0\"",
            "\"1.1.0\"",
            "\"static\"",
            "\"bridge\"",
            "\"nonsense\"",
            "\"/ns\"",
        ])
        .prop_map(str::to_owned),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| number.to_string()),
        any::<String>().prop_map(|text| Value::from(text).to_string()),
        (1..20_000_usize).prop_map(|length| format!("\"{}\"", "ä".repeat(length))),
    ]
}

fn damage() -> impl Strategy<Value = Damage> {
    let kind = prop_oneof![
        2 => Just(Kind::Remove),
        6 => value().prop_map(Kind::Replace),
        2 => value().prop_map(Kind::Double),
        1 => any::<String>().prop_map(Kind::Rename),
        1 => prop::sample::select(vec![1_usize, 100, 200, 50_000]).prop_map(Kind::Bury),
        1 => any::<u8>().prop_map(Kind::Byte),
        1 => Just(Kind::Cut),
    ];
    (any::<prop::sample::Index>(), kind).prop_map(|(place, kind)| Damage { place, kind })
}

/// A document that is printed unchanged, valid or not.
#[derive(Clone)]
enum Tree {
    Text(String),
    List(Vec<Tree>),
    Map(Vec<(String, Tree)>),
}

impl Tree {
    fn of(node: Node) -> Self {
        match node {
            Node::Null => Tree::Text("null".into()),
            Node::Bool(value) => Tree::Text(value.to_string()),
            Node::Number(number) => Tree::Text(number.to_string()),
            Node::Text(text) => Tree::Text(Value::from(text).to_string()),
            Node::List(items) => Tree::List(items.into_iter().map(Tree::of).collect()),
            Node::Map(entries) => Tree::Map(
                entries
                    .into_iter()
                    .map(|(key, node)| (key, Tree::of(node)))
                    .collect(),
            ),
        }
    }

    fn size(&self) -> usize {
        1 + match self {
            Tree::Text(_) => 0,
            Tree::List(items) => items.iter().map(Tree::size).sum(),
            Tree::Map(entries) => entries.iter().map(|(_, tree)| tree.size()).sum(),
        }
    }

    fn print(&self) -> String {
        match self {
            Tree::Text(text) => text.clone(),
            Tree::List(items) => {
                format!(
                    "[{}]",
                    items.iter().map(Tree::print).collect::<Vec<_>>().join(",")
                )
            }
            Tree::Map(entries) => {
                let entry =
                    |(key, tree): &(String, Tree)| format!("{}:{}", Value::from(key.as_str()), tree.print());
                format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(","))
            }
        }
    }

    /// Does `kind` to the value with this number in the order of the document.
    fn damage(&mut self, place: usize, kind: &Kind) {
        let mut left = place;
        if left == 0 {
            match kind {
                Kind::Replace(text) => *self = Tree::Text(text.clone()),
                Kind::Bury(depth) => {
                    *self = Tree::Text(format!(
                        "{}{}{}",
                        "[".repeat(*depth),
                        self.print(),
                        "]".repeat(*depth)
                    ));
                }
                _ => {}
            }
            return;
        }
        left -= 1;
        match self {
            Tree::Text(_) => {}
            Tree::List(items) => {
                for index in 0..items.len() {
                    let size = items[index].size();
                    if left < size {
                        match kind {
                            Kind::Remove if left == 0 => drop(items.remove(index)),
                            _ => items[index].damage(left, kind),
                        }
                        return;
                    }
                    left -= size;
                }
            }
            Tree::Map(entries) => {
                for index in 0..entries.len() {
                    let size = entries[index].1.size();
                    if left < size {
                        match kind {
                            Kind::Remove if left == 0 => drop(entries.remove(index)),
                            Kind::Double(text) if left == 0 => {
                                let key = entries[index].0.to_uppercase();
                                entries.push((key, Tree::Text(text.clone())));
                            }
                            Kind::Rename(key) if left == 0 => entries[index].0.clone_from(key),
                            _ => entries[index].1.damage(left, kind),
                        }
                        return;
                    }
                    left -= size;
                }
            }
        }
    }
}

fn damaged(config: &Value, damages: &[Damage]) -> Vec<u8> {
    let mut tree = Tree::of(serde_json::from_value(config.clone()).unwrap());
    for Damage { place, kind } in damages {
        let place = place.index(tree.size());
        tree.damage(place, kind);
    }
    let mut text = tree.print().into_bytes();
    for Damage { place, kind } in damages {
        match kind {
            Kind::Byte(byte) if !text.is_empty() => {
                let place = place.index(text.len());
                text[place] = *byte;
            }
            Kind::Cut if !text.is_empty() => text.truncate(place.index(text.len())),
            _ => {}
        }
    }
    text
}

fn input(plugin: &str) -> impl Strategy<Value = Vec<u8>> + use<> {
    let known = |configs: Vec<Value>| {
        (prop::sample::select(configs), vec(damage(), 0..4))
            .prop_map(|(config, damages)| damaged(&config, &damages))
    };
    let mut own = configs();
    own.retain(|config| config["type"] == plugin);
    if own.is_empty() {
        own = configs();
    }
    prop_oneof![
        12 => known(own),
        4 => known(configs()),
        1 => vec(any::<u8>(), 0..200),
    ]
}

/// One of the values, more often the first, or anything.
fn variable(values: &'static [&'static str]) -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        40 => Just(Some(values[0].to_owned())),
        6 => prop::sample::select(values).prop_map(|value| Some(value.to_owned())),
        1 => any::<String>().prop_map(Some),
        1 => Just(None),
    ]
}

fn environment() -> impl Strategy<Value = Variables> {
    let verbs = prop_oneof![
        16 => prop::sample::select(vec!["ADD", "DEL", "CHECK", "GC", "STATUS"]).prop_map(|verb| Some(verb.to_owned())),
        1 => variable(&["VERSION", "add", ""]),
    ];
    let args = &[
        "",
        "IgnoreUnknown=1;K8S_POD_NAME=p",
        "MAC=02:00:00:00:00:09",
        "IgnoreUnknown=1;IP=10.1.2.9/24;GATEWAY=10.1.2.1",
        "a",
        "=;=",
    ];
    (
        verbs,
        variable(&["c", "a b", "../x", ""]),
        // Not that of `/proc/self`: the process began in the machine's own namespace, only this thread left it.
        variable(&[NETNS, "/nowhere", "", "/proc/thread-self/ns/net", "/proc", "a\0b"]),
        variable(&["net1", "lo", "br0", "..", "a=\"b", "\u{1f980}", "a\0b", "IFNAME"]),
        variable(args),
        variable(&["/bin", "", ":", "a\0b"]),
        variable(&["", "1"]),
    )
        .prop_map(|(verb, id, netns, ifname, args, path, switch)| {
            [
                ("CNI_COMMAND", verb),
                ("CNI_CONTAINERID", id),
                ("CNI_NETNS", netns),
                ("CNI_IFNAME", ifname),
                ("CNI_ARGS", args),
                ("CNI_PATH", path),
                ("CNI_NETNS_OVERRIDE", switch),
            ]
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect()
        })
}

/// Whether the outcome is one that a runtime understands.
fn is_an_answer(verb: Option<&str>, outcome: &cni::plugin::Outcome) -> Result<(), TestCaseError> {
    let printed = || serde_json::from_str::<Map<String, Value>>(&outcome.stdout);
    match outcome.code {
        0 => match verb.unwrap_or_default() {
            "" => prop_assert!(
                outcome.stdout.is_empty() && outcome.stderr.starts_with("CNI ") || verb == Some("")
            ),
            "ADD" => {
                prop_assert!(CniResult::parse(outcome.stdout.as_bytes(), Version::LATEST).is_ok());
                prop_assert!(printed().is_ok_and(|result| result.contains_key("cniVersion")));
            }
            "VERSION" => prop_assert!(printed().is_ok_and(|answer| answer.contains_key("supportedVersions"))),
            _ => prop_assert_eq!(&outcome.stdout, ""),
        },
        1 => {
            let error: Result<Error, _> = serde_json::from_str(&outcome.stdout);
            prop_assert!(error.is_ok_and(|error| error.code != 0 && !error.msg.is_empty()));
            let known = |key: &String| ["code", "msg", "details"].contains(&key.as_str());
            prop_assert!(printed().is_ok_and(|error| error.keys().all(known)));
        }
        code => prop_assert!(false, "code {code}"),
    }
    Ok(())
}

/// Puts the namespaces back to nothing but `lo`, so that the next call finds something to do.
fn clean(host: &mut Host, pod: &Pod) {
    let clean = |socket: &mut linux::route::Socket| {
        for link in socket.links().unwrap() {
            if link.name != "lo" {
                // The other end of a pair is gone with the first.
                let _ = socket.delete_link(&link);
            }
        }
    };
    clean(&mut pod.socket.borrow_mut());
    clean(&mut host.socket);
}

#[test]
fn arbitrary_input_is_answered() {
    on_a_host("any input", |host| {
        let pod = host.pod();
        // Made outside: a static program may have to open a file for random numbers.
        let runners = plugins::PLUGINS.iter().map(|_| {
            TestRunner::new(Config {
                cases: CASES,
                failure_persistence: None,
                ..Config::default()
            })
        });
        let runners: Vec<_> = runners.collect();
        enclose(&pod);
        let host = std::cell::RefCell::new(host);
        let counts = std::cell::RefCell::new(std::collections::BTreeMap::<_, u32>::new());
        for (plugin, mut runner) in plugins::PLUGINS.iter().zip(runners) {
            let outcome = runner.run(
                &(environment(), input(plugin.name())),
                |(mut variables, input)| {
                    // The shim waits a minute for a daemon that is not there, but never at DEL.
                    if plugin.name() == "multus-shim" {
                        variables.insert("CNI_COMMAND".to_owned(), "DEL".to_owned());
                    }
                    let verb = variables.get("CNI_COMMAND").cloned();
                    let outcome = dispatch(*plugin, &variables, || Ok(input));
                    *counts
                        .borrow_mut()
                        .entry((plugin.name(), verb.clone().unwrap_or_default(), outcome.code))
                        .or_default() += 1;
                    clean(&mut host.borrow_mut(), &pod);
                    is_an_answer(verb.as_deref(), &outcome)
                },
            );
            if let Err(error) = outcome {
                panic!("{}: {error}", plugin.name());
            }
        }
        for ((plugin, verb, code), count) in counts.into_inner() {
            if ["ADD", "DEL", "CHECK"].contains(&verb.as_str()) {
                println!("{plugin} {verb:?} ended with {code}: {count}");
            }
        }
    });
}

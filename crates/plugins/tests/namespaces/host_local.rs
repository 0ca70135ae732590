//! `host-local`, by itself and under `bridge`.

mod allocation;
mod crashes;
mod established;
mod index;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use linux::address::Family;
use rustix::mount::{MountFlags, mount, mount_remount};
use serde_json::{Value, json};

use crate::stage::{Host, Pod, l3, on_a_host, with};

/// `dataDir` of all configs here.
const DATA: &str = "/run/networks";
/// The leases of [`config`]'s network.
const LEASES: &str = "/run/networks/test-net";

/// A config of `host-local` by itself.
fn config(version: &str, ipam: &Value) -> Value {
    let mut ipam = with(ipam, "type", "host-local".into());
    if ipam["dataDir"].is_null() {
        ipam["dataDir"] = DATA.into();
    }
    json!({ "cniVersion": version, "name": "test-net", "type": "host-local", "ipam": ipam })
}

/// The same with one subnet.
fn subnet(subnet: &str) -> Value {
    config("1.0.0", &json!({ "subnet": subnet }))
}

/// A config of `bridge` that assigns addresses by `host-local`.
fn bridged(ipam: &Value) -> Value {
    with(&l3("1.0.0", &[]), "ipam", config("1.0.0", ipam)["ipam"].clone())
}

/// Every lease of the network: address and content.
fn leases() -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir(LEASES) else {
        return BTreeMap::new();
    };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name.parse::<std::net::IpAddr>().is_ok())
        .map(|name| {
            let content = fs::read_to_string(Path::new(LEASES).join(&name)).unwrap();
            (name, content)
        })
        .collect()
}

/// The addresses that are taken.
fn taken() -> Vec<String> {
    leases().into_keys().collect()
}

/// Writes a file of the network's directory.
fn write(name: &str, content: &str) {
    fs::create_dir_all(LEASES).unwrap();
    fs::write(Path::new(LEASES).join(name), content).unwrap();
}

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(LEASES).join(name)).unwrap()
}

/// The addresses of a result, without prefix lengths.
fn assigned(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap_or_else(|| panic!("{result}"));
    ips.iter()
        .map(|ip| {
            ip["address"]
                .as_str()
                .unwrap()
                .split('/')
                .next()
                .unwrap()
                .to_owned()
        })
        .collect()
}

/// ADD for an interface.
fn add(host: &Host, pod: &Pod, ifname: &str, config: &Value) -> Vec<String> {
    assigned(&host.call_with("ADD", pod, ifname, "", config).success())
}

fn del(host: &Host, pod: &Pod, ifname: &str, config: &Value) {
    let outcome = host.call_with("DEL", pod, ifname, "", config);
    assert_eq!(outcome.success(), Value::Null);
}

// cni-plugins#39
#[test]
fn leases_match_upstreams_format() {
    on_a_host("form of leases", |host| {
        let pod = host.pod();
        let config = config(
            "1.0.0",
            &json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "2001:db8::/64" }]],
                "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "2001:db8:1::/48", "gw": "2001:db8::9" }] }),
        );
        let result = host.add(&pod, &config);
        assert_eq!(
            result,
            json!({ "cniVersion": "1.0.0",
                "ips": [
                    { "address": "10.1.2.2/24", "gateway": "10.1.2.1" },
                    { "address": "2001:db8::2/64", "gateway": "2001:db8::1" }
                ],
                "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "2001:db8:1::/48", "gw": "2001:db8::9" }] })
        );
        for address in ["10.1.2.2", "2001:db8::2"] {
            assert_eq!(read(address), "container-1\r\nnet1");
        }
        assert_eq!(read("last_reserved_ip.0"), "10.1.2.2");
        assert_eq!(read("last_reserved_ip.1"), "2001:db8::2");
        assert_eq!(read("lock"), "");
        let names: BTreeSet<_> = fs::read_dir(LEASES)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names.len(), 5, "nothing else: {names:?}");
        let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(LEASES), 0o755);
        assert_eq!(mode(&format!("{LEASES}/lock")), 0o750);
        assert_eq!(mode(&format!("{LEASES}/10.1.2.2")), 0o600);

        add(host, &pod, "net2", &config);
        host.check(&pod, &config, &result).success();
        del(host, &pod, "net1", &config);
        assert_eq!(
            taken(),
            ["10.1.2.3", "2001:db8::3"],
            "only those of the interface"
        );
        del(host, &pod, "net1", &config);
        let unknown = host.pod();
        del(host, &unknown, "net2", &config);
        assert_eq!(taken().len(), 2);
        assert_eq!(
            host.check(&pod, &config, &result).message(),
            "host-local: Failed to find address added by container container-1"
        );
        del(host, &pod, "net2", &config);
        assert_eq!(taken(), [""; 0]);
    });
}

// cni-plugins#39
#[test]
fn leases_of_old_versions_and_manual_ones_are_found() {
    on_a_host("old leases", |host| {
        let pod = host.pod();
        let config = subnet("10.1.2.0/24");
        write("10.1.2.9", "container-1");
        write("10.1.2.10", " container-1\n");
        write("10.1.2.11", "container-1\r\nnet2\r\n");
        write("10.1.2.12", "taken by hand");
        write("10.1.2.13", "");
        write("10.1.2.14", "container-10\r\nnet1");
        let refused = host.call("ADD", &pod, &config).message();
        assert!(
            refused.ends_with("has been allocated to container-1, duplicate allocation is not allowed"),
            "{refused}"
        );
        host.check(&pod, &config, &json!({})).success();
        // The removal of an interface releases only its own lease.
        del(host, &pod, "net2", &config);
        assert_eq!(
            taken(),
            ["10.1.2.10", "10.1.2.12", "10.1.2.13", "10.1.2.14", "10.1.2.9"]
        );
        del(host, &pod, "net1", &config);
        assert_eq!(taken(), ["10.1.2.12", "10.1.2.13", "10.1.2.14"]);
        assert_eq!(add(host, &pod, "net1", &config), ["10.1.2.2"]);
    });
}

// cni-plugins#24
#[test]
fn failed_add_releases_its_address() {
    on_a_host("addresses of failed ADDs", |host| {
        // An IPAM plugin that leases an address and does not report it.
        let ipam = "/run/plugins/host-local > /run/said || { /bin/cat /run/said; exit 1; }";
        let silent = r#"[ $CNI_COMMAND = ADD ] && echo '{"cniVersion":"1.0.0"}'"#;
        host.script(
            "silent",
            &format!("{ipam}; /bin/cp /run/networks/test-net/10.* /run/seen; {silent}; exit 0"),
        );
        fs::create_dir("/run/seen").unwrap();
        let pod = host.pod();
        let mut config = bridged(&json!({ "subnet": "10.1.2.0/24" }));
        config["ipam"]["type"] = "silent".into();
        let refused = host.call("ADD", &pod, &config);
        assert_eq!(refused.message(), "IPAM plugin returned missing IP config");
        assert!(Path::new("/run/seen/10.1.2.2").exists(), "there was a lease");
        assert_eq!(taken(), [""; 0]);

        // An address of the bridge conflicts with the gateway's.
        let first = host.pod();
        host.add(
            &first,
            &with(&l3("1.0.0", &["10.0.0.9/8"]), "isGateway", true.into()),
        );
        let config = with(
            &bridged(&json!({ "subnet": "10.1.2.0/24" })),
            "isGateway",
            true.into(),
        );
        let refused = host.call("ADD", &pod, &config).message();
        assert!(
            refused.contains("already has an IP address different"),
            "{refused}"
        );
        assert_eq!(taken(), [""; 0]);
        assert_eq!(read("last_reserved_ip.0"), "10.1.2.3", "there was a lease");
    });
}

// cni-plugins#11
#[test]
fn bridge_is_the_default_gateway_of_assigned_addresses() {
    on_a_host("default gateway of host-local", |host| {
        const FORWARDING: [(&str, &str); 2] = [(".", "ipv4/ip_forward"), (":", "ipv6/conf/all/forwarding")];
        let file = |file: &str| format!("/proc/sys/net/{file}");
        let (v4, v6) = (
            json!([{ "subnet": "10.1.2.0/24" }]),
            json!([{ "subnet": "2001:db8::0/64" }]),
        );
        let cases: [(&str, Value, &[&str], &[&str]); 3] = [
            ("br0", json!([v4]), &["10.1.2.2/24"], &["10.1.2.1/24"]),
            ("br1", json!([v6]), &["2001:db8::2/64"], &["2001:db8::1/64"]),
            (
                "br2",
                json!([v4, v6]),
                &["10.1.2.2/24", "2001:db8::2/64"],
                &["10.1.2.1/24", "2001:db8::1/64"],
            ),
        ];
        for (bridge, ranges, addresses, gateways) in cases {
            let mut config = bridged(&json!({ "ranges": ranges }));
            config["name"] = bridge.into();
            config["bridge"] = bridge.into();
            config["isDefaultGateway"] = true.into();
            // The initial settings of a namespace differ between machines.
            for (_, forwarding) in FORWARDING {
                fs::write(file(forwarding), "0").unwrap();
            }
            let pod = host.pod();
            let result = host.add(&pod, &config);
            assert_eq!(pod.addresses(), addresses);
            assert_eq!(host.addresses(bridge), gateways);
            for (mark, forwarding) in FORWARDING {
                let wanted = gateways.iter().any(|gateway| gateway.contains(mark));
                let found = fs::read_to_string(file(forwarding)).unwrap();
                assert_eq!(found.trim() == "1", wanted, "{forwarding} for {gateways:?}");
            }
            for family in [Family::V4, Family::V6] {
                let routes = pod.routes(family);
                let expected: Vec<_> = gateways
                    .iter()
                    .filter(|gateway| gateway.contains(':') == (family == Family::V6))
                    .map(|gateway| gateway.split('/').next().unwrap().to_owned())
                    .collect();
                let found: Vec<_> = routes
                    .iter()
                    .filter(|route| route.dst.prefix_len() == 0)
                    .map(|route| route.gateway.unwrap().to_string())
                    .collect();
                assert_eq!(found, expected, "{result}");
            }
            let mac = host.link(bridge).unwrap().mac;
            assert_ne!(result["interfaces"][1]["mac"], mac.unwrap().to_string());
            host.check(&pod, &config, &result).success();
            let second = host.pod();
            host.add(&second, &config);
            host.del(&pod, &config);
            host.del(&second, &config);
            assert_eq!(host.link(bridge).unwrap().mac, mac);
        }
    });
}

// cni-plugins#27
#[test]
fn del_of_incomplete_attachment_releases_the_lease() {
    on_a_host("DEL with host-local", |host| {
        let config = bridged(&json!({ "subnet": "10.1.2.0/24" }));
        let mut pod = host.pod();
        host.add(&pod, &config);
        assert_eq!(taken(), ["10.1.2.2"]);
        let path = std::mem::take(&mut pod.path);
        host.del(&pod, &config);
        assert_eq!(taken(), [""; 0]);

        pod.path = path;
        host.del(&pod, &config);
        host.add(&pod, &config);
        assert_eq!(taken(), ["10.1.2.3"]);
        pod.lose_path();
        host.del(&pod, &config);
        assert_eq!(taken(), [""; 0]);

        // Only the directory of the leases must be valid in the config; everything else may be missing.
        let pod = host.pod();
        host.add(&pod, &config);
        let mut broken = config.clone();
        broken["ipam"]["subnet"] = "10.1.2.3/33".into();
        host.del(&pod, &broken);
        assert_eq!(taken(), [""; 0]);
        let elsewhere = subnet_in("/run/nowhere");
        host.del(&pod, &elsewhere);
        assert!(!Path::new("/run/nowhere").exists());
    });
}

fn subnet_in(data_dir: &str) -> Value {
    config("1.1.0", &json!({ "subnet": "10.1.2.0/24", "dataDir": data_dir }))
}

#[test]
fn gc_keeps_valid_and_foreign_resources() {
    on_a_host("GC", |host| {
        let mut pod = host.pod();
        let config = config("1.1.0", &json!({ "subnet": "10.1.2.0/24" }));
        let other = host.pod();
        let gc = |key: &str, valid: Value| host.call("GC", &other, &with(&config, key, valid));
        for (id, ifname) in [
            ("one", "net1"),
            ("one", "net2"),
            ("two", "net1"),
            ("three", "net1"),
        ] {
            pod.id = id.into();
            add(host, &pod, ifname, &config);
        }
        write("10.1.2.20", "one");
        write("10.1.2.21", "gone");
        write("10.1.2.22", "taken by hand");
        write("10.1.2.23", "");
        write("notes", "gone");
        let valid = |pairs: &[(&str, &str)]| -> Value {
            pairs
                .iter()
                .map(|(id, ifname)| json!({ "containerID": id, "ifname": ifname }))
                .collect()
        };
        host.gc(&config).success();
        let unreadable = gc("cni.dev/valid-attachments", json!([{ "container": "one" }]));
        assert_eq!(unreadable.code, 1);
        assert_eq!(taken().len(), 8, "nothing was removed");

        gc(
            "cni.dev/valid-attachments",
            valid(&[("one", "net2"), ("two", "net1")]),
        )
        .success();
        let kept = ["10.1.2.20", "10.1.2.22", "10.1.2.23", "10.1.2.3", "10.1.2.4"];
        assert_eq!(taken(), kept);
        assert_eq!(read("last_reserved_ip.0"), "10.1.2.5");
        assert_eq!((read("notes"), read("lock")), ("gone".into(), String::new()));
        gc("cni.dev/attachments", valid(&[("two", "net1")])).success();
        assert_eq!(taken(), ["10.1.2.22", "10.1.2.23", "10.1.2.4"]);
        pod.id = "two".into();
        del(host, &pod, "net1", &config);
        add(host, &pod, "net1", &config);
        // Nothing is valid: how Go writes an empty list, too.
        gc("cni.dev/valid-attachments", Value::Null).success();
        assert_eq!(taken(), ["10.1.2.22", "10.1.2.23"]);
        add(host, &pod, "net1", &config);
        gc("cni.dev/valid-attachments", json!([])).success();
        assert_eq!(taken(), ["10.1.2.22", "10.1.2.23"]);
        let nowhere = with(&subnet_in("/run/nowhere"), "cni.dev/valid-attachments", json!([]));
        host.call("GC", &pod, &nowhere).success();
        assert!(!Path::new("/run/nowhere").exists());
    });
}

#[test]
fn status_fails_if_addresses_cannot_be_assigned() {
    on_a_host("STATUS", |host| {
        let pod = host.pod();
        let status = |config: &Value| host.call("STATUS", &pod, config);
        status(&subnet_in(DATA)).success();
        assert_eq!(taken(), [""; 0]);
        let broken = config("1.1.0", &json!({ "subnet": "10.1.2.3/24" }));
        assert!(status(&broken).message().starts_with("invalid range set 0: "));
        // The same by way of a bridge.
        let bridge = with(
            &bridged(&json!({ "subnet": "10.1.2.0/24" })),
            "cniVersion",
            "1.1.0".into(),
        );
        status(&bridge).success();

        fs::write("/run/file", "").unwrap();
        let (code, message) = status(&subnet_in("/run/file")).failure();
        assert_eq!(code, 50);
        assert!(
            message.starts_with("host-local: cannot keep leases in /run/file: "),
            "{message}"
        );
        fs::create_dir("/run/full").unwrap();
        mount(
            "tmpfs",
            "/run/full",
            "tmpfs",
            MountFlags::empty(),
            Some(c"size=8k,nr_inodes=20"),
        )
        .unwrap();
        status(&subnet_in("/run/full")).success();
        mount_remount("/run/full", MountFlags::RDONLY, "").unwrap();
        assert_eq!(status(&subnet_in("/run/full")).failure().0, 50);
    });
}

#[test]
fn resolver_settings_come_from_a_file() {
    on_a_host("resolvConf", |host| {
        let (pod, other) = (host.pod(), host.pod());
        fs::write("/run/resolv.conf", "nameserver 10.0.0.1\nsearch a b\n").unwrap();
        let config = |path: &str| config("1.0.0", &json!({ "subnet": "10.1.2.0/24", "resolvConf": path }));
        let result = host.add(&pod, &config("/run/resolv.conf"));
        assert_eq!(
            result["dns"],
            json!({ "nameservers": ["10.0.0.1"], "search": ["a", "b"] })
        );
        let refused = host.call("ADD", &other, &config("/run/none")).message();
        assert!(refused.starts_with("failed to read /run/none: "), "{refused}");
        // cni-plugins#72: nothing that a network names makes its call wait
        pipe("/run/pipe");
        for path in ["/run/pipe", "/dev/ptmx", "/run"] {
            let refused = host.call("ADD", &other, &config(path)).message();
            assert_eq!(refused, format!("failed to read {path}: not a regular file"));
        }
        assert_eq!(taken(), ["10.1.2.2"]);
    });
}

#[test]
fn pipes_among_the_leases_are_rejected_or_skipped() {
    // cni-plugins#72
    on_a_host("pipes", |host| {
        let (pod, other) = (host.pod(), host.pod());
        let config = config(
            "1.0.0",
            &json!({ "subnet": "10.1.2.0/24", "dataDir": "/run/leases" }),
        );
        fs::create_dir_all("/run/leases/test-net").unwrap();
        pipe("/run/leases/test-net/10.1.2.2");
        pipe("/run/leases/test-net/last_reserved_ip.0");
        let result = host.add(&pod, &config);
        assert_eq!(result["ips"][0]["address"], "10.1.2.3/24");
        host.call("DEL", &pod, &config).success();
        fs::remove_file("/run/leases/test-net/lock").unwrap();
        pipe("/run/leases/test-net/lock");
        for verb in ["ADD", "DEL"] {
            let refused = host.call(verb, &other, &config).message();
            assert!(
                refused.ends_with("/run/leases/test-net: not a regular file"),
                "{refused}"
            );
        }
        fs::remove_dir_all("/run/leases/test-net").unwrap();
        pipe("/run/leases/test-net");
        host.call("DEL", &other, &config).success();
        host.call("ADD", &other, &config).failure();
    });
}

fn pipe(path: &str) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
}

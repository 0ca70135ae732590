//! The address that an attachment gets.

use std::{fs, path::Path};

use rustix::mount::{MountFlags, mount};
use serde_json::{Value, json};

use super::{DATA, LEASES, add, assigned, config, del, read, subnet, taken, write};
use crate::stage::{Host, Pod, VERSIONS, finish, on_a_host, start, variables, with};

/// ADD for a container of this name.
fn add_as(host: &Host, pod: &mut Pod, id: &str, config: &Value) -> Vec<String> {
    pod.id = id.into();
    add(host, pod, "net1", config)
}

// cni-plugins#40
#[test]
fn an_interface_gets_one_address() {
    on_a_host("duplicate allocation", |host| {
        let pod = host.pod();
        let config = subnet("10.1.2.0/24");
        assert_eq!(add(host, &pod, "net1", &config), ["10.1.2.2"]);
        let text = "failed to allocate for range 0: 10.1.2.2 has been allocated to container-1, \
            duplicate allocation is not allowed";
        // By the index, and by the leases themselves.
        for _ in 0..2 {
            assert_eq!(host.call("ADD", &pod, &config).message(), text);
            let _ = fs::remove_dir_all("/run/cni");
        }
        assert_eq!(taken(), ["10.1.2.2"]);
        assert_eq!(add(host, &pod, "net2", &config), ["10.1.2.3"]);
    });
}

// cni-plugins#41
#[test]
fn addresses_rotate_through_all_ranges() {
    on_a_host("round robin", |host| {
        let mut pod = host.pod();
        let config = config(
            "1.0.0",
            &json!({ "ranges": [[
                { "subnet": "10.1.2.0/24", "rangeStart": "10.1.2.253", "gateway": "10.1.2.254" },
                { "subnet": "10.3.0.0/30" },
                { "subnet": "10.2.0.0/24", "rangeStart": "10.2.0.7", "rangeEnd": "10.2.0.8" }
            ]] }),
        );
        let wanted = ["10.1.2.253", "10.3.0.2", "10.2.0.7", "10.2.0.8"];
        for (index, address) in wanted.iter().enumerate() {
            assert_eq!(add_as(host, &mut pod, &format!("c{index}"), &config), [*address]);
            assert_eq!(read("last_reserved_ip.0"), *address);
        }
        pod.id = "late".into();
        assert_eq!(
            host.call("ADD", &pod, &config).message(),
            "failed to allocate for range 0: no IP addresses available in range set: \
             10.1.2.253-10.1.2.254,10.3.0.1-10.3.0.2,10.2.0.7-10.2.0.8"
        );
        pod.id = "c1".into();
        del(host, &pod, "net1", &config);
        pod.id = "c0".into();
        del(host, &pod, "net1", &config);
        // After the last one is before the first one.
        assert_eq!(add_as(host, &mut pod, "d0", &config), ["10.1.2.253"]);
        assert_eq!(add_as(host, &mut pod, "d1", &config), ["10.3.0.2"]);
        // The last one alone is free: the search returns to its start.
        del(host, &pod, "net1", &config);
        assert_eq!(add_as(host, &mut pod, "d2", &config), ["10.3.0.2"]);
        pod.id = "d2".into();
        del(host, &pod, "net1", &config);
        for nonsense in ["", "nonsense", "10.9.9.9", "fd00::1"] {
            write("last_reserved_ip.0", nonsense);
            assert_eq!(add_as(host, &mut pod, "d2", &config), ["10.3.0.2"], "{nonsense}");
            del(host, &pod, "net1", &config);
        }
    });
}

// cni-plugins#41
#[test]
fn requested_addresses_are_assigned() {
    on_a_host("requested addresses", |host| {
        let mut pod = host.pod();
        let plain = config(
            "1.0.0",
            &json!({ "ranges": [[{ "subnet": "10.1.2.0/24", "gateway": "10.1.2.9" }], [{ "subnet": "fd00::/64" }]] }),
        );
        let call = |host: &Host, pod: &Pod, args: &str, config: &Value| {
            host.call_with("ADD", pod, "net1", args, config)
        };
        let by_args = |ips: Value| with(&plain, "args", json!({ "cni": { "ips": ips } }));
        let by_runtime = |ips: Value| with(&plain, "runtimeConfig", json!({ "ips": ips }));
        let cases = [
            ("IP=10.1.2.20", plain.clone(), ["10.1.2.20", "fd00::2"]),
            ("IP=10.1.2.21/16", plain.clone(), ["10.1.2.21", "fd00::3"]),
            (
                "",
                by_args(json!(["fd00::20", "10.1.2.22"])),
                ["10.1.2.22", "fd00::20"],
            ),
            (
                "",
                by_runtime(json!(["fd00::21/64", "10.1.2.23/24"])),
                ["10.1.2.23", "fd00::21"],
            ),
            (
                "IP=10.1.2.24",
                by_runtime(json!(["fd00::22"])),
                ["10.1.2.24", "fd00::22"],
            ),
        ];
        for (index, (args, config, expected)) in cases.into_iter().enumerate() {
            pod.id = format!("c{index}");
            let result = call(host, &pod, args, &config).success();
            assert_eq!(assigned(&result), expected);
            assert_eq!(read("last_reserved_ip.0"), expected[0]);
        }
        let before = taken();
        pod.id = "late".into();
        let refused = |args: &str, config: &Value| {
            let message = call(host, &pod, args, config).message();
            assert_eq!(taken(), before, "nothing stays of what was refused");
            message
        };
        assert_eq!(
            refused("IP=10.9.9.9", &by_args(json!(["10.1.2.30", "10.1.2.31"]))),
            "failed to allocate all requested IPs: 10.9.9.9 10.1.2.31"
        );
        assert_eq!(
            refused("IP=10.1.2.9", &plain),
            "failed to allocate for range 0: requested ip 10.1.2.9 is subnet's gateway"
        );
        assert_eq!(
            refused("IP=fd00::20", &plain),
            "failed to allocate for range 1: requested IP address fd00::20 is not available in range set \
             fd00::1-fd00::ffff:ffff:ffff:ffff"
        );
        assert_eq!(
            refused("IP=10.1.2.255", &plain),
            "failed to allocate all requested IPs: 10.1.2.255"
        );
    });
}

// cni-plugins#42
#[test]
fn invalid_ranges_are_rejected_before_any_write() {
    on_a_host("refused ranges", |host| {
        let pod = host.pod();
        let cases = [
            (
                json!([[{ "subnet": "10.0.0.0/31" }]]),
                "invalid range set 0: Network 10.0.0.0/31 too small to allocate from",
            ),
            (
                json!([[{ "subnet": "10.0.0.1/32" }]]),
                "invalid range set 0: Network 10.0.0.1/32 too small to allocate from",
            ),
            (
                json!([[{ "subnet": "10.0.0.9/24" }]]),
                "invalid range set 0: Network has host bits set. For a subnet mask of length 24 the network address is 10.0.0.0",
            ),
            (
                json!([[{ "subnet": "10.0.0.0/24" }, { "subnet": "10.0.0.0/16" }]]),
                "invalid range set 0: subnets 10.0.0.1-10.0.0.254 and 10.0.0.1-10.0.255.254 overlap",
            ),
            (
                json!([[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "10.0.0.0/16" }]]),
                "range set 0 overlaps with 1",
            ),
            (
                json!([[{ "subnet": "fd00::/64" }], [{ "subnet": "10.0.0.0/24" }, { "subnet": "fd01::/64" }]]),
                "invalid range set 1: mixed address families",
            ),
        ];
        for (ranges, text) in cases {
            let config = config("1.0.0", &json!({ "ranges": ranges }));
            assert_eq!(host.call("ADD", &pod, &config).message(), text);
        }
        let two = json!({ "ranges": [[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "10.1.0.0/24" }]] });
        let refused = host.call("ADD", &pod, &config("0.2.0", &two));
        assert_eq!(
            refused.message(),
            "CNI version 0.2.0 does not support more than 1 address per family"
        );
        assert!(!Path::new(DATA).exists(), "nothing was written");
        for version in VERSIONS {
            let ranges = json!({ "ranges": [[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "fd00::/64" }]] });
            let result = host.add(&pod, &config(version, &ranges));
            assert_eq!(result["cniVersion"], version);
            host.del(&pod, &config(version, &ranges));
        }
    });
}

#[test]
fn large_ranges_are_cheap() {
    on_a_host("large ranges", |host| {
        let mut pod = host.pod();
        let config = config(
            "1.0.0",
            &json!({ "ranges": [[{ "subnet": "10.0.0.0/8" }], [{ "subnet": "fd00::/64" }, { "subnet": "::/1" }]] }),
        );
        write("last_reserved_ip.0", "10.255.255.254");
        write("last_reserved_ip.1", "fd00::ffff:ffff:ffff:ffff");
        assert_eq!(add_as(host, &mut pod, "a", &config), ["10.0.0.2", "::2"]);
    });
}

// cni-plugins#43
#[test]
fn parallel_calls_give_distinct_addresses() {
    on_a_host("50 at once", |host| {
        let pods: Vec<Pod> = (0..50).map(|_| host.pod()).collect();
        let config = subnet("10.1.2.0/24");
        let outcomes = host.call_together(50, "ADD", pods.iter().map(|pod| (pod, config.clone())));
        let mut found: Vec<_> = outcomes
            .iter()
            .flat_map(|outcome| assigned(&outcome.success()))
            .collect();
        found.sort();
        assert_eq!(found, taken());
        found.dedup();
        assert_eq!(found.len(), 50, "{found:?}");
        // Two DELs of each, at once.
        let start = |pod| {
            start(
                "host-local",
                &variables("DEL", pod, "net1", ""),
                &config.to_string(),
            )
        };
        let children: Vec<_> = pods.iter().chain(&pods).map(start).collect();
        for child in children {
            finish(child).success();
        }
        assert_eq!(taken(), [""; 0]);
    });
}

#[test]
fn full_disk_fails_without_leftovers() {
    on_a_host("full disk", |host| {
        let mut pod = host.pod();
        let config = subnet("10.1.2.0/24");
        fs::create_dir(DATA).unwrap();
        mount("tmpfs", DATA, "tmpfs", MountFlags::empty(), Some(c"size=16k")).unwrap();
        assert_eq!(add_as(host, &mut pod, "a", &config), ["10.1.2.2"]);
        fs::write(format!("{DATA}/ballast"), vec![0; 16384]).unwrap_err();
        pod.id = "b".into();
        let refused = host.call("ADD", &pod, &config).message();
        assert_eq!(
            refused,
            "failed to allocate for range 0: create file \"/run/networks/test-net/10.1.2.3\": no space left on device"
        );
        assert_eq!(taken(), ["10.1.2.2"]);
        assert_eq!(read("last_reserved_ip.0"), "10.1.2.2");
        assert_eq!(fs::read_dir(LEASES).unwrap().count(), 3);
        pod.id = "a".into();
        del(host, &pod, "net1", &config);
        fs::remove_file(format!("{DATA}/ballast")).unwrap();
        assert_eq!(add_as(host, &mut pod, "b", &config), ["10.1.2.3"]);
    });
}

//! In turn with the upstream plugin on the same leases.

use std::{os::unix::fs::symlink, path::PathBuf};

use cluster::{Error, Home, Packages, Quiet};
use serde_json::{Value, json};

use super::{add, assigned, config, del, leases, read, taken};
use crate::stage::{Pod, finish, on_a_host, start, variables, with};

/// Debian's program, if it is available or can be downloaded.
fn theirs() -> Option<PathBuf> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: the download of the upstream plugin needs root");
        return None;
    }
    match Home::from_env().and_then(|home| Packages::ensure(&home, &mut Quiet)) {
        Ok(packages) => Some(packages.file("usr/lib/cni/host-local")),
        Err(Error::Missing(why)) => {
            println!("skipped: {why}");
            None
        }
        Err(error) => panic!("cannot provide the upstream plugin: {error}"),
    }
}

/// The same config for the upstream plugin.
fn for_them(config: &Value) -> Value {
    with(config, "type", "theirs".into())
}

// cni-plugins#39
#[test]
fn both_implementations_share_the_leases() {
    let Some(theirs) = theirs() else { return };
    on_a_host("in turn with the upstream plugin", move |host| {
        symlink(theirs, "/run/plugins/theirs").unwrap();
        let pod = host.pod();
        let ours = config(
            "1.0.0",
            &json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "2001:db8::/64" }]],
                "routes": [{ "dst": "0.0.0.0/0" }] }),
        );
        let theirs = for_them(&ours);
        // The same answer but for the address, in every respect.
        let mut answers = Vec::new();
        for (number, config) in [&ours, &theirs, &ours, &theirs].into_iter().enumerate() {
            let ifname = format!("net{number}");
            let result = host.call_with("ADD", &pod, &ifname, "", config).success();
            let addresses = [
                format!("10.1.2.{}", 2 + number),
                format!("2001:db8::{}", 2 + number),
            ];
            assert_eq!(assigned(&result), addresses);
            assert_eq!(read("last_reserved_ip.0"), addresses[0]);
            assert_eq!(read(&addresses[0]), format!("container-1\r\n{ifname}"));
            let mut answer = with(&result, "ips", Value::Null);
            // Older ones print it empty.
            if answer["dns"] == json!({}) {
                answer.as_object_mut().unwrap().shift_remove("dns");
            }
            answers.push(answer);
        }
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
        for config in [&ours, &theirs] {
            for number in 0..4 {
                host.call_with("CHECK", &pod, &format!("net{number}"), "", config)
                    .success();
            }
            let refused = host.call_with("ADD", &pod, "net1", "", config).message();
            assert_eq!(
                refused,
                "failed to allocate for range 0: 10.1.2.3 has been allocated to container-1, \
                 duplicate allocation is not allowed"
            );
        }
        // Each releases the leases of the other.
        for (number, config) in [&theirs, &ours, &theirs, &ours].into_iter().enumerate() {
            del(host, &pod, &format!("net{number}"), config);
            assert_eq!(leases().len(), 6 - 2 * number);
        }
        assert_eq!(taken(), [""; 0]);
    });
}

// cni-plugins#41, cni-plugins#42
#[test]
fn unusable_nodes_return_upstreams_errors() {
    let Some(theirs) = theirs() else { return };
    on_a_host("texts of the upstream plugin", move |host| {
        symlink(theirs, "/run/plugins/theirs").unwrap();
        let pod = host.pod();
        let ranges = [
            json!({}),
            json!({ "ranges": [] }),
            json!({ "ranges": [[]] }),
            json!({ "rangeStart": "10.1.2.3" }),
            json!({ "subnet": "10.1.2.0/31" }),
            json!({ "subnet": "10.1.2.3/32" }),
            json!({ "subnet": "2001:db8::/127" }),
            json!({ "subnet": "10.1.2.0" }),
            json!({ "subnet": "" }),
            json!({ "subnet": "10.1.2.0/24", "rangeStart": "10.1.3.3" }),
            json!({ "subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.8" }),
            json!({ "subnet": "10.1.2.0/24", "rangeStart": "2001:db8::1" }),
            json!({ "subnet": "10.1.2.0/24", "rangeEnd": "10.1.2.0" }),
            json!({ "subnet": "10.1.2.0/24", "rangeEnd": "10.1.3.0" }),
            json!({ "subnet": "10.1.2.0/24", "rangeEnd": "nonsense" }),
            json!({ "subnet": "10.1.2.0/24", "gateway": "10.1.2" }),
            json!({ "subnet": "::ffff:10.1.2.0/120" }),
            json!({ "ranges": [[{ "rangeStart": "10.1.2.3" }]] }),
            json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }, { "subnet": "2001:db8::/64" }]] }),
            json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }, { "subnet": "10.1.0.0/16" }]] }),
            json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "10.1.0.0/16" }]] }),
            json!({ "subnet": "10.1.2.0/24", "ranges": [[{ "subnet": "10.1.2.0/25" }]] }),
        ];
        let configs = ranges.iter().map(|ipam| ("", config("1.0.0", ipam)));
        let plain = config("1.0.0", &json!({ "subnet": "10.1.2.0/29" }));
        let runtime = |ips: Value| with(&plain, "runtimeConfig", json!({ "ips": ips }));
        let requests = [
            ("IP=10.1.2.1", plain.clone()),
            ("IP=10.9.9.9", plain.clone()),
            ("IP=nonsense", plain.clone()),
            ("X=1", plain.clone()),
            ("IP=10.9.9.9/24", runtime(json!(["10.9.9.9", "10.9.9.9/16"]))),
            ("", runtime(json!(["10.1.2.1/16"]))),
            ("", runtime(json!(["10.1.2"]))),
            ("", runtime(json!(["10.1.2.7"]))),
        ];
        let mut differing = Vec::new();
        for (args, config) in configs.chain(requests) {
            let say = |config: &Value| host.call_with("ADD", &pod, "net1", args, config).failure();
            let (ours, theirs) = (say(&config), say(&for_them(&config)));
            if ours != theirs {
                differing.push(format!("{args} {}: {ours:?} against {theirs:?}", config["ipam"]));
            }
        }
        assert!(differing.is_empty(), "{differing:#?}");
        assert_eq!(taken(), [""; 0]);
    });
}

// cni-plugins#43
#[test]
fn both_at_once_give_distinct_addresses() {
    let Some(theirs) = theirs() else { return };
    on_a_host("concurrently with the upstream plugin", move |host| {
        symlink(theirs, "/run/plugins/theirs").unwrap();
        let config = config("1.0.0", &json!({ "subnet": "10.1.2.0/24" }));
        let pods: Vec<Pod> = (0..40).map(|_| host.pod()).collect();
        let each = |turn: usize| {
            let configs = [config.clone(), for_them(&config)];
            pods.iter()
                .enumerate()
                .map(move |(number, pod)| (pod, configs[(number + turn) % 2].clone()))
        };
        let outcomes = host.call_together(50, "ADD", each(0));
        let mut found: Vec<_> = outcomes
            .iter()
            .flat_map(|outcome| assigned(&outcome.success()))
            .collect();
        found.sort();
        assert_eq!(found, taken());
        found.dedup();
        assert_eq!(found.len(), 40);
        // While some go, others come.
        let text = config.to_string();
        let others: Vec<Pod> = (0..20).map(|_| host.pod()).collect();
        let mut children = Vec::new();
        for (number, (pod, config)) in each(1).enumerate() {
            let plugin = config["type"].as_str().unwrap();
            children.push(start(plugin, &variables("DEL", pod, "net1", ""), &text));
            if let Some(pod) = others.get(number) {
                children.push(start(plugin, &variables("ADD", pod, "net1", ""), &text));
            }
        }
        for child in children {
            finish(child).success();
        }
        assert_eq!(taken().len(), 20);
        for pod in &others {
            del(host, pod, "net1", &config);
        }
        assert_eq!(taken(), [""; 0]);
        assert_eq!(add(host, &pods[0], "net1", &for_them(&config)).len(), 1);
    });
}

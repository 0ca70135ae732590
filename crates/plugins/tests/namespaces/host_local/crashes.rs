//! Killed calls, calls with invalid input, and many calls in one process.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Child,
    time::{Duration, Instant},
};

use cni::{env::Variables, plugin::dispatch};
use plugins::HostLocal;
use proptest::{
    prelude::*,
    test_runner::{Config, RngSeed, TestRunner},
};
use serde_json::{Value, json};

use super::{DATA, add, assigned, config, leases, subnet, taken};
use crate::{
    dice::Dice,
    stage::{Host, Pod, finish, on_a_host, start, variables, with},
};

/// Number of killed calls.
const KILLS: u32 = 60;

/// Duration of a call without other delays.
fn shortest_duration(host: &Host, pod: &Pod, config: &Value) -> Duration {
    let duration = |verb: &str| {
        let start = Instant::now();
        host.call(verb, pod, config).success();
        start.elapsed()
    };
    let durations = ["ADD", "DEL"].repeat(5).into_iter().map(duration);
    durations.min().unwrap_or_default()
}

// cni-plugins#43
#[test]
fn killed_calls_leave_consistent_leases() {
    on_a_host("kill -9", |host| {
        let mut dice = Dice::new();
        let seed = dice.seed;
        let config = config(
            "1.1.0",
            &json!({ "ranges": [[{ "subnet": "10.1.2.0/26" }], [{ "subnet": "fd00::/64" }]] }),
        );
        let mut pod = host.pod();
        let shortest = shortest_duration(host, &pod, &config);
        // Addresses that were returned to the runtime, until it requests their release.
        let mut live: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut used: BTreeSet<String> = BTreeSet::new();
        let mut killed = 0;
        for round in 0.. {
            if killed == KILLS {
                break;
            }
            let mut calls: Vec<(String, &str, Child)> = Vec::new();
            for number in 0..3 {
                let old = live.keys().nth(dice.below(16) as usize).cloned();
                let (id, verb) = match old {
                    Some(id) if dice.below(2) == 0 || live.len() > 12 => (id, "DEL"),
                    _ => (format!("c{round}-{number}"), "ADD"),
                };
                live.remove(&id);
                used.insert(id.clone());
                pod.id.clone_from(&id);
                let child = start(
                    "host-local",
                    &variables(verb, &pod, "net1", ""),
                    &config.to_string(),
                );
                calls.push((id, verb, child));
            }
            let moment = Instant::now() + dice.part_of(shortest * 3);
            while Instant::now() < moment {
                std::hint::spin_loop();
            }
            let victim = dice.below(3) as usize;
            calls[victim].2.kill().unwrap();
            for (id, verb, child) in calls {
                let outcome = finish(child);
                if outcome.code == -1 {
                    killed += 1;
                    continue;
                }
                if verb == "ADD" {
                    let addresses = assigned(&outcome.success());
                    let double = live
                        .values()
                        .flatten()
                        .find(|address| addresses.contains(address));
                    assert_eq!(double, None, "seed {seed}, round {round}: {id} got {addresses:?}");
                    live.insert(id, addresses);
                } else {
                    outcome.success();
                }
            }
            let leases = leases();
            for (id, addresses) in &live {
                for address in addresses {
                    assert_eq!(leases.get(address), Some(&format!("{id}\r\nnet1")), "seed {seed}");
                }
            }
            for (address, content) in leases {
                let id = content.strip_suffix("\r\nnet1").unwrap_or_default();
                assert!(used.contains(id), "seed {seed}: {address} holds {content:?}");
            }
            // Runtimes release attachments of unknown state.
            if dice.below(4) == 0 {
                for id in used.iter().filter(|id| !live.contains_key(*id)) {
                    pod.id.clone_from(id);
                    host.del(&pod, &config);
                }
                let expected: BTreeSet<&String> = live.values().flatten().collect();
                assert_eq!(
                    self::leases().keys().collect::<BTreeSet<_>>(),
                    expected,
                    "seed {seed}"
                );
                used = live.keys().cloned().collect();
            }
        }
        let valid: Value = live
            .keys()
            .map(|id| json!({ "containerID": id, "ifname": "net1" }))
            .collect();
        host.call("GC", &pod, &with(&config, "cni.dev/valid-attachments", valid))
            .success();
        let expected: BTreeSet<&String> = live.values().flatten().collect();
        assert_eq!(leases().keys().collect::<BTreeSet<_>>(), expected, "seed {seed}");
        for id in live.keys() {
            pod.id.clone_from(id);
            host.del(&pod, &config);
        }
        assert_eq!(taken(), [""; 0], "seed {seed}");
    });
}

fn call(verb: &str, id: &str, stdin: &str) -> Value {
    let variables: Variables = [
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", id),
        ("CNI_NETNS", "/nowhere"),
        ("CNI_IFNAME", "net1"),
        ("CNI_PATH", "/run/plugins"),
        ("CNI_ARGS", "IgnoreUnknown=1"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect();
    let outcome = dispatch(&HostLocal, &variables, || Ok(stdin.as_bytes().to_vec()));
    let answer: Value = serde_json::from_str(&outcome.stdout).unwrap_or_default();
    assert_eq!(answer["code"].is_null(), outcome.code == 0, "{outcome:?}");
    answer
}

// cni-plugins#43
#[test]
fn threads_of_one_process_give_distinct_addresses() {
    on_a_host("50 threads", |host| {
        let config = subnet("10.1.2.0/24").to_string();
        let threads: Vec<_> = (0..50)
            .map(|number| {
                let config = config.clone();
                std::thread::spawn(move || assigned(&call("ADD", &format!("c{number}"), &config)))
            })
            .collect();
        let found: BTreeSet<String> = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect();
        assert_eq!(found.len(), 50);
        let pod = host.pod();
        assert_eq!(add(host, &pod, "net1", &subnet("10.1.2.0/24")), ["10.1.2.52"]);
    });
}

/// Values that stand where others should.
fn odd_value() -> impl Strategy<Value = Value> {
    let texts = prop::sample::select(vec![
        "",
        "10.1.2.0/24",
        "10.1.2.3",
        "10.1.2.0/33",
        "10.1.2.0/0",
        "fd00::/64",
        "fd00::/0",
        "fd00::5",
        "::ffff:10.1.2.3",
        "999.1.2.3",
        "../..",
        "\u{0}",
        "10.1.2.255",
        "0.0.0.0",
        "255.255.255.255/8",
    ])
    .prop_map(Value::from);
    let leaf = prop_oneof![
        4 => texts,
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => "\\PC{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        let keys = prop::sample::select(vec![
            "subnet",
            "rangeStart",
            "rangeEnd",
            "gateway",
            "dst",
            "ips",
            "cni",
            "ranges",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec((keys, inner), 0..3).prop_map(|entries| entries
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect()),
        ]
    })
}

/// Places in a config, any of which may be spoilt.
const PLACES: [&str; 16] = [
    "/ipam",
    "/ipam/subnet",
    "/ipam/rangeStart",
    "/ipam/gateway",
    "/ipam/ranges",
    "/ipam/ranges/0",
    "/ipam/ranges/0/0",
    "/ipam/ranges/0/0/subnet",
    "/ipam/ranges/0/0/rangeStart",
    "/ipam/ranges/0/0/rangeEnd",
    "/ipam/ranges/1/0",
    "/ipam/routes/0/dst",
    "/runtimeConfig",
    "/runtimeConfig/ipRanges/0/0",
    "/runtimeConfig/ips/0",
    "/args/cni/ips",
];

#[test]
fn arbitrary_config_does_not_panic() {
    on_a_host("spoilt configs", |_| {
        let seed = u64::from_le_bytes(linux::random::bytes().unwrap());
        println!("seed {seed}");
        let settings = Config {
            cases: 600,
            rng_seed: RngSeed::Fixed(seed),
            failure_persistence: None,
            ..Config::default()
        };
        let whole = config(
            "1.1.0",
            &json!({
                "subnet": "10.1.2.0/28", "rangeStart": "10.1.2.4", "rangeEnd": "10.1.2.9", "gateway": "10.1.2.1",
                "ranges": [
                    [{ "subnet": "10.2.0.0/29", "rangeStart": "10.2.0.2", "rangeEnd": "10.2.0.5" }],
                    [{ "subnet": "fd00::/64" }]
                ],
                "routes": [{ "dst": "0.0.0.0/0" }]
            }),
        );
        let whole = with(
            &whole,
            "runtimeConfig",
            json!({ "ipRanges": [[{ "subnet": "10.3.0.0/29" }]], "ips": ["10.3.0.4"] }),
        );
        let whole = with(&whole, "args", json!({ "cni": { "ips": ["10.2.0.3"] } }));
        let whole = with(&whole, "cni.dev/valid-attachments", json!([]));
        let spoilt = prop::collection::vec((prop::sample::select(PLACES.to_vec()), odd_value()), 0..3);
        let succeeded = RefCell::new(0);
        let outcome = TestRunner::new(settings).run(&spoilt, |changes| {
            let mut config = whole.clone();
            for (place, value) in changes {
                if let Some(old) = config.pointer_mut(place) {
                    *old = value;
                }
            }
            // Every config is about the leases here.
            if config["ipam"].is_object() {
                config["ipam"]["dataDir"] = DATA.into();
            } else {
                config["ipam"] = json!({ "dataDir": DATA });
            }
            let text = config.to_string();
            let added = call("ADD", "c", &text);
            if added["code"].is_null() {
                *succeeded.borrow_mut() += 1;
                for address in assigned(&added) {
                    prop_assert!(taken().contains(&address), "{address} of {added}");
                }
            }
            for verb in ["CHECK", "STATUS", "DEL", "GC"] {
                call(verb, "c", &text);
            }
            prop_assert_eq!(taken(), [""; 0]);
            Ok(())
        });
        outcome.unwrap();
        assert!(succeeded.take() > 0);
        assert!(fs::read_dir(DATA).unwrap().count() > 0);
    });
}

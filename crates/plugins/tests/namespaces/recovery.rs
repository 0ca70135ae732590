//! Attachments whose plugin is killed, or whose runtime never calls DEL: a following DEL or GC finds all leftovers.

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};

use crate::{
    killer::Killer,
    stage::{Host, LEASES, Pod, l2, on_a_host, with},
    testing::ruleset,
    tuning::tuning,
};

/// Number of kills.
const KILLS: u32 = 25;

/// A config with every kind of step.
fn everything() -> Value {
    let mut config = l2("1.1.0");
    for key in ["isDefaultGateway", "ipMasq", "macspoofchk"] {
        config[key] = true.into();
    }
    let ranges = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
    config["ipam"] = json!({ "type": "host-local", "dataDir": LEASES, "ranges": ranges });
    config
}

/// Everything that an attachment could leave.
fn state(host: &mut Host, pod: &Pod) -> String {
    format!("{}\n{}", host.state(pod), ruleset())
}

fn collect(host: &Host, config: &Value, valid: &[&Pod]) {
    let valid: Vec<_> = valid
        .iter()
        .map(|pod| json!({ "containerID": pod.id, "ifname": "net1" }))
        .collect();
    let outcome = host.gc(&with(config, "cni.dev/valid-attachments", valid.into()));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, ""), "{outcome:?}");
}

#[test]
fn del_or_gc_after_kill_at_any_point_restores_the_node() {
    on_a_host("killed plugins", |host| {
        let config = everything();
        // Another attachment to the network: it must be left alone, and the common state exists from the first on.
        let (neighbour, pod) = (host.pod(), host.pod());
        host.add(&neighbour, &config);
        let before = state(host, &pod);
        let mut killer = Killer::new(host, &pod, &config, KILLS);
        while let Some(round) = killer.kill(host, &pod, &config) {
            if round.number % 4 < 2 {
                host.del(&pod, &config);
            } else {
                collect(host, &config, &[&neighbour]);
            }
            assert_eq!(state(host, &pod), before, "{round}");
        }
        // No leftover prevents the next attachment.
        host.add(&pod, &config);
    });
}

#[test]
fn add_after_killed_add_starts_over() {
    on_a_host("killed ADD", |host| {
        let (first, second) = (host.pod(), host.pod());
        let config = l2("1.0.0");
        host.add(&first, &config);
        // The namespace of the container is created again under the same identity: the old host end must be removed.
        let again = host.pod_like(&first);
        assert_eq!(host.veths().len(), 1);
        host.add(&again, &config);
        assert_eq!(host.veths().len(), 1, "{:?}", host.veths());
        assert!(first.link("net1").is_none() && again.link("net1").is_some());
        host.add(&second, &config);
        host.del(&again, &config);
        assert_eq!(host.veths().len(), 1);
    });
}

#[test]
fn add_after_killed_add_gets_addresses() {
    on_a_host("killed ADD with addresses", |host| {
        let first = host.pod();
        let config = everything();
        host.add(&first, &config);
        let again = host.pod_like(&first);
        let before = ruleset();
        host.add(&again, &config);
        assert_eq!(again.addresses().len(), 2);
        assert_eq!(first.link("net1"), None);
        let count = |rules: &str| rules.matches(&first.id).count();
        assert_eq!(count(&ruleset()), count(&before), "{}", ruleset());
        host.del(&again, &config);
        assert_eq!(count(&ruleset()), 0);
        assert!(!host.state(&again).contains(&again.id), "{}", host.state(&again));
    });
}

#[test]
fn unrecorded_rules_are_found() {
    on_a_host("DEL by a record without steps", |host| {
        let (neighbour, pod) = (host.pod(), host.pod());
        let config = everything();
        host.add(&neighbour, &config);
        let before = state(host, &pod);
        for text in ["", "{\"pair\":{\"po", "{\"unknown\":1}\n"] {
            host.add(&pod, &config);
            host.write_record(&pod, text);
            host.del(&pod, &config);
            assert_eq!(state(host, &pod), before, "{text:?}");
        }
    });
}

// cni-plugins#79
#[test]
fn rules_of_later_versions_are_found_by_comment() {
    on_a_host("DEL after a downgrade", |host| {
        let (neighbour, pod) = (host.pod(), host.pod());
        let config = everything();
        host.add(&neighbour, &config);
        let before = state(host, &pod);
        let result = host.add(&pod, &config);
        let port = result["interfaces"][1]["name"].as_str().unwrap();
        host.write_record(
            &pod,
            &format!(
                "{{\"pair\":{{\"port\":\"{port}\"}}}}\n{{\"laterSpoofCheck\":1}}\n{{\"laterMasquerade\":1}}\n"
            ),
        );
        host.del(&pod, &config);
        assert_eq!(state(host, &pod), before);
    });
}

// cni-plugins#79
#[test]
fn gc_keeps_a_record_with_steps_of_a_later_version() {
    on_a_host("GC after a downgrade", |host| {
        let pod = host.pod();
        let config = everything();
        let result = host.add(&pod, &config);
        let port = result["interfaces"][1]["name"].as_str().unwrap();
        let text = format!("{{\"pair\":{{\"port\":\"{port}\"}}}}\n{{\"later\":1}}\n");
        host.write_record(&pod, &text);
        for _ in 0..2 {
            let outcome = host.gc(&with(&config, "cni.dev/valid-attachments", json!([])));
            assert_eq!((outcome.code, outcome.stdout.as_str()), (0, ""), "{outcome:?}");
            assert!(outcome.stderr.contains("steps of a later version"), "{outcome:?}");
            assert!(host.veths().is_empty());
            assert!(!ruleset().contains(&pod.id), "{}", ruleset());
            let records = host.records();
            assert!(
                records.len() == 1 && records[0].ends_with(&format!("{text:?}")),
                "{records:?}"
            );
        }
        host.del(&pod, &config);
        assert_eq!(host.records(), Vec::<String>::new());
    });
}

#[test]
fn del_with_invalid_file_name_succeeds() {
    on_a_host("a long name", |host| {
        let pod = host.pod();
        let config = with(&everything(), "name", "n".repeat(300).into());
        let refused = host.call("ADD", &pod, &config).message();
        assert!(refused.starts_with("failed to create the record"), "{refused}");
        host.del(&pod, &config);
        collect(host, &config, &[]);
        assert!(pod.link("net1").is_none());
    });
}

#[test]
fn repeated_add_fails_and_keeps_the_attachment() {
    on_a_host("a second ADD", |host| {
        let pod = host.pod();
        let config = l2("1.0.0");
        let result = host.add(&pod, &config);
        let before = state(host, &pod);
        let refused = host.call("ADD", &pod, &config).message();
        let port = result["interfaces"][1]["name"].as_str().unwrap();
        assert_eq!(
            refused,
            format!("container veth name (\"net1\") peer provided (\"{port}\") already exists")
        );
        assert_eq!(state(host, &pod), before);
        host.del(&pod, &config);
        assert!(pod.link("net1").is_none());
    });
}

#[test]
fn gc_removes_only_invalid_attachments() {
    on_a_host("GC", |host| {
        let (keep, lose, foreign) = (host.pod(), host.pod(), host.pod());
        let config = l2("1.1.0");
        let other = with(&config, "name", "other-net".into());
        for (pod, config) in [(&keep, &config), (&lose, &config), (&foreign, &other)] {
            host.add(pod, config);
        }
        collect(host, &config, &[&keep]);
        assert!(keep.link("net1").is_some());
        assert!(lose.link("net1").is_none());
        assert!(
            foreign.link("net1").is_some(),
            "another network's attachments are not ours to judge"
        );
        assert_eq!(host.veths().len(), 2);
        // An empty list means that nothing is valid.
        collect(host, &config, &[]);
        assert!(keep.link("net1").is_none() && foreign.link("net1").is_some());
        collect(host, &other, &[]);
        assert_eq!(host.veths().len(), 0);
        assert_eq!(host.records(), Vec::<String>::new());
    });
}

// cni-plugins#74
#[test]
fn gc_without_list_removes_nothing_and_logs_it() {
    on_a_host("GC without a list", |host| {
        let pod = host.pod();
        let config = everything();
        let result = host.add(&pod, &config);
        let tuned = with(
            &tuning(&result, &json!({ "mtu": 1400 })),
            "cniVersion",
            "1.1.0".into(),
        );
        host.add(&pod, &tuned);
        let backup = format!("/run/cni/tuning/{}_net1.json", pod.id);
        pod.lose_path();
        let before = state(host, &pod);
        // The reference client `cnitool gc` sends no list.
        for plugin in [&config, &tuned, &with(&config, "type", "host-local".into())] {
            let outcome = host.gc(plugin);
            assert_eq!((outcome.code, outcome.stdout.as_str()), (0, ""), "{outcome:?}");
            let note = format!(
                "level=warn plugin={} verb=GC network=test-net \
                 msg=\"removed nothing: the config does not list cni.dev/valid-attachments\"\n",
                plugin["type"].as_str().unwrap()
            );
            assert_eq!(outcome.stderr, note);
        }
        assert_eq!(state(host, &pod), before);
        assert!(fs::exists(&backup).unwrap());

        // An empty list means that nothing is in use.
        collect(host, &tuned, &[]);
        assert!(!fs::exists(&backup).unwrap());
        collect(host, &config, &[]);
        assert!(!state(host, &pod).contains(&pod.id), "{}", state(host, &pod));
        assert!(host.veths().is_empty());
    });
}

#[test]
fn del_without_namespace_finds_the_host_end() {
    on_a_host("DEL by the record", |host| {
        let (pod, unnamed) = (host.pod(), host.pod());
        let config = l2("1.0.0");
        host.add(&pod, &config);
        host.add(&unnamed, &config);
        pod.lose_path();
        host.del(&pod, &config);
        assert_eq!(host.veths().len(), 1, "the namespace itself is still held open");
        let without_path = host.pod_without_path(&unnamed);
        host.del(&without_path, &config);
        assert_eq!(host.veths().len(), 0);
        assert_eq!(host.records(), Vec::<String>::new());
    });
}

#[test]
fn attachment_without_record_is_detached_by_name() {
    on_a_host("DEL without a record", |host| {
        let pod = host.pod();
        let config = l2("1.0.0");
        host.add(&pod, &config);
        host.lose_records();
        host.del(&pod, &config);
        assert!(pod.link("net1").is_none());
        assert_eq!(host.veths().len(), 0);
    });
}

// cni-plugins#75, parallel DELs
#[test]
fn concurrent_attachments_are_independent_and_removed() {
    on_a_host("200 attachments", |host| {
        const ATTACHMENTS: u64 = 200;
        const AT_ONCE: usize = 16;
        let config = everything();
        // The common state of all containers exists from the first one on.
        let first = host.pod();
        host.add(&first, &config);
        host.del(&first, &config);
        let before = state(host, &first);

        let pods: Vec<_> = (0..ATTACHMENTS).map(|_| host.pod()).collect();
        let added = host.call_together(AT_ONCE, "ADD", pods.iter().map(|pod| (pod, config.clone())));
        let mut addresses = BTreeSet::new();
        for outcome in added {
            for ip in outcome.success()["ips"].as_array().unwrap() {
                let address = ip["address"].as_str().unwrap().to_owned();
                assert!(addresses.insert(address.clone()), "{address} was assigned twice");
            }
        }
        assert_eq!(addresses.len() as u64, 2 * ATTACHMENTS);
        assert_eq!(host.veths().len() as u64, ATTACHMENTS);

        // Another order: the second half backwards, then the first half forwards.
        let (head, tail) = pods.split_at(pods.len() / 2);
        let order = tail.iter().rev().chain(head);
        for outcome in host.call_together(AT_ONCE, "DEL", order.map(|pod| (pod, config.clone()))) {
            assert_eq!(outcome.success(), Value::Null);
        }
        assert_eq!(state(host, &first), before);
    });
}

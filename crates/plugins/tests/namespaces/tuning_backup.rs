//! Backups of tuning: through repetitions, kills and lost namespaces.

use std::{
    fs,
    time::{Duration, Instant, SystemTime},
};

use serde_json::{Value, json};

use crate::{
    dice::Dice,
    stage::{Host, Pod, on_a_host, with},
    tuning::{attached, tuning},
};

/// Everything that tuning can change.
#[derive(Debug, PartialEq)]
struct State {
    mac: String,
    promiscuous: bool,
    mtu: u32,
    all_multicast: bool,
    tx_queue_len: u32,
    sysctls: Vec<String>,
}

const SYSCTLS: [&str; 3] = [
    "net/ipv4/conf/net1/arp_filter",
    "net/ipv4/conf/net1/forwarding",
    "net/ipv4/ip_forward",
];

fn state(pod: &Pod) -> State {
    let link = pod.net1();
    State {
        mac: link.mac.unwrap().to_string(),
        promiscuous: link.is_promiscuous(),
        mtu: link.mtu,
        all_multicast: link.is_all_multicast(),
        tx_queue_len: link.tx_queue_len,
        sysctls: SYSCTLS.map(|path| pod.sysctl(path)).into(),
    }
}

fn everything(mtu: u32) -> Value {
    json!({
        "mac": "c2:00:00:00:00:01", "promisc": true, "mtu": mtu, "allmulti": true, "txQLen": 77,
        "sysctl": {
            "net.ipv4.conf.IFNAME.arp_filter": "1",
            "net.ipv4.conf.IFNAME.forwarding": "0",
            "net.ipv4.ip_forward": "1",
        }
    })
}

// cni-plugins#35
#[test]
fn repeated_add_keeps_the_original_values() {
    on_a_host("repeated ADD", |host| {
        let (pod, result) = attached(host);
        pod.set_sysctl(SYSCTLS[1], "1");
        let before = state(&pod);
        let first = tuning(&result, &json!({ "mtu": 1400, "promisc": true }));
        host.add(&pod, &first);
        let all = tuning(&result, &everything(1300));
        host.add(&pod, &all);
        host.call("CHECK", &pod, &all).success();
        let less = tuning(&result, &json!({ "mtu": 1200 }));
        host.add(&pod, &less);
        host.add(&pod, &tuning(&result, &json!({})));
        assert_eq!(pod.net1().mtu, 1200);

        // A failed ADD undoes its own changes, and the first one's backup stays.
        let failing = tuning(&result, &json!({ "txQLen": 5, "mtu": 100_000 }));
        host.call("ADD", &pod, &failing).message();
        assert_eq!((pod.net1().mtu, pod.net1().tx_queue_len), (1200, 77));

        host.del(&pod, &less);
        assert_eq!(state(&pod), before);
        assert_eq!(fs::read_dir("/run/cni/tuning").unwrap().count(), 0);
    });
}

#[test]
fn del_restores_only_permitted_sysctls() {
    on_a_host("a backup in the wrong hands", |host| {
        let (pod, result) = attached(host);
        fs::create_dir_all("/etc/cni/tuning").unwrap();
        fs::write(
            "/etc/cni/tuning/allowlist.conf",
            "^net.ipv4.conf.IFNAME.arp_[a-z]+$\n",
        )
        .unwrap();
        let config = tuning(
            &result,
            &json!({ "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1" }, "dataDir": "/run/pod" }),
        );
        pod.set_sysctl(SYSCTLS[1], "0");
        host.add(&pod, &config);
        let file = format!("/run/pod/{}_net1.json", pod.id);
        let mut backup: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        backup["sysctl"][format!("/proc/sys/{}", SYSCTLS[1])] = "1".into();
        fs::write(&file, backup.to_string()).unwrap();
        host.del(&pod, &config);
        assert_eq!([pod.sysctl(SYSCTLS[0]), pod.sysctl(SYSCTLS[1])], ["0", "0"]);
        assert!(!std::path::Path::new(&file).exists());
    });
}

#[test]
fn values_of_deleted_namespace_are_not_restored() {
    on_a_host("recycled container id", |host| {
        let (mut old, result) = attached(host);
        old.id = "again".into();
        let config = tuning(&result, &json!({ "mtu": 1400, "txQLen": 5 }));
        host.add(&old, &config);
        let (mut new, result) = attached(host);
        new.id = "again".into();
        let link = new.net1();
        new.with(|socket| {
            let mtu = linux::link::LinkChange {
                mtu: Some(1480),
                ..Default::default()
            };
            socket.change_link(&link, "set MTU of link", &mtu)
        });
        let config = tuning(&result, &json!({ "mtu": 1450 }));
        host.del(&new, &config);
        assert_eq!(new.net1().mtu, 1480, "these are not its values");
        host.add(&old, &config);
        host.add(&new, &config);
        host.del(&new, &config);
        assert_eq!((new.net1().mtu, new.net1().tx_queue_len), (1480, 1000));
    });
}

#[test]
fn gc_removes_only_this_networks_stale_backups() {
    on_a_host("GC of tuning", |host| {
        let attach = |host: &mut Host, network: &str| {
            let (pod, result) = attached(host);
            let mut config = tuning(&result, &json!({ "mtu": 1400 }));
            config["name"] = network.into();
            host.add(&pod, &config);
            pod
        };
        let alive = attach(host, "test-net");
        let [valid, gone, foreign, recycled] =
            ["test-net", "test-net", "other", "test-net"].map(|network| attach(host, network));
        for pod in [&valid, &gone, &foreign, &recycled] {
            pod.lose_path();
        }
        // Another namespace has the path of a lost container's.
        let mut another = host.pod();
        fs::write(&recycled.path, "").unwrap();
        rustix::mount::mount_bind(&another.path, &recycled.path).unwrap();
        another.path.clone_from(&recycled.path);
        let folder = "/run/cni/tuning";
        for (name, text) in [
            ("by-another-plugin_net1.json", r#"{"mtu":1}"#),
            ("broken_net1.json", "{"),
            ("notes.txt", ""),
            (".c_net1.json.1-2.tmp", ""),
        ] {
            fs::write(format!("{folder}/{name}"), text).unwrap();
        }
        let old = SystemTime::now() - Duration::from_mins(11);
        let abandoned = format!("{folder}/.d_net1.json.1-2.tmp");
        fs::File::create(&abandoned).unwrap().set_modified(old).unwrap();

        let config = json!({
            "cniVersion": "1.1.0", "name": "test-net", "type": "tuning",
            "cni.dev/valid-attachments": [{ "containerID": valid.id, "ifname": "net1" }]
        });
        host.call("GC", &alive, &config).success();
        let mut left: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let mut expected = vec![
            ".c_net1.json.1-2.tmp".to_owned(),
            "broken_net1.json".into(),
            "by-another-plugin_net1.json".into(),
            "notes.txt".into(),
        ];
        expected.extend([&alive, &valid, &foreign].map(|pod| format!("{}_net1.json", pod.id)));
        expected.sort();
        assert_eq!(left, expected);
        assert_eq!(alive.net1().mtu, 1400, "it lives, whatever the list says");
        host.call("GC", &alive, &config).success();
        let elsewhere = with(&config, "dataDir", "/run/nowhere".into());
        host.call("GC", &alive, &elsewhere).success();
    });
}

#[test]
fn del_after_kill_at_any_point_restores_everything() {
    on_a_host("killed at any point", |host| {
        let mut dice = Dice::new();
        let (pod, result) = attached(host);
        pod.set_sysctl(SYSCTLS[1], "1");
        let before = state(&pod);
        let configs = [
            everything(1400),
            everything(1300),
            json!({ "mtu": 1200, "txQLen": 9 }),
        ]
        .map(|settings| tuning(&result, &settings));
        let start = Instant::now();
        host.add(&pod, &configs[0]);
        let usual = start.elapsed();
        host.del(&pod, &configs[0]);
        assert_eq!(state(&pod), before);
        let (mut killed, mut changed) = (0, 0);
        for round in 0..150 {
            for _ in 0..=dice.below(3) {
                let verb = if dice.below(3) == 0 { "DEL" } else { "ADD" };
                let config = &configs[usize::try_from(dice.below(3)).unwrap()];
                let after = dice.part_of(usual * 5 / 4);
                killed += u32::from(host.call_and_kill(verb, &pod, config, after));
            }
            changed += u32::from(state(&pod) != before);
            host.del(&pod, &configs[0]);
            assert_eq!(state(&pod), before, "round {round}");
        }
        println!("measured: {killed} calls killed, {changed} rounds with changes left to restore");
        assert!(killed > 0 && changed > 0, "{killed} killed, {changed} changed");
        let left = fs::read_dir("/run/cni/tuning").unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        let whole = |name: &std::ffi::OsString| name.to_string_lossy().ends_with(".json");
        assert!(!left.iter().any(whole), "{left:?}");
    });
}

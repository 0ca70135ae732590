//! The tuning plugin, chained after bridge.

use std::{fs, os::unix::fs::PermissionsExt as _};

use linux::link::{Link, LinkChange};
use serde_json::{Value, json};

use crate::stage::{Host, Pod, VERSIONS, l2, l3, on_a_host, with};

/// A container with `net1`, and the previous result for tuning.
pub(crate) fn attached(host: &mut Host) -> (Pod, Value) {
    let pod = host.pod();
    let result = host.add(&pod, &l2("1.0.0"));
    (pod, result)
}

/// A tuning config with a previous result.
pub(crate) fn tuning(result: &Value, settings: &Value) -> Value {
    let mut config =
        json!({ "cniVersion": "1.0.0", "name": "test-net", "type": "tuning", "prevResult": result });
    for (key, value) in settings.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn backup(pod: &Pod, folder: &str) -> String {
    format!("{folder}/{}_net1.json", pod.id)
}

/// The content of a container's backup, in this order: the values, and their owner.
fn content(pod: &Pod, values: &str) -> String {
    let cookie = pod.ns.cookie().expect("a kernel that numbers namespaces");
    format!(
        "{{\n{values},\n \"network\": \"test-net\",\n \"netns\": \"{}\",\n \"netnsCookie\": {cookie}\n}}",
        pod.path
    )
}

// cni-plugins#34
#[test]
fn a_result_passes_through_in_every_version() {
    on_a_host("pass through", |host| {
        for version in VERSIONS {
            let pod = host.pod();
            let result = host.add(&pod, &l3(version, &["10.1.2.3/24"]));
            let config = json!({ "cniVersion": version, "name": "n", "type": "tuning" });
            let passed = host.add(&pod, &with(&config, "prevResult", result.clone()));
            assert_eq!(passed, result, "{version}");
            let missing = host.call("ADD", &pod, &config);
            assert_eq!(missing.message(), "Required prevResult missing");
            host.del(&pod, &config);
            assert!(
                !fs::exists("/run/cni/tuning").unwrap(),
                "nothing was changed, nothing is remembered"
            );
        }
    });
}

/// A setting: its key, the value, its form in a link, the backup of the former value, its name in CHECK.
type Setting = (&'static str, Value, fn(&Link) -> Value, Value, &'static str);

// cni-plugins#35
#[test]
fn settings_are_applied_checked_and_restored() {
    on_a_host("link settings", |host| {
        let mac = |link: &Link| json!(link.mac.unwrap().to_string());
        let settings: [Setting; 5] = [
            (
                "mtu",
                json!(1454),
                |l| json!(l.mtu),
                json!(1500),
                "configured MTU of net1",
            ),
            (
                "mac",
                json!("c2:11:22:33:44:55"),
                mac,
                Value::Null,
                "configured Ethernet of net1",
            ),
            (
                "promisc",
                json!(true),
                |l| json!(l.is_promiscuous()),
                json!(false),
                "link net1 configured promisc",
            ),
            (
                "allmulti",
                json!(true),
                |l| json!(l.is_all_multicast()),
                json!(false),
                "configured all-multicast mode of net1",
            ),
            (
                "txQLen",
                json!(20000),
                |l| json!(l.tx_queue_len),
                json!(1000),
                "configured Transmit Queue Length of net1",
            ),
        ];
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        for (key, value, read, was, what) in &settings {
            for by_args in [false, true] {
                let (pod, result) = attached(host);
                let before = read(&pod.net1());
                let was = if was.is_null() { &before } else { was };
                assert_eq!(before, *was);
                let own = json!({ *key: value });
                let settings = if by_args {
                    json!({ "args": { "cni": own } })
                } else {
                    own
                };
                let config = tuning(&result, &settings);
                host.add(&pod, &config);
                assert_eq!(read(&pod.net1()), *value);
                host.call("CHECK", &pod, &config).success();

                let file = backup(&pod, "/run/cni/tuning");
                let expected = serde_json::to_string(was).unwrap();
                assert_eq!(
                    fs::read_to_string(&file).unwrap(),
                    content(&pod, &format!(" \"{key}\": {expected}"))
                );
                assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

                host.del(&pod, &config);
                assert_eq!(read(&pod.net1()), *was);
                assert!(!fs::exists(&file).unwrap());
                let found = if *key == "promisc" { "0".into() } else { text(was) };
                assert_eq!(
                    host.call("CHECK", &pod, &config).message(),
                    format!(
                        "Error: Tuning {what} is {}, current value is {found}",
                        text(value)
                    )
                );
                host.del(&pod, &config);
            }
        }
        let mode = fs::metadata("/run/cni/tuning").unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        let (pod, result) = attached(host);
        let config = tuning(
            &result,
            &json!({ "mtu": 1400, "txQLen": 77, "dataDir": "/run/elsewhere" }),
        );
        host.add(&pod, &config);
        let file = backup(&pod, "/run/elsewhere");
        let expected = content(&pod, " \"mtu\": 1500,\n \"txQLen\": 1000");
        assert_eq!(fs::read_to_string(&file).unwrap(), expected);
        host.del(&pod, &config);
        assert_eq!(pod.net1().mtu, 1500);
        assert!(!fs::exists(&file).unwrap());
    });
}

// cni-plugins#36
#[test]
fn mac_comes_from_the_source_with_precedence_and_is_reported() {
    on_a_host("MAC of tuning", |host| {
        let argument = "IgnoreUnknown=1;MAC=c2:00:00:00:00:02";
        let own = json!({ "mac": "c2:00:00:00:00:01" });
        let runtime = json!({ "mac": "c2:00:00:00:00:01", "runtimeConfig": { "mac": "c2:00:00:00:00:03" } });
        let mut all = runtime.clone();
        all["args"] = json!({ "cni": { "mac": "c2:00:00:00:00:04" } });
        for (settings, args, expected) in [
            (&own, "", "c2:00:00:00:00:01"),
            (&own, argument, "c2:00:00:00:00:02"),
            (&runtime, argument, "c2:00:00:00:00:03"),
            (&all, argument, "c2:00:00:00:00:04"),
        ] {
            let (pod, result) = attached(host);
            let config = tuning(&result, settings);
            let tuned = host.call_with("ADD", &pod, "net1", args, &config).success();
            assert_eq!(pod.net1().mac.unwrap().to_string(), expected);
            assert_eq!(tuned["interfaces"][2]["mac"], expected);
            assert_eq!(tuned["interfaces"][1], result["interfaces"][1]);
        }
        let (pod, result) = attached(host);
        let refused = host.call("ADD", &pod, &tuning(&result, &json!({ "mac": "nonsense" })));
        let message = refused.message();
        assert_eq!(
            message,
            "invalid args nonsense for MAC addr: address nonsense: invalid MAC address"
        );
    });
}

// cni-plugins#73
#[test]
fn the_result_after_bridge_and_tuning_has_the_mtu_and_mac_of_the_link() {
    on_a_host("tuned result", |host| {
        let settings = json!({ "mtu": 1400, "mac": "c2:00:00:00:00:01" });
        for (version, mtu_before, mtu_after) in [
            ("1.1.0", json!(1500), json!(1400)),
            ("1.0.0", Value::Null, Value::Null),
        ] {
            let pod = host.pod();
            let bridged = host.add(&pod, &l2(version));
            assert_eq!(bridged["interfaces"][2]["mtu"], mtu_before, "{version}");
            let config = with(&tuning(&bridged, &settings), "cniVersion", version.into());
            let tuned = host.add(&pod, &config);
            let net1 = pod.net1();
            assert_eq!(
                (net1.mtu, net1.mac.unwrap().to_string().as_str()),
                (1400, "c2:00:00:00:00:01")
            );
            let expected = with(
                &with(&bridged["interfaces"][2], "mac", "c2:00:00:00:00:01".into()),
                "mtu",
                mtu_after,
            );
            assert_eq!(
                without_nulls(&tuned["interfaces"][2]),
                without_nulls(&expected),
                "{version}"
            );
            for host_side in [0, 1] {
                assert_eq!(tuned["interfaces"][host_side], bridged["interfaces"][host_side]);
            }
            host.call("CHECK", &pod, &with(&config, "prevResult", tuned.clone()))
                .success();
            host.check(&pod, &l2(version), &tuned).success();
        }
    });
}

/// An object without its keys that are null.
fn without_nulls(object: &Value) -> Value {
    let mut object = object.clone();
    object
        .as_object_mut()
        .unwrap()
        .retain(|_, value| !value.is_null());
    object
}

// cni-plugins#37
#[test]
fn only_sysctls_below_net_are_accepted() {
    on_a_host("sysctls", |host| {
        let pod = host.pod();
        let result = host
            .call_with("ADD", &pod, "net1.100", "", &l2("1.0.0"))
            .success();
        let call = |verb: &str, sysctl: Value| {
            host.call_with(
                verb,
                &pod,
                "net1.100",
                "",
                &tuning(&result, &json!({ "sysctl": sysctl })),
            )
        };
        let file = "net/ipv4/conf/net1.100/arp_filter";
        assert_eq!(pod.sysctl(file), "0");
        let wanted = json!({ "net.ipv4.conf.IFNAME.arp_filter": "1" });
        call("ADD", wanted.clone()).success();
        assert_eq!(pod.sysctl(file), "1");
        call("CHECK", wanted.clone()).success();
        assert_eq!(
            call("CHECK", json!({ "net.ipv4.conf.IFNAME.arp_filter": "0" })).message(),
            format!("Error: Tuning configured value of /proc/sys/{file} is 0, current value is 1")
        );
        call("DEL", wanted).success();
        assert_eq!(pod.sysctl(file), "0", "what was before is restored");

        for key in ["kernel.shmmax", "net/ipv4/../../../kernel/x"] {
            let refused = call("ADD", json!({ key: "1" }));
            assert_eq!(refused.message(), format!("invalid net sysctl key: \"{key}\""));
        }
    });
}

// cni-plugins#38
#[test]
fn node_list_and_duplicates_limit_sysctls() {
    on_a_host("allowed sysctls", |host| {
        let (pod, result) = attached(host);
        let config = |key: &str| tuning(&result, &json!({ "sysctl": { key: "1" } }));
        let arp = config("net.ipv4.conf.IFNAME.arp_filter");
        host.add(&pod, &arp);

        fs::create_dir_all("/etc/cni/tuning").unwrap();
        fs::write(
            "/etc/cni/tuning/allowlist.conf",
            "^net.core.[a-z]*$\n\n  ipv4.conf.IFNAME.proxy_arp  \n",
        )
        .unwrap();
        assert_eq!(
            host.call("ADD", &pod, &arp).message(),
            "Sysctl net.ipv4.conf.IFNAME.arp_filter is not allowed. Only the following sysctls are allowed: \
             [^net.core.[a-z]*$ ipv4.conf.IFNAME.proxy_arp]"
        );
        host.call("CHECK", &pod, &arp).success();
        host.add(&pod, &config("net.ipv4.conf.IFNAME.proxy_arp"));

        let twice = arp.to_string().replace(
            "\"net.ipv4.conf.IFNAME.arp_filter\":",
            "\"net.core.x\":\"1\",\"net.core.x\":\"1\",\"net.ipv4.conf.IFNAME.arp_filter\":",
        );
        let variables = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", &pod.id),
            ("CNI_NETNS", &pod.path),
            ("CNI_IFNAME", "net1"),
            ("CNI_PATH", "/run/plugins"),
        ];
        let refused = host.run("tuning", &variables, &twice);
        assert_eq!(refused.message(), "duplicated sysctl keys are not allowed");
        let slash = host.call_with("ADD", &pod, "net/1", "", &arp);
        let text = "interface name contains / or : or whitespace characters";
        assert_eq!(slash.failure(), (4, text.into()));
    });
}

#[test]
fn a_failed_add_is_undone() {
    on_a_host("undoing", |host| {
        let (pod, result) = attached(host);
        let before = pod.net1();
        let settings = json!({
            "mac": "c2:00:00:00:00:01", "mtu": 100_000, "promisc": true,
            "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1" }
        });
        let refused = host.call("ADD", &pod, &tuning(&result, &settings));
        assert!(
            refused.message().contains("set MTU of link \"net1\""),
            "{refused:?}"
        );
        let after = pod.net1();
        assert_eq!((after.mac, after.promiscuity), (before.mac, before.promiscuity));
        assert_eq!(pod.sysctl("net/ipv4/conf/net1/arp_filter"), "0");
        assert!(!fs::exists(backup(&pod, "/run/cni/tuning")).unwrap());

        let unprintable = json!({
            "cniVersion": "0.2.0", "name": "test-net", "type": "tuning", "mtu": 1400, "prevResult": {}
        });
        let refused = host.call("ADD", &pod, &unprintable);
        assert_eq!(refused.message(), "cannot convert: no valid IP addresses");
        assert_eq!(pod.net1().mtu, before.mtu);
    });
}

#[test]
fn explicit_false_disables_modes() {
    on_a_host("modes turned off", |host| {
        let (pod, result) = attached(host);
        let on = LinkChange {
            promiscuous: Some(true),
            all_multicast: Some(true),
            ..LinkChange::default()
        };
        let link = pod.net1();
        pod.with(|socket| socket.change_link(&link, "set modes of link", &on));
        let modes = || (pod.net1().is_promiscuous(), pod.net1().is_all_multicast());
        let off = tuning(&result, &json!({ "promisc": false, "allmulti": false }));
        host.add(&pod, &off);
        assert_eq!(modes(), (false, false));
        host.call("CHECK", &pod, &off).success();
        host.del(&pod, &off);
        assert_eq!(modes(), (true, true), "as it was before");
        let message = host.call("CHECK", &pod, &off).message();
        assert_eq!(
            message,
            "Error: Tuning link net1 configured promisc is false, current value is 1"
        );
        pod.with(|socket| socket.delete_link_by_name("net1"));
        let message = host.call("CHECK", &pod, &off).message();
        assert_eq!(message, "Cannot find container link net1");
    });
}

#[test]
fn del_succeeds_when_everything_is_gone() {
    on_a_host("DEL of tuning", |host| {
        let (pod, result) = attached(host);
        let config = tuning(&result, &json!({ "mtu": 1400 }));
        host.add(&pod, &config);
        let file = backup(&pod, "/run/cni/tuning");
        assert!(fs::exists(&file).unwrap());
        pod.lose_path();
        host.del(&pod, &config);
        assert!(!fs::exists(&file).unwrap(), "the file goes with the namespace");
        host.del(&pod, &config);
        fs::write(&file, "nonsense").unwrap();
        let deleted = host.call("DEL", &pod, &config);
        deleted.success();
        assert!(!fs::exists(&file).unwrap(), "an invalid file is removed");
        assert_eq!(deleted.stdout, "");
        let note = format!(
            "level=error plugin=tuning verb=DEL container={} ifname=net1 network=test-net msg=\"cannot read {file}: ",
            pod.id
        );
        assert!(
            deleted.stderr.starts_with(&note) && deleted.stderr.lines().count() == 1,
            "{deleted:?}"
        );
    });
}

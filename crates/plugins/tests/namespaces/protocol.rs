//! Answers of every plugin before it does anything.

use std::os::unix::{ffi::OsStrExt as _, process::CommandExt as _};
use std::process::Command;

use plugins::names::PREFIX;
use serde_json::{Value, json};

use crate::stage::{Host, Outcome, VERSIONS, l2, l3, on_a_host, with};

/// Names, and the plugin that answers. Multus' own two have other versions and another text (multus.md §11), and vrf has
/// other versions.
fn plugins() -> impl Iterator<Item = (String, &'static str)> {
    let all = plugins::PLUGINS.iter().map(|plugin| plugin.name());
    all.filter(|name| !["multus-shim", "passthru", "vrf"].contains(name))
        .flat_map(|name| [(name.to_owned(), name), (format!("{PREFIX}{name}"), name)])
}

/// The versions that a plugin supports: all, or those from one on.
fn versions(plugin: &str) -> &'static [&'static str] {
    let oldest = match plugin {
        "bandwidth" => "0.3.0",
        "firewall" => "0.4.0",
        _ => "0.1.0",
    };
    let first = VERSIONS.iter().position(|version| *version == oldest).unwrap();
    &VERSIONS[first..]
}

/// Calls with a complete environment, in which one variable may be replaced.
fn complete(host: &Host, plugin: &str, replace: (&str, &str), stdin: &str) -> Outcome {
    let mut variables = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c"),
        ("CNI_NETNS", "/nowhere"),
        ("CNI_IFNAME", "net1"),
        ("CNI_PATH", "/run/plugins"),
    ];
    for variable in &mut variables {
        if variable.0 == replace.0 {
            variable.1 = replace.1;
        }
    }
    host.run(plugin, &variables, stdin)
}

fn failure(outcome: &Outcome) -> (u64, String, Value) {
    let (code, message) = outcome.failure();
    (code, message, outcome.json()["details"].clone())
}

// cni-plugins#1, cni-plugins#2, cni-plugins#3
#[test]
fn about_lines_and_missing_variables_are_reported() {
    on_a_host("introductions", |host| {
        for (called, name) in plugins() {
            let about = host.run(&called, &[], "");
            assert_eq!((about.code, about.stdout.as_str()), (0, ""), "{about:?}");
            let lines: Vec<_> = about.stderr.lines().collect();
            let title = if name.starts_with("ovs") {
                "OVS bridge"
            } else {
                name
            };
            assert!(lines[0].starts_with(&format!("CNI {title} plugin ")), "{about:?}");
            let versions = versions(name);
            assert_eq!(
                lines[1],
                format!("CNI protocol versions supported: {}", versions.join(", "))
            );

            let add = host.run(&called, &[("CNI_COMMAND", "ADD")], "");
            let expected =
                "required env variables [CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH] missing".to_owned();
            assert_eq!(add.failure(), (4, expected));
            assert!(
                !add.stdout.ends_with('\n') && add.stdout.contains("\n    \"code\": 4"),
                "{add:?}"
            );

            let version = host.run(&called, &[("CNI_COMMAND", "VERSION")], "");
            assert_eq!(version.stdout.lines().count(), 1);
            assert_eq!(
                version.success(),
                json!({ "cniVersion": "1.1.0", "supportedVersions": versions })
            );
        }
    });
}

#[test]
fn vrf_requires_a_later_version() {
    on_a_host("versions of vrf", |host| {
        let about = host.run("vrf", &[], "");
        assert!(
            about
                .stderr
                .ends_with("\nCNI protocol versions supported: 0.3.1, 0.4.0, 1.0.0, 1.1.0\n"),
            "{about:?}"
        );
        let old = failure(&complete(host, "vrf", ("", ""), &l2("0.3.0").to_string()));
        assert_eq!((old.0, old.1.as_str()), (1, "incompatible CNI versions"));
        let check = complete(host, "vrf", ("CNI_COMMAND", "CHECK"), &l2("0.3.1").to_string());
        assert_eq!(check.failure(), (1, "config version does not allow CHECK".into()));
        for verb in ["STATUS", "GC"] {
            let silent = complete(host, "vrf", ("CNI_COMMAND", verb), &l2("1.1.0").to_string());
            assert_eq!((silent.code, silent.stdout.as_str()), (0, ""), "{silent:?}");
        }
        let pod = host.pod();
        let config = json!({ "cniVersion": "1.0.0", "name": "n", "type": "vrf" });
        for (config, text) in [
            (
                config.clone(),
                "configuration is expected to have a valid vrf name",
            ),
            (
                with(&config, "vrfname", "blue".into()),
                "missing prevResult from earlier plugin",
            ),
        ] {
            let refused = host.call("ADD", &pod, &config).message();
            assert_eq!(refused, format!("cmdAdd failed: {text}"));
            host.del(&pod, &config);
        }
    });
}

// cni-plugins#4
#[test]
fn invalid_names_are_rejected() {
    on_a_host("refused names", |host| {
        for (called, _) in plugins() {
            let ifname = |name: &str| {
                failure(&complete(
                    host,
                    &called,
                    ("CNI_IFNAME", name),
                    &l2("1.0.0").to_string(),
                ))
            };
            assert_eq!(
                ifname("sixteen-letters-"),
                (
                    4,
                    "interface name is too long".into(),
                    "interface name should be less than 16 characters".into()
                )
            );
            assert_eq!(
                ifname("a/b"),
                (
                    4,
                    "interface name contains / or : or whitespace characters".into(),
                    Value::Null
                )
            );
            assert_eq!(ifname(".."), (4, "interface name is . or ..".into(), Value::Null));
            let id = complete(
                host,
                &called,
                ("CNI_CONTAINERID", "a b"),
                &l2("1.0.0").to_string(),
            );
            assert_eq!(
                failure(&id),
                (4, "invalid characters in containerID".into(), "a b".into())
            );
            let config = with(&l2("1.0.0"), "name", "my net".into()).to_string();
            let name = complete(host, &called, ("", ""), &config);
            assert_eq!(
                failure(&name),
                (
                    7,
                    "invalid characters found in network name".into(),
                    "my net".into()
                )
            );
        }
    });
}

// cni-plugins#5, cni-plugins#6
#[test]
fn versions_decide_the_supported_verbs() {
    on_a_host("version gates", |host| {
        for (called, name) in plugins() {
            let call = |verb: &str, version: &str| {
                complete(host, &called, ("CNI_COMMAND", verb), &l2(version).to_string())
            };
            let refused = match name {
                "firewall" => "incompatible CNI versions",
                _ => "config version does not allow CHECK",
            };
            assert_eq!(call("CHECK", "0.3.1").failure(), (1, refused.into()));
            for verb in ["STATUS", "GC"] {
                let text = format!("config version does not allow {verb}");
                assert_eq!(call(verb, "1.0.0").failure(), (1, text));
                let mut config = l3("1.1.0", &["10.1.2.3/24"]);
                config["ipam"]["subnet"] = "10.1.2.0/24".into();
                config["ipam"]["dataDir"] = "/run/networks".into();
                config["cni.dev/valid-attachments"] = json!([]);
                let silent = complete(host, &called, ("CNI_COMMAND", verb), &config.to_string());
                // These ask a daemon, which is not there.
                if name != "dhcp" && !name.starts_with("ovs") {
                    assert_eq!((silent.code, silent.stdout.as_str()), (0, ""), "{silent:?}");
                }
            }
            let unknown = failure(&call("ADD", "9.9.9"));
            assert_eq!((unknown.0, unknown.1.as_str()), (1, "incompatible CNI versions"));
            let supported = versions(name).join("\" \"");
            assert_eq!(
                unknown.2,
                format!("config is \"9.9.9\", plugin supports [\"{supported}\"]")
            );
        }
    });
}

// cni-plugins#7
#[test]
fn keys_in_odd_letter_case_take_effect() {
    on_a_host("odd keys", |host| {
        let pod = host.pod();
        let config = json!({
            "CNIVERSION": "1.0.0", "NAME": "n", "type": "bridge", "BRIDGE": "odd0", "MTU": 1400,
            "IPAM": { "Type": "static", "ADDRESSES": [{ "Address": "10.1.2.3/24" }] }
        });
        host.add(&pod, &config);
        assert!(host.link("odd0").is_some());
        assert_eq!(pod.net1().mtu, 1400);
        assert_eq!(pod.addresses(), ["10.1.2.3/24"]);
    });
}

// cni-plugins#9
#[test]
fn results_have_the_shape_of_the_configs_version() {
    on_a_host("result shapes", |host| {
        for version in VERSIONS {
            let pod = host.pod();
            let result = host.add(&pod, &l3(version, &["10.1.2.3/24", "2001:db8::3/64"]));
            assert_eq!(result["cniVersion"], version);
            if version < "0.3.0" {
                assert_eq!(result["ip4"]["ip"], "10.1.2.3/24", "{result}");
                assert_eq!(result["ip6"]["ip"], "2001:db8::3/64", "{result}");
                assert_eq!(result["ips"], Value::Null);
            } else {
                assert_eq!(result["ips"][0]["address"], "10.1.2.3/24", "{result}");
                let family = if version < "1.0.0" {
                    json!("4")
                } else {
                    Value::Null
                };
                assert_eq!(result["ips"][0]["version"], family, "{result}");
                let mtu = if version < "1.1.0" {
                    Value::Null
                } else {
                    json!(1500)
                };
                assert_eq!(result["interfaces"][2]["mtu"], mtu, "{result}");
            }
            host.del(&pod, &l3(version, &[]));
        }
        for version in ["0.1.0", "0.2.0"] {
            let pod = host.pod();
            let refused = host.call("ADD", &pod, &l2(version));
            assert_eq!(refused.message(), "cannot convert: no valid IP addresses");
            assert!(pod.link("net1").is_none(), "a failed ADD leaves nothing");
            assert!(host.veths().is_empty());
        }
    });
}

#[test]
fn unknown_plugin_lists_the_known_ones() {
    on_a_host("unknown names", |host| {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_weft-cni"), "/run/plugins/nonsense").unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_weft-cni"), "/run/plugins/weft-cni").unwrap();
        for name in ["nonsense", "weft-cni"] {
            let outcome = host.run(name, &[("CNI_COMMAND", "ADD")], "");
            assert_eq!(outcome.message(), format!("unknown plugin \"{name}\""));
            for known in ["bridge", "loopback", "static", "tuning", "cnv-"] {
                assert!(
                    outcome.json()["details"].as_str().unwrap().contains(known),
                    "{outcome:?}"
                );
            }
        }
    });
}

#[test]
fn shim_prints_its_version() {
    for flag in ["--version", "-v"] {
        let output = Command::new(env!("CARGO_BIN_EXE_weft-cni"))
            .arg0("/opt/cni/bin/multus-shim")
            .arg(flag)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let expected = format!("multus-shim: version:{}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    }
}

#[test]
fn host_namespace_is_rejected() {
    on_a_host("own namespace", |host| {
        let mut pod = host.pod();
        pod.path = "/proc/self/ns/net".into();
        let (code, message) = host.call("ADD", &pod, &l2("1.0.0")).failure();
        assert_eq!(code, 8);
        assert_eq!(
            message,
            "plugin's netns and netns from CNI_NETNS should not be the same"
        );
        assert!(
            host.link("br0").is_none() && host.link("net1").is_none(),
            "nothing was done"
        );
    });
}

#[test]
fn override_permits_the_host_namespace() {
    on_a_host("namespace override", |host| {
        let config = json!({ "cniVersion": "1.0.0", "name": "lo", "type": "loopback" }).to_string();
        let add = |switch: &str| {
            let variables = [
                ("CNI_COMMAND", "ADD"),
                ("CNI_CONTAINERID", "c"),
                ("CNI_NETNS", "/proc/self/ns/net"),
                ("CNI_IFNAME", "lo"),
                ("CNI_PATH", "/run/plugins"),
                ("CNI_NETNS_OVERRIDE", switch),
            ];
            host.run("loopback", &variables, &config)
        };
        for switch in ["1", "TRUE", "true"] {
            add(switch).success();
        }
        for switch in ["", "0", "yes"] {
            assert_eq!(add(switch).failure().0, 8);
        }
    });
}

#[test]
fn oversized_answer_is_rejected() {
    on_a_host("endless input", |_| {
        let outcome = Command::new("/run/plugins/bridge")
            .env_clear()
            .envs([("CNI_COMMAND", "GC"), ("CNI_PATH", "/run/plugins")])
            .stdin(std::fs::File::open("/dev/zero").unwrap())
            .output()
            .unwrap();
        let error: Value = serde_json::from_slice(&outcome.stdout).unwrap();
        assert_eq!(
            error,
            json!({ "code": 5, "msg": "error reading from stdin: more than 8 MiB" })
        );
    });
}

#[test]
fn non_utf8_arguments_are_accepted() {
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    let output = Command::new(env!("CARGO_BIN_EXE_weft-cni"))
        .arg0(odd)
        .arg(odd)
        .env("CNI_NETNS", odd)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(error["code"], 999);
    // No listener.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = Command::new(env!("CARGO_BIN_EXE_weft-cni"))
        .arg("nonsense")
        .stdout(writer.try_clone().unwrap())
        .stderr(writer)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1), "{status:?}");
}

#[test]
fn loopback_goes_up_and_down() {
    on_a_host("loopback", |host| {
        let pod = host.pod();
        let config = json!({ "cniVersion": "1.0.0", "name": "lo", "type": "loopback" });
        let up = || pod.link("lo").unwrap().is_up();
        assert!(!up());
        let check = host.call("CHECK", &pod, &config);
        assert_eq!(check.message(), "loopback interface is down");
        let result = host.add(&pod, &config);
        assert!(up());
        assert_eq!(
            result["interfaces"],
            json!([{ "name": "lo", "mac": "00:00:00:00:00:00", "sandbox": pod.path }])
        );
        let ips: Vec<_> = result["ips"]
            .as_array()
            .unwrap()
            .iter()
            .map(|ip| ip["address"].clone())
            .collect();
        assert_eq!(ips, ["127.0.0.1/8", "::1/128"]);
        host.call("CHECK", &pod, &config).success();
        let previous = json!({ "cniVersion": "1.0.0", "ips": [{ "address": "10.1.2.3/24" }] });
        let passed = host.add(&pod, &with(&config, "prevResult", previous));
        assert_eq!(passed["ips"][0]["address"], "10.1.2.3/24");
        host.del(&pod, &config);
        assert!(!up());

        let lo = pod.link("lo").unwrap();
        pod.with(|socket| socket.add_address(&lo, "10.9.9.9/32".parse().unwrap()));
        let foreign = host.call("ADD", &pod, &config);
        assert_eq!(
            foreign.message(),
            "loopback interface found with non-loopback address \"10.9.9.9\""
        );
        pod.lose_path();
        host.del(&pod, &config);
    });
}

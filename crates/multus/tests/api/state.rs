//! DEL with all, some and none of the state that ADD left; verbs about no pod.

use crate::node::{Node, Sandbox, api, text};
use cluster::wait;
use serde_json::{Value, json};
use std::fs;

#[test]
fn del_without_records_uses_cluster_network() {
    let node = Node::started();
    let uid = node.pod("web", &json!({}));
    // multus#44: the pod exists, so its networks are resolved anew
    node.succeed("DEL", &node.sandbox("c1", "web", Some(&uid)));
    assert_eq!(node.calls_of("c1"), ["DEL a"]);
    // multus#45: the pod may have been attached while multus was not on the node
    node.succeed("DEL", &node.sandbox("c2", "gone", Some("u1")));
    assert_eq!(node.calls_of("c2"), ["DEL a"]);
    assert_eq!(node.variable_of("c2", "DEL", "a", "CNI_IFNAME"), "eth0");
    // A call for an unknown sandbox changes nothing, also through a shim that returns errors.
    fs::write(node.path("fail.DEL.a"), r#"{"code":999,"msg":"stuck"}"#).unwrap();
    let guess = node.sandbox("c3", "gone", Some("u1"));
    assert_eq!(node.post("DEL", &guess), 200);
    assert_eq!(node.calls_of("c3"), ["DEL a"]);
    // Nor when the network is unknown.
    fs::remove_file(node.path("net.d/10-a.conflist")).unwrap();
    let nothing = node.sandbox("c4", "gone", Some("u1"));
    assert_eq!(node.post("DEL", &nothing), 200);
    assert!(node.calls_of("c4").is_empty());
}

#[test]
fn pod_older_than_multus_leaks_nothing() {
    // multus#45, with defaultNetworks that such a pod does not have
    let mut node = Node::new();
    node.nad("net-b", &json!({"cniVersion": "0.3.1", "type": "b"}));
    node.start(&json!({"defaultNetworks": ["net-b"], "multusNamespace": node.name}));
    node.succeed("DEL", &node.sandbox("c1", "gone", Some("u1")));
    assert_eq!(node.calls_of("c1"), ["DEL a"]);
}

#[test]
fn del_with_corrupt_scratch_file_detaches() {
    // multus#46
    let node = Node::started();
    fs::create_dir_all(node.path("cni")).unwrap();
    fs::write(node.path("cni/c1"), "[{").unwrap();
    node.succeed("DEL", &node.sandbox("c1", "gone", Some("u1")));
    assert_eq!(node.calls_of("c1"), ["DEL a"], "at least the cluster network");
    assert!(!node.path("cni/c1").exists());
}

#[test]
fn del_with_failing_plugin_is_repeated() {
    // multus#47: the shim succeeds, the others are called
    let node = Node::started();
    node.nad("net-b", &json!({"cniVersion": "0.3.1", "type": "b"}));
    let uid = node.pod("web", &json!({"k8s.v1.cni.cncf.io/networks": "net-b"}));
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    node.succeed("ADD", &sandbox);
    fs::write(node.path("fail.DEL.b"), r#"{"code":999,"msg":"stuck"}"#).unwrap();
    node.succeed("DEL", &sandbox);
    assert_eq!(node.calls_of("c1")[..4], ["ADD a", "ADD b", "DEL b", "DEL a"]);
    // multus#94: the daemon itself repeats it
    assert_eq!(node.files("cni/.missed"), ["c1:eth0"]);
    assert!(node.path("cni/c1").exists());
    fs::remove_file(node.path("fail.DEL.b")).unwrap();
    node.wait("made up for", || node.files("cni/.missed").is_empty());
    assert!(!node.path("cni/c1").exists());
    assert!(node.files("cni/results").is_empty());
}

#[test]
fn del_waits_for_running_add() {
    let node = Node::started();
    let uid = node.pod("web", &json!({}));
    let gate = node.gate("c1", "ADD", "a");
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    let mut add = node.begin("ADD", &sandbox);
    node.called("c1", "ADD a");
    // The runtime gave up on the ADD.
    add.kill().unwrap();
    add.wait().unwrap();
    let del = node.begin("DEL", &sandbox);
    // Another sandbox is served meanwhile, after the DEL arrived.
    node.succeed("DEL", &node.sandbox("c2", "web", Some(&uid)));
    assert_eq!(node.calls_of("c1"), ["ADD a"]);
    gate.open();
    let output = del.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    // Once because no client waited for the answer to ADD.
    assert_eq!(node.calls_of("c1"), ["ADD a", "DEL a", "DEL a"]);
    assert!(!node.path("cni/c1").exists());
}

#[test]
fn upstreams_attachment_is_detached() {
    // multus#49
    let node = Node::started();
    fs::create_dir_all(node.path("cni/results")).unwrap();
    // {"cniVersion":"0.3.1","name":"old-a","plugins":[{"type":"a"}]} stripped, and {"cniVersion":"0.3.1","name":"old-b",
    // "type":"b","x":1}
    let scratch = concat!(
        r#"[{"Conf":{"ipam":{}},"ConfList":{"cniVersion":"0.3.1","name":"old-a","plugins":[{"ipam":{},"type":"a"}]},"#,
        r#""Name":"old-a","IsFilterV4Gateway":false,"IsFilterV6Gateway":false,"#,
        r#""Bytes":"eyJjbmlWZXJzaW9uIjoiMC4zLjEiLCJuYW1lIjoib2xkLWEiLCJwbHVnaW5zIjpbeyJ0eXBlIjoiYSJ9XX0="},"#,
        r#"{"Conf":{"cniVersion":"0.3.1","ipam":{},"name":"old-b","type":"b"},"ConfList":{},"Name":"ns/old-b","#,
        r#""IsFilterV4Gateway":false,"IsFilterV6Gateway":false,"#,
        r#""Bytes":"eyJjbmlWZXJzaW9uIjoiMC4zLjEiLCJuYW1lIjoib2xkLWIiLCJ0eXBlIjoiYiIsIngiOjF9"}]"#
    );
    fs::write(node.path("cni/c1"), scratch).unwrap();
    // {"cniVersion":"0.3.1","name":"old-a","plugins":[{"type":"a","ranges":[1]}]}
    let cached = json!({"kind": "cniCacheV1", "containerId": "c1", "ifName": "eth0", "networkName": "old-a",
        "config": "eyJjbmlWZXJzaW9uIjoiMC4zLjEiLCJuYW1lIjoib2xkLWEiLCJwbHVnaW5zIjpbeyJ0eXBlIjoiYSIsInJhbmdlcyI6WzFdfV19",
        "netns": "/run/netns/x", "cniArgs": [["IgnoreUnknown", "true"]],
        "result": {"cniVersion": "0.3.1", "ips": [{"version": "4", "address": "10.0.0.9/24"}]}});
    fs::write(node.path("cni/results/old-a-c1-eth0"), cached.to_string()).unwrap();
    node.succeed("DEL", &node.sandbox("c1", "gone", Some("u1")));
    assert_eq!(node.calls_of("c1"), ["DEL b", "DEL a"]);
    assert_eq!(node.config_of("c1", "DEL", "b")["x"], 1);
    assert_eq!(node.config_of("c1", "DEL", "a")["ranges"], json!([1]));
    assert_eq!(fs::read_dir(node.path("cni/results")).unwrap().count(), 0);
}

#[test]
fn pod_with_only_plugged_record_is_detached_whole() {
    // multus#45: older than multus on the node, and then the upstream daemon plugged a network in
    let node = Node::started();
    fs::create_dir_all(node.path("cni/results")).unwrap();
    // {"cniVersion":"0.3.1","name":"hot","type":"b"}
    let cached = json!({"kind": "cniCacheV1", "containerId": "c1", "ifName": "hot0", "networkName": "hot",
        "config": "eyJjbmlWZXJzaW9uIjoiMC4zLjEiLCJuYW1lIjoiaG90IiwidHlwZSI6ImIifQ==", "result": {"cniVersion": "0.3.1"}});
    fs::write(node.path("cni/results/hot-c1-hot0"), cached.to_string()).unwrap();
    node.succeed("DEL", &node.sandbox("c1", "gone", Some("u1")));
    assert_eq!(node.calls(), ["DEL b hot0 c1", "DEL a eth0 c1"]);
    assert!(node.files("cni/results").is_empty());
}

fn nowhere(node: &Node, version: &str) -> Sandbox {
    let mut sandbox = node.sandbox("none", "none", None);
    sandbox.version = Some(version.into());
    sandbox
}

/// A node whose cluster network is this configuration.
fn with_cluster_network(file: &str, primary: &Value) -> Node {
    let mut node = Node::new();
    fs::remove_file(node.path("net.d/10-a.conflist")).unwrap();
    fs::write(node.path("net.d").join(file), primary.to_string()).unwrap();
    node.start(&json!({"cniVersion": "1.1.0"}));
    node
}

fn list(version: &str) -> Node {
    let primary =
        json!({"cniVersion": version, "name": "cluster-net", "plugins": [{"type": "a"}, {"type": "b"}]});
    with_cluster_network("10-a.conflist", &primary)
}

fn single(version: &str) -> Node {
    let primary = json!({"cniVersion": version, "name": "cluster-net", "type": "a"});
    with_cluster_network("10-a.conf", &primary)
}

#[test]
fn status_calls_cluster_network() {
    // multus#51, multus#52
    let node = list("1.1.0");
    node.succeed("STATUS", &nowhere(&node, "1.1.0"));
    assert_eq!(node.calls(), ["STATUS a  ", "STATUS b  "]);
    fs::write(node.path("fail.STATUS.a"), r#"{"code":50,"msg":"no uplink"}"#).unwrap();
    let error = node.fail("STATUS", &nowhere(&node, "1.1.0"));
    assert_eq!(error, json!({"code": 50, "msg": "CmdStatus (shim): no uplink"}));

    let old = list("1.0.0");
    old.succeed("STATUS", &nowhere(&old, "1.1.0"));
    assert!(old.calls().is_empty());
}

#[test]
fn gc_calls_cluster_network() {
    // multus#52, multus#53
    for (node, plugins) in [(list("1.1.0"), &["a", "b"][..]), (single("1.1.0"), &["a"])] {
        let uid = node.pod("web", &json!({}));
        node.succeed("ADD", &node.sandbox("c1", "web", Some(&uid)));
        let added = node.calls().len();
        let valid = json!([{"containerID": "c1", "ifname": "eth0"}]);
        let mut runtime = nowhere(&node, "1.1.0");
        runtime.valid = Some(valid.clone());
        node.succeed("GC", &runtime);
        let expected: Vec<_> = plugins.iter().map(|plugin| format!("GC {plugin}  ")).collect();
        assert_eq!(node.calls()[added..], expected);
        for plugin in plugins {
            let config = node.config_of("", "GC", plugin);
            assert_eq!(config["cni.dev/valid-attachments"], valid, "{plugin}");
            assert_eq!(config["cni.dev/attachments"], valid, "{plugin}");
        }
    }
    for old in [list("1.0.0"), single("1.0.0")] {
        let mut runtime = nowhere(&old, "1.1.0");
        runtime.valid = Some(json!([]));
        old.succeed("GC", &runtime);
        assert!(old.calls().is_empty());
    }
}

#[test]
fn gc_without_list_removes_nothing() {
    // multus#117: as `cnitool gc` calls it
    let node = single("1.1.0");
    let uid = node.pod("web", &json!({}));
    node.succeed("ADD", &node.sandbox("c1", "web", Some(&uid)));
    let output = node.call("GC", &nowhere(&node, "1.1.0"));
    assert!(output.status.success(), "{}", text(&output));
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        printed.contains("GC without cni.dev/valid-attachments: multus collects nothing"),
        "{printed}"
    );
    assert_eq!(node.calls(), ["ADD a eth0 c1"]);
    assert!(node.path("cni/c1").exists());
}

#[test]
fn gc_keeps_listed_attachments() {
    // multus#53, pods that are older than multus on the node
    let node = single("1.1.0");
    let uid = node.pod("web", &json!({}));
    let sandbox = node.losable("c1", "web", &uid);
    node.succeed("ADD", &sandbox);
    let own_binaries = json!({"containerID": "c1", "ifname": "eth0"});
    let older = json!({"containerID": "c0", "ifname": "eth0"});
    let mut runtime = nowhere(&node, "1.1.0");
    for (said, calls) in [
        (json!([own_binaries, older]), &["ADD a"][..]),
        // multus#96
        (json!([older]), &["ADD a", "DEL a"]),
    ] {
        if calls.len() > 1 {
            node.lose("c1");
        }
        runtime.valid = Some(said.clone());
        node.succeed("GC", &runtime);
        let mut valid = node.config_of("", "GC", "a")["cni.dev/valid-attachments"].take();
        valid.as_array_mut().unwrap().reverse();
        assert_eq!(valid, said);
        assert_eq!(node.calls_of("c1"), calls);
    }
    let added = node.calls().len();
    runtime.valid = Some(json!("all"));
    node.fail("GC", &runtime);
    assert_eq!(node.calls().len(), added, "no plugin was called");
}

#[test]
fn check_uses_records_of_add() {
    // multus#50
    let mut node = Node::new();
    let primary = json!({"cniVersion": "0.4.0", "name": "cluster-net", "plugins": [{"type": "a"}]});
    fs::write(node.path("net.d/10-a.conflist"), primary.to_string()).unwrap();
    node.start(&json!({"cniVersion": "0.4.0"}));
    let uid = node.pod("web", &json!({}));
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    node.succeed("ADD", &sandbox);
    node.succeed("CHECK", &sandbox);
    assert_eq!(node.calls_of("c1"), ["ADD a", "CHECK a"]);
    assert_eq!(
        node.config_of("c1", "CHECK", "a")["prevResult"]["interfaces"][0]["name"],
        "eth0"
    );
    let mut old = node.sandbox("c1", "web", Some(&uid));
    old.version = Some("0.3.1".into());
    assert_eq!(
        node.fail("CHECK", &old)["msg"],
        "config version does not allow CHECK"
    );
}

#[test]
fn add_makes_few_api_requests() {
    let node = Node::started();
    node.nad("net-b", &json!({"cniVersion": "0.3.1", "type": "b"}));
    let uid = node.pod("web", &json!({"k8s.v1.cni.cncf.io/networks": "net-b"}));
    node.succeed("ADD", &node.sandbox("c1", "web", Some(&uid)));
    assert!(node.status("web").is_some());
    let user = format!("system:serviceaccount:{}:multus", node.name);
    let log = wait::until("the audit log", crate::node::DEADLINE, || {
        let log = fs::read_to_string(api().audit_log()).map_err(|error| error.to_string())?;
        if log
            .lines()
            .filter(|line| line.contains(r#""stage":"ResponseComplete""#))
            .any(|line| line.contains(&user) && line.contains(r#""subresource":"status""#))
        {
            Ok(log)
        } else {
            Err("the write of the status is not in it yet".to_owned())
        }
    })
    .unwrap();
    let requests: Vec<_> = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|entry| entry["user"]["username"] == user.as_str() && entry["stage"] == "ResponseComplete")
        .filter(|entry| !matches!(entry["verb"].as_str(), Some("list" | "watch")))
        .filter(|entry| entry["objectRef"]["resource"] != "events")
        .map(|entry| {
            let resource = entry["objectRef"]["resource"].as_str();
            let path = || entry["requestURI"].as_str().unwrap();
            format!(
                "{} {}",
                entry["verb"].as_str().unwrap(),
                resource.unwrap_or_else(path)
            )
        })
        .collect();
    // On a slow machine, the ADD follows a rest and opens the connection first.
    let requests: Vec<_> = requests.iter().map(String::as_str).collect();
    assert!(
        matches!(requests[..], ["update pods"] | ["get /version", "update pods"]),
        "{requests:?}"
    );
}

//! GC of everything that the runtime does not list.

use crate::node::{Node, Sandbox};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// A node with two pods of two networks each.
fn node_with_two() -> (Node, Sandbox, Sandbox) {
    let mut node = Node::new();
    let primary = json!({"cniVersion": "1.1.0", "name": "cluster-net", "plugins": [{"type": "a"}]});
    fs::write(node.path("net.d/10-a.conflist"), primary.to_string()).unwrap();
    node.start(&json!({"cniVersion": "1.1.0"}));
    node.nad("net-b", &json!({"cniVersion": "1.0.0", "type": "b", "x": 1}));
    let uid = node.pod("web", &json!({"k8s.v1.cni.cncf.io/networks": "net-b"}));
    let sandboxes = ["c1", "c2"].map(|id| {
        let sandbox = node.losable(id, "web", &uid);
        node.succeed("ADD", &sandbox);
        sandbox
    });
    let [one, two] = sandboxes;
    (node, one, two)
}

/// The runtime, which lists the attachments in use.
fn runtime(node: &Node, valid: &Value) -> Sandbox {
    let mut runtime = node.sandbox("none", "none", None);
    runtime.version = Some("1.1.0".into());
    runtime.valid = Some(valid.clone());
    runtime
}

fn attachment(id: &str, ifname: &str) -> Value {
    json!({"containerID": id, "ifname": ifname})
}

fn make_old(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_hours(8 * 24))
        .unwrap();
}

#[test]
fn gc_detaches_unlisted_sandboxes() {
    // multus#96
    let (node, ..) = node_with_two();
    node.lose("c2");
    // The definition is not needed.
    node.nad("net-b", &json!({"cniVersion": "1.0.0", "type": "c"}));
    node.succeed("GC", &runtime(&node, &json!([attachment("c1", "eth0")])));
    assert_eq!(node.calls_of("c2"), ["ADD a", "ADD b", "DEL b", "DEL a"]);
    assert_eq!(node.config_of("c2", "DEL", "b")["x"], 1);
    // Its other interfaces are not the runtime's to list.
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b"]);
    assert_eq!(
        node.files("cni/results"),
        ["cluster-net-c1-eth0", "net-b-c1-net1"]
    );
    assert!(node.path("cni/c1").exists() && !node.path("cni/c2").exists());
    assert_eq!(
        node.config_of("", "GC", "a")["cni.dev/valid-attachments"],
        json!([attachment("c1", "eth0"), attachment("c1", "net1")])
    );
}

#[test]
fn gc_keeps_sandbox_with_namespace() {
    // multus#119: it is the sandbox of another runtime
    let (node, ..) = node_with_two();
    let list = json!([attachment("c1", "eth0")]);
    node.succeed("GC", &runtime(&node, &list));
    assert_eq!(node.calls_of("c2"), ["ADD a", "ADD b"]);
    assert!(node.path("cni/c2").exists());
    let valid = node.config_of("", "GC", "a")["cni.dev/valid-attachments"].clone();
    assert!(
        valid.as_array().unwrap().contains(&attachment("c2", "eth0")),
        "the plugin leaves it alone too: {valid}"
    );

    node.lose("c2");
    node.succeed("GC", &runtime(&node, &list));
    assert_eq!(node.calls_of("c2"), ["ADD a", "ADD b", "DEL b", "DEL a"]);
    assert!(!node.path("cni/c2").exists());
}

#[test]
fn gc_keeps_and_reports_failed_sandbox() {
    // multus#96
    let (node, ..) = node_with_two();
    node.lose("c2");
    fs::write(node.path("fail.DEL.b"), r#"{"code":999,"msg":"stuck"}"#).unwrap();
    let error = node.fail("GC", &runtime(&node, &json!([attachment("c1", "eth0")])));
    let text = error["msg"].as_str().unwrap();
    assert!(text.contains("sandbox c2: ") && text.contains("stuck"), "{text}");
    assert!(node.path("cni/c2").exists());
    fs::remove_file(node.path("fail.DEL.b")).unwrap();
    node.succeed("GC", &runtime(&node, &json!([attachment("c1", "eth0")])));
    assert!(!node.path("cni/c2").exists());
    assert_eq!(
        node.files("cni/results"),
        ["cluster-net-c1-eth0", "net-b-c1-net1"]
    );
}

#[test]
fn gc_detaches_network_in_result_cache_only() {
    // multus#96: plugged into the pod by the upstream daemon
    let (node, ..) = node_with_two();
    node.lose("c2");
    let cached = fs::read_to_string(node.path("cni/results/net-b-c2-net1")).unwrap();
    let plugged = cached.replace(r#""ifName":"net1""#, r#""ifName":"hot0""#);
    assert_ne!(cached, plugged);
    fs::write(node.path("cni/results/net-b-c2-hot0"), plugged).unwrap();
    node.succeed("GC", &runtime(&node, &json!([attachment("c1", "eth0")])));
    let calls: Vec<_> = node
        .calls()
        .into_iter()
        .filter(|call| call.ends_with(" c2"))
        .collect();
    assert_eq!(calls[2..], ["DEL b net1 c2", "DEL a eth0 c2", "DEL b hot0 c2"]);
    assert_eq!(
        node.files("cni/results"),
        ["cluster-net-c1-eth0", "net-b-c1-net1"]
    );
}

#[test]
fn gc_removes_old_temporary_files_only() {
    // multus#96
    let (node, ..) = node_with_two();
    node.lose("c2");
    fs::create_dir_all(node.path("cni/.missed")).unwrap();
    let old = [
        "cni/.c9.1-0.tmp",
        "cni/results/.x.1-0.tmp",
        "cni/.missed/.y.1-0.tmp",
        "cni/.c8.corrupt",
    ];
    let young = ["cni/.c9.1-1.tmp", "cni/.c7.corrupt"];
    for file in old.iter().chain(&young) {
        fs::write(node.path(file), "x").unwrap();
    }
    for file in old {
        make_old(&node.path(file));
    }
    fs::write(node.path("cni/results/net-b-c7-net1"), "{").unwrap();
    fs::write(node.path("cni/results/net-b-c1-net1"), "{").unwrap();
    node.succeed("GC", &runtime(&node, &json!([attachment("c1", "eth0")])));
    assert_eq!(
        node.files("cni"),
        [".c7.corrupt", ".c9.1-1.tmp", ".missed", "c1", "results"]
    );
    // The broken file of a running pod stays, and the attachment in its name is in use.
    assert_eq!(
        node.files("cni/results"),
        ["cluster-net-c1-eth0", "net-b-c1-net1"]
    );
    assert_eq!(
        node.config_of("", "GC", "a")["cni.dev/valid-attachments"],
        json!([attachment("c1", "eth0"), attachment("c1", "net1")])
    );
}

#[test]
fn gc_fails_with_unreadable_state() {
    // multus#96, multus#117
    let (node, ..) = node_with_two();
    let before = node.calls().len();
    let mut silent = runtime(&node, &json!([]));
    silent.valid = None;
    fs::write(node.path("cni/results/net-b-c1-net1"), "{").unwrap();
    node.succeed("GC", &silent);
    fs::rename(node.path("cni/results"), node.path("cni/aside")).unwrap();
    fs::write(node.path("cni/results"), "").unwrap();
    node.succeed("GC", &silent);
    assert_eq!(
        node.fail("GC", &runtime(&node, &json!([attachment("c1", "eth0")])))["code"],
        5
    );
    assert_eq!(node.calls().len(), before, "no plugin was called");
    assert!(node.path("cni/c2").exists());
}

#[test]
fn hanging_clean_up_blocks_no_add() {
    // multus#96: the plugin is of any network
    let (node, ..) = node_with_two();
    node.lose("c2");
    let gate = node.gate("c2", "DEL", "b");
    let gc = node.begin("GC", &runtime(&node, &json!([attachment("c1", "eth0")])));
    node.called("c2", "DEL b");
    let uid = node.pod("late", &json!({}));
    let late = node.sandbox("c3", "late", Some(&uid));
    node.succeed("ADD", &late);
    assert_eq!(node.calls_of("c2"), ["ADD a", "ADD b", "DEL b"]);
    gate.open();
    assert!(gc.wait_with_output().unwrap().status.success());
    assert!(!node.path("cni/c2").exists());
    assert_eq!(node.calls_of("c3"), ["ADD a"], "it could not be on the list");
    let valid = node.config_of("", "GC", "a")["cni.dev/valid-attachments"].clone();
    assert!(
        valid.as_array().unwrap().contains(&attachment("c3", "eth0")),
        "{valid}"
    );
}

#[test]
fn gc_keeps_sandbox_that_is_attached_meanwhile() {
    // multus#96
    let (node, ..) = node_with_two();
    let uid = node.get_pod("web")["metadata"]["uid"]
        .as_str()
        .unwrap()
        .to_owned();
    for id in ["c3", "c4", "c5", "c6"] {
        node.succeed("ADD", &node.losable(id, "web", &uid));
    }
    // As many clean-ups hang as run at once. The last sandbox is next.
    let hanging = ["c2", "c3", "c4", "c5"];
    let gates = hanging.map(|id| node.gate(id, "DEL", "b"));
    for id in hanging.iter().chain(&["c6"]) {
        node.lose(id);
    }
    let gc = node.begin("GC", &runtime(&node, &json!([attachment("c1", "eth0")])));
    for id in hanging {
        node.called(id, "DEL b");
    }
    let again = node.sandbox("c6", "web", Some(&uid));
    node.succeed("ADD", &again);
    for gate in gates {
        gate.open();
    }
    assert!(gc.wait_with_output().unwrap().status.success());
    assert_eq!(node.calls_of("c6"), ["ADD a", "ADD b", "ADD a", "ADD b"]);
    assert!(node.path("cni/c6").exists() && !node.path("cni/c5").exists());
}

#[test]
fn queued_add_blocks_neither_gc_nor_del() {
    // multus#96, multus#109
    let mut node = Node::new();
    let primary = json!({"cniVersion": "1.1.0", "name": "cluster-net", "plugins": [{"type": "a"}]});
    fs::write(node.path("net.d/10-a.conflist"), primary.to_string()).unwrap();
    node.start(&json!({"cniVersion": "1.1.0", "connectionLimit": 1}));
    let uid = node.pod("web", &json!({}));
    let one = node.sandbox("c1", "web", Some(&uid));
    node.succeed("ADD", &one);
    // This takes the only place of ADDs.
    let gate = node.gate("c1", "CHECK", "a");
    let check = node.begin("CHECK", &one);
    node.called("c1", "CHECK a");
    let connections = node.connections();
    let two = node.sandbox("c2", "web", Some(&uid));
    let mut add = node.begin("ADD", &two);
    node.wait("the ADD arrives", || node.connections() > connections);
    node.succeed("GC", &runtime(&node, &json!([attachment("c1", "eth0")])));
    assert_eq!(node.calls().last().unwrap(), "GC a  ");
    // Without its client it leaves the queue.
    add.kill().unwrap();
    add.wait().unwrap();
    node.succeed("DEL", &two);
    gate.open();
    assert!(check.wait_with_output().unwrap().status.success());
    assert_eq!(node.calls_of("c2"), ["DEL a"]);
}

#[test]
fn gc_that_waits_for_an_add_delays_no_del() {
    // multus#96, multus#69
    let mut node = Node::new();
    let primary = json!({"cniVersion": "1.1.0", "name": "cluster-net", "plugins": [{"type": "a"}]});
    fs::write(node.path("net.d/10-a.conflist"), primary.to_string()).unwrap();
    node.start(&json!({"cniVersion": "1.1.0", "connectionLimit": 1}));
    let uid = node.pod("web", &json!({}));
    let gate = node.gate("c1", "ADD", "a");
    let one = node.sandbox("c1", "web", Some(&uid));
    let add = node.begin("ADD", &one);
    node.called("c1", "ADD a");
    let connections = node.connections();
    let mut gc = node.begin("GC", &runtime(&node, &json!([])));
    node.wait("GC arrives", || node.connections() > connections);
    node.succeed("DEL", &node.sandbox("c2", "gone", Some("u1")));
    assert!(gc.try_wait().unwrap().is_none(), "the DEL waited for it");
    gate.open();
    assert!(add.wait_with_output().unwrap().status.success());
    assert!(gc.wait_with_output().unwrap().status.success());
}

#[test]
fn gc_and_add_exclude_each_other() {
    // multus#96: a sandbox whose ADD runs is on no list
    let (node, ..) = node_with_two();
    let gate = node.gate("", "GC", "a");
    let gc = node.begin(
        "GC",
        &runtime(
            &node,
            &json!([attachment("c1", "eth0"), attachment("c2", "eth0")]),
        ),
    );
    node.wait("GC a", || {
        node.calls().iter().any(|call| call.starts_with("GC a"))
    });
    let uid = node.pod("late", &json!({}));
    let late = node.sandbox("c3", "late", Some(&uid));
    let add = node.begin("ADD", &late);
    // Pods end meanwhile, after the ADD arrived.
    node.succeed("DEL", &node.sandbox("c2", "web", None));
    assert!(node.calls_of("c2").contains(&"DEL a".to_owned()));
    assert!(node.calls_of("c3").is_empty());
    gate.open();
    assert!(gc.wait_with_output().unwrap().status.success());
    assert!(add.wait_with_output().unwrap().status.success());
    assert_eq!(node.calls_of("c3"), ["ADD a"]);

    // And a GC waits for running ADDs.
    fs::remove_file(node.path("call..GC.a.gate")).unwrap();
    let gate = node.gate("c4", "ADD", "a");
    let uid = node.pod("later", &json!({}));
    let later = node.sandbox("c4", "later", Some(&uid));
    let add = node.begin("ADD", &later);
    node.called("c4", "ADD a");
    let gc = node.begin(
        "GC",
        &runtime(
            &node,
            &json!([attachment("c1", "eth0"), attachment("c3", "eth0")]),
        ),
    );
    node.succeed("DEL", &node.sandbox("c5", "gone", Some("u1")));
    gate.open();
    assert!(add.wait_with_output().unwrap().status.success());
    assert!(gc.wait_with_output().unwrap().status.success());
    assert_eq!(node.calls_of("c4"), ["ADD a"], "it could not be on the list");
    assert!(node.path("cni/c4").exists());
}

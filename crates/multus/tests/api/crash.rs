//! The daemon is killed, or does not run.

use crate::node::{Node, Sandbox, text};
use crate::runtime::Runtime;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::time::{Duration, SystemTime};

/// A pod with the cluster network and one more, attached, whose daemon was then killed.
fn attached_and_killed() -> (Node, Sandbox) {
    let mut node = Node::started();
    node.nad("net-b", &json!({"cniVersion": "0.3.1", "type": "b"}));
    let uid = node.pod("web", &json!({"k8s.v1.cni.cncf.io/networks": "net-b"}));
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    node.succeed("ADD", &sandbox);
    node.kill();
    (node, sandbox)
}

/// Nothing is left of the sandbox, and no call that was missed.
fn is_clean(node: &Node) -> bool {
    node.files("cni/.missed").is_empty()
        && node.files("cni/results").is_empty()
        && !node.path("cni/c1").exists()
}

#[test]
fn kept_del_is_replayed_at_start() {
    // multus#94
    let (mut node, sandbox) = attached_and_killed();
    node.succeed("DEL", &sandbox);
    node.succeed("DEL", &sandbox);
    assert_eq!(node.files("cni/.missed"), ["c1:eth0"]);
    drop(sandbox);
    node.start(&json!({}));
    node.wait("made up for", || is_clean(&node));
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b", "DEL b", "DEL a"]);
}

#[test]
fn failed_replay_is_retried() {
    // multus#94: nothing is forgotten before it is released, also by another daemon
    let (mut node, sandbox) = attached_and_killed();
    node.succeed("DEL", &sandbox);
    fs::write(node.path("fail.DEL.b"), r#"{"code":999,"msg":"stuck"}"#).unwrap();
    for expected in [1, 2] {
        node.start(&json!({}));
        node.wait("tried", || {
            node.calls_of("c1").iter().filter(|call| *call == "DEL b").count() >= expected
        });
        node.kill();
        assert_eq!(node.files("cni/.missed"), ["c1:eth0"]);
        assert!(node.path("cni/c1").exists());
    }
    node.start(&json!({}));
    fs::remove_file(node.path("fail.DEL.b")).unwrap();
    // Without another start.
    node.wait("made up for", || is_clean(&node));
}

#[test]
fn replay_of_unknown_sandbox_waits_for_cluster_network() {
    // multus#94: after a boot the cluster network's configuration may come late
    let (mut node, sandbox) = attached_and_killed();
    let mut older = node.sandbox("c0", "gone", Some("u1"));
    older.netns = sandbox.netns.clone();
    node.succeed("DEL", &older);
    fs::rename(node.path("net.d/10-a.conflist"), node.path("later")).unwrap();
    node.launch(&json!({}), &node.name.clone());
    // The other one is done meanwhile.
    node.succeed("DEL", &sandbox);
    node.wait("detached", || !node.path("cni/c1").exists());
    fs::rename(node.path("later"), node.path("net.d/10-a.conflist")).unwrap();
    node.wait("made up for", || is_clean(&node));
    assert_eq!(node.calls_of("c0"), ["DEL a"]);
}

#[test]
fn del_interrupted_by_crash_is_replayed() {
    // multus#94: cut off in the middle
    let mut node = Node::started();
    let uid = node.pod("web", &json!({}));
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    node.succeed("ADD", &sandbox);
    let gate = node.gate("c1", "DEL", "a");
    let del = node.begin("DEL", &sandbox);
    node.called("c1", "DEL a");
    node.kill();
    let output = del.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(node.files("cni/.missed"), ["c1:eth0"]);
    gate.open();
    fs::remove_file(node.path("call.c1.DEL.a.gate")).unwrap();
    node.start(&json!({}));
    node.wait("made up for", || is_clean(&node));
}

#[test]
fn kept_del_is_replayed_while_daemon_runs() {
    // multus#94: it could not be reached for a moment
    let mut node = Node::started();
    let uid = node.pod("web", &json!({}));
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    node.succeed("ADD", &sandbox);
    fs::rename(node.path("run/multus.sock"), node.path("run/elsewhere")).unwrap();
    node.succeed("DEL", &sandbox);
    node.wait("made up for", || is_clean(&node));
    assert_eq!(node.calls_of("c1"), ["ADD a", "DEL a"]);
    node.kill();
}

#[test]
fn kept_del_is_replayed_after_failed_watch() {
    // multus#120
    let mut node = Node::new();
    fs::create_dir(node.path("cni")).unwrap();
    fs::write(node.path("cni/.missed"), "").unwrap();
    node.start(&json!({}));
    let uid = node.pod("web", &json!({}));
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    node.succeed("ADD", &sandbox);
    fs::remove_file(node.path("cni/.missed")).unwrap();
    fs::rename(node.path("run/multus.sock"), node.path("run/elsewhere")).unwrap();
    node.succeed("DEL", &sandbox);
    node.wait("made up for", || is_clean(&node));
    assert_eq!(node.calls_of("c1"), ["ADD a", "DEL a"]);
    node.kill();
}

#[test]
fn stale_del_is_replayed_before_new_add() {
    // multus#94
    let (mut node, sandbox) = attached_and_killed();
    node.succeed("DEL", &sandbox);
    let add = node.begin("ADD", &sandbox);
    node.start(&json!({}));
    let output = add.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let calls = ["ADD a", "ADD b", "DEL b", "DEL a", "ADD a", "ADD b"];
    assert_eq!(node.calls_of("c1"), calls);
    assert!(node.files("cni/.missed").is_empty());
    assert_eq!(
        node.files("cni/results"),
        ["cluster-net-c1-eth0", "net-b-c1-net1"]
    );
    node.stop().unwrap();
    assert_eq!(node.calls_of("c1"), calls);
}

#[test]
fn failed_stale_del_does_not_detach_new_add() {
    // multus#94
    let (mut node, sandbox) = attached_and_killed();
    node.succeed("DEL", &sandbox);
    fs::write(node.path("fail.DEL.b"), r#"{"code":999,"msg":"stuck"}"#).unwrap();
    node.start(&json!({}));
    node.called("c1", "DEL a");
    fs::remove_file(node.path("fail.DEL.b")).unwrap();
    node.succeed("ADD", &sandbox);
    node.wait("nothing is missed any more", || {
        node.files("cni/.missed").is_empty()
    });
    let (add, del) = (["ADD a", "ADD b"], ["DEL b", "DEL a"]);
    let calls = node.calls_of("c1");
    // The failed DEL may be repeated before the file is removed.
    let fails = calls.len().saturating_sub(add.len() + del.len() + add.len()) / del.len();
    assert!(fails >= 1, "{calls:?}");
    let expected = [&add[..], &del.repeat(fails), &del, &add].concat();
    assert_eq!(calls, expected);
}

#[test]
fn invalid_kept_del_is_set_aside() {
    // multus#94
    let (mut node, sandbox) = attached_and_killed();
    node.succeed("DEL", &sandbox);
    let whole = fs::read_to_string(node.path("cni/.missed/c1:eth0")).unwrap();
    let mut add: Value = serde_json::from_str(&whole).unwrap();
    add["env"]["CNI_COMMAND"] = json!("ADD");
    for (name, content) in [
        ("c0:eth0", whole[..whole.len() / 2].to_owned()),
        ("c2:eth0", whole.clone()),
        ("c3:eth0", add.to_string()),
        ("c4:eth0", " ".repeat(300_000)),
    ] {
        fs::write(node.path("cni/.missed").join(name), content).unwrap();
    }
    fs::create_dir(node.path("cni/.missed/c5:eth0")).unwrap();
    node.start(&json!({}));
    node.wait("made up for", || !node.path("cni/c1").exists());
    let aside = [0, 2, 3, 4, 5].map(|number| format!(".c{number}:eth0.broken"));
    node.wait("set aside", || node.files("cni/.missed") == aside);
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b", "DEL b", "DEL a"]);
    assert_eq!(node.calls().len(), 4);
}

#[test]
fn add_without_caller_is_rolled_back() {
    // multus#97
    let node = Node::started();
    let uid = node.pod("web", &json!({}));
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    let gate = node.gate("c1", "ADD", "a");
    let mut add = node.begin("ADD", &sandbox);
    node.called("c1", "ADD a");
    add.kill().unwrap();
    add.wait().unwrap();
    gate.open();
    // No DEL comes: the runtime was killed too.
    node.called("c1", "DEL a");
    node.wait("nothing is left", || is_clean(&node));
}

/// Makes a record old that no namespace is known of.
fn scratch_of_old(node: &Node, id: &str) {
    // {"cniVersion":"0.3.1","name":"cluster-net","type":"a"}
    let text = r#"[{"Conf":{"ipam":{}},"ConfList":{},"Name":"cluster-net","IsFilterV4Gateway":false,
        "IsFilterV6Gateway":false,"Bytes":"eyJjbmlWZXJzaW9uIjoiMC4zLjEiLCJuYW1lIjoiY2x1c3Rlci1uZXQiLCJ0eXBlIjoiYSJ9"}]"#;
    fs::write(node.path("cni").join(id), text).unwrap();
    let file = File::options()
        .write(true)
        .open(node.path("cni").join(id))
        .unwrap();
    let old = SystemTime::now() - Duration::from_hours(1);
    file.set_modified(old).unwrap();
}

/// A sandbox of the pod `web` whose namespace exists until [`Node::lose`].
fn sandbox(node: &Node, id: &str) -> Sandbox {
    let pod = node.get_pod("web");
    node.losable(id, "web", pod["metadata"]["uid"].as_str().unwrap())
}

/// A node with attached sandboxes `alive` and `held`, with `gone`, whose namespace does not exist any more, and with
/// `begun`, which has only a scratch file; its daemon was killed.
fn with_records() -> Node {
    let mut node = Node::started();
    node.pod("web", &json!({}));
    for id in ["alive", "held", "gone"] {
        node.succeed("ADD", &sandbox(&node, id));
    }
    node.lose("gone");
    scratch_of_old(&node, "begun");
    node.kill();
    node
}

#[test]
fn stale_sandboxes_are_detached_at_start() {
    // multus#98
    let mut node = with_records();
    let _runtime = Runtime::at(&node.path("cri.sock"), &["alive", "another"]);
    node.start(&json!({}));
    for id in ["gone", "begun"] {
        node.wait("detached", || !node.path(&format!("cni/{id}")).exists());
    }
    node.stop().unwrap();
    assert_eq!(node.calls_of("gone"), ["ADD a", "DEL a"]);
    assert_eq!(node.calls_of("begun"), ["DEL a"]);
    let pod = node.variable_of("gone", "DEL", "a", "CNI_ARGS");
    assert!(pod.contains("K8S_POD_NAME=web;"), "{pod}");
    assert_eq!(node.variable_of("gone", "DEL", "a", "CNI_NETNS"), "");
    for id in ["alive", "held"] {
        assert_eq!(node.calls_of(id), ["ADD a"]);
        assert!(node.path("cni").join(id).exists());
    }
    assert_eq!(
        node.files("cni/results"),
        ["cluster-net-alive-eth0", "cluster-net-held-eth0"]
    );
}

#[test]
fn empty_runtime_list_is_no_evidence() {
    // multus#98: it may be another than kubelet's
    let mut node = with_records();
    let _runtime = Runtime::at(&node.path("cri.sock"), &[]);
    node.start(&json!({}));
    node.wait("detached", || !node.path("cni/gone").exists());
    assert!(node.path("cni/begun").exists() && node.path("cni/alive").exists());
    node.stop().unwrap();
    // After a boot no namespace exists.
    for id in ["alive", "held"] {
        node.lose(id);
    }
    node.start(&json!({}));
    for id in ["alive", "held"] {
        node.wait("detached", || !node.path(&format!("cni/{id}")).exists());
    }
    node.stop().unwrap();
    assert!(node.path("cni/begun").exists());
}

#[test]
fn sandbox_attached_since_start_is_not_stale() {
    // multus#98: runtimes list some sandboxes only after they were attached
    let mut node = with_records();
    node.start(&json!({}));
    node.succeed("ADD", &sandbox(&node, "begun"));
    node.lose("begun");
    // The runtime is late.
    let runtime = Runtime::at(&node.path("cri.sock"), &["alive"]);
    node.wait("detached", || !node.path("cni/gone").exists());
    runtime.knows(&[]);
    node.stop().unwrap();
    assert_eq!(node.calls_of("begun"), ["ADD a"]);
    assert!(node.path("cni/begun").exists());
}

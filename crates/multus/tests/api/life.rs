//! The daemon's start and end, and its API.

use crate::node::{DEADLINE, Node, api, text};
use cluster::wait;
use kube_kit::shutdown::Shutdown;
use plugins::multus_shim::ended::since_boot;
use rustix::process::{Signal, getpid, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// The status code and the body of an answer of the daemon.
fn ask(node: &Node, method: &str, path: &str) -> Result<(u16, String), String> {
    let mut stream = UnixStream::connect(node.path("run/multus.sock")).map_err(|error| error.to_string())?;
    let request = format!("{method} {path} HTTP/1.1\r\nHost: dummy\r\nContent-Length: 0\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .map_err(|error| error.to_string())?;
    let mut answer = String::new();
    // Without "Connection: close" in the request: the daemon closes by itself.
    stream
        .read_to_string(&mut answer)
        .map_err(|error| error.to_string())?;
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .ok_or("no status")?;
    Ok((
        status,
        answer.split_once("\r\n\r\n").unwrap_or_default().1.to_owned(),
    ))
}

fn code(node: &Node, method: &str, path: &str) -> u16 {
    ask(node, method, path).unwrap().0
}

#[test]
fn api_answers_as_documented() {
    // multus#66 (before the end), multus#65
    let node = Node::started();
    assert_eq!(
        ask(&node, "GET", "/cni").unwrap(),
        (405, "Method not allowed\n".into())
    );
    assert_eq!(code(&node, "POST", "/foo"), 404);
    for path in ["/healthz", "/readyz"] {
        assert_eq!(code(&node, "GET", path), 200);
        assert_eq!(code(&node, "POST", path), 200);
        assert_eq!(code(&node, "DELETE", path), 405);
    }
    let mode = |name: &str| fs::metadata(node.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("run"), mode("run/multus.sock")), (0o700, 0o600));
    let generated: serde_json::Value = serde_json::from_slice(&fs::read(node.conf()).unwrap()).unwrap();
    assert_eq!(generated["type"], "multus-shim");
    assert_eq!(
        generated["clusterNetwork"],
        json!(node.path("net.d/10-a.conflist"))
    );
}

#[test]
fn terminating_daemon_finishes_calls() {
    // multus#66
    let mut node = Node::started();
    let first = node.pod("first", &json!({}));
    let second = node.pod("second", &json!({}));
    let detached = node.sandbox("c2", "second", Some(&second));
    node.succeed("ADD", &detached);
    let gate = node.gate("c1", "ADD", "a");
    let attaching = node.sandbox("c1", "first", Some(&first));
    let add = node.begin("ADD", &attaching);
    node.called("c1", "ADD a");

    node.terminate();
    wait::until("not ready", DEADLINE, || match ask(&node, "GET", "/readyz") {
        Ok((500, _)) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    assert_eq!(code(&node, "GET", "/healthz"), 200);
    node.succeed("DEL", &detached);
    assert_eq!(node.calls_of("c2"), ["ADD a", "DEL a"]);
    // A pod that comes now waits for the next daemon.
    let third = node.pod("third", &json!({}));
    let sandbox = node.sandbox("c3", "third", Some(&third));
    let waiting = node.begin("ADD", &sandbox);

    gate.open();
    let output = add.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    node.stop().unwrap();
    assert!(
        node.conf().exists(),
        "the gap of a restart must not let pods go without their networks"
    );
    assert!(node.calls_of("c3").is_empty());
    node.start(&json!({}));
    let output = waiting.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn signal_terminates_daemon() {
    // multus#66: SIGTERM raises the flag that the other tests raise by hand
    let raised = async {
        let shutdown = Shutdown::on_signals().unwrap();
        // The handler of this process is in place by now, and stays: other tests don't notice.
        kill_process(getpid(), Signal::TERM).unwrap();
        tokio::time::timeout(DEADLINE, shutdown.wait()).await
    };
    kube_kit::process::run(raised).unwrap().unwrap();
}

#[test]
fn while_the_daemon_is_down() {
    // multus#67
    let mut node = Node::started();
    let uid = node.pod("web", &json!({}));
    node.stop().unwrap();
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    let begun = Instant::now();
    node.succeed("DEL", &sandbox);
    assert!(begun.elapsed() < Duration::from_secs(30), "DEL waited");
    let add = node.begin("ADD", &sandbox);
    node.start(&json!({}));
    let output = add.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    // The missed DEL comes first.
    assert_eq!(node.calls_of("c1"), ["DEL a", "ADD a"]);
}

#[test]
fn end_note_exists_until_next_start() {
    // multus#93 (the daemon's part)
    let mut node = Node::started();
    let note = node.path("run/ended");
    assert!(!note.exists());
    let before = since_boot();
    node.stop().unwrap();
    let found: serde_json::Value = serde_json::from_slice(&fs::read(&note).unwrap()).unwrap();
    assert_eq!(found["configuration"], json!(node.conf()));
    let ended = Duration::from_secs(found["endedAt"].as_u64().unwrap());
    assert!(before <= ended && ended <= since_boot(), "{ended:?}");

    node.start(&json!({}));
    assert!(!note.exists());
    assert!(node.conf().exists());
    // A removed configuration is restored, also after a late shim.
    fs::remove_file(node.conf()).unwrap();
    node.wait_until_serving();
}

/// Another daemon replaces the running one.
fn successor(node: &Node) -> UnixListener {
    let other = node.path("run/other.sock");
    let successor = UnixListener::bind(&other).unwrap();
    fs::rename(&other, node.path("run/multus.sock")).unwrap();
    successor
}

/// The successor's files exist after the end of the other daemon.
fn is_untouched(node: &Node) {
    assert!(node.conf().exists());
    assert!(!node.path("run/ended").exists());
    assert!(UnixStream::connect(node.path("run/multus.sock")).is_ok());
}

#[test]
fn replaced_daemon_leaves_no_note() {
    // multus#99
    let mut node = Node::started();
    let _successor = successor(&node);
    node.stop().unwrap();
    is_untouched(&node);
}

#[test]
fn replaced_daemon_keeps_files_when_refused() {
    // multus#99
    let mut node = Node::started();
    let _successor = successor(&node);
    refuse(&node);
    node.stop().unwrap();
    is_untouched(&node);
}

#[test]
fn replaced_daemon_keeps_files_when_network_is_lost() {
    // multus#99
    let mut node = Node::new();
    let ready = node.path("ready");
    fs::write(&ready, "").unwrap();
    node.start(&json!({"readinessindicatorfile": ready}));
    let _successor = successor(&node);
    fs::remove_file(&ready).unwrap();
    assert_eq!(node.join().unwrap_err().code, 2);
    is_untouched(&node);
}

#[test]
fn removed_socket_is_recreated() {
    // multus#99: at its end an upstream daemon removes any file at the path
    let mut node = Node::started();
    fs::remove_file(node.path("run/multus.sock")).unwrap();
    fs::remove_file(node.conf()).unwrap();
    node.wait_until_serving();
    let uid = node.pod("web", &json!({}));
    node.succeed("ADD", &node.sandbox("c1", "web", Some(&uid)));
    // It is as good as the first one.
    node.stop().unwrap();
    assert!(node.path("run/ended").exists());
}

#[test]
fn probe_fails_after_socket_directory_was_replaced() {
    // multus#99
    let node = Node::started();
    let check = || {
        let args = multus::Args {
            config: node.path("daemon-config.json"),
            version: false,
            check: true,
        };
        kube_kit::process::run(multus::run(args)).unwrap()
    };
    check().unwrap();
    fs::rename(node.path("run"), node.path("gone")).unwrap();
    assert!(check().is_err());
    fs::create_dir(node.path("run")).unwrap();
    assert!(check().is_err());
    // Kubelet creates it for a pod that mounts the socket.
    fs::create_dir(node.path("run/multus.sock")).unwrap();
    assert!(check().is_err());
}

#[test]
fn unknown_host_directory_leaves_no_note() {
    let mut node = Node::new();
    let root = node.path("hostroot");
    fs::create_dir(&root).unwrap();
    node.start(&json!({"chrootDir": root}));
    node.stop().unwrap();
    assert!(node.conf().exists());
    assert!(!node.path("run/ended").exists());
}

/// Revokes the daemon's access to the API server.
fn refuse(node: &Node) {
    api()
        .kubectl()
        .delete(["clusterrolebinding", &node.name])
        .unwrap();
    // The API server's authoriser learns of it by a watch of its own.
    let user = format!("--as=system:serviceaccount:{}:multus", node.name);
    wait::until("the access is gone", DEADLINE, || {
        match api().kubectl().run(["auth", "can-i", "list", "pods", &user]) {
            Ok(answer) => Err(answer),
            Err(_) => Ok(()),
        }
    })
    .unwrap();
}

#[test]
fn uninstalled_multus_removes_configuration() {
    let mut node = Node::started();
    refuse(&node);
    node.stop().unwrap();
    assert!(!node.conf().exists());
    assert!(!node.path("run/ended").exists());
    assert!(node.path("net.d/10-a.conflist").exists());
}

/// A node whose daemon is known by the token of a pod, and that pod.
fn in_a_pod() -> (Node, &'static str) {
    let node = Node::new();
    in_a_pod_of(node, &json!([]))
}

/// Starts the daemon in a pod with these owners.
fn in_a_pod_of(mut node: Node, owners: &Value) -> (Node, &'static str) {
    const POD: &str = "multus-abcde";
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": POD, "namespace": node.name, "ownerReferences": owners},
        "spec": {"nodeName": node.name, "serviceAccountName": "multus",
            "containers": [{"name": "kube-multus", "image": "none"}]}});
    api().kubectl().apply(&pod.to_string()).unwrap();
    node.own = Some(POD);
    node.start(&json!({}));
    (node, POD)
}

fn apply_daemon_set(node: &Node) {
    let labels = json!({"app": "multus"});
    let pods =
        json!({"nodeSelector": {"zone": "a"}, "containers": [{"name": "kube-multus", "image": "none"}]});
    let set = json!({"apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "multus", "namespace": node.name},
        "spec": {"selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pods}}});
    api().kubectl().apply(&set.to_string()).unwrap();
}

/// A node in zone a, whose daemon runs in a pod of a DaemonSet for that zone.
fn in_a_daemon_set() -> Node {
    let node = Node::new();
    let object = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": node.name, "labels": {"zone": "a"}}});
    api().kubectl().apply(&object.to_string()).unwrap();
    apply_daemon_set(&node);
    let set = api()
        .kubectl()
        .get(["daemonset", "multus", "--namespace", &node.name])
        .unwrap()
        .expect("the DaemonSet");
    let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "multus", "controller": true,
        "uid": set["metadata"]["uid"]});
    in_a_pod_of(node, &json!([owner])).0
}

fn patch_daemon_set(node: &Node, pods: &Value) {
    let patch = json!({"spec": {"template": {"spec": pods}}}).to_string();
    let args = [
        "patch",
        "daemonset",
        "multus",
        "--namespace",
        &node.name,
        "--type=merge",
    ];
    let patch = ["--patch", &patch];
    api().kubectl().run(args.into_iter().chain(patch)).unwrap();
}

fn delete_daemon_set(node: &Node) {
    let args = ["delete", "daemonset", "multus", "--namespace", &node.name];
    api().kubectl().run(args).unwrap();
}

#[test]
fn unselected_node_removes_configuration() {
    // multus#114
    let mut node = in_a_daemon_set();
    patch_daemon_set(&node, &json!({"nodeSelector": {"zone": "b"}}));
    node.stop().unwrap();
    assert!(!node.conf().exists());
    assert!(!node.path("run/ended").exists());
    assert!(node.path("net.d/10-a.conflist").exists());
}

#[test]
fn deleted_daemon_set_removes_configuration() {
    // multus#114
    let mut node = in_a_daemon_set();
    delete_daemon_set(&node);
    node.stop().unwrap();
    assert!(!node.conf().exists());
    assert!(!node.path("run/ended").exists());
}

#[test]
fn replaced_daemon_keeps_configuration() {
    // multus#114: a rolling update, then a DaemonSet that is deleted and created again
    let mut node = in_a_daemon_set();
    patch_daemon_set(&node, &json!({"terminationGracePeriodSeconds": 7}));
    node.stop().unwrap();
    assert!(node.conf().exists());
    assert!(node.path("run/ended").exists());

    node.start(&json!({}));
    delete_daemon_set(&node);
    apply_daemon_set(&node);
    node.stop().unwrap();
    assert!(node.conf().exists());
    assert!(node.path("run/ended").exists());
}

/// Waits until the daemon's token is invalid: the API server caches the authentication for seconds.
fn wait_until_unknown(node: &Node) {
    let kubeconfig = node.path("kubeconfig");
    let ask = ["--kubeconfig", kubeconfig.to_str().unwrap(), "get", "pods"];
    wait::until("the end of the token", DEADLINE, || {
        match api().kubectl().run(ask) {
            Err(error) if error.to_string().contains("Unauthorized") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .unwrap();
}

#[test]
fn force_deleted_daemon_keeps_configuration() {
    // multus#101
    let (mut node, pod) = in_a_pod();
    let by_force = [
        "delete",
        "pod",
        pod,
        "--namespace",
        &node.name,
        "--force",
        "--grace-period=0",
    ];
    api().kubectl().run(by_force).unwrap();
    wait_until_unknown(&node);
    node.stop().unwrap();
    assert!(node.conf().exists());
    assert!(node.path("run/ended").exists());
}

#[test]
fn deleted_account_removes_configuration() {
    // multus#101
    let (mut node, pod) = in_a_pod();
    let kubectl = api().kubectl();
    kubectl
        .run(["delete", "serviceaccount", "multus", "--namespace", &node.name])
        .unwrap();
    // It has a node, whose kubelet would report its end.
    kubectl
        .run(["delete", "pod", pod, "--namespace", &node.name, "--wait=false"])
        .unwrap();
    wait_until_unknown(&node);
    node.stop().unwrap();
    assert!(!node.conf().exists());
    assert!(!node.path("run/ended").exists());
}

#[test]
fn refused_daemon_leaves_pods_to_next_daemon() {
    // multus#115
    let (mut node, _) = in_a_pod();
    let uid = node.pod("web", &json!({}));
    let attached = node.sandbox("c1", "web", Some(&uid));
    node.succeed("ADD", &attached);
    // The status of the first pod is written: only another pod causes a request of the daemon.
    let uid = node.pod("other", &json!({}));
    let kubectl = api().kubectl();
    kubectl
        .run(["delete", "serviceaccount", "multus", "--namespace", &node.name])
        .unwrap();
    wait_until_unknown(&node);
    let waiting = node.sandbox("c2", "other", Some(&uid));
    let add = node.begin("ADD", &waiting);
    wait::until("not ready", DEADLINE, || match ask(&node, "GET", "/readyz") {
        Ok((500, _)) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    assert_eq!(node.post("ADD", &node.sandbox("c3", "other", Some(&uid))), 503);
    assert!(node.calls_of("c3").is_empty());
    node.succeed("DEL", &attached);
    assert_eq!(node.calls_of("c1"), ["ADD a", "DEL a"]);

    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "multus", "namespace": node.name}});
    kubectl.apply(&account.to_string()).unwrap();
    node.stop().unwrap();
    node.start(&json!({}));
    let output = add.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    // The first daemon detached all that it had attached.
    let calls = node.calls_of("c2");
    let (last, before) = calls.split_last().unwrap();
    assert_eq!(last, "ADD a");
    assert!(
        before.chunks(2).all(|attempt| attempt == ["ADD a", "DEL a"]),
        "{calls:?}"
    );
}

#[test]
fn lost_default_network_ends_daemon() {
    // multus#71
    let mut node = Node::new();
    let ready = node.path("ready");
    node.launch(&json!({"readinessindicatorfile": ready}), &node.name.clone());
    wait::until("the API", DEADLINE, || ask(&node, "GET", "/healthz")).unwrap();
    assert_eq!(code(&node, "GET", "/readyz"), 500);
    assert!(!node.conf().exists());
    fs::write(&ready, "").unwrap();
    node.wait_until_serving();
    fs::remove_file(&ready).unwrap();
    let stop = node.join().unwrap_err();
    assert_eq!(stop.code, 2);
    assert!(!node.conf().exists());
}

#[test]
fn provided_configuration_is_served() {
    // multus#73
    let mut node = Node::new();
    let provided = node.path("70-multus.conf");
    fs::write(&provided, "{}").unwrap();
    node.launch(&json!({"multusConfigFile": provided}), &node.name.clone());
    wait::until("ready", DEADLINE, || match ask(&node, "GET", "/readyz") {
        Ok((200, _)) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    assert_eq!(
        fs::read_to_string(node.path("net.d/70-multus.conf")).unwrap(),
        "{}"
    );
    assert!(!node.conf().exists());
    node.stop().unwrap();
}

/// Gives the daemon's account its rights, as [`Node::new`] does.
fn bind(node: &Node) {
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": node.name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "multus"},
        "subjects": [{"kind": "ServiceAccount", "name": "multus", "namespace": node.name}]});
    api().kubectl().apply(&binding.to_string()).unwrap();
}

/// Revokes the daemon's rights, and waits until the API server refuses it.
fn unbind(node: &Node) {
    api()
        .kubectl()
        .run(["delete", "clusterrolebinding", &node.name])
        .unwrap();
    let kubeconfig = node.path("kubeconfig");
    let ask = ["--kubeconfig", kubeconfig.to_str().unwrap(), "get", "pods"];
    wait::until("the end of the rights", DEADLINE, || {
        match api().kubectl().run(ask) {
            Err(error) if error.to_string().contains("Forbidden") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .unwrap();
}

#[test]
fn daemon_without_its_rights_leaves_pods_waiting_until_they_are_back() {
    // multus#115
    let node = Node::started();
    let uid = node.pod("web", &json!({}));
    let attached = node.sandbox("c1", "web", Some(&uid));
    node.succeed("ADD", &attached);
    // The status of the first pod is written: only another pod causes a request of the daemon.
    let uid = node.pod("other", &json!({}));
    unbind(&node);
    let waiting = node.sandbox("c2", "other", Some(&uid));
    let mut add = node.begin("ADD", &waiting);
    wait::until("not ready", DEADLINE, || match ask(&node, "GET", "/readyz") {
        Ok((500, _)) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    assert_eq!(node.post("ADD", &node.sandbox("c3", "other", Some(&uid))), 503);
    assert!(node.calls_of("c3").is_empty());
    node.succeed("DEL", &attached);
    assert_eq!(node.calls_of("c1"), ["ADD a", "DEL a"]);
    assert!(add.try_wait().unwrap().is_none(), "the shim waits");

    bind(&node);
    let output = add.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let calls = node.calls_of("c2");
    let (last, before) = calls.split_last().unwrap();
    assert_eq!(last, "ADD a");
    assert!(
        before.chunks(2).all(|attempt| attempt == ["ADD a", "DEL a"]),
        "{calls:?}"
    );
}

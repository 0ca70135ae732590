//! Failures, their roll-back, and retries.

use crate::fake::{self, sandbox};
use crate::node::{NETWORKS, Node, STATUS, api, strings};
use crate::way::Fate;
use serde_json::json;
use stage::until;
use std::time::Duration;

const REFUSED: (u16, &str) = (400, r#"{"code":11,"msg":"no room"}"#);

#[test]
fn first_failure_stops_and_is_rolled_back() {
    // multus#82
    let node = Node::started();
    node.pod("web", "c@net9", &[("c", "net9")]);
    node.answer("ADD net1", REFUSED.0, REFUSED.1);
    node.ask("web", Some("a@net1,b@net2"));
    // More than the three attempts of upstream.
    let attempt = ["ADD net1 a", "DEL net1 a"];
    node.wait_for_calls(&attempt.repeat(5));
    assert_eq!(node.has("web"), ["c net9"], "nothing else is added or removed");
    let about = |reason: &str, text: &str| format!("{reason} 1 pod [{}/web]: {text}", node.name);
    assert_eq!(
        node.events("web", 2),
        [
            about(
                "FailedAddingInterface",
                "failed adding interface net1 to network: a"
            ),
            about("RemovedInterface", "removed interface net1 from network: a")
        ],
        "each once, however often it is tried"
    );
    node.answer_as_usual();
    node.wait_for("web", &["a net1", "b net2"]);
}

#[test]
fn networks_before_failure_are_kept() {
    // multus#83
    let node = Node::started();
    node.pod("web", "", &[]);
    node.answer("ADD net2", REFUSED.0, REFUSED.1);
    node.ask("web", Some("a@net1,b@net2"));
    node.wait_for("web", &["a net1"]);
    node.wait_for_calls(&["ADD net1 a", "ADD net2 b", "DEL net2 b", "ADD net2 b"]);
    assert!(!node.calls().contains(&"DEL net1 a".to_owned()));
    node.answer_as_usual();
    node.wait_for("web", &["a net1", "b net2"]);
}

#[test]
fn failed_removal_stops_later_steps() {
    // multus#84
    let node = Node::started();
    node.pod("ok-first", "a@net1,b@net2", &[("a", "net1"), ("b", "net2")]);
    node.answer("DEL net2", REFUSED.0, REFUSED.1);
    node.ask("ok-first", None);
    node.wait_for("ok-first", &["b net2"]);
    node.wait_for_calls(&["DEL net1 a", "DEL net2 b", "DEL net2 b"]);

    node.pod("ok-last", "b@net2,a@net1", &[("b", "net2"), ("a", "net1")]);
    node.ask("ok-last", None);
    let events = node.events("ok-last", 1);
    assert_eq!(
        events,
        [format!(
            "FailedRemovingInterface 1 pod [{}/ok-last]: failed removing interface net2 from network: b",
            node.name
        )]
    );
    assert_eq!(node.has("ok-last"), ["b net2", "a net1"]);
    node.answer_as_usual();
    node.wait_for("ok-first", &[]);
    node.wait_for("ok-last", &[]);
}

#[test]
fn denied_status_write_is_rolled_back() {
    // multus#86
    let mut node = Node::new("reader");
    node.start();
    node.pod("web", "a@net1,b@net2", &[]);
    // Each before the next attempt.
    node.wait_for_calls(&["ADD net1 a", "DEL net1 a"].repeat(3));
    assert!(!node.calls().contains(&"ADD net2 b".to_owned()));
    let about = |reason: &str, text: &str| format!("{reason} 1 pod [{}/web]: {text}", node.name);
    assert_eq!(
        node.events("web", 2),
        [
            about(
                "FailedAddingInterface",
                "failed adding interface net1 to network: a"
            ),
            about("RemovedInterface", "removed interface net1 from network: a")
        ]
    );
    // The status is not lost: the role does not allow to write it.
    let status = format!("{}/status", node.pod_path("web"));
    let account = format!("system:serviceaccount:{}:controller", node.name);
    let refused = api().requests_of(&account, 0);
    assert!(
        refused
            .iter()
            .any(|request| request.uri.starts_with(&status) && request.code == 403),
        "{refused:?}"
    );
}

#[test]
fn lost_status_answer_keeps_network() {
    let node = Node::started();
    node.pod("web", "", &[]);
    // The API server restarts right behind the write, for longer than a few attempts.
    let (mut seen, mut left) = (false, 20);
    node.way.is(move |method, path| {
        if Node::is_status(method, path) && !seen {
            seen = true;
            return Fate::AnswerLost;
        }
        if seen && left > 0 && path.contains("/pods/web") {
            left -= 1;
            return Fate::Lost;
        }
        Fate::Answered
    });
    node.ask("web", Some("a@net1"));
    let events = node.events("web", 1);
    assert!(events[0].starts_with("AddedInterface 1 "), "{events:?}");
    node.wait_for("web", &["a net1"]);
    assert_eq!(node.calls(), ["ADD net1 a"]);
}

#[test]
fn slow_status_write_keeps_network() {
    let mut node = Node::new("dynamic-networks-controller");
    node.timeouts.status = Duration::from_millis(100);
    node.start();
    node.pod("web", "", &[]);
    node.way.is(|method, path| {
        if Node::is_status(method, path) {
            Fate::Lost
        } else {
            Fate::Answered
        }
    });
    node.ask("web", Some("a@net1"));
    // The next attempts call the daemon, which returns the same result.
    node.wait_for_calls(&["ADD net1 a"; 3]);
    node.way.is_good();
    node.wait_for("web", &["a net1"]);
    assert!(node.calls().iter().all(|call| call == "ADD net1 a"));
    let events = node.events("web", 1);
    assert!(
        events.len() == 1 && events[0].starts_with("AddedInterface 1 "),
        "{events:?}"
    );
}

#[test]
fn concurrent_status_writes_are_merged() {
    let node = Node::started();
    node.pod("web", "", &[]);
    let mut theirs = node.status_of(&[]);
    theirs.insert_str(
        theirs.len() - 1,
        r#", {"of-theirs":9007199254740993, "name":"theirs", "interface":"net9"}"#,
    );
    let (pod, written) = (node.pod_path("web"), theirs.clone());
    let mut first = true;
    // Between the read and the write of it.
    node.way.is(move |method, path| {
        if first && Node::is_status(method, path) {
            first = false;
            let patch = json!({"metadata": {"annotations": {STATUS: written}}});
            std::thread::scope(|scope| {
                scope.spawn(|| api().patch(&pod, &patch).accepted());
            });
        }
        Fate::Answered
    });
    node.ask("web", Some("a@net1"));
    until("the status", || match node.has("web") {
        has if has == ["theirs net9", "a net1"] => Ok(()),
        has => Err(format!("{has:?}, {:?}", node.calls())),
    });
    let annotations = &node.get("web")["metadata"]["annotations"];
    let status = annotations[STATUS].as_str().unwrap();
    let entry = r#"{"of-theirs":9007199254740993, "name":"theirs", "interface":"net9"}"#;
    assert!(status.contains(entry), "as they wrote it: {status}");
    assert_eq!(node.calls(), ["ADD net1 a"]);
}

#[test]
fn absent_daemon_gets_no_other_call() {
    let mut node = Node::new("dynamic-networks-controller");
    node.timeouts.daemon = Duration::from_millis(300);
    node.start();
    node.pod("web", "", &[]);
    node.stop_daemon();
    node.ask("web", Some("a@net1"));
    let failed = format!(
        "FailedAddingInterface 1 pod [{}/web]: failed adding interface net1 to network: a",
        node.name
    );
    assert_eq!(node.events("web", 1), [failed.as_str()]);
    node.start_daemon();
    // The daemon runs, and is not ready.
    node.answer("ADD net1", 503, "not yet");
    node.wait_for_calls(&["ADD net1 a"; 12]);
    node.answer_as_usual();
    node.wait_for("web", &["a net1"]);
    assert!(node.calls().iter().all(|call| call == "ADD net1 a"));
    let events = node.events("web", 2);
    assert!(
        events.len() == 2 && events[0].starts_with("AddedInterface 1 ") && events[1] == failed,
        "nothing was removed that never came: {events:?}"
    );
}

#[test]
fn hanging_daemon_is_retried_late() {
    let mut node = Node::new("dynamic-networks-controller");
    // All other calls have to be answered within this time.
    node.timeouts.answer = Duration::from_secs(5);
    node.start();
    node.hold("ADD net1");
    node.answer("ADD net2", REFUSED.0, REFUSED.1);
    node.pod("web", "a@net1", &[]);
    node.events("web", 2);
    // With the usual back-off, the pod `web` would be retried during these attempts.
    node.pod("other", "b@net2", &[]);
    let attempt = ["ADD net1 a", "DEL net1 a"];
    let others = ["ADD net2 b", "DEL net2 b"].repeat(8);
    node.wait_for_calls(&[&attempt[..], &others[..]].concat());
    // Another change is reported again.
    node.release();
    node.ask("web", Some("c@net3"));
    node.wait_for("web", &["c net3"]);
}

#[test]
fn replaced_pod_is_not_changed() {
    let node = Node::started();
    node.pod("web", "", &[]);
    node.hold("ADD net1");
    node.ask("web", Some("a@net1,b@net2"));
    node.wait_for_calls(&["ADD net1 a"]);
    node.delete_pod("web");
    let sandbox = "sandbox-again";
    let uid = node.pod_with(
        "web",
        &json!({NETWORKS: "c@net3", STATUS: node.status_of(&[])}),
        &json!({}),
    );
    let item = fake::sandbox(sandbox, 0, 1);
    node.sandboxes.lock().unwrap().insert(uid, vec![item]);
    node.run_pod("web");
    node.release();
    until("the status", || match node.has("web") {
        has if has == ["c net3"] => Ok(()),
        has => Err(format!("{has:?}, {:?}", node.calls())),
    });
    // The controller drops the remaining requests of the deleted pod.
    assert_eq!(node.calls(), ["ADD net1 a", "ADD net3 c"]);
    assert_eq!(
        node.daemon.lock().unwrap().calls[1]["env"]["CNI_CONTAINERID"],
        sandbox
    );
}

#[test]
fn reverted_annotation_stops_steps() {
    let node = Node::started();
    node.pod("web", "", &[]);
    node.hold("ADD net1");
    node.ask("web", Some("a@net1,b@net2"));
    node.wait_for_calls(&["ADD net1 a"]);
    node.ask("web", Some("a@net1"));
    node.release();
    node.wait_for("web", &["a net1"]);
    node.ask("web", Some("a@net1,c@net3"));
    node.wait_for("web", &["a net1", "c net3"]);
    assert_eq!(
        node.calls(),
        ["ADD net1 a", "ADD net3 c"],
        "the second network was never begun with"
    );
}

#[test]
fn malformed_answers_are_errors() {
    // multus#89
    let node = Node::started();
    for (index, (status, text)) in [(500, "broken\n"), (200, "broken"), (200, r#"{"Result":7}"#)]
        .into_iter()
        .enumerate()
    {
        let pod = format!("web{index}");
        node.answer("ADD net1", status, text);
        node.pod(&pod, "a@net1", &[]);
        let events = node.events(&pod, 2);
        let failed = format!(
            "FailedAddingInterface 1 pod [{}/{pod}]: failed adding interface net1 to network: a",
            node.name
        );
        assert!(events.contains(&failed), "{events:?}");
        assert_eq!(node.has(&pod), strings(&[]));
        node.answer_as_usual();
        node.wait_for(&pod, &["a net1"]);
    }
}

#[test]
fn late_definition_is_plugged() {
    let node = Node::started();
    node.pod("web", "late@net1", &[]);
    node.events("web", 1);
    assert!(node.calls().is_empty(), "there is nothing to undo");
    node.nad("late", &json!({"type": "late"}));
    node.wait_for("web", &["late net1"]);
}

#[test]
fn newest_ready_sandbox_is_used() {
    // multus#90
    let node = Node::started();
    let uid = node.pod("web", "", &[]);
    node.sandboxes.lock().unwrap().insert(uid.clone(), Vec::new());
    node.ask("web", Some("a@net1"));
    node.pod("other", "b@net2", &[]);
    node.wait_for("other", &["b net2"]);
    let items = vec![
        sandbox("dead", 1, 9),
        sandbox("old", 0, 1),
        sandbox("sandbox-web", 0, 5),
    ];
    node.sandboxes.lock().unwrap().insert(uid, items);
    node.wait_for("web", &["a net1"]);
    let calls = node.daemon.lock().unwrap().calls.clone();
    assert_eq!(calls.last().unwrap()["env"]["CNI_CONTAINERID"], "sandbox-web");
    assert_eq!(
        calls.last().unwrap()["env"]["CNI_NETNS"],
        "/run/netns/sandbox-web"
    );
}

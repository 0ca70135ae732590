//! What fails, what is undone then, and what is tried again.

use crate::fake::sandbox;
use crate::node::{Node, strings};

const REFUSED: (u16, &str) = (400, r#"{"code":11,"msg":"no room"}"#);

#[test]
fn the_first_failure_stops_and_is_undone() {
    // multus#82
    let node = Node::started();
    node.pod("web", "c@net9", &[("c", "net9")]);
    node.answer("ADD net1", REFUSED.0, REFUSED.1);
    node.ask("web", Some("a@net1,b@net2"));
    // More than the three attempts of the established one.
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
fn what_was_added_before_a_failure_stays() {
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
fn a_removal_that_fails_stops_those_behind_it() {
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
fn what_nobody_can_be_told_of_is_taken_out_again() {
    // multus#86
    let mut node = Node::new("reader");
    node.start();
    node.pod("web", "a@net1,b@net2", &[]);
    node.wait_for_calls(&["ADD net1 a", "ADD net2 b", "DEL net2 b", "DEL net1 a"]);
    assert_eq!(node.has("web"), strings(&[]));
}

#[test]
fn answers_that_are_none() {
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
fn a_network_that_is_defined_late() {
    let node = Node::started();
    node.pod("web", "late@net1", &[]);
    node.events("web", 1);
    assert!(node.calls().is_empty(), "there is nothing to undo");
    node.nad("late", &serde_json::json!({"type": "late"}));
    node.wait_for("web", &["late net1"]);
}

#[test]
fn a_pod_with_no_sandbox_and_with_dead_ones() {
    // multus#90
    let node = Node::started();
    let uid = node.pod("web", "", &[]);
    node.sandboxes.lock().unwrap().insert(uid.clone(), Vec::new());
    node.ask("web", Some("a@net1"));
    node.pod("other", "b@net2", &[]);
    node.wait_for("other", &["b net2"]);
    let items = vec![sandbox("dead", 1, 9), sandbox("old", 0, 1), sandbox("new", 0, 5)];
    node.sandboxes.lock().unwrap().insert(uid, items);
    node.wait_for("web", &["a net1"]);
    let calls = node.daemon.lock().unwrap().calls.clone();
    assert_eq!(calls.last().unwrap()["env"]["CNI_CONTAINERID"], "new");
    assert_eq!(calls.last().unwrap()["env"]["CNI_NETNS"], "/run/netns/new");
}

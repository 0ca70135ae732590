//! The controller beside a daemon that comes and goes.

use crate::node::{DEADLINE, Node};
use cluster::wait;
use std::os::unix::net::UnixListener;

#[test]
fn a_daemon_that_restarts_is_waited_for_and_harms_no_probe() {
    let mut node = Node::started();
    node.pod("web", "", &[]);
    node.stop_daemon();
    node.probe("/healthz").unwrap();
    wait::until("not ready", DEADLINE, || match node.probe("/readyz") {
        Ok(()) => Err("ready".to_owned()),
        Err(answer) if answer.contains("the multus daemon does not answer") => Ok(()),
        Err(answer) => Err(answer),
    })
    .unwrap();
    node.ask("web", Some("a@net1"));
    // Somebody who listens and says nothing: the connection that the controller tries meanwhile.
    std::fs::remove_file(node.path("multus.sock")).unwrap();
    let tried = UnixListener::bind(node.path("multus.sock")).unwrap();
    drop(tried.accept().unwrap());
    drop(tried);
    node.start_daemon();
    node.wait_for("web", &["a net1"]);
    let events = node.events("web", 1);
    assert!(
        events.len() == 1 && events[0].starts_with("AddedInterface "),
        "{events:?}"
    );
    node.probe("/readyz").unwrap();
}

#[test]
fn a_runtime_that_is_not_seen_any_more_ends_the_container() {
    let mut node = Node::started();
    node.probe("/healthz").unwrap();
    node.stop_runtime();
    let answer = node.probe("/healthz").unwrap_err();
    assert!(
        answer.contains("the container runtime does not answer"),
        "{answer}"
    );
}

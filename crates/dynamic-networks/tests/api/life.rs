//! Restarts of the controller's peers, and its own end.

use crate::node::Node;
use crate::way::Fate;
use clap::Parser;
use dynamic_networks::{Args, curl};
use stage::until;
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixListener;

#[test]
fn restarting_daemon_is_retried_and_probe_stays_live() {
    let mut node = Node::started();
    node.pod("web", "", &[]);
    node.stop_daemon();
    node.probe("/healthz").unwrap();
    until("not ready", || match node.probe("/readyz") {
        Ok(()) => Err("ready".to_owned()),
        Err(answer) if answer.contains("the multus daemon does not answer") => Ok(()),
        Err(answer) => Err(answer),
    });
    node.ask("web", Some("a@net1"));
    // A listener without an answer, for the connection that the controller tries in the meantime.
    fs::remove_file(node.path("multus.sock")).unwrap();
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
fn unreachable_runtime_fails_liveness() {
    let mut node = Node::started();
    node.probe("/healthz").unwrap();
    node.stop_runtime();
    let answer = node.probe("/healthz").unwrap_err();
    assert!(
        answer.contains("the container runtime does not answer"),
        "{answer}"
    );
}

#[test]
fn recreated_socket_directory_fails_liveness() {
    let mut node = Node::new("dynamic-networks-controller");
    let directory = node.path("multus");
    fs::create_dir(&directory).unwrap();
    std::os::unix::fs::symlink(node.path("multus.sock"), directory.join("multus.sock")).unwrap();
    // An open directory stands for a mount.
    let mounted = File::open(&directory).unwrap();
    node.start_with(format!("/proc/self/fd/{}/multus.sock", mounted.as_raw_fd()).into());
    node.probe("/healthz").unwrap();
    // The upstream daemon does this at each start.
    fs::remove_dir_all(&directory).unwrap();
    fs::create_dir(&directory).unwrap();
    let answer = node.probe("/healthz").unwrap_err();
    assert!(
        answer.contains("the directory of the multus socket is gone: only a new container sees the new one"),
        "{answer}"
    );
}

#[test]
fn waiting_pods_do_not_block_others() {
    let node = Node::started();
    node.hold("ADD net1");
    for pod in ["w1", "w2", "w3", "w4", "w5", "w6"] {
        node.pod(pod, "a@net1", &[]);
    }
    node.wait_for_calls(&["ADD net1 a"; 6]);
    node.pod("quick", "b@net2", &[]);
    node.wait_for("quick", &["b net2"]);
    node.release();
    node.wait_for("w6", &["a net1"]);
}

#[test]
fn completed_steps_are_in_status_after_shutdown() {
    let mut node = Node::started();
    node.pod("web", "", &[]);
    node.hold("ADD net2");
    node.ask("web", Some("a@net1,b@net2"));
    node.wait_for_calls(&["ADD net1 a", "ADD net2 b"]);
    assert_eq!(node.has("web"), ["a net1"]);
    node.kill();
    node.ask("web", Some(""));
    node.release();
    node.start();
    node.wait_for("web", &[]);
}

#[test]
fn running_work_finishes_before_exit() {
    let mut node = Node::started();
    node.pod("web", "", &[]);
    node.hold("ADD net1");
    node.ask("web", Some("a@net1"));
    node.wait_for_calls(&["ADD net1 a"]);
    node.interrupt();
    node.release();
    node.stop();
    assert_eq!(node.has("web"), ["a net1"]);
    assert_eq!(node.events("web", 1).len(), 1);
}

#[test]
fn kill_between_plug_and_status_is_recovered() {
    let mut node = Node::started();
    node.pod("web", "", &[]);
    node.way.is(|method, path| {
        if Node::is_status(method, path) {
            Fate::Lost
        } else {
            Fate::Answered
        }
    });
    node.ask("web", Some("a@net1"));
    until("it is plugged in", || match node.plugged("web") {
        plugged if plugged == ["a net1"] => Ok(()),
        plugged => Err(format!("{plugged:?}")),
    });
    node.kill();
    assert!(node.has("web").is_empty());
    node.way.is_good();
    node.start();
    node.wait_for("web", &["a net1"]);
    // The daemon repeated the result, and there was only one event.
    assert_eq!(node.calls(), ["ADD net1 a", "ADD net1 a"]);
    let events = node.events("web", 1);
    assert!(
        events.len() == 1 && events[0].starts_with("AddedInterface 1 "),
        "{events:?}"
    );
}

#[derive(Parser)]
struct Dynamic {
    #[command(flatten)]
    args: Args,
}

#[derive(Parser)]
struct Curl {
    #[command(flatten)]
    args: curl::Args,
}

fn run(work: impl Future<Output = anyhow::Result<()>>) -> Result<(), String> {
    kube_kit::process::run(work)
        .unwrap()
        .map_err(|error| format!("{error:#}"))
}

#[test]
fn deployed_probes_work() {
    let mut node = Node::started();
    let (health, multus) = (node.path("health.sock"), node.path("multus.sock"));
    let check = |what: &str| {
        let socket = format!("--health-socket={}", health.display());
        let Dynamic { args } = Dynamic::parse_from(["dynamic-networks", what, &socket]);
        run(dynamic_networks::run(args))
    };
    let ask = || {
        let socket = multus.display().to_string();
        let line = ["curl", "--fail", "--unix-socket", &socket, "localhost/healthz"];
        let Curl { args } = Curl::parse_from(line);
        run(curl::run(args))
    };
    check("--check").unwrap();
    check("--check=ready").unwrap();
    ask().unwrap();
    node.stop_daemon();
    check("--check").unwrap();
    let refused = check("--check=ready").unwrap_err();
    assert!(
        refused.starts_with("the multus daemon does not answer: "),
        "{refused}"
    );
    assert!(ask().is_err());
    node.stop();
    let refused = check("--check").unwrap_err();
    assert!(refused.contains("no answer at "), "{refused}");
}

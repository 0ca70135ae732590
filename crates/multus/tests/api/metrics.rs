//! The daemon's metrics.

use crate::node::Node;
use cluster::free_port;
use serde_json::json;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// A node whose daemon serves metrics at that port.
pub(crate) fn measured() -> (Node, u16) {
    let mut node = Node::new();
    let port = free_port().unwrap();
    node.start(&json!({"metricsPort": port}));
    (node, port)
}

/// Waits until a call has reached the daemon, which has not answered it.
pub(crate) fn arrived(node: &Node, port: u16, handler: &str, verb: &str) {
    let line = format!(r#"multus_server_requests_in_flight{{handler="{handler}",verb="{verb}"}} 1"#);
    node.wait(&line, || metrics(port).lines().any(|found| found == line));
}

fn metrics(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[track_caller]
fn assert_lines(text: &str, expected: &[String]) {
    for line in expected {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is not in\n{text}"
        );
    }
}

#[test]
fn calls_and_networks_are_measured() {
    let (node, port) = measured();
    node.nad("good", &json!({"cniVersion": "0.3.1", "type": "b"}));
    node.nad("bad", &json!({"cniVersion": "0.3.1", "type": "c"}));
    fs::write(node.path("fail.ADD.c"), r#"{"code": 11, "msg": "later"}"#).unwrap();
    let first = node.pod("first", &json!({"k8s.v1.cni.cncf.io/networks": "good"}));
    let second = node.pod("second", &json!({"k8s.v1.cni.cncf.io/networks": "bad"}));
    let sandbox = node.sandbox("c1", "first", Some(&first));
    node.succeed("ADD", &sandbox);
    node.fail("ADD", &node.sandbox("c2", "second", Some(&second)));

    let text = metrics(port);
    let count = |verb: &str, result: &str, times: u8| {
        format!(
            r#"multus_server_request_duration_seconds_count{{handler="/cni",verb="{verb}",result="{result}"}} {times}"#
        )
    };
    let network = |name: &str, verb: &str, result: &str, times: u8| {
        format!(
            r#"multus_network_duration_seconds_count{{network="{name}",verb="{verb}",result="{result}"}} {times}"#
        )
    };
    let step =
        |name: &str, times: u8| format!(r#"multus_add_step_duration_seconds_count{{step="{name}"}} {times}"#);
    assert_lines(
        &text,
        &[
            r#"multus_server_request_total{handler="/cni",code="200",method="post"} 1"#.to_owned(),
            r#"multus_server_request_total{handler="/cni",code="400",method="post"} 1"#.to_owned(),
            r#"multus_server_requests_in_flight{handler="/cni",verb="ADD"} 0"#.to_owned(),
            count("ADD", "success", 1),
            count("ADD", "error", 1),
            network("cluster-net", "ADD", "success", 2),
            // The failed pod's first attachments are undone.
            network("cluster-net", "DEL", "success", 1),
            network(&format!("{}/good", node.name), "ADD", "success", 1),
            network(&format!("{}/bad", node.name), "ADD", "error", 1),
            // The failed pod has no status.
            step("plugins", 1),
            step("status", 1),
            step("queue", 2),
            r#"multus_state_files{kind="sandbox"} 2"#.to_owned(),
            r#"multus_state_files{kind="result"} 2"#.to_owned(),
        ],
    );
    for name in [
        "process_resident_memory_bytes ",
        r#"multus_cache_objects{cache="networks"} "#,
    ] {
        assert!(
            text.lines().any(|line| line.starts_with(name)),
            "{name} is not in\n{text}"
        );
    }

    node.succeed("DEL", &sandbox);
    let text = metrics(port);
    assert_lines(
        &text,
        &[
            count("DEL", "success", 1),
            network(&format!("{}/good", node.name), "DEL", "success", 1),
            r#"multus_state_files{kind="result"} 0"#.to_owned(),
        ],
    );
}

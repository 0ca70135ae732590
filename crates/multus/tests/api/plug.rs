//! `/delegate`: networks of pods that run.

use crate::node::{Node, Sandbox};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// What the established controller sends, and what it is answered.
fn call(
    node: &Node,
    verb: &str,
    sandbox: &Sandbox,
    ifname: &str,
    config: &str,
    attributes: &Value,
) -> (u16, String) {
    let body = json!({"env": {"CNI_COMMAND": verb, "CNI_CONTAINERID": sandbox.id, "CNI_NETNS": sandbox.netns,
            "CNI_IFNAME": ifname, "CNI_ARGS": sandbox.args},
        "config": STANDARD.encode(config), "interfaceAttributes": attributes})
    .to_string();
    let mut stream = UnixStream::connect(node.path("run/multus.sock")).unwrap();
    let head = format!(
        "POST /delegate HTTP/1.1\r\nHost: dummy\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (code, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

fn attached(node: &Node, pod: &str, annotations: &Value) -> Sandbox {
    let uid = node.pod(pod, annotations);
    let sandbox = node.sandbox("c1", pod, Some(&uid));
    node.succeed("ADD", &sandbox);
    sandbox
}

#[test]
fn a_network_comes_and_the_pods_end_takes_it_along() {
    let node = Node::started();
    let sandbox = attached(&node, "web", &json!({}));
    let config =
        json!({"cniVersion": "1.0.0", "name": "hot", "type": "b", "capabilities": {"ips": true, "mac": true},
        "big": 9_007_199_254_740_993_i64})
        .to_string();
    let wishes = json!({"ips": ["10.1.1.7/24"], "mac": "02:00:00:00:00:07", "cni-args": {"k": "v"}});
    let (code, answer) = call(&node, "ADD", &sandbox, "hot0", &config, &wishes);
    assert_eq!(code, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["Result"]["cniVersion"], "1.1.0");
    assert_eq!(answer["Result"]["interfaces"][0]["name"], "hot0");

    // multus#81 (what reaches the plugin): its own configuration, and none of the daemon's keys
    let seen = node.config_of("c1", "ADD", "b");
    assert_eq!(
        seen,
        json!({"cniVersion": "1.0.0", "name": "hot", "type": "b", "capabilities": {"ips": true, "mac": true},
            "big": 9_007_199_254_740_993_i64, "args": {"cni": {"k": "v"}},
            "runtimeConfig": {"ips": ["10.1.1.7/24"], "mac": "02:00:00:00:00:07"}})
    );
    assert_eq!(node.variable_of("c1", "ADD", "b", "CNI_IFNAME"), "hot0");
    let args = node.variable_of("c1", "ADD", "b", "CNI_ARGS");
    assert!(
        args.starts_with(&format!(
            "IgnoreUnknown=true;K8S_POD_NAMESPACE={};K8S_POD_NAME=web;",
            node.name
        )),
        "{args}"
    );
    assert!(args.ends_with(";MAC=02:00:00:00:00:07;IP=10.1.1.7/24"), "{args}");
    // The status is the caller's to write.
    assert_eq!(node.status("web").unwrap().as_array().map(Vec::len), Some(1));

    // multus#92
    node.succeed("DEL", &sandbox);
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b", "DEL b", "DEL a"]);
    assert_eq!(node.variable_of("c1", "DEL", "b", "CNI_IFNAME"), "hot0");
    assert_eq!(fs::read_dir(node.path("cni/results")).unwrap().count(), 0);
    assert!(!node.path("cni/c1").exists());
}

#[test]
fn a_network_goes_and_is_not_detached_twice() {
    let node = Node::started();
    node.nad("net-b", &json!({"cniVersion": "0.3.1", "type": "b", "x": 1}));
    let sandbox = attached(&node, "web", &json!({NETWORKS: "net-b"}));
    // The definition is gone meanwhile, so that the caller has no configuration to send.
    let (code, answer) = call(
        &node,
        "DEL",
        &sandbox,
        "net1",
        "",
        &json!({"name": "net-b", "namespace": node.name}),
    );
    assert_eq!((code, answer.as_str()), (200, ""));
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b", "DEL b"]);
    assert_eq!(node.config_of("c1", "DEL", "b")["x"], 1);
    // Once more: nothing is there.
    assert_eq!(call(&node, "DEL", &sandbox, "net1", "", &Value::Null).0, 200);
    node.succeed("DEL", &sandbox);
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b", "DEL b", "DEL a"]);
}

#[test]
fn errors_reach_the_caller() {
    let node = Node::started();
    let sandbox = attached(&node, "web", &json!({}));
    let config = r#"{"cniVersion":"0.3.1","name":"hot","type":"b"}"#;
    fs::write(node.path("fail.ADD.b"), r#"{"code":11,"msg":"no room"}"#).unwrap();
    let (code, answer) = call(&node, "ADD", &sandbox, "hot0", config, &Value::Null);
    assert_eq!(code, 400);
    let error: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(error["code"], 11, "{answer}");
    assert!(
        error["msg"]
            .as_str()
            .unwrap()
            .ends_with("error adding container to network \"hot\": no room"),
        "{answer}"
    );
    assert_eq!(
        node.calls_of("c1"),
        ["ADD a", "ADD b", "DEL b"],
        "half an attachment is undone"
    );
    assert_eq!(
        node.event("web", "FailedAddingInterface"),
        "failed adding interface hot0 to network hot: no room"
    );

    fs::remove_file(node.path("fail.ADD.b")).unwrap();
    assert_eq!(call(&node, "ADD", &sandbox, "hot0", config, &Value::Null).0, 200);
    fs::write(node.path("fail.DEL.b"), r#"{"code":999,"msg":"stuck"}"#).unwrap();
    let (code, answer) = call(&node, "DEL", &sandbox, "hot0", config, &Value::Null);
    assert!(code == 400 && answer.contains("stuck"), "{code} {answer}");
    // It is still recorded.
    fs::remove_file(node.path("fail.DEL.b")).unwrap();
    assert_eq!(call(&node, "DEL", &sandbox, "hot0", config, &Value::Null).0, 200);

    let (code, answer) = call(&node, "GC", &sandbox, "hot0", config, &Value::Null);
    assert_eq!((code, answer.as_str()), (400, "unknown cmd type: GC\n"));
    assert_eq!(
        call(&node, "STATUS", &sandbox, "hot0", config, &Value::Null).0,
        200
    );
    let gone = node.sandbox("c2", "gone", Some("u1"));
    let (code, answer) = call(&node, "ADD", &gone, "hot0", config, &Value::Null);
    assert!(
        code == 400 && answer.contains("the pod is gone"),
        "{code} {answer}"
    );
    assert!(node.calls_of("c2").is_empty());
}

#[test]
fn a_pod_that_is_older_than_multus_keeps_its_cluster_network() {
    let node = Node::started();
    let uid = node.pod("web", &json!({}));
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    let config = r#"{"name":"hot","type":"b"}"#;
    assert_eq!(call(&node, "ADD", &sandbox, "hot0", config, &Value::Null).0, 200);
    // A configuration without version gets multus'.
    assert_eq!(node.config_of("c1", "ADD", "b")["cniVersion"], "0.3.1");
    node.succeed("DEL", &sandbox);
    assert_eq!(node.calls_of("c1"), ["ADD b", "DEL b", "DEL a"]);
    assert_eq!(node.variable_of("c1", "DEL", "a", "CNI_IFNAME"), "eth0");
}

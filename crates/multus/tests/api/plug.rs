//! `/delegate`: networks of pods that run.

use crate::metrics::{arrived, measured};
use crate::node::{Node, Sandbox};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use linux::address::Family;
use linux::link::VethSpec;
use linux::netns::NetNs;
use linux::route::Socket;
use linux::routes::Route;
use serde_json::{Value, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

impl Sandbox {
    /// Netlink in its namespace.
    fn socket(&self) -> Socket {
        let netns = NetNs::open(Path::new(&self.netns)).unwrap();
        netns.run(Socket::open).unwrap().unwrap()
    }

    /// Puts an interface that is up into its namespace.
    fn add_interface(&self, name: &str) {
        let peer_name = &format!("{name}-peer");
        let spec = VethSpec {
            name,
            mac: None,
            mtu: None,
            peer_name,
            peer_ns: None,
        };
        let mut socket = self.socket();
        socket.create_veth(&spec).unwrap();
        for end in [name, peer_name] {
            let link = socket.link_by_name(end).unwrap();
            socket.set_up(&link).unwrap();
        }
    }

    /// Gives an interface an address.
    fn add_address(&self, name: &str, address: &str) {
        let mut socket = self.socket();
        let link = socket.link_by_name(name).unwrap();
        socket.add_address(&link, address.parse().unwrap()).unwrap();
    }

    /// The gateways of its IPv4 default routes.
    fn ways_out(&self) -> Vec<String> {
        let routes = self.socket().routes(Family::V4).unwrap();
        let defaults = routes.iter().filter(|route| route.dst.prefix_len() == 0);
        defaults.map(|route| route.gateway.unwrap().to_string()).collect()
    }
}

/// Sends a request of the upstream controller, and returns the answer.
pub(crate) fn call(
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
fn plugged_network_ends_with_pod() {
    let node = Node::started();
    let sandbox = attached(&node, "web", &json!({}));
    let config =
        json!({"cniVersion": "1.0.0", "name": "hot", "type": "b", "capabilities": {"ips": true, "mac": true},
        "big": 9_007_199_254_740_993_i64})
        .to_string();
    let attributes = json!({"ips": ["10.1.1.7/24"], "mac": "02:00:00:00:00:07", "cni-args": {"k": "v"}});
    let (code, answer) = call(&node, "ADD", &sandbox, "hot0", &config, &attributes);
    assert_eq!(code, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["Result"]["cniVersion"], "1.1.0");
    assert_eq!(answer["Result"]["interfaces"][0]["name"], "hot0");

    // multus#81 (the plugin's input): its own configuration, and none of the daemon's keys
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
    // The caller writes the status.
    assert_eq!(node.status("web").unwrap().as_array().map(Vec::len), Some(1));

    // multus#92
    node.succeed("DEL", &sandbox);
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b", "DEL b", "DEL a"]);
    assert_eq!(node.variable_of("c1", "DEL", "b", "CNI_IFNAME"), "hot0");
    assert_eq!(fs::read_dir(node.path("cni/results")).unwrap().count(), 0);
    assert!(!node.path("cni/c1").exists());
}

#[test]
fn unplugged_network_is_not_detached_twice() {
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
    // Once more: nothing exists.
    assert_eq!(call(&node, "DEL", &sandbox, "net1", "", &Value::Null).0, 200);
    node.succeed("DEL", &sandbox);
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b", "DEL b", "DEL a"]);
}

#[test]
fn plug_errors_reach_caller() {
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
    assert_eq!(node.calls_of("c1")[3..], ["ADD b", "DEL b", "DEL b"]);

    let (code, answer) = call(&node, "GC", &sandbox, "hot0", config, &Value::Null);
    assert_eq!((code, answer.as_str()), (400, "unknown cmd type: GC\n"));
    let gone = node.sandbox("c2", "gone", Some("u1"));
    let (code, answer) = call(&node, "ADD", &gone, "hot0", config, &Value::Null);
    assert!(
        code == 400 && answer.contains("the pod is gone"),
        "{code} {answer}"
    );
    assert!(node.calls_of("c2").is_empty());
}

#[test]
fn status_of_one_network_calls_plugin() {
    // multus#51 (one network's STATUS)
    let mut node = Node::new();
    let primary = json!({"cniVersion": "1.1.0", "name": "cluster-net", "plugins": [{"type": "a"}]});
    fs::write(node.path("net.d/10-a.conflist"), primary.to_string()).unwrap();
    node.start(&json!({"cniVersion": "1.1.0"}));
    let sandbox = node.sandbox("", "web", None);
    let status =
        |config: &str, attributes: &Value| call(&node, "STATUS", &sandbox, "hot0", config, attributes);
    let attributes = json!({"name": "net-b", "cni-args": {"k": "v"}});
    // Without a version of its own it has multus'.
    assert_eq!(status(r#"{"type":"b"}"#, &attributes), (200, String::new()));
    let seen = node.config_of("", "STATUS", "b");
    assert_eq!(
        seen,
        json!({"cniVersion": "1.1.0", "name": "net-b", "type": "b", "args": {"cni": {"k": "v"}}})
    );
    fs::write(node.path("fail.STATUS.b"), r#"{"code":50,"msg":"no room"}"#).unwrap();
    let (code, answer) = status(r#"{"type":"b"}"#, &attributes);
    let error: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(
        (code, &error["code"], &error["msg"]),
        (400, &json!(50), &json!("no room"))
    );
}

#[test]
fn plug_into_old_pod_records_cluster_network() {
    let node = Node::started();
    let uid = node.pod("web", &json!({}));
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    let config = r#"{"name":"hot","type":"b"}"#;
    // A sandbox without any network was not made by a runtime.
    let (code, answer) = call(&node, "ADD", &sandbox, "hot0", config, &Value::Null);
    let error: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((code, &error["code"]), (400, &json!(3)), "{answer}");
    assert!(node.calls().is_empty() && !node.path("cni/c1").exists());
    sandbox.add_interface("eth0");
    assert_eq!(call(&node, "ADD", &sandbox, "hot0", config, &Value::Null).0, 200);
    // A configuration without version gets multus'.
    assert_eq!(node.config_of("c1", "ADD", "b")["cniVersion"], "0.3.1");
    node.succeed("DEL", &sandbox);
    assert_eq!(node.calls_of("c1"), ["ADD b", "DEL b", "DEL a"]);
    assert_eq!(node.variable_of("c1", "DEL", "a", "CNI_IFNAME"), "eth0");
}

#[test]
fn provided_configuration_may_be_list() {
    let mut node = Node::new();
    let own = json!({"type": "multus-shim", "clusterNetwork": node.path("net.d/10-a.conflist")});
    let list = json!({"cniVersion": "0.3.1", "name": "own", "plugins": [own]});
    fs::create_dir(node.path("provided")).unwrap();
    let file = node.path("provided/00-multus.conf");
    fs::write(&file, list.to_string()).unwrap();
    node.start(&json!({"multusConfigFile": file}));
    let uid = node.pod("web", &json!({}));
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    sandbox.add_interface("eth0");
    let config = r#"{"name":"hot","type":"b"}"#;
    let (code, answer) = call(&node, "ADD", &sandbox, "hot0", config, &Value::Null);
    assert_eq!(code, 200, "{answer}");
    let (code, answer) = call(&node, "DEL", &sandbox, "hot0", config, &Value::Null);
    assert_eq!(code, 200, "{answer}");
    assert_eq!(node.calls_of("c1"), ["ADD b", "DEL b"]);
}

#[test]
fn isolation_applies_to_running_pods() {
    // multus#26 (networks that are plugged in)
    let mut node = Node::new();
    node.start(&json!({"namespaceIsolation": true, "globalNamespaces": "shared"}));
    let sandbox = attached(&node, "web", &json!({}));
    let config = r#"{"cniVersion":"0.3.1","name":"hot","type":"b"}"#;
    let from = |namespace: &str| json!({"namespace": namespace, "name": "hot"});
    let (code, answer) = call(&node, "ADD", &sandbox, "hot0", config, &from("other"));
    let expected = format!(
        "namespace isolation enabled, annotation violates permission, pod is in namespace {} but refers to target \
         namespace other",
        node.name
    );
    assert!(code == 400 && answer.contains(&expected), "{code} {answer}");
    assert!(node.event("web", "FailedAddingInterface").contains(&expected));
    assert_eq!(node.calls_of("c1"), ["ADD a"]);
    for namespace in ["shared", &node.name] {
        let (code, answer) = call(&node, "ADD", &sandbox, "hot0", config, &from(namespace));
        assert_eq!(code, 200, "{answer}");
        // DEL of an attachment needs no permission.
        assert_eq!(
            call(&node, "DEL", &sandbox, "hot0", config, &from(namespace)).0,
            200
        );
    }
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b", "DEL b", "ADD b", "DEL b"]);
}

#[test]
fn unusable_definition_does_not_block_unplug() {
    let node = Node::started();
    node.nad("net-b", &json!({"cniVersion": "0.4.0", "type": "b", "x": 1}));
    let sandbox = attached(&node, "web", &json!({NETWORKS: "net-b"}));
    let who = json!({"name": "net-b", "namespace": node.name});
    for config in ["", "{}", r#"{"name":"other","plugins":[]}"#] {
        let (code, answer) = call(&node, "CHECK", &sandbox, "net1", config, &who);
        assert_eq!(code, 200, "{config}: {answer}");
    }
    let seen = node.config_of("c1", "CHECK", "b");
    assert_eq!(
        (&seen["x"], &seen["prevResult"]["interfaces"][0]["name"]),
        (&json!(1), &json!("net1"))
    );
    let other = json!({"name": "other", "namespace": node.name});
    let (code, answer) = call(&node, "DEL", &sandbox, "net1", "{}", &other);
    let expected = format!(
        "interface net1 is attached to network {0}/net-b, not to {0}/other",
        node.name
    );
    assert!(code == 400 && answer.contains(&expected), "{code} {answer}");
    let (code, answer) = call(&node, "DEL", &sandbox, "net1", r#"{"type":""}"#, &who);
    assert_eq!(code, 200, "{answer}");
    assert_eq!(
        node.calls_of("c1"),
        ["ADD a", "ADD b", "CHECK b", "CHECK b", "CHECK b", "DEL b"]
    );
}

#[test]
fn terminating_pod_gets_no_network() {
    let (node, port) = measured();
    let sandbox = attached(&node, "web", &json!({}));
    let config = r#"{"cniVersion":"0.3.1","name":"hot","type":"b"}"#;
    let gate = node.gate("c1", "DEL", "a");
    let end = node.begin("DEL", &sandbox);
    node.called("c1", "DEL a");
    let (code, answer) = std::thread::scope(|scope| {
        let plug = scope.spawn(|| call(&node, "ADD", &sandbox, "hot0", config, &Value::Null));
        arrived(&node, port, "/delegate", "ADD");
        gate.open();
        plug.join().unwrap()
    });
    assert!(end.wait_with_output().unwrap().status.success());
    assert!(code == 400 && answer.contains("was detached"), "{code} {answer}");
    assert_eq!(node.calls_of("c1"), ["ADD a", "DEL a"]);
    assert!(!node.path("cni/c1").exists());
}

#[test]
fn del_waits_for_running_plug() {
    // multus#92 (the order of calls)
    let (node, port) = measured();
    let sandbox = attached(&node, "web", &json!({}));
    let config = r#"{"cniVersion":"0.3.1","name":"hot","type":"b"}"#;
    let gate = node.gate("c1", "ADD", "b");
    std::thread::scope(|scope| {
        let plug = scope.spawn(|| call(&node, "ADD", &sandbox, "hot0", config, &Value::Null));
        node.called("c1", "ADD b");
        // A kill here would leave the record, and no result.
        let recorded = fs::read_to_string(node.path("cni/c1")).unwrap();
        assert!(recorded.contains(r#""ifnameRequest":"hot0""#), "{recorded}");
        let end = node.begin("DEL", &sandbox);
        arrived(&node, port, "/cni", "DEL");
        gate.open();
        assert_eq!(plug.join().unwrap().0, 200);
        assert!(end.wait_with_output().unwrap().status.success());
    });
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b", "DEL b", "DEL a"]);
    assert_eq!(fs::read_dir(node.path("cni/results")).unwrap().count(), 0);
    assert!(!node.path("cni/c1").exists());
}

#[test]
fn abandoned_plug_detaches_late_attachment() {
    // multus#109 (a network that is plugged in)
    let mut node = Node::new();
    // The time of calls that do not hang on a busy machine.
    node.call_timeout = Duration::from_secs(15);
    node.start(&json!({}));
    let sandbox = attached(&node, "web", &json!({}));
    let gate = node.gate("c1", "ADD", "b");
    let config = r#"{"cniVersion":"0.3.1","name":"hot","type":"b"}"#;
    let (code, answer) = call(&node, "ADD", &sandbox, "hot0", config, &Value::Null);
    assert!(
        code == 400 && answer.contains("the work was given up after 15 s"),
        "{code} {answer}"
    );
    node.succeed("DEL", &sandbox);
    let before = ["ADD a", "ADD b", "DEL b", "DEL a"];
    assert_eq!(node.calls_of("c1"), before);
    gate.open();
    let after = [&before[..], &["DEL b"]].concat();
    node.wait("the end of what hung", || node.calls_of("c1") == after);
    node.wait("nothing is cached", || node.files("cni/results").is_empty());
}

#[test]
fn default_route_of_running_pod_moves_and_is_restored() {
    // multus#54 (a network that is plugged in, in the kernel)
    let node = Node::started();
    let sandbox = attached(&node, "web", &json!({}));
    sandbox.add_interface("eth0");
    sandbox.add_address("eth0", "10.0.0.2/24");
    let mut socket = sandbox.socket();
    let route = Route {
        gateway: Some("10.0.0.1".parse().unwrap()),
        link: Some(socket.link_by_name("eth0").unwrap().index),
        ..Route::to("0.0.0.0/0".parse().unwrap())
    };
    socket.add_route(&route).unwrap();
    let config = r#"{"cniVersion":"0.3.1","name":"hot","type":"b"}"#;
    let attributes = json!({"name": "hot", "namespace": node.name, "default-route": ["10.1.1.254"]});
    let gate = node.gate("c1", "ADD", "b");
    let (code, answer) = std::thread::scope(|scope| {
        let plug = scope.spawn(|| call(&node, "ADD", &sandbox, "hot0", config, &attributes));
        node.called("c1", "ADD b");
        // A plugin finds no default route in the place of its own.
        assert!(sandbox.ways_out().is_empty());
        sandbox.add_interface("hot0");
        sandbox.add_address("hot0", "10.1.1.2/24");
        gate.open();
        plug.join().unwrap()
    });
    assert_eq!(code, 200, "{answer}");
    assert_eq!(sandbox.ways_out(), ["10.1.1.254"]);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(
        answer["Result"]["routes"],
        json!([{"dst": "0.0.0.0/0", "gw": "10.1.1.254"}])
    );

    let link = socket.link_by_name("hot0").unwrap();
    socket.delete_link(&link).unwrap();
    assert_eq!(
        call(&node, "DEL", &sandbox, "hot0", "", &attributes),
        (200, String::new())
    );
    assert_eq!(sandbox.ways_out(), ["10.0.0.1"]);
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b", "DEL b"]);
}

//! The pod of a call, and the definitions of its networks.

use crate::node::{Node, api};
use serde_json::json;
use std::fs;

#[test]
fn missing_pod_gets_placeholder_in_every_version() {
    let node = Node::started();
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let mut sandbox = node.sandbox("c1", "gone", Some("u1"));
        sandbox.version = Some(version.into());
        let result = node.succeed("ADD", &sandbox);
        assert_eq!(result["cniVersion"], version);
        if version.starts_with("0.1") || version.starts_with("0.2") {
            assert_eq!(result["ip4"]["ip"], "0.0.0.0/32", "{version}");
            continue;
        }
        assert_eq!(
            result["interfaces"],
            json!([{"name": "eth0", "sandbox": sandbox.netns}]),
            "{version}"
        );
        assert_eq!(result["ips"][0]["address"], "0.0.0.0/32", "{version}");
        assert_eq!(result["ips"][0]["gateway"], "0.0.0.0", "{version}");
    }
    assert!(node.calls().is_empty());
}

#[test]
fn uncached_pod_is_read_live() {
    // multus#38
    let mut node = Node::new();
    node.launch(&json!({}), "another-node");
    node.wait_until_serving();
    let uid = node.pod("web", &json!({}));
    node.succeed("ADD", &node.sandbox("c1", "web", Some(&uid)));
    assert_eq!(node.calls_of("c1"), ["ADD a"]);
    assert!(node.status("web").is_some());
}

#[test]
fn pod_with_other_uid_is_refused() {
    // multus#39
    let node = Node::started();
    let uid = node.pod("web", &json!({}));
    let error = node.fail("ADD", &node.sandbox("c1", "web", Some("old")));
    let message = error["msg"].as_str().unwrap();
    assert!(
        message.ends_with(&format!(
            "expected pod UID \"old\" but got \"{uid}\" from Kube API"
        )),
        "{message}"
    );
    assert!(node.calls().is_empty());
    // DEL: the sandbox has no record, and the pod is another one. The sandbox may be older than multus on the node.
    node.succeed("DEL", &node.sandbox("c1", "web", Some("old")));
    assert_eq!(node.calls(), ["DEL a eth0 c1"]);
    // DEL uses the state on the node, even if another pod has the name by now
    node.succeed("ADD", &node.sandbox("c3", "web", Some(&uid)));
    node.succeed("DEL", &node.sandbox("c3", "web", Some("another")));
    assert_eq!(node.calls_of("c3"), ["ADD a", "DEL a"]);

    node.pod("static", &json!({"kubernetes.io/config.source": "file"}));
    node.succeed("ADD", &node.sandbox("c2", "static", Some("hash-of-the-file")));
    assert_eq!(
        node.variable_of("c2", "ADD", "a", "CNI_ARGS")
            .split("K8S_POD_UID=")
            .nth(1),
        Some("hash-of-the-file")
    );
    node.succeed("DEL", &node.sandbox("c2", "static", Some("hash-of-the-file")));
    assert_eq!(node.calls_of("c2"), ["ADD a", "DEL a"]);
}

#[test]
fn runtime_without_uid_is_served() {
    // multus#40
    let node = Node::started();
    let uid = node.pod("web", &json!({}));
    node.succeed("ADD", &node.sandbox("c1", "web", None));
    let args = node.variable_of("c1", "ADD", "a", "CNI_ARGS");
    assert_eq!(args.split("K8S_POD_UID=").nth(1), Some(uid.as_str()));
}

#[test]
fn nad_without_spec_uses_file_on_node() {
    // multus#20, multus#113
    let node = Node::started();
    let nad = json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "on-node", "namespace": node.name}});
    api().kubectl().apply(&nad.to_string()).unwrap();
    fs::create_dir(node.path("conf")).unwrap();
    let file = node.path("conf/10-b.conf");
    let config = json!({"cniVersion": "0.3.1", "name": "on-node", "type": "b", "x": 1});
    fs::write(&file, config.to_string()).unwrap();
    let uid = node.pod("web", &json!({"k8s.v1.cni.cncf.io/networks": "on-node"}));
    node.succeed("ADD", &node.sandbox("c1", "web", Some(&uid)));
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b"]);
    assert_eq!(node.config_of("c1", "ADD", "b")["x"], 1);

    // multus#21
    let broken = node.path("conf/05-a.conf");
    fs::write(&broken, "{").unwrap();
    let error = node.fail("ADD", &node.sandbox("c2", "web", Some(&uid)));
    let text = error["msg"].as_str().unwrap();
    assert!(text.contains("Error loading CNI config file "), "{text}");

    fs::remove_file(&broken).unwrap();
    fs::remove_file(&file).unwrap();
    let error = node.fail("ADD", &node.sandbox("c2", "web", Some(&uid)));
    let text = error["msg"].as_str().unwrap();
    let cause = format!(
        "GetCNIConfig: err in GetCNIConfigFromFile: No networks found in {}",
        node.path("conf").display()
    );
    assert!(text.contains(&cause), "{text}");
    assert!(node.calls_of("c2").is_empty());
}

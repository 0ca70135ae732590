//! The networks that a pod gets, and those that it is refused, through daemon and API server.

use crate::node::{Node, api};
use serde_json::{Value, json};
use std::fs;

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

fn nad_in(namespace: &str, name: &str, config: &Value) {
    let nad = json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "namespace": namespace}, "spec": {"config": config.to_string()}});
    api().kubectl().apply(&nad.to_string()).unwrap();
}

#[test]
fn isolation_refuses_networks_of_other_namespaces() {
    // multus#26
    let (mut node, other) = (Node::new(), Node::new());
    let config = json!({"cniVersion": "0.3.1", "type": "b"});
    nad_in(&other.name, "net-b", &config);
    let common = format!("net-{}", node.name);
    nad_in("default", &common, &config);
    let pods = [
        ("far", other.name.clone(), "net-b".to_owned()),
        ("common", "default".to_owned(), common),
    ];
    let uids = pods.each_ref().map(|(pod, namespace, network)| {
        let annotation = format!("{namespace}/{network}");
        node.pod(pod, &json!({NETWORKS: annotation}))
    });
    let isolated = json!({"namespaceIsolation": true});
    let exempt =
        json!({"namespaceIsolation": true, "globalNamespaces": format!("kube-system, {}", other.name)});
    for (number, keys, allowed) in [
        (1, json!({}), [true, true]),
        (2, isolated, [false, true]),
        (3, exempt, [true, false]),
    ] {
        node.start(&keys);
        for (((pod, namespace, _), uid), is_allowed) in pods.iter().zip(&uids).zip(allowed) {
            let id = format!("{pod}{number}");
            let sandbox = node.sandbox(&id, pod, Some(uid));
            if is_allowed {
                node.succeed("ADD", &sandbox);
                assert_eq!(node.calls_of(&id), ["ADD a", "ADD b"], "{keys}");
            } else {
                let error = node.fail("ADD", &sandbox);
                let text = error["msg"].as_str().unwrap();
                let cause = format!(
                    "namespace isolation enabled, annotation violates permission, pod is in namespace {} but refers to \
                     target namespace {namespace}",
                    node.name
                );
                assert!(text.contains(&cause), "{text}");
                assert!(node.calls_of(&id).is_empty(), "{keys}");
            }
        }
        node.stop().unwrap();
    }
}

#[test]
fn default_networks_go_to_all_but_system_pods() {
    // multus#28
    let mut node = Node::new();
    node.nad("extra", &json!({"cniVersion": "0.3.1", "type": "c"}));
    node.nad("net-b", &json!({"cniVersion": "0.3.1", "type": "b"}));
    node.start(&json!({"defaultNetworks": ["extra"], "multusNamespace": node.name}));
    let uid = node.pod("web", &json!({NETWORKS: "net-b"}));
    node.succeed("ADD", &node.sandbox("c1", "web", Some(&uid)));
    assert_eq!(node.calls(), ["ADD a eth0 c1", "ADD c net1 c1", "ADD b net2 c1"]);

    let name = format!("system-{}", node.name);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"nodeName": node.name, "containers": [{"name": "c", "image": "none"}]}});
    api().kubectl().apply(&pod.to_string()).unwrap();
    let mut sandbox = node.sandbox("c2", &name, None);
    sandbox.args = sandbox.args.replace(
        &format!("K8S_POD_NAMESPACE={};", node.name),
        "K8S_POD_NAMESPACE=kube-system;",
    );
    node.succeed("ADD", &sandbox);
    assert_eq!(node.calls_of("c2"), ["ADD a"]);
}

#[test]
fn plugins_beside_cluster_network_list_are_called() {
    // multus#29
    let node = Node::started();
    fs::create_dir(node.path("net.d/cluster-net")).unwrap();
    fs::write(node.path("net.d/cluster-net/x.conf"), r#"{"type":"c"}"#).unwrap();
    let uid = node.pod("web", &json!({}));
    node.succeed("ADD", &node.sandbox("c1", "web", Some(&uid)));
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD c"]);

    let primary = json!({"cniVersion": "0.3.1", "name": "cluster-net", "loadOnlyInlinedPlugins": true,
        "plugins": [{"type": "a"}]});
    fs::write(node.path("net.d/10-a.conflist"), primary.to_string()).unwrap();
    node.succeed("ADD", &node.sandbox("c2", "web", Some(&uid)));
    assert_eq!(node.calls_of("c2"), ["ADD a"]);
}

#[test]
fn nameless_network_rolls_back_the_others() {
    // multus#34
    let mut node = Node::new();
    let nameless = node.path("nameless.conf");
    fs::write(&nameless, r#"{"cniVersion":"0.3.1","type":"b"}"#).unwrap();
    node.start(&json!({"defaultNetworks": [nameless]}));
    let uid = node.pod("web", &json!({}));
    let error = node.fail("ADD", &node.sandbox("c1", "web", Some(&uid)));
    let text = error["msg"].as_str().unwrap();
    assert!(text.contains("missing network name"), "{text}");
    let calls = node.calls_of("c1");
    assert_eq!(calls.first().map(String::as_str), Some("ADD a"));
    assert_eq!(calls.last().map(String::as_str), Some("DEL a"));
    assert!(!calls.contains(&"ADD b".to_owned()), "{calls:?}");
}

#[test]
fn invalid_interface_or_namespace_calls_no_plugin() {
    // multus#35, multus#36: the loopback interface is in every namespace
    let node = Node::started();
    node.nad("net-b", &json!({"cniVersion": "0.3.1", "type": "b"}));
    let uid = node.pod("web", &json!({NETWORKS: "net-b@lo"}));
    let error = node.fail("ADD", &node.sandbox("c1", "web", Some(&uid)));
    let text = error["msg"].as_str().unwrap();
    assert!(
        text.contains(
            "cannot set \"b\" interface name to \"lo\": validateIfName: interface name lo already exists"
        ),
        "{text}"
    );
    assert_eq!(node.calls_of("c1"), ["ADD a", "DEL a"]);

    let uid = node.pod("plain", &json!({}));
    let mut sandbox = node.sandbox("c2", "plain", Some(&uid));
    sandbox.netns = "/nowhere/at/all".into();
    let error = node.fail("ADD", &sandbox);
    let text = error["msg"].as_str().unwrap();
    assert!(text.contains("no net namespace /nowhere/at/all found"), "{text}");
    assert!(node.calls_of("c2").is_empty());
}

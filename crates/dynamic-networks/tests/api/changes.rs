//! Changes by users, and their results.

use crate::node::{Node, STATUS};
use serde_json::json;

#[test]
fn network_is_plugged_and_unplugged() {
    let node = Node::started();
    let uid = node.pod("web", "", &[]);
    // multus#77, multus#81
    let desired = json!([{"name": "a", "interface": "net1", "ips": ["10.0.0.7/24"], "mac": "02:00:00:00:00:0a",
        "cni-args": {"k": "v"}}]);
    node.ask("web", Some(&desired.to_string()));
    node.wait_for("web", &["a net1"]);
    assert_eq!(
        node.entries("web")[1],
        json!({"name": format!("{}/a", node.name), "interface": "net1", "ips": ["10.0.0.7"], "mac": "02:00:00:00:00:0a",
            "dns": {}})
    );
    // The write changed nothing else.
    let pod = node.get("web");
    assert_eq!(pod["status"]["phase"], "Running");
    assert_eq!(pod["metadata"]["labels"], json!({"app": "test"}));
    let call = node.daemon.lock().unwrap().calls[0].clone();
    assert_eq!(
        call["env"],
        json!({"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "sandbox-web", "CNI_NETNS": "/run/netns/sandbox-web",
            "CNI_IFNAME": "net1",
            "CNI_ARGS": format!("K8S_POD_NAMESPACE={};K8S_POD_NAME=web;K8S_POD_UID={uid}", node.name)})
    );
    assert_eq!(
        call["config"],
        json!({"cniVersion": "0.3.1", "type": "a", "name": "a"})
    );
    let attributes = &call["interfaceAttributes"];
    assert_eq!(
        (&attributes["ips"], &attributes["mac"], &attributes["cni-args"]),
        (
            &json!(["10.0.0.7/24"]),
            &json!("02:00:00:00:00:0a"),
            &json!({"k": "v"})
        )
    );
    assert_eq!(
        node.events("web", 1),
        [format!(
            "AddedInterface 1 pod [{}/web]: added interface net1 to network: a(ips: [10.0.0.7/24], mac: \
             02:00:00:00:00:0a, cni-args: map[k:v])",
            node.name
        )]
    );

    // multus#78, multus#85
    node.ask("web", None);
    node.wait_for("web", &[]);
    assert_eq!(node.calls(), ["ADD net1 a", "DEL net1 a"]);
    assert_eq!(
        node.events("web", 2)[1],
        format!(
            "RemovedInterface 1 pod [{}/web]: removed interface net1 from network: a",
            node.name
        )
    );
}

#[test]
fn edit_adds_before_it_removes() {
    // multus#79
    let node = Node::started();
    node.pod("web", "a@net1", &[("a", "net1")]);
    node.ask("web", Some("c@net3, b@net2"));
    node.wait_for("web", &["c net3", "b net2"]);
    assert_eq!(node.calls(), ["ADD net3 c", "ADD net2 b", "DEL net1 a"]);
}

#[test]
fn interface_moves_between_networks() {
    let node = Node::started();
    node.pod("web", "a@net1,b@net2", &[("a", "net1"), ("b", "net2")]);
    node.ask("web", Some("b@net1,a@net2,c@net3"));
    node.wait_for("web", &["b net1", "a net2", "c net3"]);
    assert_eq!(
        node.calls(),
        [
            "DEL net1 a",
            "DEL net2 b",
            "ADD net1 b",
            "ADD net2 a",
            "ADD net3 c"
        ]
    );
}

#[test]
fn duplicate_interface_is_rejected() {
    let node = Node::started();
    node.pod("web", "a@net1", &[("a", "net1")]);
    node.ask("web", Some("a@net1,b@net1"));
    let rejected = |cause: &str| {
        format!(
            "InterfaceAddRejected 1 pod [{}/web]: will not change interfaces: {cause}",
            node.name
        )
    };
    assert_eq!(
        node.events("web", 1),
        [rejected("interface net1 is asked for twice")]
    );
    node.ask("web", Some("a@net1,b@eth0"));
    let events = node.events("web", 2);
    assert!(
        events.contains(&rejected("interface eth0 is taken by network cluster-net")),
        "{events:?}"
    );
    // Nothing changes, so the attached networks are kept.
    node.ask("web", Some("a@net1,b@net2"));
    node.wait_for("web", &["a net1", "b net2"]);
    assert_eq!(node.calls(), ["ADD net2 b"]);
}

#[test]
fn corrected_status_is_reconciled() {
    let node = Node::started();
    node.pod("web", "a@net1", &[("a", "net1")]);
    node.annotate("web", STATUS, Some("[7]"));
    node.events("web", 1);
    assert!(node.calls().is_empty());
    node.annotate("web", STATUS, Some(&node.status_of(&[])));
    // The daemon has the attachment, and reports it.
    node.wait_for("web", &["a net1"]);
    // And once more, after it was fulfilled.
    node.annotate("web", STATUS, Some(&node.status_of(&[])));
    node.wait_for("web", &["a net1"]);
    assert_eq!(node.calls(), ["ADD net1 a", "ADD net1 a"]);
}

#[test]
fn host_network_pod_gets_one_event() {
    // multus#80
    let node = Node::started();
    let annotations = json!({"k8s.v1.cni.cncf.io/networks": "a@net1"});
    node.pod_with("host", &annotations, &json!({"hostNetwork": true}));
    node.run_pod("host");
    let rejected = |count| {
        [format!(
            "InterfaceAddRejected {count} pod [{}/host]: will not add interface to host networked pod",
            node.name
        )]
    };
    assert_eq!(node.events("host", 1), rejected(1));
    node.touch("host", "once");
    node.touch("host", "twice");
    // Another pod shows that the controller has seen that change.
    node.pod("web", "b@net2", &[]);
    node.wait_for("web", &["b net2"]);
    assert_eq!(node.events("host", 1), rejected(1));
    assert_eq!(node.calls(), ["ADD net2 b"]);
}

#[test]
fn element_without_interface_changes_nothing() {
    // multus#87
    let node = Node::started();
    node.pod("web", "a@net1", &[("a", "net1")]);
    node.ask("web", Some("b, c@net3"));
    node.pod("other", "a@net1", &[]);
    node.wait_for("other", &["a net1"]);
    assert_eq!(node.calls(), ["ADD net1 a"]);
    assert_eq!(node.has("web"), ["a net1"]);
    node.ask("web", Some("b@net2, c@net3"));
    node.wait_for("web", &["b net2", "c net3"]);
    let calls = node.calls();
    assert_eq!(calls, ["ADD net1 a", "ADD net2 b", "ADD net3 c", "DEL net1 a"]);
}

#[test]
fn changes_during_downtime_are_applied() {
    // multus#88
    let mut node = Node::started();
    node.pod("web", "a@net1", &[("a", "net1")]);
    node.pod("left", "", &[("c", "net7")]);
    node.wait_for("left", &[]);
    node.stop();
    node.ask("web", Some("b@net2"));
    node.start();
    node.wait_for("web", &["b net2"]);
    assert_eq!(node.calls(), ["DEL net7 c", "ADD net2 b", "DEL net1 a"]);
}

#[test]
fn network_without_definition_is_unplugged_by_records() {
    let node = Node::started();
    node.pod("web", "a@net1", &[("a", "net1")]);
    node.delete_nad("a");
    node.ask("web", Some(""));
    node.wait_for("web", &[]);
    assert_eq!(node.calls(), ["DEL net1 -"]);
    let attributes = node.daemon.lock().unwrap().calls[0]["interfaceAttributes"].clone();
    assert_eq!(attributes, json!({"name": "a", "namespace": node.name}));
}

#[test]
fn broken_annotation_is_reported_and_blocks_no_other_pod() {
    let node = Node::started();
    node.pod("web", "a@net1", &[("a", "net1")]);
    node.ask("web", Some("[{"));
    let events = node.events("web", 1);
    assert!(
        events[0].starts_with(&format!(
            "InterfaceAddRejected 1 pod [{}/web]: will not change interfaces: parsePodNetworkAnnotation: ",
            node.name
        )),
        "{events:?}"
    );
    node.ask("web", Some("a@net1,b@net2"));
    node.wait_for("web", &["a net1", "b net2"]);
    assert_eq!(node.calls(), ["ADD net2 b"]);
}

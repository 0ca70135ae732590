//! Pods on a secondary network.

use std::collections::BTreeSet;

use serde_json::json;

use crate::pods::{TestNamespace, bridge_network, network, pod};
use crate::support::{NODES, Stage};

#[test]
fn pods_on_two_nodes_are_connected_by_the_bridge() {
    // cni-plugins#71
    let Some(stage) = Stage::enter() else { return };
    let ns = TestNamespace::create(&stage, "e2e-ping");
    ns.apply(&bridge_network("lan", "br1"));
    for (index, node) in NODES.iter().enumerate() {
        ns.apply(&pod(
            &format!("p{index}"),
            Some(node),
            &json!([{ "name": "lan", "ips": [format!("10.77.0.{}/24", index + 1)] }]),
        ));
    }
    let pods = [ns.ready("p0"), ns.ready("p1")];

    for (index, pod) in pods.iter().enumerate() {
        let attached = pod.network_status("lan");
        assert_eq!(attached["interface"], "net1");
        assert_eq!(attached["ips"], json!([format!("10.77.0.{}", index + 1)]));
        let mac = ns.exec(&pod.name, &["cat", "/sys/class/net/net1/address"]);
        assert_eq!(attached["mac"], mac.trim());
        let addresses = ns.exec(&pod.name, &["ip", "-4", "addr", "show", "dev", "net1"]);
        assert!(
            addresses.contains(&format!("10.77.0.{}/24", index + 1)),
            "{addresses}"
        );
        assert_eq!(
            pod.network_statuses().len(),
            2,
            "the cluster network and the bridge network"
        );
        assert_eq!(pod.network_statuses()[0]["default"], true);
    }

    let ping = ns.ping("p0", "10.77.0.2");
    assert!(
        ping.contains("3 packets received") || ping.contains("0% packet loss"),
        "{ping}"
    );
    let neighbours = ns.exec("p0", &["ip", "neigh", "show", "dev", "net1"]);
    let other_mac = pods[1].network_status("lan")["mac"].as_str().unwrap().to_owned();
    assert!(
        neighbours
            .lines()
            .any(|line| line.contains("10.77.0.2") && line.contains(&other_mac)),
        "the neighbour entry holds the other pod's MAC {other_mac}:\n{neighbours}"
    );

    // The NAD's plugin on the node is the file of the image.
    let ours = stage.image_binary_digest();
    for node in NODES {
        for name in ["cnv-bridge", "bridge", "multus-shim"] {
            let digest = stage.node(node, &["sha256sum", &format!("/opt/cni/bin/{name}")]);
            assert!(
                digest.starts_with(&ours),
                "{name} on {node} is not ours: {digest}, ours {ours}"
            );
        }
        let tuning = stage.node(node, &["env", "CNI_COMMAND=VERSION", "/opt/cni/bin/cnv-tuning"]);
        assert!(tuning.contains("supportedVersions"), "{tuning}");
    }
}

#[test]
fn pod_is_scheduled_on_a_node_with_its_bridge() {
    // cni-plugins#62
    let Some(stage) = Stage::enter() else { return };
    let ns = TestNamespace::create(&stage, "e2e-marker");
    ns.apply(&bridge_network("only", "br-only"));
    let mut wanting = pod(
        "wanting",
        None,
        &json!([{ "name": "only", "ips": ["10.78.0.1/24"] }]),
    );
    wanting["spec"]["containers"][0]["resources"] =
        json!({ "limits": { "bridge.network.kubevirt.io/br-only": "1" } });
    ns.apply(&wanting);
    stage.wait("the pod is pending as no node has the bridge", || {
        let events = ns.kubectl(&["get", "events", "-o", "json"]);
        events
            .contains("Insufficient bridge.network.kubevirt.io/br-only")
            .then_some(())
    });

    let link = stage.temporary_bridge("node02", "br-only");
    let ready = ns.ready("wanting");
    assert_eq!(ready.node(), "node02");
    ns.delete_pods();
    drop(link);
    stage.wait("the marker withdraws the bridge", || {
        let node = stage.kubectl(&["get", "node", "node02", "-o", "jsonpath={.status.capacity}"]);
        (!node.contains("br-only")).then_some(())
    });
}

#[test]
fn deleted_pods_leave_nothing_behind() {
    // multus#42
    let Some(stage) = Stage::enter() else { return };
    let ns = TestNamespace::create(&stage, "e2e-leftovers");
    ns.apply(&bridge_network("lan", "br1"));
    let before = NODES.map(|node| stage.host_state(node));
    for index in 0..6 {
        ns.apply(&pod(
            &format!("p{index}"),
            Some(NODES[index % 2]),
            &json!([{ "name": "lan", "ips": [format!("10.77.1.{}/24", index + 1)] }, { "name": "lan", "interface": "second", "ips": [format!("10.77.5.{}/24", index + 1)] }]),
        ));
    }
    for index in 0..6 {
        ns.ready(&format!("p{index}"));
    }
    let during = NODES.map(|node| stage.host_state(node));
    for (node, (before, during)) in NODES.iter().zip(before.iter().zip(&during)) {
        assert_eq!(
            during.veths.len(),
            before.veths.len() + 9,
            "three pods, three veths each on {node}"
        );
        assert_eq!(
            during.scratch.len(),
            before.scratch.len() + 3,
            "one scratch file a sandbox on {node}"
        );
    }
    ns.delete_pods();
    for (node, before) in NODES.iter().zip(&before) {
        stage.wait_equal(
            &format!("links, namespaces and cache files of {node} as before"),
            before,
            || stage.host_state(node),
        );
    }
}

#[test]
fn pod_gets_an_address_of_a_range_and_its_own_rules() {
    let Some(stage) = Stage::enter() else { return };
    let ns = TestNamespace::create(&stage, "e2e-rules");
    let config = json!({
        "cniVersion": "1.0.0", "name": "e2e-rules", "type": "cnv-bridge", "bridge": "br1",
        "isGateway": true, "ipMasq": true, "macspoofchk": true,
        "ipam": { "type": "host-local", "subnet": "10.77.9.0/24" },
    });
    ns.apply(&network("lan", &config.to_string()));
    let before = stage.host_state("node01");
    for name in ["first", "second"] {
        ns.apply(&pod(name, Some("node01"), &json!([{ "name": "lan" }])));
    }
    let mut addresses = BTreeSet::new();
    for name in ["first", "second"] {
        let network = ns.ready(name).network_status("lan");
        addresses.insert(network["ips"][0].as_str().expect("an address").to_owned());
    }
    assert!(
        addresses.len() == 2 && addresses.iter().all(|ip| ip.starts_with("10.77.9.")),
        "{addresses:?}"
    );
    let during = stage.host_state("node01");
    let rules = during.rules.iter().cloned().collect::<Vec<_>>().join("\n");
    for address in &addresses {
        assert!(rules.contains(address), "{rules}");
    }
    assert!(rules.contains("\"macspoofchk-"), "{rules}");
    assert_eq!(during.records.len(), before.records.len() + 2);
    // Weft's host-local assigns the addresses, even beside another one.
    let leases = during.leases.iter().filter(|path| path.contains("e2e-rules"));
    assert_eq!(leases.count(), 2, "{:?}", during.leases);

    ns.exec("first", &["ping", "-c", "1", "-W", "60", "10.77.9.1"]);
    ns.delete_pods();
    stage.wait_equal("the node is as before", &before, || stage.host_state("node01"));
    stage.node(
        "node01",
        &["ip", "address", "delete", "10.77.9.1/24", "dev", "br1"],
    );
}

#[test]
fn invalid_network_fails_only_its_own_pod() {
    // multus#11, multus#22
    let Some(stage) = Stage::enter() else { return };
    let ns = TestNamespace::create(&stage, "e2e-broken");
    ns.apply(&bridge_network("lan", "br1"));
    ns.apply(&network("broken", "{ this is not JSON"));
    ns.apply(&pod("on-broken", Some("node01"), &json!([{ "name": "broken" }])));
    ns.apply(&pod(
        "on-missing",
        Some("node01"),
        &json!([{ "name": "missing" }]),
    ));
    let mut bad_annotation = pod("bad-annotation", Some("node01"), &json!([]));
    bad_annotation["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] = json!("[{\"name\": ");
    ns.apply(&bad_annotation);
    ns.apply(&pod(
        "good",
        Some("node01"),
        &json!([{ "name": "lan", "ips": ["10.77.2.1/24"] }]),
    ));

    ns.ready("good");
    for (name, expected) in [
        ("on-broken", "broken"),
        (
            "on-missing",
            "cannot find a network-attachment-definition (missing) in namespace (e2e-broken)",
        ),
        (
            "bad-annotation",
            "failed to parse pod Network Attachment Selection Annotation JSON format",
        ),
    ] {
        let message = ns.wait_for_event(name, "FailedCreatePodSandBox", expected);
        assert!(message.len() < 1200, "the message is short: {message}");
        assert!(
            !message.contains("\"cniVersion\""),
            "no whole config in the message: {message}"
        );
    }
    ns.wait_for_event(
        "on-missing",
        "NoNetworkFound",
        "cannot find a network-attachment-definition (missing)",
    );
}

#[test]
fn pod_from_before_multus_leaves_no_lease() {
    let Some(stage) = Stage::enter() else { return };
    let node = "node01";
    stage.remove_multus();
    let ns = TestNamespace::create(&stage, "e2e-before-multus");
    let leases = || stage.host_state(node).leases;
    let before = leases();
    ns.apply(&pod("old", Some(node), &json!([])));
    assert!(!ns.ready("old").has_network_status(), "multus attached it");
    assert_eq!(leases().len(), before.len() + 1);

    stage.add_multus();
    stage.available_on_all_nodes(&["multus"]);
    ns.delete_pods();
    stage.wait_equal("the pod's lease is gone", &before, leases);
}

#[test]
fn requested_default_route_is_the_only_one() {
    // multus#54
    let Some(stage) = Stage::enter() else { return };
    let ns = TestNamespace::create(&stage, "e2e-route");
    ns.apply(&bridge_network("lan", "br1"));
    let networks = json!([{ "name": "lan", "ips": ["10.77.6.1/24"], "default-route": ["10.77.6.254"] }]);
    ns.apply(&pod("routed", Some("node01"), &networks));
    let routed = ns.ready("routed");
    let routes = ns.exec("routed", &["ip", "-4", "route", "show"]);
    let defaults: Vec<_> = routes
        .lines()
        .filter(|route| route.starts_with("default"))
        .collect();
    assert_eq!(defaults.len(), 1, "{routes}");
    assert!(
        defaults[0].starts_with("default via 10.77.6.254 dev net1"),
        "{routes}"
    );
    assert_eq!(
        routed.network_statuses()[0].get("gateway"),
        None,
        "{:?}",
        routed.network_statuses()
    );
    assert_eq!(routed.network_status("lan")["gateway"], json!(["10.77.6.254"]));
}

//! ADD and its results for users.

use crate::node::{Node, api, text};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

#[test]
fn pod_gets_second_network() {
    let node = Node::started();
    node.nad(
        "net-b",
        &json!({"cniVersion": "0.3.1", "type": "b", "kubeconfig": "/k", "ipam": {"ranges": [1]}}),
    );
    let uid = node.pod("web", &json!({NETWORKS: "net-b"}));
    api()
        .kubectl()
        .run([
            "patch",
            "pod",
            "web",
            "--namespace",
            &node.name,
            "--subresource=status",
            "--type=merge",
            "--patch",
            r#"{"status":{"conditions":[{"type":"PodScheduled","status":"True"}]}}"#,
        ])
        .unwrap();
    let sandbox = node.sandbox("c1", "web", Some(&uid));

    // multus#31: A then B; the result is A's; B's address only in the status
    let result = node.succeed("ADD", &sandbox);
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b"]);
    assert_eq!(result["cniVersion"], "0.3.1");
    assert_eq!(
        result["interfaces"],
        json!([{"name": "eth0", "mac": "02:00:00:00:00:0a", "sandbox": sandbox.netns}])
    );
    assert_eq!(result["ips"].as_array().map(Vec::len), Some(1), "{result}");
    assert_eq!(result["ips"][0]["address"], "10.0.0.1/24");
    // multus#1: the first network after the master
    assert_eq!(node.variable_of("c1", "ADD", "b", "CNI_IFNAME"), "net1");
    let args = node.variable_of("c1", "ADD", "b", "CNI_ARGS");
    assert_eq!(
        args,
        format!(
            "IgnoreUnknown=true;K8S_POD_NAMESPACE={};K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID={uid}",
            node.name
        )
    );
    // multus#19
    assert_eq!(node.config_of("c1", "ADD", "b")["name"], "net-b");

    assert_eq!(
        node.status("web").unwrap(),
        json!([
            {"name": "cluster-net", "interface": "eth0", "ips": ["10.0.0.1"], "mac": "02:00:00:00:00:0a",
                "default": true, "dns": {}},
            {"name": format!("{}/net-b", node.name), "interface": "net1", "ips": ["10.0.0.2"],
                "mac": "02:00:00:00:00:0b", "dns": {}}])
    );
    // The update of the status changed nothing else.
    let pod = node.get_pod("web");
    assert_eq!(pod["metadata"]["labels"], json!({"app": "test"}));
    assert_eq!(pod["metadata"]["annotations"][NETWORKS], "net-b");
    assert_eq!(pod["status"]["conditions"][0]["type"], "PodScheduled");
    assert_eq!(pod["spec"]["containers"][0]["image"], "none");
    let event = node.event("web", "AddedInterface");
    assert!(
        event.contains("Add eth0 [10.0.0.1/24] from ") || event.contains("Add net1 [10.0.0.2/24] from "),
        "{event}"
    );

    // multus#42
    let scratch = node.path("cni/c1");
    let mode = fs::metadata(&scratch).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // multus#43: neither pod nor NAD is needed to detach
    api()
        .kubectl()
        .delete(["pod", "web", "--namespace", &node.name])
        .unwrap();
    api()
        .kubectl()
        .delete([
            "network-attachment-definitions",
            "net-b",
            "--namespace",
            &node.name,
        ])
        .unwrap();
    node.succeed("DEL", &sandbox);
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b", "DEL b", "DEL a"]);
    let config = node.config_of("c1", "DEL", "b");
    assert_eq!(
        (&config["kubeconfig"], &config["ipam"]["ranges"]),
        (&json!("/k"), &json!([1]))
    );
    assert!(!scratch.exists());
    assert_eq!(fs::read_dir(node.path("cni/results")).unwrap().count(), 0);
}

#[test]
fn failed_network_rolls_back_pod() {
    // multus#33
    let node = Node::started();
    node.nad("net-b", &json!({"cniVersion": "0.3.1", "name": "B", "type": "b"}));
    let uid = node.pod("web", &json!({NETWORKS: "net-b"}));
    fs::write(
        node.path("fail.ADD.b"),
        r#"{"cniVersion":"0.3.1","code":11,"msg":"no room","details":"on the bus"}"#,
    )
    .unwrap();
    let error = node.fail("ADD", &node.sandbox("c1", "web", Some(&uid)));
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b", "DEL b", "DEL a"]);
    assert_eq!(
        error,
        json!({"code": 11, "details": "on the bus", "msg": format!(
            "CmdAdd (shim): error configuring pod [{ns}/web] networking: [{ns}/web/{uid}:B]: error adding container to \
             network \"B\": no room", ns = node.name)})
    );
    let event = node.event("web", "FailedAddingInterface");
    assert_eq!(
        event,
        format!(
            "failed adding interface net1 to network {}/net-b: no room; on the bus",
            node.name
        )
    );
    assert_eq!(node.status("web"), None);
}

#[test]
fn missing_network_attaches_nothing() {
    // multus#22
    let node = Node::started();
    let uid = node.pod("web", &json!({NETWORKS: "nope"}));
    let error = node.fail("ADD", &node.sandbox("c1", "web", Some(&uid)));
    let message = error["msg"].as_str().unwrap();
    let missing = format!(
        "cannot find a network-attachment-definition (nope) in namespace ({}): ",
        node.name
    );
    assert!(message.contains(&missing) && message.len() < 700, "{message}");
    assert!(node.calls().is_empty());
    assert!(node.event("web", "NoNetworkFound").starts_with(&missing));
}

#[test]
fn broken_annotation_fails_only_its_pod() {
    // multus#10, multus#11, multus#13: no plugin runs
    let node = Node::started();
    node.nad("net-b", &json!({"cniVersion": "0.3.1", "type": "b"}));
    for (index, annotation) in [r#"[{"name":"net-b","mac":"foo"}]"#, "[null]"].iter().enumerate() {
        let (pod, id) = (format!("broken{index}"), format!("b{index}"));
        let uid = node.pod(&pod, &json!({NETWORKS: annotation}));
        node.fail("ADD", &node.sandbox(&id, &pod, Some(&uid)));
    }
    let broken = node.pod("broken", &json!({NETWORKS: "[{"}));
    let fine = node.pod("fine", &json!({NETWORKS: "[]"}));
    let error = node.fail("ADD", &node.sandbox("c1", "broken", Some(&broken)));
    let message = error["msg"].as_str().unwrap();
    assert!(
        message.contains("failed to parse pod Network Attachment Selection Annotation JSON format"),
        "{message}"
    );
    assert!(
        node.event("broken", "FailedAddingInterface")
            .contains("JSON format")
    );
    assert!(node.calls().is_empty());
    // multus#14: the status lists the default network
    node.succeed("ADD", &node.sandbox("c2", "fine", Some(&fine)));
    assert_eq!(node.calls(), ["ADD a eth0 c2"]);
    let status = node.status("fine").unwrap();
    assert_eq!(status.as_array().map(Vec::len), Some(1));
    assert_eq!(status[0]["name"], "cluster-net");
}

#[test]
fn default_network_can_be_replaced() {
    // multus#18
    let mut node = Node::new();
    node.start(&json!({"multusNamespace": node.name}));
    node.nad("other", &json!({"cniVersion": "0.3.1", "type": "c"}));
    let uid = node.pod("web", &json!({"v1.multus-cni.io/default-network": "other"}));
    node.succeed("ADD", &node.sandbox("c1", "web", Some(&uid)));
    assert_eq!(node.calls(), ["ADD c eth0 c1"]);
    assert_eq!(node.status("web").unwrap()[0]["default"], true);
}

#[test]
fn requested_attributes_reach_plugin() {
    // multus#15
    let node = Node::started();
    let all = json!({"ips": true, "mac": true, "portMappings": true, "bandwidth": true, "infinibandGUID": true,
        "deviceID": true});
    node.nad(
        "able",
        &json!({"cniVersion": "0.3.1", "type": "b", "capabilities": all}),
    );
    node.nad("unable", &json!({"cniVersion": "0.3.1", "type": "c"}));
    let element = |name: &str| {
        json!({"name": name, "ips": ["10.1.1.7/24"], "mac": "02:00:00:00:00:07", "deviceID": "d1",
            "infiniband-guid": "02:00:00:00:00:00:00:07", "bandwidth": {"ingressRate": 1000},
            "portMappings": [{"hostPort": 80, "containerPort": 8080, "protocol": "tcp"}], "cni-args": {"k": "v"}})
    };
    let annotation = json!([element("able"), element("unable")]).to_string();
    let uid = node.pod("web", &json!({NETWORKS: annotation}));
    node.succeed("ADD", &node.sandbox("c1", "web", Some(&uid)));
    let runtime = node.config_of("c1", "ADD", "b")["runtimeConfig"].clone();
    assert_eq!(runtime["ips"], json!(["10.1.1.7/24"]));
    assert_eq!(runtime["mac"], "02:00:00:00:00:07");
    assert_eq!(runtime["infinibandGUID"], "02:00:00:00:00:00:00:07");
    assert_eq!(runtime["deviceID"], "d1");
    assert_eq!(runtime["bandwidth"]["ingressRate"], 1000);
    assert_eq!(runtime["portMappings"][0]["containerPort"], 8080);
    let unable = node.config_of("c1", "ADD", "c");
    assert_eq!(unable.get("runtimeConfig"), None);
    // multus#17
    assert_eq!(unable["args"]["cni"], json!({"k": "v"}));
    let args = node.variable_of("c1", "ADD", "c", "CNI_ARGS");
    assert!(args.ends_with(";MAC=02:00:00:00:00:07;IP=10.1.1.7/24"), "{args}");
}

#[test]
fn invalid_name_is_not_requested() {
    // multus#106
    let node = Node::started();
    let elsewhere = format!("../../{}/network-attachment-definitions/net-b", node.name);
    let names = [json!("x?watch=1"), json!(""), json!(".."), json!(elsewhere)];
    for (index, name) in names.iter().enumerate() {
        let (pod, id) = (format!("web{index}"), format!("c{index}"));
        let uid = node.pod(&pod, &json!({NETWORKS: json!([{"name": name}]).to_string()}));
        let error = node.fail("ADD", &node.sandbox(&id, &pod, Some(&uid)));
        let text = error["msg"].as_str().unwrap();
        assert!(text.contains(&format!("invalid resource name {name}")), "{text}");
        assert!(
            node.event(&pod, "NoNetworkFound")
                .contains("invalid resource name")
        );
    }
    assert_eq!(node.calls(), [""; 0]);
}

#[test]
fn network_with_multus_plugin_fails_at_once() {
    // multus#104
    let node = Node::started();
    node.nad(
        "again",
        &json!({"cniVersion": "0.3.1", "type": "multus-shim", "clusterNetwork": "again"}),
    );
    let uid = node.pod("web", &json!({NETWORKS: "again"}));
    let error = node.fail("ADD", &node.sandbox("c1", "web", Some(&uid)));
    let text = error["msg"].as_str().unwrap();
    assert!(text.contains("\"multus-shim\" is multus itself"), "{text}");
    assert_eq!(node.calls(), [""; 0]);
}

#[test]
fn configuration_in_call_is_ignored() {
    // multus#105: as a network's plugin would call the shim that has its author's keys
    let node = Node::started();
    let evil = node.path("evil");
    let uid = node.pod("web", &json!({NETWORKS: format!("{}/none", node.name)}));
    let mut sandbox = node.sandbox("c1", "web", Some(&uid));
    sandbox.keys = json!({"clusterNetwork": "", "delegates": [{"cniVersion": "0.3.1", "name": "x", "type": "c"}],
        "multusNamespace": "evil", "namespaceIsolation": true, "globalNamespaces": "", "binDir": evil,
        "cniDir": evil, "confDir": evil, "systemNamespaces": [], "defaultNetworks": ["x"],
        "auxiliaryCNIChainName": "evil", "retryDeleteOnError": true,
        "runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 80, "protocol": "tcp"}]}});
    node.nad(
        "none",
        &json!({"cniVersion": "0.3.1", "type": "b", "capabilities": {"portMappings": true}}),
    );
    node.succeed("ADD", &sandbox);
    assert_eq!(
        node.config_of("c1", "ADD", "b")["runtimeConfig"]["portMappings"][0]["hostPort"],
        80
    );
    node.succeed("DEL", &sandbox);
    let calls: Vec<_> = node
        .calls()
        .iter()
        .map(|call| call[..call.len() - 3].to_owned())
        .collect();
    assert_eq!(calls, ["ADD a eth0", "ADD b net1", "DEL b net1", "DEL a eth0"]);
    assert!(!evil.exists());
}

#[test]
fn conflicting_status_write_is_retried() {
    // multus#63
    let node = Node::started();
    let uid = node.pod("web", &json!({}));
    let gate = node.gate("c1", "ADD", "a");
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    let add = node.begin("ADD", &sandbox);
    node.called("c1", "ADD a");
    api()
        .kubectl()
        .run(["label", "pod", "web", "--namespace", &node.name, "changed=yes"])
        .unwrap();
    gate.open();
    let output = add.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(node.status("web").is_some());
    assert_eq!(node.get_pod("web")["metadata"]["labels"]["changed"], "yes");
}

#[test]
fn pod_deleted_during_add_is_no_error() {
    // multus#64
    let node = Node::started();
    let uid = node.pod("web", &json!({}));
    let gate = node.gate("c1", "ADD", "a");
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    let add = node.begin("ADD", &sandbox);
    node.called("c1", "ADD a");
    api()
        .kubectl()
        .run([
            "delete",
            "pod",
            "web",
            "--namespace",
            &node.name,
            "--grace-period=0",
            "--force",
        ])
        .unwrap();
    gate.open();
    let output = add.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn connection_limit_of_one_serves_all() {
    // multus#69
    let mut node = Node::new();
    node.start(&json!({"connectionLimit": 1}));
    let calls: Vec<_> = (0..6)
        .map(|index| {
            let uid = node.pod(&format!("web{index}"), &json!({}));
            let sandbox = node.sandbox(&format!("c{index}"), &format!("web{index}"), Some(&uid));
            (node.begin("ADD", &sandbox), sandbox)
        })
        .collect();
    for (call, _sandbox) in calls {
        let output = call.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
    }
    assert_eq!(node.calls().len(), 6);
}

#[test]
fn hanging_namespace_does_not_block_others() {
    // multus#109
    let mut node = Node::new();
    node.start(&json!({"connectionLimit": 4}));
    node.nad("slow", &json!({"cniVersion": "0.3.1", "type": "b"}));
    let mut calls: Vec<_> = (0..6)
        .map(|index| {
            let (pod, id) = (format!("slow{index}"), format!("s{index}"));
            let uid = node.pod(&pod, &json!({NETWORKS: "slow"}));
            let gate = node.gate(&id, "ADD", "b");
            let sandbox = node.sandbox(&id, &pod, Some(&uid));
            (id, gate, node.begin("ADD", &sandbox), sandbox)
        })
        .collect();
    let hanging = || -> Vec<_> {
        let calls = node.calls();
        calls
            .into_iter()
            .filter(|call| call.starts_with("ADD b"))
            .collect()
    };
    node.wait("as many hang as may", || hanging().len() == 2);
    let other = Node::new();
    for id in ["o1", "o2"] {
        let uid = other.pod(id, &json!({}));
        let sandbox = other.sandbox(id, id, Some(&uid));
        node.succeed("ADD", &sandbox);
        node.succeed("DEL", &sandbox);
    }
    assert_eq!(hanging().len(), 2);
    // A queued call whose client is gone is not executed.
    let waits = |id: &String| node.calls_of(id).is_empty();
    let place = calls.iter().position(|(id, ..)| waits(id)).unwrap();
    let (left, _, mut shim, _sandbox) = calls.swap_remove(place);
    let connections = node.connections();
    shim.kill().unwrap();
    shim.wait().unwrap();
    node.wait("the daemon sees that the client is gone", || {
        node.connections() < connections
    });
    // The order of the queued calls is unknown: all gates open concurrently.
    let (gates, calls): (Vec<_>, Vec<_>) = calls
        .into_iter()
        .map(|(_, gate, call, held)| (gate, (call, held)))
        .unzip();
    let gates: Vec<_> = gates
        .into_iter()
        .map(|gate| std::thread::spawn(move || gate.open()))
        .collect();
    for (call, _sandbox) in calls {
        let output = call.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
    }
    for gate in gates {
        gate.join().unwrap();
    }
    let uid = node.pod("last", &json!({}));
    node.succeed("ADD", &node.sandbox("l1", "last", Some(&uid)));
    assert_eq!(node.calls_of(&left), [""; 0]);
}

#[test]
fn abandoned_call_detaches_late_attachment() {
    // multus#109
    let mut node = Node::new();
    // The time of calls that do not hang on a busy machine.
    node.call_timeout = Duration::from_secs(15);
    node.start(&json!({"connectionLimit": 1}));
    node.nad("slow", &json!({"cniVersion": "0.3.1", "type": "b"}));
    let uid = node.pod("slow", &json!({NETWORKS: "slow"}));
    let gate = node.gate("c1", "ADD", "b");
    let sandbox = node.sandbox("c1", "slow", Some(&uid));
    let error = node.fail("ADD", &sandbox);
    let text = error["msg"].as_str().unwrap();
    assert!(text.contains("the work was given up after 15 s"), "{text}");
    // Its place, its sandbox and the gate are free again.
    let uid = node.pod("web", &json!({}));
    node.succeed("ADD", &node.sandbox("c2", "web", Some(&uid)));
    node.succeed("DEL", &sandbox);
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b", "DEL b", "DEL a"]);
    let mut collecting = node.sandbox("none", "none", None);
    collecting.version = Some("1.1.0".into());
    collecting.valid = Some(json!([{"containerID": "c2", "ifname": "eth0"}]));
    node.succeed("GC", &collecting);
    gate.open();
    let after = ["ADD a", "ADD b", "DEL b", "DEL a", "DEL b", "DEL a"];
    node.wait("the end of what hung", || node.calls_of("c1") == after);
}

#[test]
fn stderr_of_plugin_is_quoted_and_root_is_hosts() {
    // multus#74
    let mut node = Node::new();
    let root = node.path("hostroot");
    node.populate_root(&root);
    node.start(&json!({"chrootDir": root}));
    let uid = node.pod("web", &json!({}));
    let error = node.fail("ADD", &node.sandbox("c1", "web", Some(&uid)));
    let message = error["msg"].as_str().unwrap();
    assert!(message.contains(r#"netplugin failed: "no luck\n""#), "{message}");
    assert_eq!(fs::read_to_string(root.join("marker")).unwrap(), "/\n");
}

#[test]
fn forced_version_reaches_the_plugins_and_not_the_nodes_file() {
    // multus#116
    let mut node = Node::new();
    let primary = node.path("net.d/10-a.conflist");
    fs::set_permissions(&primary, fs::Permissions::from_mode(0o644)).unwrap();
    let before = fs::read(&primary).unwrap();
    node.start(&json!({"cniVersion": "0.4.0", "forceCNIVersion": true}));
    let uid = node.pod("web", &json!({}));
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    node.succeed("ADD", &sandbox);
    node.succeed("CHECK", &sandbox);
    node.succeed("DEL", &sandbox);
    for verb in ["ADD", "CHECK", "DEL"] {
        assert_eq!(node.config_of("c1", verb, "a")["cniVersion"], "0.4.0", "{verb}");
    }
    assert_eq!(fs::read(&primary).unwrap(), before);
    assert_eq!(
        fs::metadata(&primary).unwrap().permissions().mode() & 0o777,
        0o644
    );
}

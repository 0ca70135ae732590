//! `weft explain pod` against a cluster.

use crate::node::{Node, api};
use clap::Parser as _;
use kube_kit::connection::Answer;
use multus::explain::{Args, answer};
use serde_json::{Value, json};
use std::fs;
use std::sync::Mutex;

#[derive(Debug, clap::Parser)]
struct Program {
    #[command(flatten)]
    args: Args,
}

fn ask(node: &Node, pod: &str, more: &[&str]) -> Answer {
    let kubeconfig = api().kubeconfig().display().to_string();
    let whole = [
        "explain",
        "pod",
        pod,
        "-n",
        &node.name,
        "--kubeconfig",
        &kubeconfig,
    ];
    let program = Program::try_parse_from(whole.iter().chain(more).copied());
    answer(program.unwrap().args)
}

fn configure(node: &Node, config: &Value) {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "multus-daemon-config", "namespace": node.name},
        "data": {"daemon-config.json": config.to_string()}});
    api().kubectl().apply(&map.to_string()).unwrap();
}

fn unconfigure(node: &Node) {
    let args = [
        "delete",
        "configmap",
        "multus-daemon-config",
        "--namespace",
        &node.name,
    ];
    api().kubectl().run(args).unwrap();
}

/// Multus' configuration is one for the cluster: one test at a time may have it, or do without.
static CONFIGURATION: Mutex<()> = Mutex::new(());

#[test]
fn pod_is_explained_with_networks() {
    let _without = CONFIGURATION.lock();
    let node = Node::started();
    node.nad(
        "blue",
        &json!({"cniVersion": "0.3.1", "plugins": [{"type": "b", "bridge": "br1"}, {"type": "tuning"}]}),
    );

    // Before any ConfigMap: multus' own configuration is not known.
    let networks = json!([{"name": "blue", "interface": "data", "ips": ["10.0.0.1/24"]}]).to_string();
    let uid = node.pod("web", &json!({"k8s.v1.cni.cncf.io/networks": networks}));
    fs::write(node.path("fail.ADD.tuning"), r#"{"code": 11, "msg": "later"}"#).unwrap();
    let plugin = fs::read(node.path("bin/b")).unwrap();
    fs::write(node.path("bin/tuning"), plugin).unwrap();
    fs::set_permissions(
        node.path("bin/tuning"),
        fs::metadata(node.path("bin/b")).unwrap().permissions(),
    )
    .unwrap();
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    node.fail("ADD", &sandbox);
    node.event("web", "FailedAddingInterface");
    let failed = ask(&node, "web", &[]);
    println!("{}", failed.text);
    assert_eq!(failed.code, 1, "{failed:#?}");
    let name = &node.name;
    let table = format!(
        "\
Pod {name}/web: Pending on node {name}

INTERFACE  NETWORK{pad}  FROM             PLUGINS    ATTACHED
eth0       ?{wide}  cluster network  not seen   no
data       {name}/blue  networks[0]      b, tuning  no

Problems
  FailedAddingInterface: failed adding interface data to network",
        pad = " ".repeat(name.len() + "/blue".len() - "NETWORK".len()),
        wide = " ".repeat(name.len() + "/blue".len() - "?".len()),
    );
    assert!(failed.text.starts_with(&table), "{}\n{table}", failed.text);
    assert!(
        failed.text.contains("\n    the pod requests ips 10.0.0.1/24\n"),
        "{}",
        failed.text
    );
    assert!(
        failed
            .text
            .contains(r#"    {"cniVersion":"0.3.1","plugins":[{"type":"b","bridge":"br1"},"#),
        "{}",
        failed.text
    );
    assert!(
        failed
            .remarks
            .contains("there is no ConfigMap multus-daemon-config in any namespace"),
        "{}",
        failed.remarks
    );

    fs::remove_file(node.path("fail.ADD.tuning")).unwrap();
    node.succeed("ADD", &sandbox);
    node.event("web", "AddedInterface");
    let attached = ask(&node, "web", &[]);
    println!("{}", attached.text);
    assert_eq!(attached.code, 0, "{attached:#?}");
    assert!(
        attached.text.contains("\neth0       cluster-net"),
        "{}",
        attached.text
    );
    assert!(
        attached.text.ends_with("\nThe pod has its requested networks.\n"),
        "{}",
        attached.text
    );
    assert!(
        attached
            .text
            .contains("Normal AddedInterface: Add data [10.0.0.1/24] from"),
        "{}",
        attached.text
    );
}

#[test]
fn problems_of_pods_networks_are_explained() {
    let _mine = CONFIGURATION.lock();
    let node = Node::new();
    let name = &node.name;
    node.nad(
        "blue",
        &json!({"cniVersion": "0.3.1", "plugins": [{"type": "b", "bridge": "br1"}, {"type": "tuning"}]}),
    );
    node.nad("broken", &json!({"cniVersion": "0.3.1"}));
    node.device_nad(
        "dev",
        "example.com/nic",
        &json!({"cniVersion": "0.3.1", "type": "c"}),
    );
    configure(
        &node,
        &json!({"namespaceIsolation": true, "multusNamespace": name, "defaultNetworks": ["blue"]}),
    );
    let networks = "broken,web/web/web";
    node.pod("bad", &json!({"k8s.v1.cni.cncf.io/networks": networks}));
    let malformed = ask(&node, "bad", &["-o", "json"]);
    assert!(
        malformed.text.contains("Invalid network object (failed at '/')"),
        "{}",
        malformed.text
    );
    node.pod(
        "wrong",
        &json!({"k8s.v1.cni.cncf.io/networks": "broken,missing,dev,kube-system/far"}),
    );
    let wrong = ask(&node, "wrong", &["-o", "json"]);
    unconfigure(&node);
    println!("{}", wrong.text);
    assert_eq!((wrong.code, wrong.remarks.as_str()), (1, ""));
    let report: Value = serde_json::from_str(&wrong.text).unwrap();
    let froms: Vec<_> = report["networks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|network| {
            [&network["interface"], &network["from"]]
                .map(|text| text.as_str().unwrap())
                .join(" ")
        })
        .collect();
    assert_eq!(
        froms,
        [
            "eth0 cluster network",
            "net1 defaultNetworks",
            "net2 networks[0]",
            "net3 networks[1]",
            "net4 networks[2]",
            "net5 networks[3]"
        ]
    );
    assert_eq!(report["networks"][4]["resource"], "example.com/nic");
    assert_eq!(report["networks"][1]["config"]["name"], "blue");
    let problems: Vec<_> = report["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| problem["problem"].as_str().unwrap())
        .collect();
    assert_eq!(problems.len(), 4, "{problems:#?}");
    assert!(
        problems[0].contains("delegate must have the 'type' or 'plugin' field"),
        "{problems:#?}"
    );
    assert!(
        problems[1].contains("cannot find a network-attachment-definition (missing)"),
        "{problems:#?}"
    );
    assert!(
        problems[2].contains("namespace isolation enabled"),
        "{problems:#?}"
    );
    assert_eq!(
        problems[3],
        "needs 1 of resource example.com/nic, and the pod requests 0"
    );

    let nobody = ask(&node, "nobody", &[]);
    assert_eq!(nobody.code, 2);
    assert!(
        nobody
            .remarks
            .starts_with(&format!("error: pod nobody does not exist in namespace {name}\n")),
        "{nobody:#?}"
    );
}

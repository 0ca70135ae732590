//! The plugin of thin mode, which needs no daemon.

use crate::node::{Node, Sandbox, api, text, weft};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// A node without a daemon, and the configuration of its runtime.
struct Thin {
    node: Node,
    conf: Value,
}

impl Thin {
    fn new() -> Self {
        let node = Node::new();
        symlink(weft(), node.path("bin/multus")).unwrap();
        let conf = json!({"cniVersion": "0.3.1", "name": "multus-cni-network", "type": "multus",
            "kubeconfig": node.kubeconfig(), "cniDir": node.path("cni"), "binDir": node.path("bin"),
            "confDir": node.path("conf"),
            "delegates": [{"cniVersion": "0.3.1", "name": "cluster-net", "plugins": [{"type": "a"}]}]});
        Self { node, conf }
    }

    fn call(&self, verb: &str, sandbox: &Sandbox) -> Result<Value, Value> {
        let plugin = self.node.path("bin/multus");
        let called = self
            .node
            .begin_with(&plugin, verb, sandbox, &self.conf.to_string());
        let output = called.wait_with_output().unwrap();
        let printed = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if output.status.success() {
            Ok(printed)
        } else {
            assert!(printed != Value::Null, "{verb}: {}", text(&output));
            Err(printed)
        }
    }

    fn succeed(&self, verb: &str, sandbox: &Sandbox) -> Value {
        self.call(verb, sandbox)
            .unwrap_or_else(|error| panic!("{verb} failed: {error}"))
    }
}

#[test]
fn thin_pod_gets_second_network() {
    let thin = Thin::new();
    let node = &thin.node;
    node.nad(
        "net-b",
        &json!({"cniVersion": "0.3.1", "type": "b", "kubeconfig": "/k"}),
    );
    let uid = node.pod("web", &json!({NETWORKS: "net-b"}));
    let mut sandbox = node.sandbox("c1", "web", Some(&uid));
    sandbox.args.push_str(";VENDOR=x");
    let result = thin.succeed("ADD", &sandbox);
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b"]);
    assert_eq!(result["cniVersion"], "0.3.1");
    assert_eq!(result["interfaces"][0]["name"], "eth0");

    // multus#41: the runtime's pairs follow
    let args = format!(
        "IgnoreUnknown=true;K8S_POD_NAMESPACE={0};K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID={uid};{1}",
        node.name, sandbox.args
    );
    assert_eq!(node.variable_of("c1", "ADD", "b", "CNI_ARGS"), args);

    let status = node.status("web").unwrap();
    assert_eq!(status[0]["name"], "cluster-net");
    assert_eq!(status[1]["name"], format!("{}/net-b", node.name));
    // Events are published before the process ends.
    let event = node.event("web", "AddedInterface");
    assert!(
        event.contains("Add eth0 [10.0.0.1/24] from ") || event.contains("Add net1 [10.0.0.2/24] from "),
        "{event}"
    );
    // multus#42
    assert!(node.path("cni/c1").exists());

    // multus#43: neither Kubernetes nor pod nor NAD is needed to detach
    let mut without = Thin {
        node: thin.node,
        conf: thin.conf,
    };
    without.conf["kubeconfig"] = json!("/nowhere");
    without.succeed("DEL", &sandbox);
    let node = &without.node;
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b", "DEL b", "DEL a"]);
    assert_eq!(node.config_of("c1", "DEL", "b")["kubeconfig"], "/k");
    assert!(!node.path("cni/c1").exists());
    let error = without.call("ADD", &sandbox).unwrap_err();
    let said = error["msg"].as_str().unwrap();
    assert!(
        said.starts_with("Multus: error getting k8s client: ") && said.contains("/nowhere"),
        "{said}"
    );
}

#[test]
fn thin_add_of_missing_pod_attaches_nothing() {
    // multus#37 (thin)
    let thin = Thin::new();
    let sandbox = |version: &str| {
        let mut sandbox = thin.node.sandbox("c1", "gone", Some("u1"));
        sandbox.version = Some(version.to_owned());
        sandbox
    };
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let sandbox = sandbox(version);
        let result = thin.succeed("ADD", &sandbox);
        assert_eq!(result["cniVersion"], version);
        assert_eq!(
            result["interfaces"][0],
            json!({"name": "eth0", "sandbox": sandbox.netns})
        );
        assert_eq!(result["ips"][0]["address"], "0.0.0.0/32");
        assert_eq!(result["ips"][0]["gateway"], "0.0.0.0");
    }
    for version in ["0.1.0", "0.2.0"] {
        let result = thin.succeed("ADD", &sandbox(version));
        assert_eq!(
            result,
            json!({"cniVersion": version, "ip4": {"ip": "0.0.0.0/32", "gateway": "0.0.0.0"}, "dns": {}})
        );
    }
    assert!(thin.node.calls().is_empty());
}

#[test]
fn thin_node_without_kubernetes_uses_inline_networks() {
    let mut thin = Thin::new();
    thin.conf.as_object_mut().unwrap().shift_remove("kubeconfig");
    thin.conf["delegates"]
        .as_array_mut()
        .unwrap()
        .push(json!({"cniVersion": "0.3.1", "name": "n", "type": "b"}));
    let sandbox = thin.node.sandbox("c1", "web", None);
    thin.succeed("ADD", &sandbox);
    thin.succeed("DEL", &sandbox);
    assert_eq!(thin.node.calls_of("c1"), ["ADD a", "ADD b", "DEL b", "DEL a"]);

    thin.conf["clusterNetwork"] = json!("cluster-net");
    let error = thin.call("ADD", &sandbox).unwrap_err();
    let said = error["msg"].as_str().unwrap();
    assert!(
        said.contains("must have either Kubernetes config or delegates"),
        "{said}"
    );
}

#[test]
fn thin_plugin_errors_keep_code() {
    let thin = Thin::new();
    let node = &thin.node;
    let uid = node.pod("web", &json!({}));
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    fs::write(node.path("fail.ADD.a"), r#"{"code":11,"msg":"later"}"#).unwrap();
    let error = thin.call("ADD", &sandbox).unwrap_err();
    assert_eq!(error["code"], 11, "{error}");
    let pod = format!("{}/web/{uid}", node.name);
    let said = error["msg"].as_str().unwrap();
    assert!(
        said.starts_with(&format!(
            "[{pod}:cluster-net]: error adding container to network \"cluster-net\": "
        )),
        "{said}"
    );
    assert_eq!(
        node.event("web", "FailedAddingInterface"),
        "failed adding interface eth0 to network cluster-net: plugin type=\"a\" failed (add): later"
    );

    let mut strange = node.sandbox("c2", "web", Some(&uid));
    strange.args = "K8S_POD_NAME=web;X".into();
    let error = thin.call("ADD", &strange).unwrap_err();
    assert_eq!(
        error["msg"],
        "Multus: error getting k8s args: ARGS: invalid pair \"X\""
    );
    strange.args = "K8S_POD_NAME=web;X=1".into();
    let error = thin.call("ADD", &strange).unwrap_err();
    assert_eq!(
        error["msg"],
        "Multus: error getting k8s args: ARGS: unknown args [\"X=1\"]"
    );
}

#[test]
fn thin_status_and_gc_work() {
    // multus#53
    let mut thin = Thin::new();
    thin.conf["cniVersion"] = json!("1.1.0");
    thin.conf["delegates"] =
        json!([{"cniVersion": "1.1.0", "name": "cluster-net", "plugins": [{"type": "a"}]}]);
    let mut sandbox = thin.node.sandbox("", "web", None);
    thin.succeed("STATUS", &sandbox);
    sandbox.valid = Some(json!([{"containerID": "c9", "ifname": "eth0"}]));
    thin.succeed("GC", &sandbox);
    assert_eq!(
        thin.node.calls(),
        ["STATUS a", "GC a"].map(|call| format!("{call}  "))
    );

    // multus#117
    sandbox.valid = None;
    let plugin = thin.node.path("bin/multus");
    let called = thin
        .node
        .begin_with(&plugin, "GC", &sandbox, &thin.conf.to_string());
    let output = called.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        printed.contains("GC without cni.dev/valid-attachments: multus collects nothing"),
        "{printed}"
    );
    assert_eq!(thin.node.calls().len(), 2);

    // multus#51: the code reaches the caller
    fs::write(thin.node.path("fail.STATUS.a"), r#"{"code":50,"msg":"no"}"#).unwrap();
    let error = thin.call("STATUS", &sandbox).unwrap_err();
    assert_eq!((&error["code"], &error["msg"]), (&json!(50), &json!("no")));
}

#[test]
fn thin_gc_keeps_sandbox_of_running_add() {
    // multus#96: the ADD of another process
    let mut thin = Thin::new();
    thin.conf["cniVersion"] = json!("1.1.0");
    let node = &thin.node;
    let uid = node.pod("web", &json!({}));
    let mut runtime = node.sandbox("", "web", None);
    runtime.valid = Some(json!([]));
    let gate = node.gate("c1", "ADD", "a");
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    std::thread::scope(|scope| {
        let add = scope.spawn(|| thin.succeed("ADD", &sandbox));
        node.called("c1", "ADD a");
        thin.succeed("GC", &runtime);
        gate.open();
        add.join().unwrap();
    });
    assert_eq!(node.calls_of("c1"), ["ADD a"]);
    assert!(node.path("cni/c1").exists());
    // What an ADD leaves that was killed in its first plugin an hour ago.
    fs::remove_dir_all(node.path("cni/results")).unwrap();
    let scratch = File::options().write(true).open(node.path("cni/c1")).unwrap();
    scratch
        .set_modified(SystemTime::now() - Duration::from_hours(1))
        .unwrap();
    thin.succeed("GC", &runtime);
    assert_eq!(node.calls_of("c1"), ["ADD a", "DEL a"]);
}

#[test]
fn daemon_detaches_thin_attachment() {
    let Thin { mut node, conf } = Thin::new();
    node.nad("net-b", &json!({"cniVersion": "0.3.1", "type": "b"}));
    let uid = node.pod("web", &json!({NETWORKS: "net-b"}));
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    let thin = Thin { node, conf };
    thin.succeed("ADD", &sandbox);
    node = thin.node;
    node.start(&json!({}));
    let delete = ["delete", "pod", "web", "--force", "--namespace", &node.name];
    api().kubectl().run(delete).unwrap();
    node.succeed("DEL", &sandbox);
    assert_eq!(node.calls_of("c1"), ["ADD a", "ADD b", "DEL b", "DEL a"]);
}

#[test]
fn auxiliary_chain_is_called_last() {
    // multus#30
    let mut thin = Thin::new();
    let node = &thin.node;
    symlink(weft().with_file_name("weft-cni"), node.path("bin/passthru")).unwrap();
    fs::create_dir(node.path("net.d/vendor-cni-chain")).unwrap();
    fs::write(node.path("net.d/vendor-cni-chain/10-c.conf"), r#"{"type":"c"}"#).unwrap();
    node.nad("net-b", &json!({"cniVersion": "0.3.1", "type": "b"}));
    let uid = node.pod("web", &json!({NETWORKS: "net-b"}));
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    thin.conf["clusterNetwork"] = json!(node.path("net.d/10-a.conflist"));
    thin.conf["auxiliaryCNIChainName"] = json!("vendor-cni-chain");
    thin.succeed("ADD", &sandbox);
    assert_eq!(
        thin.node.calls(),
        ["ADD a eth0 c1", "ADD b net1 c1", "ADD c net2 c1"]
    );
    let config = thin.node.config_of("c1", "ADD", "c");
    assert_eq!(config["name"], "vendor-cni-chain");
    assert_eq!(
        config["prevResult"]["cniVersion"], "0.3.1",
        "what passthru printed: {config}"
    );
    thin.succeed("DEL", &sandbox);
    assert_eq!(
        thin.node.calls()[3..],
        ["DEL c net2 c1", "DEL b net1 c1", "DEL a eth0 c1"]
    );
}

#[test]
fn unwritable_state_directory_does_not_block_del() {
    let thin = Thin::new();
    let node = &thin.node;
    let uid = node.pod("web", &json!({}));
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    fs::create_dir(node.path("cni")).unwrap();
    fs::write(node.path("cni/.locks"), "").unwrap();
    let error = thin.call("ADD", &sandbox).unwrap_err();
    assert!(
        error["msg"]
            .as_str()
            .unwrap()
            .contains("cannot lock the sandbox: "),
        "{error}"
    );
    thin.succeed("DEL", &sandbox);
    assert_eq!(node.calls_of("c1"), ["DEL a"]);
}

#[test]
fn standalone_manifests_are_accepted() {
    for file in ["thick.yaml", "thin.yaml", "cert-approver.yaml"] {
        let path = format!("{}/../../deploy/multus/{file}", env!("CARGO_MANIFEST_DIR"));
        let apply = [
            "apply",
            "--dry-run=server",
            "--validate=strict",
            "--filename",
            &path,
        ];
        api().kubectl().run(apply).unwrap();
    }
}

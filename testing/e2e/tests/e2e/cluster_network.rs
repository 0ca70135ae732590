//! The cluster's default network with Weft's plugins: services, host ports and bandwidth limits.

use serde_json::{Value, json};

use crate::pods::{TestNamespace, pod};
use crate::support::{NODES, Stage};

/// The plugins of the cluster network, in the order of its configuration, and the plugins that they call.
const PLUGINS: [&str; 4] = ["ptp", "host-local", "portmap", "bandwidth"];
const DIRECTORY: &str = "/opt/cni/bin";
const CONFIG: &str = "/etc/cni/net.d/10-cluster.conflist";
/// The installer's program.
const PROGRAM: &str = "cnv-bridge";
/// Temporary names of the platform's plugins.
const ASIDE: &str = ".platform";

const HOST_PORT: u16 = 18_080;
const PORT: u16 = 8_080;
const PAGE: &str = "the page of the pod";

/// The cluster network with Weft's plugins. A drop restores the platform's plugins.
struct ClusterNetwork<'a> {
    stage: &'a Stage,
    configs: [String; 2],
}

impl<'a> ClusterNetwork<'a> {
    fn replace(stage: &'a Stage) -> Self {
        let configs = NODES.map(|node| stage.node(node, &["cat", CONFIG]));
        let replaced = Self { stage, configs };
        for (node, config) in NODES.iter().zip(&replaced.configs) {
            for plugin in PLUGINS {
                // An interrupted run may have renamed the platform's plugins already.
                let script = format!(
                    "cd {DIRECTORY}\n\
                     [ ! -e {plugin} ] || [ -e {plugin}{ASIDE} ] || mv {plugin} {plugin}{ASIDE}\n\
                     cp {PROGRAM} .{plugin}\n\
                     mv .{plugin} {plugin}"
                );
                stage.node(node, &["sh", "-euc", &script]);
            }
            let mut config: Value = serde_json::from_str(config).unwrap();
            let plugins = config["plugins"].as_array_mut().unwrap();
            plugins.retain(|plugin| plugin["type"] != "bandwidth");
            plugins.push(json!({ "type": "bandwidth", "capabilities": { "bandwidth": true } }));
            write(stage, node, &config.to_string());
        }
        for node in NODES {
            stage.wait(&format!("multus passes bandwidth on to {node}"), || {
                let config = stage.node(node, &["cat", "/etc/cni/net.d/00-multus.conf"]);
                config.contains("\"bandwidth\"").then_some(())
            });
        }
        replaced
    }
}

impl Drop for ClusterNetwork<'_> {
    fn drop(&mut self) {
        for (node, config) in NODES.iter().zip(&self.configs) {
            for plugin in PLUGINS {
                let script = format!(
                    "cd {DIRECTORY}\n\
                     rm -f {plugin}\n\
                     [ ! -e {plugin}{ASIDE} ] || mv {plugin}{ASIDE} {plugin}"
                );
                self.stage.node(node, &["sh", "-euc", &script]);
            }
            write(self.stage, node, config);
        }
    }
}

/// Writes the configuration of the cluster network atomically, like an installer.
fn write(stage: &Stage, node: &str, config: &str) {
    let script = format!("printf %s \"$1\" > {CONFIG}.new; mv {CONFIG}.new {CONFIG}");
    stage.node(node, &["sh", "-euc", &script, "sh", config]);
}

/// A pod that answers HTTP, also on a port of its node, with bandwidth limits.
fn web_server(node: &str) -> Value {
    let mut server = pod("web", Some(node), &json!([]));
    server["metadata"]["labels"] = json!({ "app": "web" });
    let annotations = &mut server["metadata"]["annotations"];
    annotations["kubernetes.io/ingress-bandwidth"] = json!("20M");
    annotations["kubernetes.io/egress-bandwidth"] = json!("10M");
    let container = &mut server["spec"]["containers"][0];
    let serve = format!("echo '{PAGE}' > /tmp/index.html; exec httpd -f -p {PORT} -h /tmp");
    container["command"] = json!(["sh", "-c", serve]);
    container["ports"] = json!([{ "containerPort": PORT, "hostPort": HOST_PORT }]);
    container["readinessProbe"] = json!({ "tcpSocket": { "port": PORT }, "periodSeconds": 1 });
    container["volumeMounts"] = json!([{ "name": "tmp", "mountPath": "/tmp" }]);
    server["spec"]["volumes"] = json!([{ "name": "tmp", "emptyDir": {} }]);
    server
}

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": PORT }] },
    })
}

#[test]
fn cluster_network_with_wefts_plugins_supports_services_and_host_ports() {
    let Some(stage) = Stage::enter() else { return };
    let ns = TestNamespace::create(&stage, "e2e-cluster-network");
    let [here, there] = NODES;
    let before = NODES.map(|node| stage.host_state(node));
    ns.apply(&pod("attached-by-the-platform", Some(here), &json!([])));
    ns.ready("attached-by-the-platform");

    let network = ClusterNetwork::replace(&stage);
    let ours = stage.image_binary_digest();
    for plugin in PLUGINS {
        let digest = stage.node(here, &["sha256sum", &format!("{DIRECTORY}/{plugin}")]);
        assert!(digest.starts_with(&ours), "{plugin} is not ours: {digest}");
    }
    ns.apply(&web_server(here));
    ns.apply(&service());
    ns.apply(&pod("client", Some(there), &json!([])));
    ns.ready("web");
    ns.ready("client");

    let node = stage.kubectl(&[
        "get",
        "node",
        here,
        "-o",
        "jsonpath={.status.addresses[?(@.type==\"InternalIP\")].address}",
    ]);
    let service = ns.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    let get = |address: &str, port: u16| {
        let request = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 60 {address} {port}");
        ["sh".to_owned(), "-c".to_owned(), request]
    };
    let from_pod = |pod: &str, address: &str, port: u16| {
        let command = get(address, port);
        let words: Vec<_> = ["exec", pod, "--"]
            .into_iter()
            .chain(command.iter().map(String::as_str))
            .collect();
        ns.try_kubectl(&words)
    };
    let from_node = |from: &str, address: &str| {
        let url = format!("http://{address}:{HOST_PORT}/");
        stage.node(
            from,
            &["curl", "--silent", "--show-error", "--max-time", "60", &url],
        )
    };
    // kube-proxy needs a moment for a new endpoint.
    stage.wait_for("the service answers", || {
        let page = from_pod("client", &service, 80)?;
        if page.contains(PAGE) { Ok(()) } else { Err(page) }
    });
    for (from, page) in [
        (
            "a pod of another node",
            from_pod("client", &node, HOST_PORT).unwrap(),
        ),
        ("another node", from_node(there, &node)),
        ("its node", from_node(here, &node)),
        ("its node, by the loopback address", from_node(here, "127.0.0.1")),
        ("itself", from_pod("web", &node, HOST_PORT).unwrap()),
        ("itself, by its service", from_pod("web", &service, 80).unwrap()),
    ] {
        assert!(page.contains(PAGE), "from {from}: {page}");
    }
    let limits = stage.node(here, &["tc", "qdisc", "show"]);
    assert_eq!(limits.matches("qdisc tbf").count(), 2, "{limits}");

    ns.delete_pods();
    let rules = stage.node(here, &["nft", "list", "ruleset"]);
    assert!(!rules.contains(&HOST_PORT.to_string()), "{rules}");
    let limits = stage.node(here, &["tc", "qdisc", "show"]);
    assert!(!limits.contains("qdisc tbf"), "{limits}");
    for (node, before) in NODES.iter().zip(&before) {
        stage.wait_equal(&format!("{node} is as before"), before, || stage.host_state(node));
    }
    drop(network);
    ns.apply(&pod("attached-by-the-platform-again", Some(here), &json!([])));
    ns.ready("attached-by-the-platform-again");
}

//! An egress router, which gives pods an address in the network of the nodes.

use serde_json::{Value, json};

use crate::pod_network::{GATEWAY, NODES, Own, plain};

/// Port of the external server.
const SERVED: u16 = 9_090;
/// Ports of the router: the first, and the one after a change.
const PORT: u16 = 8_080;
const CHANGED: u16 = 8_081;
const PAGE: &str = "the page outside of the cluster";
/// Address of the router in the network of the nodes.
const ADDRESS: &str = "10.10.0.200";
const ROUTER: [&str; 2] = ["egressrouter", "payments"];

/// Pods of both nodes reach an external server, which sees the router's address. A changed rule reaches the router, and
/// a deletion leaves nothing.
pub(crate) fn redirects_pods_to_an_external_server(own: &Own) {
    let [outside, _] = NODES;
    own.0
        .kubectl()
        .apply(&external_server(outside).to_string())
        .unwrap();
    own.pod_is_ready("external");
    // A macvlan link does not reach the address of its own node.
    own.kubectl(&["cordon", outside]);
    let destination = own.kubectl(&["get", "pod", "external", "--output=jsonpath={.status.hostIP}"]);
    for port in [PORT, CHANGED] {
        let router = router(port, &destination);
        own.0.kubectl().apply(&router.to_string()).unwrap();
        for client in ["client", "server"] {
            own.wait("the page through the router", || page(own, client, port));
        }
    }
    own.wait("the router to be Available", || is_available(own).then_some(()));
    let log = own.kubectl(&["logs", "external"]);
    let mut answers = log.lines().filter(|line| line.contains("response:200"));
    assert!(answers.all(|line| line.contains(ADDRESS)), "{log}");
    assert!(log.contains(ADDRESS), "{log}");

    own.kubectl(&[&["delete"], &ROUTER[..]].concat());
    own.wait("the end of the router", || {
        let left = own.kubectl(&[
            "get",
            "pods,deployments,network-attachment-definitions",
            "--selector=app=egress-router-cni",
            "--output=name",
        ]);
        let networks = own.kubectl(&["get", "network-attachment-definitions", "--output=name"]);
        (left.is_empty() && networks.is_empty()).then_some(())
    });
    own.kubectl(&["uncordon", outside]);
    own.kubectl(&["delete", "pod", "external"]);
}

/// A web server on the network of a node. It logs the address of each client.
fn external_server(node: &str) -> Value {
    let mut server = plain("external", node);
    server["spec"]["hostNetwork"] = json!(true);
    let serve = format!("echo '{PAGE}' > /tmp/index.html; exec httpd -f -v -p {SERVED} -h /tmp");
    let container = &mut server["spec"]["containers"][0];
    container["command"] = json!(["sh", "-c", serve]);
    container["readinessProbe"] = json!({ "tcpSocket": { "port": SERVED }, "periodSeconds": 1 });
    server
}

fn router(port: u16, destination: &str) -> Value {
    let [_, name] = ROUTER;
    json!({
        "apiVersion": "network.operator.openshift.io/v1", "kind": "EgressRouter", "metadata": { "name": name },
        "spec": {
            "addresses": [{ "ip": format!("{ADDRESS}/24"), "gateway": GATEWAY }],
            "redirect": { "redirectRules": [
                { "port": port, "protocol": "TCP", "destinationIP": destination, "targetPort": SERVED },
            ] },
        },
    })
}

/// Returns `Some` if a pod gets the page from a port of the router.
fn page(own: &Own, client: &str, port: u16) -> Option<()> {
    let pods = own
        .0
        .kubectl()
        .json(["get", "pods", "--selector=app=egress-router-cni"])
        .ok()?;
    let addresses = pods["items"]
        .as_array()?
        .iter()
        .filter_map(|pod| pod["status"]["podIP"].as_str());
    let request = |address| format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {address} {port}");
    let mut answers = addresses.filter_map(|address| {
        let exec = ["exec", client, "--", "sh", "-c", &request(address)];
        own.0.kubectl().run(exec).ok()
    });
    answers.any(|answer| answer.contains(PAGE)).then_some(())
}

fn is_available(own: &Own) -> bool {
    let router = own.0.kubectl().json([&["get"], &ROUTER[..]].concat());
    let conditions = router
        .map(|router| router["status"]["conditions"].clone())
        .unwrap_or_default();
    let mut conditions = conditions.as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Available" && condition["status"] == "True")
}

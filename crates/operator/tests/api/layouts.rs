//! Nodes with other paths of CNI and of the container runtime (operator §12).

use serde_json::{Value, json};

use crate::fixture::{Fixture, IMAGE, NAMESPACE, POD, message};

/// A node, and the operator's own pod on it.
fn place_operator(fixture: &Fixture, kubelet: &str, runtime: &str, labels: &Value) {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "node01", "labels": labels },
        "status": { "nodeInfo": {
            "kubeletVersion": kubelet, "containerRuntimeVersion": runtime, "architecture": "amd64", "bootID": "b",
            "kernelVersion": "6.1", "kubeProxyVersion": "", "machineID": "m", "operatingSystem": "linux",
            "osImage": "linux", "systemUUID": "u",
        } },
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": POD, "namespace": NAMESPACE },
        "spec": {
            "nodeName": "node01",
            "containers": [{ "name": "cluster-network-addons-operator", "image": IMAGE }],
        },
    });
    for object in [node, pod] {
        fixture.kubectl().apply(&object.to_string()).expect("an object");
    }
}

fn remove(fixture: &Fixture) {
    let kubectl = fixture.kubectl();
    let pod = [
        "pod",
        POD,
        "--namespace",
        NAMESPACE,
        "--force",
        "--grace-period=0",
    ];
    kubectl.delete(pod).expect("the pod is gone");
    kubectl.delete(["node", "node01"]).expect("the node is gone");
}

/// Paths on the host by volume.
fn host_paths(fixture: &Fixture, daemon_set: &str, volumes: &[&str]) -> Vec<String> {
    let object = fixture.wait_for_operand("daemonset", daemon_set, |object| Some(object.clone()));
    let all = object["spec"]["template"]["spec"]["volumes"]
        .as_array()
        .cloned()
        .expect("volumes");
    let path = |name: &&str| {
        let found = all
            .iter()
            .find(|volume| volume["name"] == **name)
            .expect("the volume");
        found["hostPath"]["path"].as_str().expect("a path").to_owned()
    };
    volumes.iter().map(path).collect()
}

fn config(fixture: &Fixture, name: &str, key: &str) -> Value {
    let text = fixture.wait_for_operand("configmap", name, |object| {
        object["data"][key].as_str().map(str::to_owned)
    });
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn directories_and_socket_follow_node_of_operator() {
    let mut fixture = Fixture::installed();
    place_operator(&fixture, "v1.33.1+k3s1", "containerd://2.0.5-k3s1", &json!({}));
    fixture.start();
    fixture.configure(&json!({ "multus": {}, "linuxBridge": {}, "multusDynamicNetworks": {} }));
    fixture.wait_until_progressing();
    let bin = "/var/lib/rancher/k3s/data/cni";
    assert_eq!(
        host_paths(&fixture, "multus", &["cni", "cnibin", "cnibin-targets"]),
        [
            "/var/lib/rancher/k3s/agent/etc/cni/net.d",
            bin,
            "/var/lib/rancher/k3s/data"
        ]
    );
    assert_eq!(
        config(&fixture, "multus-daemon-config", "daemon-config.json")["binDir"],
        bin
    );
    assert_eq!(
        host_paths(&fixture, "kube-cni-linux-bridge-plugin", &["cnibin"]),
        [bin]
    );
    let socket = "/run/k3s/containerd/containerd.sock";
    assert_eq!(
        host_paths(&fixture, "dynamic-networks-controller-ds", &["cri-socket"]),
        [socket]
    );
    let dynamic = config(
        &fixture,
        "dynamic-networks-controller-config",
        "dynamic-networks-config.json",
    );
    assert_eq!(dynamic["criSocketPath"], format!("/host{socket}"));
    // The socket is recorded, the directories are not: the operator never fills in a user's field.
    let applied = config(
        &fixture,
        "cluster-networks-addons-operator-applied-cluster",
        "applied",
    );
    assert_eq!(applied["multusDynamicNetworks"]["hostCRISocketPath"], socket);
    assert_eq!(applied.get("cniDirectories"), None);

    // The specification overrides the detected paths.
    fixture.configure(&json!({
        "multus": {}, "linuxBridge": {}, "cniDirectories": { "bin": "/srv/cni/bin", "conf": "/srv/cni/net.d" },
    }));
    fixture.wait_for_operand("daemonset", "multus", |_| {
        let paths = host_paths(&fixture, "multus", &["cni", "cnibin"]);
        (paths == ["/srv/cni/net.d", "/srv/cni/bin"]).then_some(())
    });
    fixture.wait_for_operand("daemonset", "kube-cni-linux-bridge-plugin", |_| {
        (host_paths(&fixture, "kube-cni-linux-bridge-plugin", &["cnibin"]) == ["/srv/cni/bin"]).then_some(())
    });

    // Invalid paths are refused.
    fixture.configure(&json!({ "multus": {}, "cniDirectories": { "bin": "opt/cni/bin" } }));
    let configuration = fixture.wait_for_conditions(&[
        "Available False Failing",
        "Degraded True FailedToValidate",
        "Progressing False InvalidConfiguration",
    ]);
    assert_eq!(
        message(&configuration, "Degraded"),
        "failed to validate NetworkConfig.Spec: invalid configuration:\n\
         requested cniDirectories.bin 'opt/cni/bin' is not valid: it has to be an absolute path of letters, digits, \
         '.', '_', '+' and '-', without '..'"
    );
    fixture.stop();
    remove(&fixture);
}

#[test]
fn applied_socket_is_kept() {
    let mut fixture = Fixture::running();
    fixture.configure(&json!({ "multus": {}, "multusDynamicNetworks": {} }));
    fixture.wait_until_progressing();
    let socket = |fixture: &Fixture| host_paths(fixture, "dynamic-networks-controller-ds", &["cri-socket"]);
    assert_eq!(
        socket(&fixture),
        ["/run/crio/crio.sock"],
        "nothing is known of the node"
    );
    fixture.stop();
    place_operator(
        &fixture,
        "v1.33.2",
        "containerd://1.7.27",
        &json!({ "microk8s.io/cluster": "true" }),
    );
    fixture.start();
    fixture.wait_for_operand("daemonset", "multus", |_| {
        let paths = host_paths(&fixture, "multus", &["cni", "cnibin"]);
        let snap = "/var/snap/microk8s/current";
        (paths == [format!("{snap}/args/cni-network"), format!("{snap}/opt/cni/bin")]).then_some(())
    });
    assert_eq!(socket(&fixture), ["/run/crio/crio.sock"]);
    fixture.stop();
    remove(&fixture);
}

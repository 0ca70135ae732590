//! Distributions with the values of their nodes, against operator §12.

use serde_json::json;

use super::*;

fn node(kubelet: &str, runtime: &str, labels: &Value) -> Value {
    json!({
        "metadata": { "name": "node01", "labels": labels },
        "status": { "nodeInfo": { "kubeletVersion": kubelet, "containerRuntimeVersion": runtime } },
    })
}

/// Plugins, configurations, socket.
fn found(kubelet: &str, runtime: &str, labels: &Value) -> (&'static str, &'static str, Option<&'static str>) {
    let layout = Layout::of(&node(kubelet, runtime, labels));
    (layout.cni_bin_dir, layout.cni_conf_dir, layout.cri_socket)
}

const USUAL: (&str, &str) = ("/opt/cni/bin", "/etc/cni/net.d");

#[test]
fn layout_of_plain_node_differs_in_socket_alone() {
    for (runtime, socket) in [
        ("containerd://2.1.4", Some("/run/containerd/containerd.sock")),
        ("cri-o://1.33.0", Some("/run/crio/crio.sock")),
        ("docker://24.0.7", None),
        ("containerd", None),
        ("", None),
    ] {
        for kubelet in ["v1.33.2", "v1.32.4-eks-1", "v1.33.1-gke.100", ""] {
            let expected = (USUAL.0, USUAL.1, socket);
            assert_eq!(
                found(kubelet, runtime, &json!({})),
                expected,
                "{kubelet} {runtime}"
            );
        }
    }
    assert_eq!(Layout::of(&json!({})), Layout::default());
}

#[test]
fn layout_of_k3s_has_its_own_directories() {
    let conf = "/var/lib/rancher/k3s/agent/etc/cni/net.d";
    for (kubelet, bin) in [
        ("v1.33.1+k3s1", "/var/lib/rancher/k3s/data/cni"),
        ("v1.32.0+k3s1", "/var/lib/rancher/k3s/data/cni"),
        ("v1.31.2+k3s1", "/var/lib/rancher/k3s/data/cni"),
        ("v1.30.6+k3s1", "/var/lib/rancher/k3s/data/cni"),
        ("v1.29.10+k3s1", "/var/lib/rancher/k3s/data/cni"),
        ("v1.28.15+k3s1", "/var/lib/rancher/k3s/data/cni"),
        ("v1.31.1+k3s1", "/var/lib/rancher/k3s/data/current/bin"),
        ("v1.30.5+k3s1", "/var/lib/rancher/k3s/data/current/bin"),
        ("v1.29.9+k3s1", "/var/lib/rancher/k3s/data/current/bin"),
        ("v1.28.14+k3s1", "/var/lib/rancher/k3s/data/current/bin"),
        ("v1.27.16+k3s1", "/var/lib/rancher/k3s/data/current/bin"),
        ("next+k3s", "/var/lib/rancher/k3s/data/cni"),
    ] {
        let expected = (bin, conf, Some("/run/k3s/containerd/containerd.sock"));
        let runtime = "containerd://2.0.5-k3s1.32";
        assert_eq!(found(kubelet, runtime, &json!({})), expected, "{kubelet}");
    }
    assert_eq!(
        found("v1.33.1+k3s1", "cri-o://1.33.0", &json!({})).2,
        Some("/run/crio/crio.sock")
    );
    assert_eq!(found("v1.33.1+k3s1", "docker://24.0.7", &json!({})).2, None);
}

#[test]
fn layout_of_rke2_has_default_directories_and_socket_of_k3s() {
    assert_eq!(
        found("v1.33.1+rke2r1", "containerd://2.0.5-k3s1", &json!({})),
        (USUAL.0, USUAL.1, Some("/run/k3s/containerd/containerd.sock"))
    );
}

#[test]
fn layout_of_microk8s_is_in_its_snap() {
    let labels = json!({
        "microk8s.io/cluster": "true", "node.kubernetes.io/microk8s-controlplane": "microk8s-controlplane",
    });
    assert_eq!(
        found("v1.33.2", "containerd://1.7.27", &labels),
        (
            "/var/snap/microk8s/current/opt/cni/bin",
            "/var/snap/microk8s/current/args/cni-network",
            Some("/var/snap/microk8s/common/run/containerd.sock"),
        )
    );
}

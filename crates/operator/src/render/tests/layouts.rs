//! Nodes with other paths of CNI and of the container runtime, against operator §12.

use super::*;

/// A node of this distribution.
fn layout(kubelet: &str, runtime: &str, labels: &Value) -> Layout {
    Layout::of(&json!({
        "metadata": { "labels": labels },
        "status": { "nodeInfo": { "kubeletVersion": kubelet, "containerRuntimeVersion": runtime } },
    }))
}

/// The parts that depend on the layout: volumes and mounts by `workload volume` and `workload container volume`,
/// configurations by `ConfigMap key`, commands of the installer of plugins.
fn places(native: bool, layout: Layout, mut spec: Value) -> Vec<String> {
    for component in ["multus", "linuxBridge", "ovs", "macvtap", "multusDynamicNetworks"] {
        if spec.get(component).is_none() {
            spec[component] = json!({});
        }
    }
    let setting = Setting {
        native,
        layout,
        ..Setting::default()
    };
    let groups = setting.with(spec, render_enabled);
    let objects: Vec<_> = groups.into_iter().flat_map(|group| group.objects).collect();
    let mut lines = Vec::new();
    for object in &objects {
        let name = object["metadata"]["name"].as_str().expect("a name");
        if let Some(config) = object["data"]["daemon-config.json"].as_str() {
            let config: Value = serde_json::from_str(config).expect("JSON");
            assert_eq!(config["cniConfigDir"], "/host/etc/cni/net.d");
            lines.push(format!("binDir {}", config["binDir"]));
        }
        if let Some(config) = object["data"]["dynamic-networks-config.json"].as_str() {
            let config: Value = serde_json::from_str(config).expect("JSON");
            lines.push(format!("criSocketPath {}", config["criSocketPath"]));
        }
        let pod = &object["spec"]["template"]["spec"];
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let of_cni = |name: &Value| {
            let name = name.as_str().expect("a name");
            ["cni", "cnibin", "cnibin-targets", "cri-socket"].contains(&name)
        };
        for volume in list(&pod["volumes"])
            .iter()
            .filter(|volume| of_cni(&volume["name"]))
        {
            lines.push(format!(
                "{name} {} is {}",
                volume["name"], volume["hostPath"]["path"]
            ));
        }
        for container in [list(&pod["initContainers"]), list(&pod["containers"])].concat() {
            let mounts = list(&container["volumeMounts"]);
            for mount in mounts.iter().filter(|mount| of_cni(&mount["name"])) {
                lines.push(format!(
                    "{} {} at {}",
                    container["name"], mount["name"], mount["mountPath"]
                ));
            }
            if container["name"] == "cni-plugins" {
                let command: Vec<_> = list(&container["command"])
                    .iter()
                    .map(|word| word.as_str().expect("a word").to_owned())
                    .collect();
                let host_dir = if native {
                    let flag = command
                        .iter()
                        .position(|word| word == "--host-dir")
                        .expect("the flag");
                    command[flag + 1].clone()
                } else {
                    let first = command[2].lines().next().expect("a line");
                    first
                        .strip_prefix("host_dir=")
                        .expect("the assignment")
                        .to_owned()
                };
                lines.push(format!("links to {host_dir}"));
            }
        }
    }
    lines.iter().map(|line| line.replace('"', "")).collect()
}

fn expected(table: &str) -> Vec<String> {
    table
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn default_layout_equals_upstream() {
    for native in [false, true] {
        for layout in [
            Layout::default(),
            layout("v1.33.2", "docker://24.0.7", &json!({})),
        ] {
            assert_eq!(
                places(native, layout, json!({})),
                expected(
                    "binDir null
                    multus cni is /etc/cni/net.d
                    multus cnibin is /opt/cni/bin
                    install-multus-binary cnibin at /host/opt/cni/bin
                    kube-multus cni at /host/etc/cni/net.d
                    kube-multus cnibin at /opt/cni/bin
                    criSocketPath /host/run/crio/crio.sock
                    dynamic-networks-controller-ds cri-socket is /run/crio/crio.sock
                    dynamic-networks-controller cri-socket at /host/run/crio/crio.sock
                    kube-cni-linux-bridge-plugin cnibin is /opt/cni/bin
                    cni-plugins cnibin at /opt/cni/bin
                    links to /opt/cni/bin
                    ovs-cni-amd64 cnibin is /opt/cni/bin
                    ovs-cni-plugin cnibin at /host/opt/cni/bin
                    macvtap-cni cni is /opt/cni/bin
                    install-cni cni at /host/opt/cni/bin"
                ),
                "{native} {layout:?}"
            );
        }
    }
}

#[test]
fn k3s_layout_uses_its_directories_and_socket() {
    let k3s = layout("v1.33.1+k3s1", "containerd://2.0.5-k3s1", &json!({}));
    for native in [false, true] {
        assert_eq!(
            places(native, k3s, json!({})),
            expected(
                "binDir /var/lib/rancher/k3s/data/cni
                multus cni is /var/lib/rancher/k3s/agent/etc/cni/net.d
                multus cnibin is /var/lib/rancher/k3s/data/cni
                multus cnibin-targets is /var/lib/rancher/k3s/data
                install-multus-binary cnibin at /host/opt/cni/bin
                kube-multus cni at /host/etc/cni/net.d
                kube-multus cnibin at /var/lib/rancher/k3s/data/cni
                kube-multus cnibin-targets at /var/lib/rancher/k3s/data
                criSocketPath /host/run/k3s/containerd/containerd.sock
                dynamic-networks-controller-ds cri-socket is /run/k3s/containerd/containerd.sock
                dynamic-networks-controller cri-socket at /host/run/k3s/containerd/containerd.sock
                kube-cni-linux-bridge-plugin cnibin is /var/lib/rancher/k3s/data/cni
                cni-plugins cnibin at /opt/cni/bin
                links to /var/lib/rancher/k3s/data/cni
                ovs-cni-amd64 cnibin is /var/lib/rancher/k3s/data/cni
                ovs-cni-plugin cnibin at /host/opt/cni/bin
                macvtap-cni cni is /var/lib/rancher/k3s/data/cni
                install-cni cni at /host/opt/cni/bin"
            ),
            "{native}"
        );
    }
}

#[test]
fn rke2_layout_differs_in_socket_alone() {
    let rke2 = layout("v1.33.1+rke2r1", "containerd://2.0.5-k3s1", &json!({}));
    let socket = "/run/k3s/containerd/containerd.sock";
    for native in [false, true] {
        let usual = places(native, Layout::default(), json!({}));
        let renamed: Vec<_> = usual
            .iter()
            .map(|line| line.replace("/run/crio/crio.sock", socket))
            .collect();
        assert_eq!(places(native, rke2, json!({})), renamed);
    }
}

#[test]
fn microk8s_layout_uses_snap() {
    let microk8s = layout(
        "v1.33.2",
        "containerd://1.7.27",
        &json!({ "microk8s.io/cluster": "true" }),
    );
    for native in [false, true] {
        assert_eq!(
            places(native, microk8s, json!({})),
            expected(
                "binDir /var/snap/microk8s/current/opt/cni/bin
                multus cni is /var/snap/microk8s/current/args/cni-network
                multus cnibin is /var/snap/microk8s/current/opt/cni/bin
                install-multus-binary cnibin at /host/opt/cni/bin
                kube-multus cni at /host/etc/cni/net.d
                kube-multus cnibin at /var/snap/microk8s/current/opt/cni/bin
                criSocketPath /host/var/snap/microk8s/common/run/containerd.sock
                dynamic-networks-controller-ds cri-socket is /var/snap/microk8s/common/run/containerd.sock
                dynamic-networks-controller cri-socket at /host/var/snap/microk8s/common/run/containerd.sock
                kube-cni-linux-bridge-plugin cnibin is /var/snap/microk8s/current/opt/cni/bin
                cni-plugins cnibin at /opt/cni/bin
                links to /var/snap/microk8s/current/opt/cni/bin
                ovs-cni-amd64 cnibin is /var/snap/microk8s/current/opt/cni/bin
                ovs-cni-plugin cnibin at /host/opt/cni/bin
                macvtap-cni cni is /var/snap/microk8s/current/opt/cni/bin
                install-cni cni at /host/opt/cni/bin"
            ),
            "{native}"
        );
    }
}

#[test]
fn specification_overrides_layout() {
    let microk8s = layout(
        "v1.33.2",
        "containerd://1.7.27",
        &json!({ "microk8s.io/cluster": "true" }),
    );
    let spec = json!({
        "cniDirectories": { "bin": "/srv/cni/bin/", "conf": "/srv/cni/net.d" },
        "multusDynamicNetworks": { "hostCRISocketPath": "/run/containerd/containerd.sock" },
    });
    for native in [false, true] {
        assert_eq!(
            places(native, microk8s, spec.clone()),
            expected(
                "binDir /srv/cni/bin
                multus cni is /srv/cni/net.d
                multus cnibin is /srv/cni/bin
                install-multus-binary cnibin at /host/opt/cni/bin
                kube-multus cni at /host/etc/cni/net.d
                kube-multus cnibin at /srv/cni/bin
                criSocketPath /host/run/containerd/containerd.sock
                dynamic-networks-controller-ds cri-socket is /run/containerd/containerd.sock
                dynamic-networks-controller cri-socket at /host/run/containerd/containerd.sock
                kube-cni-linux-bridge-plugin cnibin is /srv/cni/bin
                cni-plugins cnibin at /opt/cni/bin
                links to /srv/cni/bin
                ovs-cni-amd64 cnibin is /srv/cni/bin
                ovs-cni-plugin cnibin at /host/opt/cni/bin
                macvtap-cni cni is /srv/cni/bin
                install-cni cni at /host/opt/cni/bin"
            ),
            "{native}"
        );
    }
}

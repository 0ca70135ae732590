//! Files and programs of a node: containerd, kubelet, kube-proxy, and the cluster network that exists before Weft.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::debian::Packages;
use crate::error::{At, Result};
use crate::image;
use crate::kubernetes::Program;
use crate::network::{self, Families};
use crate::pki::Pki;
use crate::space::Space;

/// Plugins of the cluster network. Never `bridge` or `tuning`: an installer keeps the plugins of a platform, and tests
/// would then test Debian's plugin instead of Weft's.
const PLUGINS: [&str; 4] = ["ptp", "host-local", "portmap", "loopback"];

/// Their configuration. It comes before that of Weft's pod network.
const POD_NETWORK: &str = "etc/cni/net.d/10-cluster.conflist";

/// Returns the user of a node's kubelet.
pub(crate) fn user(node: &str) -> String {
    format!("system:node:{node}")
}

/// Writes the files in `/etc`, `/opt` and `/var` that the node's programs read.
pub(crate) fn write_files(
    node: &Space,
    index: usize,
    families: Families,
    pki: &Pki,
    server: &str,
) -> Result<()> {
    let name = node.name();
    let addresses = families.node_addresses(index);
    let write = |path: &str, text: &str| -> Result<()> {
        let file = node.file(path);
        if let Some(dir) = file.parent() {
            fs::create_dir_all(dir).at("create", dir)?;
        }
        fs::write(&file, text).at("write", &file)
    };
    let pretty = |value: serde_json::Value| format!("{value:#}\n");
    write("etc/hostname", &format!("{name}\n"))?;
    let mut hosts = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
    hosts.extend(addresses.iter().map(|address| format!("{address} {name}\n")));
    write("etc/hosts", &hosts)?;
    write("etc/resolv.conf", "")?;
    write(
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    )?;
    write("etc/group", "root:x:0:\nnogroup:x:65534:\n")?;
    write(
        "etc/nsswitch.conf",
        "passwd: files\ngroup: files\nhosts: files dns\nprotocols: files\nservices: files\n",
    )?;
    write("etc/machine-id", &format!("{index:032x}\n"))?;
    for copied in ["protocols", "services", "os-release"] {
        let text = fs::read_to_string(Path::new("/etc").join(copied)).unwrap_or_default();
        write(&format!("etc/{copied}"), &text)?;
    }

    write("etc/containerd/config.toml", &containerd_config())?;
    let certificates = node.file("etc/kubernetes");
    fs::create_dir_all(&certificates).at("create", &certificates)?;
    let mut names: Vec<String> = addresses.iter().map(|address| format!("IP:{address}")).collect();
    names.push(format!("DNS:{name}"));
    pki.certificate(
        &format!("kubelet-{name}"),
        &format!("/O=system:nodes/CN={}", user(name)),
        &names,
    )?;
    for (from, to) in [
        ("ca.crt".to_owned(), "ca.crt"),
        (format!("kubelet-{name}.crt"), "kubelet.crt"),
        (format!("kubelet-{name}.key"), "kubelet.key"),
    ] {
        let from = pki.file(&from);
        fs::copy(&from, certificates.join(to)).at("copy", &from)?;
    }
    write("etc/kubernetes/kubelet.json", &pretty(kubelet_config()))?;
    pki.kubeconfig(&certificates.join("kubelet.kubeconfig"), server, &user(name))?;
    pki.kubeconfig(
        &certificates.join("kube-proxy.kubeconfig"),
        server,
        "system:kube-proxy",
    )
}

/// Writes the configuration of a pod network, and copies its plugins.
pub(crate) fn write_pod_network(
    node: &Space,
    index: usize,
    families: Families,
    packages: &Packages,
) -> Result<()> {
    let config = node.file(POD_NETWORK);
    if let Some(dir) = config.parent() {
        fs::create_dir_all(dir).at("create", dir)?;
    }
    let text = format!("{:#}\n", cluster_network(index, families));
    fs::write(&config, text).at("write", &config)?;
    let bin = node.file("opt/cni/bin");
    fs::create_dir_all(&bin).at("create", &bin)?;
    for plugin in PLUGINS {
        let to = bin.join(plugin);
        if !to.exists() {
            let from = packages.file(&format!("usr/lib/cni/{plugin}"));
            let unfinished = bin.join(format!(".{plugin}"));
            fs::copy(&from, &unfinished).at("copy", &from)?;
            fs::rename(&unfinished, &to).at("create", &to)?;
        }
    }
    Ok(())
}

/// Returns true if the node has the configuration of [`write_pod_network`].
pub(crate) fn has_pod_network(node: &Space) -> bool {
    node.file(POD_NETWORK).exists()
}

fn containerd_config() -> String {
    format!(
        r#"version = 2
# Nothing here may lower its oom score: that takes a capability which the root of many machines lacks.
disabled_plugins = [
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
"#,
        image::PAUSE
    )
}

fn cluster_network(index: usize, families: Families) -> serde_json::Value {
    let ranges: Vec<_> = families
        .pod_ranges(index)
        .into_iter()
        .map(|range| json!([{ "subnet": range }]))
        .collect();
    let routes: Vec<_> = families
        .everything()
        .into_iter()
        .map(|range| json!({ "dst": range }))
        .collect();
    json!({
        "cniVersion": "1.0.0",
        "name": "cluster",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": false,
                "ipam": { "type": "host-local", "ranges": ranges, "routes": routes }
            },
            { "type": "portmap", "capabilities": { "portMappings": true } }
        ]
    })
}

fn kubelet_config() -> serde_json::Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": "/etc/kubernetes/ca.crt" }
        },
        "authorization": { "mode": "Webhook" },
        "tlsCertFile": "/etc/kubernetes/kubelet.crt",
        "tlsPrivateKeyFile": "/etc/kubernetes/kubelet.key",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": "/",
        "failCgroupV1": false,
        "failSwapOn": false,
        "clusterDomain": "cluster.local",
        "clusterDNS": [network::DNS],
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "resolvConf": "/etc/resolv.conf",
        "volumePluginDir": "/var/lib/kubelet/volumeplugins",
        "makeIPTablesUtilChains": false,
        "maxPods": 200,
        // Tests start bursts of pods. A full disk of the developer's machine is not their subject.
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        "serializeImagePulls": false,
        "evictionHard": {
            "memory.available": "50Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
            "imagefs.available": "0%", "imagefs.inodesFree": "0%"
        },
        "imageGCHighThresholdPercent": 100,
        // Tests kill containers again and again.
        "featureGates": { "KubeletCrashLoopBackOffMax": true },
        "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" },
        // The kubelet offers a new extended resource at its next update.
        "nodeStatusUpdateFrequency": "3s",
        // A pod gets a changed Secret after at most two of these periods.
        "syncFrequency": "10s"
    })
}

/// Returns the node's programs in the order of their start: name and command line.
pub(crate) fn programs(node: &str, index: usize, families: Families) -> [(&'static str, Vec<String>); 3] {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut kubelet = words(&[
        "/kubernetes/kubelet",
        "--config=/etc/kubernetes/kubelet.json",
        "--kubeconfig=/etc/kubernetes/kubelet.kubeconfig",
        "--root-dir=/var/lib/kubelet",
    ]);
    kubelet.push(format!("--hostname-override={node}"));
    kubelet.push(format!("--node-ip={}", families.node_addresses(index).join(",")));
    let mut proxy = words(&[
        "/kubernetes/kube-proxy",
        "--kubeconfig=/etc/kubernetes/kube-proxy.kubeconfig",
        "--proxy-mode=nftables",
        "--conntrack-max-per-core=0",
    ]);
    // Its primary family, and the addresses of node ports, are those of its Node.
    proxy.push(format!("--cluster-cidr={}", families.pods()));
    proxy.push(format!("--hostname-override={node}"));
    [
        (
            "containerd",
            words(&["containerd", "--config", "/etc/containerd/config.toml"]),
        ),
        ("kubelet", kubelet),
        (Program::Proxy.name(), proxy),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(families: Families) -> Vec<String> {
        let programs = programs("node01", 1, families);
        programs.into_iter().flat_map(|(_, argv)| argv).collect()
    }

    #[test]
    fn programs_of_a_dual_stack_node_have_both_families() {
        for (families, address, pods) in [
            (Families::Single, "10.10.0.11", "10.244.0.0/16"),
            (
                Families::Dual,
                "10.10.0.11,fd00:10:10::11",
                "10.244.0.0/16,fd00:10:244::/56",
            ),
        ] {
            let arguments = arguments(families);
            for expected in [format!("--node-ip={address}"), format!("--cluster-cidr={pods}")] {
                assert!(arguments.contains(&expected), "{expected}: {arguments:?}");
            }
        }
    }

    #[test]
    fn pods_of_a_dual_stack_node_have_a_range_and_a_default_route_of_each_family() {
        assert_eq!(
            cluster_network(2, Families::Dual)["plugins"][0]["ipam"],
            json!({
                "type": "host-local",
                "ranges": [[{ "subnet": "10.244.2.0/24" }], [{ "subnet": "fd00:10:244:2::/64" }]],
                "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]
            })
        );
    }
}

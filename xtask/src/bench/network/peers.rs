//! The measured networks, and their installation on the nodes.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use cluster::flannel::Flannel;
use cluster::{Cluster, Home, Kubectl, Packages, Quiet, wait};
use serde_json::json;

use crate::paths;

/// A measured network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    Weft,
    Flannel,
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Weft => "weft",
            Self::Flannel => "flannel",
        })
    }
}

impl Peer {
    pub(super) const ALL: [Self; 2] = [Self::Weft, Self::Flannel];

    /// The nodes of the network.
    pub(super) const fn nodes(self) -> [&'static str; 2] {
        match self {
            Self::Weft => ["node01", "node02"],
            Self::Flannel => ["node03", "node04"],
        }
    }

    /// Whether a process with these arguments, each terminated by a zero byte, is the network's daemon.
    pub(super) fn is_daemon(self, arguments: &[u8]) -> bool {
        let mut arguments = arguments.split(|byte| *byte == 0);
        let program = arguments.next().unwrap_or_default();
        match self {
            Self::Weft => program == b"/weft" && arguments.next() == Some(b"pod-network"),
            Self::Flannel => program == DAEMON.as_bytes(),
        }
    }
}

/// Weft's manifest, and the texts in it that are replaced by the image and the nodes.
const MANIFEST: &str = "deploy/pod-network/pod-network.yaml";
const IMAGE: &str = "registry.example/weft:v0.1.0";
const SELECTOR: &str = "        kubernetes.io/os: linux\n";
/// Label of the nodes, with the name of their network.
const LABEL: &str = "bench/network";

/// Paths on flannel's nodes.
const DAEMON: &str = "/opt/flannel/flanneld";
const KUBECONFIG: &str = "/etc/flannel/kubeconfig";
const NETWORK: &str = "/etc/flannel/net-conf.json";
const CONFIG: &str = "/etc/cni/net.d/10-flannel.conflist";
const PLUGINS: &str = "/opt/cni/bin";
/// The daemon writes this file once it knows the node's range.
const SUBNET: &str = "/run/flannel/subnet.env";
/// Debian's plugins that flannel's plugin calls, and the plugin that every sandbox needs.
const DELEGATES: [&str; 4] = ["bridge", "host-local", "portmap", "loopback"];
/// Addresses of all pods of test clusters.
const PODS: &str = "10.244.0.0/16";
const DEADLINE: Duration = Duration::from_mins(2);

/// Installs Weft's network from its manifest on its nodes.
pub(super) fn install_weft(kubectl: &Kubectl, image: &str) -> anyhow::Result<()> {
    for node in Peer::Weft.nodes() {
        kubectl.run(["label", "node", node, &format!("{LABEL}={}", Peer::Weft)])?;
    }
    let file = paths::root().join(MANIFEST);
    let manifest = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    kubectl.apply(&manifest_for(&manifest, image)?)?;
    Ok(())
}

fn manifest_for(manifest: &str, image: &str) -> anyhow::Result<String> {
    ensure!(
        manifest.contains(IMAGE) && manifest.contains(SELECTOR),
        "{MANIFEST} has another form: it lacks {IMAGE:?} or {SELECTOR:?}"
    );
    Ok(manifest
        .replace(IMAGE, image)
        .replace(SELECTOR, &format!("{SELECTOR}        {LABEL}: {}\n", Peer::Weft)))
}

/// Installs flannel on its nodes with the settings of its own manifest: masquerading, host-gw, its plugin before
/// Debian's `bridge`. The daemon runs on the node without a pod.
pub(super) fn install_flannel(cluster: &Cluster, flannel: &Flannel) -> anyhow::Result<()> {
    let packages = Packages::ensure(&Home::from_env()?, &mut Quiet)?;
    let network = json!({ "Network": PODS, "EnableNFTables": true, "Backend": { "Type": "host-gw" } });
    let config = json!({ "name": "cbr0", "cniVersion": "0.3.1", "plugins": [
        { "type": "flannel", "delegate": { "hairpinMode": true, "isDefaultGateway": true } },
        { "type": "portmap", "capabilities": { "portMappings": true } },
    ] });
    for node in Peer::Flannel.nodes() {
        let place = |path: &str| -> anyhow::Result<std::path::PathBuf> {
            let file = cluster.node_file(node, path)?;
            let dir = file.parent().context("a file has a folder")?;
            fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
            Ok(file)
        };
        let copy = |from: &Path, to: &str| -> anyhow::Result<()> {
            fs::copy(from, place(to)?).with_context(|| format!("cannot copy {}", from.display()))?;
            Ok(())
        };
        let write = |path: &str, text: &str| -> anyhow::Result<()> {
            fs::write(place(path)?, text).with_context(|| format!("cannot write {path} of {node}"))
        };
        copy(&flannel.daemon, DAEMON)?;
        copy(&flannel.plugin, &format!("{PLUGINS}/flannel"))?;
        for plugin in DELEGATES {
            copy(
                &packages.file(&format!("usr/lib/cni/{plugin}")),
                &format!("{PLUGINS}/{plugin}"),
            )?;
        }
        copy(&cluster.kubeconfig(), KUBECONFIG)?;
        write(NETWORK, &network.to_string())?;
        let command = [
            "env",
            &format!("NODE_NAME={node}"),
            DAEMON,
            "--kube-subnet-mgr",
            "--ip-masq",
            "--iface=eth0",
            &format!("--kubeconfig-file={KUBECONFIG}"),
            &format!("--net-config-path={NETWORK}"),
        ];
        cluster.start_on(node, "flanneld", &command.map(str::to_owned))?;
        wait::until(&format!("flannel on {node}"), DEADLINE, || {
            let mut look = cluster
                .node_command(node, ["cat", SUBNET])
                .map_err(|error| error.to_string())?;
            cluster::run::output(&mut look).map_err(|error| error.to_string())
        })?;
        write(CONFIG, &config.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_of_weft_selects_the_image_and_the_nodes() {
        let manifest = fs::read_to_string(paths::root().join(MANIFEST)).unwrap();
        let manifest = manifest_for(&manifest, "localhost/weft:1").unwrap();
        assert_eq!(
            manifest.matches("image: localhost/weft:1\n").count(),
            2,
            "{manifest}"
        );
        assert!(!manifest.contains(IMAGE));
        assert!(
            manifest.contains("kubernetes.io/os: linux\n        bench/network: weft\n"),
            "{manifest}"
        );
        assert!(manifest_for("kind: Pod", "localhost/weft:1").is_err());
    }

    #[test]
    fn daemon_is_recognised_by_its_arguments() {
        assert!(Peer::Weft.is_daemon(b"/weft\0pod-network\0--node-name=a\0"));
        assert!(!Peer::Weft.is_daemon(b"/weft\0multus-daemon\0"));
        assert!(Peer::Flannel.is_daemon(b"/opt/flannel/flanneld\0--ip-masq\0"));
        assert!(!Peer::Flannel.is_daemon(b"/weft\0pod-network\0"));
    }
}

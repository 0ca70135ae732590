//! The default network of the demo's cluster: Weft's pod network, unless the cluster has another one.

use std::fmt;

use anyhow::{bail, ensure};
use cluster::{Cluster, Progress};
use serde_json::Value;

use crate::{image, install};

/// The default network of a running cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DefaultNetwork {
    /// Nodes wait for a network.
    Missing,
    /// Weft's pod network, by its own manifest.
    PodNetwork,
    /// Weft's pod network, by the cluster network operator.
    Operator,
    /// Nodes are Ready without Weft's pod network.
    Other,
}

impl fmt::Display for DefaultNetwork {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Missing => "no network",
            Self::PodNetwork => "Weft's pod network",
            Self::Operator => "Weft's pod network by the cluster network operator",
            Self::Other => "a network that is not Weft's",
        })
    }
}

impl DefaultNetwork {
    fn of(cluster: &Cluster) -> anyhow::Result<Self> {
        if cluster.has_pod_network() {
            return Ok(Self::Other);
        }
        let kubectl = cluster.kubectl();
        let daemons = kubectl.json([
            "get",
            "daemonsets",
            "--all-namespaces",
            "--selector",
            install::POD_NETWORK_LABEL,
        ])?;
        let nodes = kubectl.json(["get", "nodes"])?;
        Ok(Self::among(&daemons, &nodes))
    }

    /// Returns the network, from the pod network's `DaemonSets` in all namespaces, and the nodes.
    fn among(daemons: &Value, nodes: &Value) -> Self {
        let items = |list: &Value| list["items"].as_array().cloned().unwrap_or_default();
        let daemons = items(daemons);
        let is_in = |namespace: &str| {
            daemons
                .iter()
                .any(|daemon| daemon["metadata"]["namespace"] == namespace)
        };
        if is_in(install::POD_NETWORK_NAMESPACE) {
            Self::Operator
        } else if is_in(install::SYSTEM_NAMESPACE) {
            Self::PodNetwork
        } else if items(nodes).iter().any(cluster::is_ready) {
            Self::Other
        } else {
            Self::Missing
        }
    }

    /// Returns true if the cluster network operator may deploy the network: a node uses only one.
    fn permits_operator(self) -> bool {
        matches!(self, Self::Missing | Self::Operator)
    }
}

/// Starts the cluster, loads the image into its nodes, and installs Weft's pod network, or updates it. A cluster with
/// another network keeps that. Waits until the nodes are Ready, and returns the network.
///
/// # Errors
/// Also if the cluster is one for the cluster network operator, which deploys multus itself.
pub(crate) fn connect(
    cluster: &Cluster,
    built: &image::Built,
    steps: &mut dyn Progress,
) -> anyhow::Result<DefaultNetwork> {
    cluster.up(steps)?;
    install::load(cluster, built, steps)?;
    let kubectl = cluster.kubectl();
    let network = DefaultNetwork::of(cluster)?;
    if network == DefaultNetwork::Operator || !cluster.has_kube_proxy() {
        bail!(
            "cluster {} is the one of `cargo xtask demo --network`: run that again, or remove the cluster with \
             `cargo xtask demo --down`",
            cluster.name()
        );
    }
    let network = if network == DefaultNetwork::Other {
        network
    } else {
        install::pod_network(&kubectl, built, steps)?;
        DefaultNetwork::PodNetwork
    };
    install::nodes_ready(&kubectl, steps)?;
    Ok(network)
}

/// Returns an error if the cluster has a network that the cluster network operator did not deploy. The network of a
/// cluster that is not up may be unknown: call this after the start too.
pub(crate) fn refuse_second(cluster: &Cluster) -> anyhow::Result<()> {
    if !cluster.has_pod_network() && !cluster.is_up() {
        return Ok(());
    }
    let network = DefaultNetwork::of(cluster)?;
    ensure!(
        network.permits_operator(),
        "cluster {} already has {network}, and this demo needs a cluster without a network: remove the cluster with \
         `cargo xtask demo --down`, and run `cargo xtask demo --network` again",
        cluster.name()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn network(namespaces: &[&str], ready: &[&str]) -> DefaultNetwork {
        let daemon = |namespace: &&str| json!({ "metadata": { "namespace": namespace } });
        let daemons: Vec<Value> = namespaces.iter().map(daemon).collect();
        let node =
            |status: &&str| json!({ "status": { "conditions": [{ "type": "Ready", "status": status }] } });
        let nodes: Vec<Value> = ready.iter().map(node).collect();
        DefaultNetwork::among(&json!({ "items": daemons }), &json!({ "items": nodes }))
    }

    #[test]
    fn network_is_that_of_the_daemons_whether_nodes_are_ready_or_not() {
        for ready in [["True", "True"], ["False", "True"], ["False", "False"]] {
            assert_eq!(network(&["kube-system"], &ready), DefaultNetwork::PodNetwork);
            assert_eq!(network(&["weft-pod-network"], &ready), DefaultNetwork::Operator);
        }
    }

    #[test]
    fn network_without_daemons_is_another_one_if_nodes_are_ready() {
        assert_eq!(network(&[], &["True", "True"]), DefaultNetwork::Other);
        assert_eq!(network(&[], &["False", "True"]), DefaultNetwork::Other);
        assert_eq!(network(&[], &["False", "Unknown"]), DefaultNetwork::Missing);
        assert_eq!(network(&[], &[]), DefaultNetwork::Missing);
    }

    #[test]
    fn operator_is_permitted_only_without_another_network() {
        assert!(DefaultNetwork::Missing.permits_operator());
        assert!(DefaultNetwork::Operator.permits_operator());
        assert!(!DefaultNetwork::PodNetwork.permits_operator());
        assert!(!DefaultNetwork::Other.permits_operator());
    }
}

//! `weft pod-network`: the network of a cluster's pods, one daemon on each node (docs/pod-network.md).
//!
//! ```text
//! Nodes: ranges, addresses ──┐                      ┌─> routes, tunnel      netlink
//! links, addresses, routes ──┼─> desired ─ difference ─> masquerading       nftables
//!                            │                      └─> 10-weft.conflist    container runtimes: cnv-ptp, host-local, ...
//! events of all of them ─────┘
//! ```
//!
//! The daemon stores no state besides the host and the Nodes: a restarted daemon observes the host again. Packets pass
//! while the daemon is down.

mod arrange;
mod conflist;
mod daemon;
mod desired;
mod difference;
mod events;
mod kernel;
mod masquerade;
mod messages;
mod metrics;
pub mod names;
mod node;
mod settings;

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context as _;
use clap::Args as ClapArgs;
use ipnet::IpNet;
use kube_kit::{
    client,
    serve::{self, Readiness, Server},
    shutdown::Shutdown,
};
use prometheus_client::registry::Registry;

pub use arrange::{Arranged, arrange};
pub use daemon::{HostSockets, Settings, keep};
pub use desired::{Choices, Peers, mac};
pub use kernel::Kernel;
pub use metrics::Metrics;
pub use node::Node;
pub use settings::InvalidSettings;

/// Connect the pods of this node to the pods of all other nodes
///
/// Routes lead directly to nodes on the same segment, and through a VXLAN to other nodes. Packets that leave the
/// cluster get the address of the node. The daemon writes the configuration for the container runtime after routes,
/// tunnel and packet rules, and the configuration makes the node Ready. A killed or restarted daemon drops no packet.
/// Network policies are not implemented.
///
/// The nodes need spec.podCIDRs (kube-controller-manager --allocate-node-cidrs --cluster-cidr=...), and the plugins
/// cnv-ptp, cnv-portmap and cnv-bandwidth (weft install-plugins).
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// Name of this node
    #[arg(long, value_name = "NAME", required_unless_present = "remove")]
    pub node_name: Option<String>,

    /// Directory of CNI configurations
    #[arg(long, value_name = "DIR", default_value = names::CONF_DIR)]
    pub cni_conf_dir: PathBuf,

    /// Name of the file in that directory. The runtime uses the first file by name
    #[arg(long, value_name = "FILE", default_value = names::CONF_NAME)]
    pub cni_conf_name: String,

    /// Name of the network in that file
    #[arg(long, value_name = "NAME", default_value = names::NETWORK_NAME)]
    pub network_name: String,

    /// Range of the addresses of all pods, once for each family. Nodes with other ranges get no route, and packets to
    /// the range are not masqueraded. Without the flag, the ranges of the nodes apply
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub cluster_cidr: Vec<IpNet>,

    /// MTU of pods in bytes. Without the flag, the least MTU of the links to the other nodes and to the default
    /// gateway, minus the overhead of the VXLAN if a node needs it
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u32>,

    /// Identifier of the VXLAN, the same on all nodes
    #[arg(long, value_name = "NUMBER", default_value_t = names::VXLAN_ID)]
    pub vxlan_id: u32,

    /// UDP port of the VXLAN, the same on all nodes; open it between them
    #[arg(long, value_name = "PORT", default_value_t = names::VXLAN_PORT)]
    pub vxlan_port: u16,

    /// Address that serves GET /healthz, /readyz and /metrics
    #[arg(long, value_name = "ADDRESS:PORT", default_value = names::LISTEN)]
    pub listen: SocketAddr,

    /// Kubeconfig file, for use outside of a pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Remove the daemon's routes, tunnel, packet rules and configuration from this node, and exit
    #[arg(long)]
    pub remove: bool,

    /// With --remove: wait for SIGTERM before the exit, for use in a `DaemonSet`
    #[arg(long, requires = "remove")]
    pub stay: bool,
}

/// Keeps the node's pod network in the desired state until SIGTERM. Routes, tunnel, packet rules and configuration stay
/// when the daemon ends.
///
/// # Errors
/// If a flag is invalid, the listen address is in use, the configuration of the client is missing, or the kernel
/// refuses a subscription or lacks nftables. A failing API server is no error: the daemon retries. With `--remove`, if
/// a removal failed.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let (listen, kubeconfig, stay) = (args.listen, args.kubeconfig.clone(), args.stay);
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    if args.remove {
        remove(&args.cni_conf_dir.join(&args.cni_conf_name))?;
        if stay {
            shutdown.wait().await;
        }
        return Ok(());
    }
    let settings = Settings::try_from(args)?;
    let (readiness, metrics) = (Readiness::new(), Metrics::default());
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let router = serve::probes(readiness.clone()).merge(serve::metrics(Arc::new(registry)));
    let server = Server::start(listen, router).await?;
    let client = client::client_from(names::COMPONENT, kubeconfig.as_deref()).await?;
    let sockets = HostSockets::open()?;
    let outcome = tokio::select! {
        outcome = keep(settings, client, sockets, readiness, metrics) => outcome,
        () = shutdown.wait() => Ok(()),
    };
    server.stop().await;
    outcome
}

/// Removes the configuration, the routes, the tunnel and the packet rules.
///
/// # Errors
/// If a removal failed. All other removals are still applied.
pub fn remove(conflist: &std::path::Path) -> anyhow::Result<()> {
    // The configuration goes first, so that no more pods get this network.
    let file = cni::files::remove_if_present(conflist);
    let errors = Kernel::open()?.clear();
    for error in &errors {
        tracing::error!("{error}");
    }
    file.with_context(|| format!("cannot remove {}", conflist.display()))?;
    anyhow::ensure!(
        errors.is_empty(),
        "cannot remove all of the pod network, see the errors above"
    );
    tracing::info!("removed the pod network from this node");
    Ok(())
}

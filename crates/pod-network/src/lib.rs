//! `weft pod-network`: the network of a cluster's pods, one daemon on each node (docs/pod-network.md).
//!
//! ```text
//! Nodes: ranges, addresses ──┐                      ┌─> routes, tunnel      netlink
//! links, addresses, routes ──┼─> desired ─ difference ─> masquerading       nftables
//!                            │                      └─> 10-weft.conflist    container runtimes: cnv-ptp, host-local, ...
//! events of all of them ─────┘
//! ```
//!
//! Nothing is kept beside the host and the Nodes: a daemon that is killed finds its place by looking, and one that is not
//! there keeps no packet from passing.

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
pub use daemon::{OnHost, Settings, keep};
pub use desired::{Choices, Peers, mac};
pub use kernel::Kernel;
pub use metrics::Metrics;
pub use node::Node;
pub use settings::InvalidSettings;

/// Give the pods of this node their network, and ways to the pods of all other nodes
///
/// Routes lead to nodes of the same segment directly, and through a VXLAN to others. What leaves the cluster has the node's
/// address. The configuration for the container runtime is written once all that stands, which makes the node Ready.
/// Killing or restarting the daemon drops no packet. There are no network policies.
///
/// The nodes need spec.podCIDRs (kube-controller-manager --allocate-node-cidrs --cluster-cidr=...), and the plugins
/// cnv-ptp, cnv-portmap and cnv-bandwidth (weft install-plugins).
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// Name of the node that this runs on
    #[arg(long, value_name = "NAME", required_unless_present = "remove")]
    pub node_name: Option<String>,

    /// Directory of CNI configurations
    #[arg(long, value_name = "DIR", default_value = names::CONF_DIR)]
    pub cni_conf_dir: PathBuf,

    /// File to write there. The runtime takes the first by name
    #[arg(long, value_name = "FILE", default_value = names::CONF_NAME)]
    pub cni_conf_name: String,

    /// Name of the network in that file
    #[arg(long, value_name = "NAME", default_value = names::NETWORK_NAME)]
    pub network_name: String,

    /// Range of all pods' addresses, for each family: nodes with other ranges get no route, and what goes there is not
    /// masqueraded. Without it the ranges of the nodes count
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub cluster_cidr: Vec<IpNet>,

    /// MTU of pods in bytes; without it that of the links to the other nodes and to the default gateway, less what the
    /// VXLAN takes if some node is reached through it
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u32>,

    /// Identifier of the VXLAN, the same on all nodes
    #[arg(long, value_name = "NUMBER", default_value_t = names::VXLAN_ID)]
    pub vxlan_id: u32,

    /// UDP port of the VXLAN, the same on all nodes; open it between them
    #[arg(long, value_name = "PORT", default_value_t = names::VXLAN_PORT)]
    pub vxlan_port: u16,

    /// Where to serve GET /healthz, /readyz and /metrics
    #[arg(long, value_name = "ADDRESS:PORT", default_value = names::LISTEN)]
    pub listen: SocketAddr,

    /// Kubeconfig file, outside a pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Take everything off this node that the daemon has put there, and end
    #[arg(long)]
    pub remove: bool,

    /// With --remove: stay until SIGTERM instead of ending, for a `DaemonSet`
    #[arg(long, requires = "remove")]
    pub stay: bool,
}

/// Keeps the node's pod network until SIGTERM. Everything stays when it ends.
///
/// # Errors
/// When a flag is invalid, the address can't be listened on, there is no way to the cluster, or the kernel refuses its
/// events or has no nftables. A failing API server is no error: it is tried again. With `--remove`, when something could
/// not be removed.
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
    let on_host = OnHost::open()?;
    let outcome = tokio::select! {
        outcome = keep(settings, client, on_host, readiness, metrics) => outcome,
        () = shutdown.wait() => Ok(()),
    };
    server.stop().await;
    outcome
}

/// Removes the configuration, routes, tunnel and packet rules.
///
/// # Errors
/// What could not be removed; the rest is gone all the same.
pub fn remove(conflist: &std::path::Path) -> anyhow::Result<()> {
    // First, so that no more pods come.
    let file = cni::files::remove_if_present(conflist);
    let errors = Kernel::open()?.clear();
    for error in &errors {
        tracing::error!("{error}");
    }
    file.with_context(|| format!("cannot remove {}", conflist.display()))?;
    anyhow::ensure!(errors.is_empty(), "not everything could be removed");
    tracing::info!("removed the pod network from this node");
    Ok(())
}

//! Metrics of the daemon.

use kube_kit::metrics::Process;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::desired::Peers;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PathLabels {
    way: &'static str,
}

/// Metrics of the daemon. Clones share their values.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    peers: Family<PathLabels, Gauge>,
    routes: Gauge,
    problems: Gauge,
    mtu: Gauge,
    repairs: Counter,
    errors: Counter,
}

impl Metrics {
    /// Registers the metrics, and those of the process.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "weft_pod_network_peers",
            "Other nodes, by the path to their pods: direct on the same segment, or vxlan",
            self.peers.clone(),
        );
        registry.register(
            "weft_pod_network_routes",
            "Pod ranges of other nodes whose route is in place",
            self.routes.clone(),
        );
        registry.register(
            "weft_pod_network_problems",
            "Pod ranges of other nodes without a route of this daemon; the log names them",
            self.problems.clone(),
        );
        registry.register("weft_pod_network_mtu_bytes", "MTU of new pods", self.mtu.clone());
        registry.register(
            "weft_pod_network_repairs",
            "Changes that reverted drift of the host",
            self.repairs.clone(),
        );
        registry.register(
            "weft_pod_network_errors",
            "Changes refused by the kernel or the file system",
            self.errors.clone(),
        );
        Process.register(registry);
    }

    pub(crate) fn reached(&self, peers: Peers, routes: usize, problems: usize, mtu: Option<u32>) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for (way, count) in [("direct", peers.direct), ("vxlan", peers.tunnel)] {
            self.peers.get_or_create(&PathLabels { way }).set(number(count));
        }
        self.routes.set(number(routes));
        self.problems.set(number(problems));
        self.mtu.set(mtu.unwrap_or_default().into());
    }

    pub(crate) fn repaired(&self, changes: usize) {
        self.repairs.inc_by(u64::try_from(changes).unwrap_or_default());
    }

    pub(crate) fn failed(&self, failures: usize) {
        self.errors.inc_by(u64::try_from(failures).unwrap_or_default());
    }
}

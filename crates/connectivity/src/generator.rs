//! The set of checks: one check from each source to each target (cluster-network §13.2).
//!
//! ```text
//! services, endpoints, URLs ── targets ──┐
//!                                        ├─> desired ─┐
//! pods of network-check-source ──────────┘            ├─> plan: apply, delete ──> controller
//!                   observed checks ─────────────────┘
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::names::{MANAGED_BY, MANAGER, NAMESPACE, SOURCE, TARGET, TO};

pub mod controller;
mod facts;
#[cfg(test)]
mod tests;

/// A pod that connects to endpoints.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Source {
    pub pod: String,
    pub node: String,
    pub node_uid: String,
}

/// The cluster IPs of a service.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Service {
    /// One or two addresses. The first address has the primary family of the service.
    pub addresses: Vec<IpAddr>,
}

/// An endpoint of a service.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Endpoint {
    pub address: IpAddr,
    pub port: u16,
    /// The node of the endpoint, if it has one.
    pub node: Option<String>,
}

/// A service with its endpoints.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Backed {
    /// `None` if the service does not exist.
    pub service: Option<Service>,
    /// The ready endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// The state of the cluster that determines the targets.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Facts {
    /// `default/kubernetes`.
    pub kubernetes: Backed,
    /// `openshift-kube-apiserver/apiserver`.
    pub kube_apiserver: Backed,
    /// `openshift-apiserver/api`.
    pub openshift_apiserver: Backed,
    /// URL of the API server for clients outside of the cluster.
    pub external: Option<String>,
    /// URL of the API server for clients in the cluster.
    pub internal: Option<String>,
    /// Service and pods of `network-check-target`.
    pub target: Backed,
    /// True if another cluster hosts the control plane.
    pub hosted: bool,
}

/// An address that sources connect to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Target {
    /// The target's part of the names of checks.
    pub name: String,
    /// Host and port.
    pub endpoint: String,
}

/// The desired state of a check.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Generated {
    pub name: String,
    /// The source pod.
    pub source_pod: String,
    /// Host and port of the target.
    pub endpoint: String,
    /// Name of the node that owns the check.
    pub node: String,
    pub node_uid: String,
}

/// The observed state of a check.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Existing {
    /// True if the check has the label of this controller. Other checks are never deleted.
    pub labelled: bool,
    /// The source pod.
    pub source_pod: String,
    /// Host and port of the target.
    pub endpoint: String,
    /// UIDs of the owners.
    pub owners: Vec<String>,
}

/// The writes that lead to the desired checks.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Plan {
    /// Checks that are missing or differ.
    pub apply: Vec<Generated>,
    /// Names of checks that are no longer desired.
    pub delete: Vec<String>,
}

/// A node's part of the names of checks: the first label of its name. In an IP address, dots and colons become
/// dashes.
pub(crate) fn label(node: &str) -> String {
    if node.parse::<IpAddr>().is_ok() {
        return node.replace(['.', ':'], "-");
    }
    node.split('.').next().unwrap_or_default().to_owned()
}

/// Joins host and port, with brackets around an IPv6 address.
fn joined(address: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}

/// Port of the services of API servers.
const HTTPS: u16 = 443;
/// Port of the service `network-check-target`.
const HTTP: u16 = 80;

/// All targets. Each name occurs once.
pub(crate) fn targets(facts: &Facts) -> Vec<Target> {
    let Facts {
        kubernetes,
        kube_apiserver,
        openshift_apiserver,
        external,
        internal,
        target,
        hosted,
    } = facts;
    let mut targets = Vec::new();
    let of_kubernetes = kubernetes.service.iter().flat_map(|service| &service.addresses);
    for (number, address) in of_kubernetes.enumerate() {
        targets.push(Target {
            name: format!("kubernetes-default-service-cluster-{number}"),
            endpoint: joined(*address, HTTPS),
        });
    }
    if !hosted {
        targets.extend(backed("kubernetes-apiserver", kube_apiserver));
        if kube_apiserver.service.is_none() {
            // Not OpenShift: the service `default/kubernetes` has the same API servers.
            targets.extend(endpoints("kubernetes-apiserver-endpoint", kubernetes));
        }
        targets.extend(backed("openshift-apiserver", openshift_apiserver));
    }
    for (name, url) in [("external", external), ("internal", internal)] {
        if let Some(endpoint) = url.as_deref().and_then(of_url) {
            let name = format!("load-balancer-api-{name}");
            targets.push(Target { name, endpoint });
        }
    }
    if target.service.is_some() {
        targets.push(Target {
            name: format!("{TARGET}-service-cluster"),
            endpoint: format!("{TARGET}:{HTTP}"),
        });
    }
    targets.extend(endpoints(TARGET, target));
    targets
}

/// The targets of a service of API servers: the service and its endpoints.
fn backed(name: &str, backed: &Backed) -> Vec<Target> {
    let service = backed
        .service
        .as_ref()
        .and_then(|service| service.addresses.first());
    let service = service.map(|address| Target {
        name: format!("{name}-service-cluster"),
        endpoint: joined(*address, HTTPS),
    });
    service
        .into_iter()
        .chain(endpoints(&format!("{name}-endpoint"), backed))
        .collect()
}

/// The targets of a service's endpoints: one target for each node, preferably in the primary family of the
/// service.
fn endpoints(name: &str, backed: &Backed) -> Vec<Target> {
    let first = backed
        .service
        .as_ref()
        .and_then(|service| service.addresses.first());
    let is_other = |endpoint: &&Endpoint| first.is_some_and(|it| it.is_ipv4() != endpoint.address.is_ipv4());
    let mut sorted: Vec<_> = backed.endpoints.iter().collect();
    sorted.sort_by_key(|endpoint| (is_other(endpoint), endpoint.address, endpoint.port));
    let mut targets = BTreeMap::new();
    for endpoint in sorted {
        let address = endpoint.address.to_string();
        let node = endpoint.node.as_deref().unwrap_or(&address);
        targets
            .entry(format!("{name}-{}", label(node)))
            .or_insert_with(|| joined(endpoint.address, endpoint.port));
    }
    targets
        .into_iter()
        .map(|(name, endpoint)| Target { name, endpoint })
        .collect()
}

/// Host and port of a URL.
fn of_url(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let authority = authority.rsplit('@').next().filter(|it| !it.is_empty())?;
    let has_port = authority
        .rsplit_once(':')
        .is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()));
    if has_port {
        return Some(authority.to_owned());
    }
    let port = if scheme == "http" { HTTP } else { HTTPS };
    Some(format!("{authority}:{port}"))
}

/// A check from each source to each target, by name.
pub(crate) fn checks(sources: &[Source], targets: &[Target]) -> BTreeMap<String, Generated> {
    let mut checks = BTreeMap::new();
    for source in sources {
        for target in targets {
            let name = format!("{SOURCE}-{}{TO}{}", label(&source.node), target.name);
            // Two pods share a node while one replaces the other. Both give the same results, so the first by name is
            // used.
            checks.entry(name.clone()).or_insert_with(|| Generated {
                name,
                source_pod: source.pod.clone(),
                endpoint: target.endpoint.clone(),
                node: source.node.clone(),
                node_uid: source.node_uid.clone(),
            });
        }
    }
    checks
}

/// Compares the desired and the observed checks. The plan is empty if nothing differs.
pub(crate) fn plan(wanted: &BTreeMap<String, Generated>, existing: &BTreeMap<String, Existing>) -> Plan {
    let differs = |check: &&Generated| {
        existing.get(&check.name).is_none_or(|known| {
            !known.labelled
                || known.source_pod != check.source_pod
                || known.endpoint != check.endpoint
                || !known.owners.contains(&check.node_uid)
        })
    };
    let stale = |(name, known): &(&String, &Existing)| known.labelled && !wanted.contains_key(*name);
    Plan {
        apply: wanted.values().filter(differs).cloned().collect(),
        delete: existing
            .iter()
            .filter(stale)
            .map(|(name, _)| name.clone())
            .collect(),
    }
}

impl Generated {
    pub(crate) fn object(&self) -> Value {
        json!({
            "apiVersion": "controlplane.operator.openshift.io/v1alpha1",
            "kind": "PodNetworkConnectivityCheck",
            "metadata": {
                "name": self.name,
                "namespace": NAMESPACE,
                "labels": { MANAGED_BY: MANAGER },
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Node", "name": self.node, "uid": self.node_uid,
                }],
            },
            "spec": { "sourcePod": self.source_pod, "targetEndpoint": self.endpoint },
        })
    }
}

/// Status, reason and message of the condition `NetworkDiagnosticsAvailable`.
pub(crate) fn availability(sources: &[Source], facts: &Facts) -> (&'static str, &'static str, &'static str) {
    if sources.is_empty() {
        ("False", "NoSources", "No source pods available")
    } else if facts.target.endpoints.is_empty() {
        ("False", "NoTargets", "No targets available")
    } else {
        ("True", "AsExpected", "")
    }
}

//! Which checks there are: one from each source to each target (cluster-network §13.2).
//!
//! ```text
//! services, endpoints, URLs ── targets ──┐
//!                                        ├─> wanted ──┐
//! pods of network-check-source ──────────┘            ├─> plan: apply, delete ──> controller
//!                          checks that exist ─────────┘
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::names::{MANAGED_BY, MANAGER, NAMESPACE, SOURCE, TARGET, TO};

pub mod controller;
pub mod facts;
#[cfg(test)]
mod tests;

/// A pod that checks start from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Source {
    /// Its name.
    pub pod: String,
    /// Its node.
    pub node: String,
    /// Uid of the node.
    pub node_uid: String,
}

/// Addresses of a service.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Service {
    /// Of both families, if it has both; the first one is that of its first family.
    pub addresses: Vec<IpAddr>,
}

/// What is behind a service.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Endpoint {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// The node that it is on, if it is on one.
    pub node: Option<String>,
}

/// A service and what is behind it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Backed {
    /// Nothing as long as there is no such service.
    pub service: Option<Service>,
    /// What is behind it and ready.
    pub endpoints: Vec<Endpoint>,
}

/// What there is to be checked.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Facts {
    /// `default/kubernetes`.
    pub kubernetes: Backed,
    /// `openshift-kube-apiserver/apiserver`.
    pub kube_apiserver: Backed,
    /// `openshift-apiserver/api`.
    pub openshift_apiserver: Backed,
    /// URL of the API server for those outside of the cluster.
    pub external: Option<String>,
    /// URL of the API server for those inside.
    pub internal: Option<String>,
    /// Service and pods of `network-check-target`.
    pub target: Backed,
    /// Whether the control plane is hosted by another cluster.
    pub hosted: bool,
}

/// Something that a source connects to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Target {
    /// The part of a check's name that stands for it.
    pub name: String,
    /// Host and port.
    pub endpoint: String,
}

/// A check as it should be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Generated {
    /// Its name.
    pub name: String,
    /// The pod that connects.
    pub source_pod: String,
    /// What it connects to.
    pub endpoint: String,
    /// Name of the node that the check belongs to.
    pub node: String,
    /// Uid of that node.
    pub node_uid: String,
}

/// What is known of a check that exists.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Existing {
    /// Whether it has our label: others are never deleted.
    pub labelled: bool,
    /// The pod that connects.
    pub source_pod: String,
    /// What it connects to.
    pub endpoint: String,
    /// Uids of its owners.
    pub owners: Vec<String>,
}

/// What to write, so that the checks that exist are those that should.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    /// These are missing, or differ.
    pub apply: Vec<Generated>,
    /// These are no longer generated.
    pub delete: Vec<String>,
}

/// Name of a node as a part of the name of a check: its first label. Dots and colons of an address become dashes.
pub fn label(node: &str) -> String {
    if node.parse::<IpAddr>().is_ok() {
        return node.replace(['.', ':'], "-");
    }
    node.split('.').next().unwrap_or_default().to_owned()
}

/// Host and port, IPv6 addresses in brackets.
fn joined(address: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}

/// Port of API servers behind their services.
const HTTPS: u16 = 443;
/// Port of the service of targets.
const HTTP: u16 = 80;

/// All targets, each name once.
pub fn targets(facts: &Facts) -> Vec<Target> {
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
            // Not OpenShift: the same servers under the name that every cluster has.
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

/// A service of API servers, and each of them.
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

/// What is behind a service: one target for each node, in the first family of the service if there are both.
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
pub fn checks(sources: &[Source], targets: &[Target]) -> BTreeMap<String, Generated> {
    let mut checks = BTreeMap::new();
    for source in sources {
        for target in targets {
            let name = format!("{SOURCE}-{}{TO}{}", label(&source.node), target.name);
            // Two pods on one node, while one replaces the other: the first by name is as good as the other.
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

/// What differs. Nothing is written where nothing does.
pub fn plan(wanted: &BTreeMap<String, Generated>, existing: &BTreeMap<String, Existing>) -> Plan {
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
    /// The object that is applied.
    pub fn object(&self) -> Value {
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

/// Whether checks can tell anything, as the condition `NetworkDiagnosticsAvailable` of the cluster's configuration says
/// it: status, reason and message.
pub fn availability(sources: &[Source], facts: &Facts) -> (&'static str, &'static str, &'static str) {
    if sources.is_empty() {
        ("False", "NoSources", "No source pods available")
    } else if facts.target.endpoints.is_empty() {
        ("False", "NoTargets", "No targets available")
    } else {
        ("True", "AsExpected", "")
    }
}

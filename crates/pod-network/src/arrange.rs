//! Observes the host once and applies the difference to the desired state.

use ipnet::IpNet;
use std::collections::BTreeSet;

use crate::{
    desired::{Choices, Peers, desired},
    difference::difference,
    kernel::Kernel,
    messages::Problem,
    node::Node,
};

/// The changes of the host, and the changes that failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arranged {
    /// Applied changes, as text. Empty if the host already had the desired state.
    pub changes: Vec<String>,
    /// Changes that the kernel refused.
    pub failures: Vec<linux::Error>,
    /// Defects of other nodes, and routes of others that conflict with routes to them.
    pub problems: BTreeSet<String>,
    /// Nodes that have no address yet, which usually lasts for moments.
    pub waiting: BTreeSet<String>,
    /// Pod ranges of other nodes that have a route.
    pub ranges: BTreeSet<IpNet>,
    /// Links that the result depends on, by index.
    pub links: BTreeSet<u32>,
    /// Numbers of other nodes, direct and through the tunnel.
    pub peers: Peers,
    /// MTU of new pods, bytes; `None` if no link leads to other nodes.
    pub mtu: Option<u32>,
}

/// Applies the routes, the tunnel and the packet rules that these nodes need. Nothing is written if nothing differs. A
/// change that fails does not stop the other changes.
///
/// # Errors
/// If the kernel cannot list links, addresses or routes.
pub fn arrange(
    kernel: &mut Kernel,
    own: &Node,
    nodes: &[Node],
    choices: &Choices,
) -> linux::Result<Arranged> {
    let view = kernel.observe()?;
    let desired = desired(nodes, own, &view.host, choices);
    let (steps, obstacles) = difference(&desired, &view.observed);
    let all = desired.problems.iter().chain(&obstacles);
    let (waiting, problems): (Vec<_>, Vec<_>) =
        all.partition(|problem| matches!(problem, Problem::NoAddressYet { .. }));
    let words = |problems: Vec<&Problem>| problems.into_iter().map(ToString::to_string).collect();
    let mut arranged = Arranged {
        problems: words(problems),
        waiting: words(waiting),
        ranges: desired.routes.keys().copied().collect(),
        links: desired.links,
        peers: desired.peers,
        mtu: desired.mtu,
        ..Arranged::default()
    };
    for step in &steps {
        match kernel.apply(step) {
            Ok(()) => arranged.changes.push(step.to_string()),
            Err(error) => arranged.failures.push(error),
        }
    }
    match kernel.masquerade(&desired.masquerade) {
        Ok(true) => arranged.changes.push("write the packet rules".to_owned()),
        Ok(false) => {}
        Err(error) => arranged.failures.push(error),
    }
    Ok(arranged)
}

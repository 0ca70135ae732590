//! One look at the host, and the changes that it leads to.

use ipnet::IpNet;
use std::collections::BTreeSet;

use crate::{
    desired::{Choices, Peers, desired},
    difference::difference,
    kernel::Kernel,
    messages::Problem,
    node::Node,
};

/// What was done, and what could not be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arranged {
    /// Changes of the host, in words. None if everything was as it has to be.
    pub changes: Vec<String>,
    /// What the kernel refused.
    pub failures: Vec<linux::Error>,
    /// What is wrong with other nodes, or stands in the way of their routes.
    pub problems: BTreeSet<String>,
    /// Which nodes have no address yet: mostly for moments.
    pub waiting: BTreeSet<String>,
    /// Ranges of other nodes that are reached.
    pub ranges: BTreeSet<IpNet>,
    /// Links that this depends on, by index.
    pub links: BTreeSet<u32>,
    /// Other nodes by the way they are reached.
    pub peers: Peers,
    /// MTU of new pods, bytes; unknown where no link leads to others.
    pub mtu: Option<u32>,
}

/// Makes routes, tunnel and packet rules of the host what these nodes need, and writes nothing where they are. A step that
/// fails does not keep the others from being taken.
///
/// # Errors
/// When the kernel does not say what is there.
pub fn arrange(
    kernel: &mut Kernel,
    own: &Node,
    nodes: &[Node],
    choices: &Choices,
) -> linux::Result<Arranged> {
    let view = kernel.look()?;
    let desired = desired(nodes, own, &view.host, choices);
    let (steps, obstacles) = difference(&desired, &view.seen);
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

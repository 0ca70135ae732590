//! Observes the host once and applies the difference to the desired state.

use std::collections::BTreeSet;

use ipnet::IpNet;
use linux::Errno;

use crate::{
    desired::{Choices, Peers, desired},
    difference::{Change, difference},
    kernel::Kernel,
    messages::Problem,
    node::Node,
};

/// The changes of the host, and the changes that failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arranged {
    /// Applied changes, as text. Empty if the host already had the desired state.
    pub changes: Vec<String>,
    /// Changes that the kernel refused, without those that depend on the refused tunnel.
    pub failures: Vec<linux::Error>,
    /// Defects of nodes, and routes of others that conflict with routes to them.
    pub problems: BTreeSet<String>,
    /// Nodes that have no address yet, which usually lasts for moments.
    pub waiting: BTreeSet<String>,
    /// Pod ranges of other nodes that need a route.
    pub ranges: BTreeSet<IpNet>,
    /// Those of them whose route is not in place: the kernel refuses it, it needs a tunnel that cannot be created, or
    /// another owner has a route.
    pub missing: BTreeSet<IpNet>,
    /// Index of the tunnel before the changes.
    pub tunnel: Option<u32>,
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
    // The kernel removes the tunnel's routes with its last address, and reports the address alone. A tunnel that is
    // created now has an event by its name.
    let mut links = desired.links;
    let tunnel = view.observed.tunnel.as_ref();
    links.extend(tunnel.map(|tunnel| tunnel.index));
    let words = |problems: Vec<&Problem>| problems.into_iter().map(ToString::to_string).collect();
    let foreign = obstacles.iter().filter_map(|problem| match problem {
        Problem::ForeignRoute { range } => Some(*range),
        _ => None,
    });
    let mut arranged = Arranged {
        problems: words(problems),
        waiting: words(waiting),
        ranges: desired.routes.keys().copied().collect(),
        missing: foreign.collect(),
        tunnel: tunnel.filter(|it| it.vxlan.is_some()).map(|it| it.index),
        links,
        peers: desired.peers,
        mtu: desired.mtu,
        ..Arranged::default()
    };
    arranged.apply(&steps, nodes, |step| kernel.apply(step));
    match kernel.masquerade(&desired.masquerade) {
        Ok(true) => arranged.changes.push("write the packet rules".to_owned()),
        Ok(false) => {}
        Err(error) => arranged.failures.push(error),
    }
    Ok(arranged)
}

impl Arranged {
    /// Applies changes. If the tunnel cannot be created or set up, skips the changes that need it: one failure tells the
    /// cause.
    fn apply(
        &mut self,
        steps: &[Change],
        nodes: &[Node],
        mut apply: impl FnMut(&Change) -> linux::Result<()>,
    ) {
        let mut is_tunnel_missing = false;
        for step in steps {
            let range = match step {
                Change::AddRoute(range, _) | Change::ReplaceRoute(range, _) => Some(*range),
                _ => None,
            };
            if is_tunnel_missing && step.needs_tunnel() {
                self.missing.extend(range);
                continue;
            }
            let outcome = apply(step);
            self.missing.extend(range.filter(|_| outcome.is_err()));
            match (outcome, step) {
                (Ok(()), _) => self.changes.push(step.to_string()),
                // A foreign route of a kind that is not observed. It stays, and prevents this route alone.
                (Err(error), Change::AddRoute(range, _)) if error.is_exists() => {
                    let problem = Problem::ForeignRoute { range: *range };
                    self.problems.insert(problem.to_string());
                }
                (Err(error), Change::AddRoute(range, _) | Change::ReplaceRoute(range, _))
                    if is_invalid(&error) =>
                {
                    let problem = Problem::Refused {
                        node: owner(nodes, range).to_owned(),
                        range: *range,
                        error: error.to_string(),
                    };
                    self.problems.insert(problem.to_string());
                }
                (Err(error), _) => {
                    is_tunnel_missing |=
                        matches!(step, Change::CreateTunnel { .. } | Change::SetTunnel { .. });
                    self.failures.push(error);
                }
            }
        }
    }
}

/// Returns true if the kernel refuses a next hop for its value, which another Node determines: a broadcast address of
/// the segment, for example. Other errors concern the links and addresses of this node.
fn is_invalid(error: &linux::Error) -> bool {
    error.errno() == Some(Errno::INVAL)
}

/// Returns the name of the node that has a range. Of several that claim it, the oldest one has it.
fn owner<'a>(nodes: &'a [Node], range: &IpNet) -> &'a str {
    let claiming = nodes.iter().filter(|node| node.ranges.contains(range)).min();
    claiming.map(|node| node.name.as_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use linux::{
        link::{Mac, Vxlan},
        neighbour::Forwarding,
        sysctl::Key,
    };

    use super::*;
    use crate::desired::Hop;

    fn steps() -> Vec<Change> {
        let (mac, host) = (
            Mac([0x0a, 0x57, 198, 51, 100, 9]),
            "198.51.100.9".parse().unwrap(),
        );
        let gateway = "10.1.2.0".parse().unwrap();
        let direct = Hop::Direct {
            gateway: "192.0.2.2".parse().unwrap(),
            link: 2,
        };
        let vxlan = Vxlan {
            id: 7765,
            port: 4789,
            local: None,
            learning: false,
        };
        vec![
            Change::CreateTunnel {
                vxlan,
                mac,
                mtu: 1450,
            },
            Change::SetTunnel { mtu: 1450 },
            Change::AddAddress("10.1.0.0/32".parse().unwrap()),
            Change::SetHost(Forwarding { mac, host }),
            Change::SetNeighbour(gateway, mac),
            Change::AddRoute("10.1.2.0/24".parse().unwrap(), Hop::Tunnel { gateway }),
            Change::AddRoute("10.1.1.0/24".parse().unwrap(), direct),
        ]
    }

    #[test]
    fn tunnel_that_cannot_be_created_or_set_up_is_one_failure() {
        for (broken, applied, missing) in [(0, 1, 1), (1, 2, 1), (2, 6, 0), (5, 6, 1)] {
            let steps = steps();
            let mut arranged = Arranged::default();
            let mut attempts = 0;
            arranged.apply(&steps, &[], |step| {
                attempts += 1;
                if *step == steps[broken] {
                    return Key::new(&["net", "none"]).and_then(|key| key.read()).map(drop);
                }
                Ok(())
            });
            assert_eq!(arranged.failures.len(), 1, "{arranged:?}");
            assert_eq!((arranged.changes.len(), attempts), (applied, applied + 1));
            assert_eq!(arranged.missing.len(), missing, "{arranged:?}");
            assert_eq!(
                arranged.changes.last().map(String::as_str),
                Some("add route 10.1.1.0/24 via 192.0.2.2")
            );
        }
    }
}

//! In which order the workloads of OVN-Kubernetes are updated (§7.6). Those that must wait are left as they are.

use std::cmp::Ordering;

#[cfg(test)]
mod tests;

/// Progress of a `DaemonSet`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DaemonSetProgress {
    /// Generation of the object.
    pub generation: i64,
    /// Generation that its status is about.
    pub observed: i64,
    /// Nodes that should have a pod.
    pub desired: i32,
    /// Nodes that have the current one.
    pub updated: i32,
    /// Nodes whose pod is available.
    pub available: i32,
    /// Nodes whose pod is not.
    pub unavailable: i32,
    /// Whether it has made no progress for long.
    pub is_hung: bool,
}

impl DaemonSetProgress {
    /// Whether it is rolling out. One that hangs counts as rolled out when no more than a tenth of the nodes, or one node,
    /// is behind: some node is always broken in a large cluster.
    pub fn is_progressing(&self) -> bool {
        let is_progressing = self.updated < self.desired
            || self.unavailable > 0
            || (self.available == 0 && self.desired > 0)
            || self.generation > self.observed;
        let behind = self.desired - self.updated.min(self.available);
        is_progressing && !(self.is_hung && behind <= (self.desired / 10).max(1))
    }
}

/// Progress of a `Deployment`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DeploymentProgress {
    /// Generation of the object.
    pub generation: i64,
    /// Generation that its status is about.
    pub observed: i64,
    /// Pods that there should be.
    pub replicas: i32,
    /// Current ones.
    pub updated: i32,
    /// Available ones.
    pub available: i32,
}

impl DeploymentProgress {
    /// Whether it is rolling out.
    pub fn is_progressing(&self) -> bool {
        self.updated < self.replicas || self.available < self.replicas || self.generation > self.observed
    }
}

/// A workload that exists.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Workload {
    /// Version that it was rendered by; empty where it has no annotation.
    pub version: String,
    /// `single-stack` or `dual-stack`; empty where it has no annotation.
    pub ip_family: String,
    /// Whether it is rolling out.
    pub is_progressing: bool,
}

/// Workloads that exist.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Existing {
    /// `DaemonSet` `ovnkube-node`.
    pub node: Option<Workload>,
    /// Deployment `ovnkube-control-plane`.
    pub control_plane: Option<Workload>,
    /// `DaemonSet` `ovnkube-upgrades-prepuller`.
    pub prepuller: Option<Workload>,
}

/// Workloads that are updated now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Order {
    /// `ovnkube-node`; if not, it is left as it is.
    pub node: bool,
    /// `ovnkube-control-plane`; if not, it is left as it is.
    pub control_plane: bool,
    /// Whether nodes pull the image of the next version meanwhile.
    pub prepull: bool,
}

impl Order {
    const BOTH: Self = Self {
        node: true,
        control_plane: true,
        prepull: false,
    };
    const NODE: Self = Self {
        node: true,
        control_plane: false,
        prepull: false,
    };
    const CONTROL_PLANE: Self = Self {
        node: false,
        control_plane: true,
        prepull: false,
    };
    const PREPULL: Self = Self {
        node: false,
        control_plane: false,
        prepull: true,
    };
}

/// What is updated now, to this version and these families.
pub fn order(existing: &Existing, release: &str, ip_family: &str) -> Order {
    let (Some(node), Some(control_plane)) = (&existing.node, &existing.control_plane) else {
        return Order::BOTH;
    };
    if let Some(order) = of_families(node, control_plane, ip_family) {
        return order;
    }
    let order = of_versions(node, control_plane, release);
    let is_next = compare(&node.version, release) == Some(Ordering::Less);
    if order.node && is_next && !is_pulled(existing.prepuller.as_ref(), release) {
        return Order::PREPULL;
    }
    order
}

/// While families change, the control plane goes first, and the nodes when it has rolled out.
fn of_families(node: &Workload, control_plane: &Workload, wanted: &str) -> Option<Order> {
    let differs = |workload: &Workload| workload.ip_family != wanted;
    if node.ip_family.is_empty() || control_plane.ip_family.is_empty() {
        return None;
    }
    match (differs(node), differs(control_plane)) {
        (false, false) => None,
        (_, true) => Some(Order::CONTROL_PLANE),
        (true, false) if control_plane.is_progressing => Some(Order::CONTROL_PLANE),
        (true, false) => Some(Order::BOTH),
    }
}

/// Nodes are updated before the control plane, and set back after it.
fn of_versions(node: &Workload, control_plane: &Workload, release: &str) -> Order {
    use Ordering::{Equal, Greater, Less};
    let versions = (
        compare(&node.version, release),
        compare(&control_plane.version, release),
    );
    match versions {
        (Some(Less), Some(Less)) => Order::NODE,
        (Some(Equal), Some(Less)) if node.is_progressing => Order::NODE,
        (Some(Greater), Some(Greater)) => Order::CONTROL_PLANE,
        (Some(Greater), Some(Equal)) if control_plane.is_progressing => Order::CONTROL_PLANE,
        // Either the other one has rolled out, or the versions have no order.
        _ => Order::BOTH,
    }
}

fn is_pulled(prepuller: Option<&Workload>, release: &str) -> bool {
    prepuller.is_some_and(|prepuller| prepuller.version == release && !prepuller.is_progressing)
}

/// How a version stands to another one (semantic versioning 2.0); nothing if one of them is none.
pub(super) fn compare(one: &str, two: &str) -> Option<Ordering> {
    if one == two && !one.is_empty() {
        return Some(Ordering::Equal);
    }
    let (one, two) = (Version::read(one)?, Version::read(two)?);
    Some(
        one.numbers
            .cmp(&two.numbers)
            .then_with(|| match (&one.rest, &two.rest) {
                (None, None) => Ordering::Equal,
                // What leads to a release comes before it.
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(one), Some(two)) => compare_rest(one, two),
            }),
    )
}

struct Version<'a> {
    numbers: [u64; 3],
    rest: Option<&'a str>,
}

impl<'a> Version<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let text = text.split('+').next()?;
        let (numbers, rest) = match text.split_once('-') {
            Some((numbers, rest)) => (numbers, Some(rest)),
            None => (text, None),
        };
        let mut parts = numbers.split('.').map(|part| part.parse().ok());
        let numbers = [parts.next()??, parts.next()??, parts.next()??];
        (parts.next().is_none()).then_some(Self { numbers, rest })
    }
}

fn compare_rest(one: &str, two: &str) -> Ordering {
    let (mut one, mut two) = (one.split('.'), two.split('.'));
    loop {
        let order = match (one.next(), two.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(one), Some(two)) => match (one.parse::<u64>(), two.parse::<u64>()) {
                (Ok(one), Ok(two)) => one.cmp(&two),
                (Ok(_), Err(_)) => Ordering::Less,
                (Err(_), Ok(_)) => Ordering::Greater,
                (Err(_), Err(_)) => one.cmp(two),
            },
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

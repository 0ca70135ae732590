//! Order of the rollouts of OVN-Kubernetes (§7.6). A workload that has to wait stays unchanged.

use std::cmp::Ordering;

#[cfg(test)]
mod tests;

/// Progress of a `DaemonSet`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DaemonSetProgress {
    /// Generation of the object.
    pub generation: i64,
    /// Observed generation in the status.
    pub observed: i64,
    /// Desired number of pods, one for each node.
    pub desired: i32,
    /// Nodes with a current pod.
    pub updated: i32,
    /// Nodes with an available pod.
    pub available: i32,
    /// Nodes without an available pod.
    pub unavailable: i32,
    /// True if the rollout hangs.
    pub is_hung: bool,
}

impl DaemonSetProgress {
    /// True while the rollout is in progress. A hung rollout counts as complete if at most a tenth of the nodes, or one
    /// node, is outdated: a large cluster always has a broken node.
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
    /// Observed generation in the status.
    pub observed: i64,
    /// Desired number of pods.
    pub replicas: i32,
    /// Number of current pods.
    pub updated: i32,
    /// Number of available pods.
    pub available: i32,
}

impl DeploymentProgress {
    /// True while the rollout is in progress.
    pub fn is_progressing(&self) -> bool {
        self.updated < self.replicas || self.available < self.replicas || self.generation > self.observed
    }
}

/// An existing workload.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Workload {
    /// Version of the operator that rendered it. Empty without the annotation.
    pub version: String,
    /// `single-stack` or `dual-stack`. Empty without the annotation.
    pub ip_family: String,
    /// True while the rollout is in progress.
    pub is_progressing: bool,
}

/// Existing workloads.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Existing {
    /// `DaemonSet` `ovnkube-node`.
    pub node: Option<Workload>,
    /// Deployment `ovnkube-control-plane`.
    pub control_plane: Option<Workload>,
    /// `DaemonSet` `ovnkube-upgrades-prepuller`.
    pub prepuller: Option<Workload>,
}

/// Workloads to update in this reconciliation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Order {
    /// True to update `ovnkube-node`, false to leave the workload unchanged.
    pub node: bool,
    /// True to update `ovnkube-control-plane`, false to leave the workload unchanged.
    pub control_plane: bool,
    /// True if nodes pull the image of the next version first.
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

/// Decides which workloads are updated, to this version and these address families.
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

/// A change of the address families updates the control plane first. The nodes follow after its rollout.
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

/// An upgrade updates the nodes before the control plane, and a downgrade after it.
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
        // The first rollout is complete, or the versions cannot be compared.
        _ => Order::BOTH,
    }
}

fn is_pulled(prepuller: Option<&Workload>, release: &str) -> bool {
    prepuller.is_some_and(|prepuller| prepuller.version == release && !prepuller.is_progressing)
}

/// Compares two versions (semantic versioning 2.0). `None` if one of them is malformed.
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
                // A pre-release comes before its release.
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

//! What the operator knows about the cluster it runs in (operator §2.1).

use serde_json::Value;

use crate::layout::Layout;

/// Facts that are found out at start, and again when the kinds change that the cluster serves.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Platform {
    /// OpenShift 4: its CNI directories, DNS and certificates are used.
    pub openshift4: bool,
    /// Security context constraints exist, so that privileged workloads need them.
    pub scc: bool,
    /// The Prometheus operator's kinds exist.
    pub monitoring: bool,
    /// Where nodes keep what belongs to CNI and to the container runtime.
    pub layout: Layout,
}

/// OpenShift's network configuration, `Network.operator.openshift.io/cluster`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct OpenShiftNetwork {
    /// `spec.disableMultiNetwork`: OpenShift's own multus is switched off.
    pub multus_disabled: bool,
}

/// All facts that rendering and validation depend on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Cluster {
    /// Facts that are found out once.
    pub platform: Platform,
    /// OpenShift's network configuration, if there is one. This is another notion than
    /// [`Platform::openshift4`], which is about the presence of the API.
    pub openshift_network: Option<OpenShiftNetwork>,
}

/// What there is of the API by which node state is wished for, and which somebody else may have brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeState {
    /// Its definition.
    pub definition: NodeStateDefinition,
    /// Its objects.
    pub wish: NodeStateWish,
}

/// The definition of the API by which node state is wished for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum NodeStateDefinition {
    /// There is none.
    #[default]
    None,
    /// We deployed it.
    Ours,
    /// Somebody else did, and has an operator for it.
    SomebodyElses,
}

/// Wishes for node state. There is one at most: of several, node state operators keep the oldest.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum NodeStateWish {
    /// There can't be any yet.
    #[default]
    NotServed,
    /// There is none.
    None,
    /// Ours, with these settings.
    Ours(Value),
    /// Somebody else's.
    SomebodyElses,
}

//! Facts about the cluster in which the operator runs (operator §2.1).

use serde_json::Value;

use crate::layout::Layout;

/// Facts that are detected at start, and again when the set of served kinds changes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Platform {
    /// Whether this is OpenShift 4. On OpenShift the operator uses OpenShift's CNI directories, DNS and certificates.
    pub openshift4: bool,
    /// Whether security context constraints exist. Privileged workloads need them.
    pub scc: bool,
    /// Whether the kinds of the Prometheus operator exist.
    pub monitoring: bool,
    /// Paths of CNI and of the container runtime on the nodes.
    pub layout: Layout,
}

/// OpenShift's network configuration, `Network.operator.openshift.io/cluster`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct OpenShiftNetwork {
    /// `spec.disableMultiNetwork`: OpenShift does not deploy multus.
    pub multus_disabled: bool,
}

/// All facts on which rendering and validation depend.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Cluster {
    /// Detected facts.
    pub platform: Platform,
    /// OpenShift's network configuration, if the object exists. [`Platform::openshift4`] is true even without the
    /// object, if the API is served.
    pub openshift_network: Option<OpenShiftNetwork>,
}

/// State of the `NMState` API, which another operator may have installed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeState {
    /// The definition of the kind.
    pub definition: NodeStateDefinition,
    /// The `NMState` objects.
    pub object: NMStateObject,
}

/// The owner of the definition of `NMState`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum NodeStateDefinition {
    /// The definition does not exist.
    #[default]
    None,
    /// This operator deployed it.
    Ours,
    /// Another operator deployed it, and serves it.
    Foreign,
}

/// The `NMState` object. If there are several, node state operators keep the oldest.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum NMStateObject {
    /// The API is not served.
    #[default]
    NotServed,
    /// The API is served, and no object exists.
    None,
    /// The object of this operator, with its settings.
    Ours(Value),
    /// The object of another owner.
    Foreign,
}

//! Literals: names of objects, labels, annotations.

/// Namespace of the operator.
pub const OPERATOR_NAMESPACE: &str = "openshift-network-operator";
/// Namespace of multus.
pub const MULTUS_NAMESPACE: &str = "openshift-multus";
/// Namespace of the checks of connectivity.
pub const DIAGNOSTICS_NAMESPACE: &str = "openshift-network-diagnostics";
/// Namespace of kube-proxy.
pub const KUBE_PROXY_NAMESPACE: &str = "openshift-kube-proxy";
/// Namespace of our own default network.
pub const POD_NETWORK_NAMESPACE: &str = "weft-pod-network";

/// The default network of OpenShift.
pub const OVN_KUBERNETES: &str = "OVNKubernetes";
/// Our own default network.
pub const WEFT: &str = "Weft";

/// An additional network whose CNI configuration is given.
pub const RAW: &str = "Raw";
/// An additional network by macvlan.
pub const SIMPLE_MACVLAN: &str = "SimpleMacvlan";

/// State in which the operator does nothing.
pub const UNMANAGED: &str = "Unmanaged";

/// Namespace of OVN-Kubernetes.
pub const OVN_NAMESPACE: &str = "openshift-ovn-kubernetes";

//! Texts of the upstream monitor's log that users know, and texts with advice.

/// An instance has no name.
pub(crate) const NO_NAME: &str = "VM name in empty";
/// An instance has no namespace.
pub(crate) const NO_NAMESPACE: &str = "VM namespace is empty";
/// The cluster lacks KubeVirt.
pub(crate) const NO_KUBEVIRT: &str = "the API server does not serve virtualmachineinstances of kubevirt.io/v1: names are published once KubeVirt is there";
/// Answer of a successful probe.
pub(crate) const OK: &str = "OK";
/// Answer of the readiness probe before the first zone.
pub(crate) const NOT_READY: &str = "no zone is loaded yet";

//! Texts that users know from the logs of the upstream monitor, and texts that say what to do.

/// An instance has no name.
pub(crate) const NO_NAME: &str = "VM name in empty";
/// An instance has no namespace.
pub(crate) const NO_NAMESPACE: &str = "VM namespace is empty";
/// There are no instances to follow.
pub(crate) const NO_KUBEVIRT: &str = "the API server does not serve virtualmachineinstances of kubevirt.io/v1: names are published once KubeVirt is there";
/// What probes say.
pub(crate) const OK: &str = "OK";
/// What they say before.
pub(crate) const NOT_READY: &str = "no zone is loaded yet";

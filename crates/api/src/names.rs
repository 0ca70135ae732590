//! Literals for users, other operators and Weft's components.

/// API group of [`NetworkAddonsConfig`](crate::network_addons::NetworkAddonsConfig).
pub const NETWORK_ADDONS_GROUP: &str = "networkaddonsoperator.network.kubevirt.io";
/// Kind of the operator's configuration resource.
pub const NETWORK_ADDONS_KIND: &str = "NetworkAddonsConfig";
/// The stored version, which owner references contain.
pub const NETWORK_ADDONS_STORED_VERSION: &str = "v1";
/// The version of the first generation, served for existing manifests.
pub const NETWORK_ADDONS_OLD_VERSION: &str = "v1alpha1";
/// Name of the single object of the kind that the operator reads.
pub const NETWORK_ADDONS_SINGLETON: &str = "cluster";

/// API group of [`NetworkAttachmentDefinition`](crate::net_attach_def::NetworkAttachmentDefinition).
pub const NET_ATTACH_DEF_GROUP: &str = "k8s.cni.cncf.io";
/// Kind of a network that pods can be attached to.
pub const NET_ATTACH_DEF_KIND: &str = "NetworkAttachmentDefinition";

/// Label with the operator version that rendered an object (operator §8.2).
pub const VERSION_LABEL: &str = "networkaddonsoperator.network.kubevirt.io/version";
/// Label that the operator's metrics Service selects (operator §8.2).
pub const PROMETHEUS_LABEL: &str = "prometheus.cnao.io";
/// Relationship label: the manager of the object.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Relationship label: the component of the application, copied from the configuration resource.
pub const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
/// Relationship label: the application, copied from the configuration resource.
pub const PART_OF_LABEL: &str = "app.kubernetes.io/part-of";
/// Relationship label: the version of the application, copied from the configuration resource.
pub const PRODUCT_VERSION_LABEL: &str = "app.kubernetes.io/version";
/// Annotation that prevents owner references to the operator's configuration in a rendered object (operator §8.3).
pub const REJECT_OWNER_ANNOTATION: &str = "networkaddonsoperator.network.kubevirt.io/rejectOwner";

//! Tests of the product on the real cluster, in `tests/e2e`. `cargo xtask test e2e` builds the image, starts the
//! cluster, installs the operator and runs them.

pub mod availability;

/// Environment variable with the image on the cluster, as named by `cargo xtask image`.
pub const IMAGE_VARIABLE: &str = "WEFT_E2E_IMAGE";

/// Environment variable with the path of that image's docker archive, for clusters of single tests.
pub const ARCHIVE_VARIABLE: &str = "WEFT_E2E_ARCHIVE";

/// Environment variable with the path of the image's `weft-cni` binary.
pub const CNI_BINARY_VARIABLE: &str = "WEFT_E2E_CNI_BINARY";

/// The operator's namespace.
pub const OPERATOR_NAMESPACE: &str = "cluster-network-addons";

/// Name of the operator's Deployment, and label of its pods.
pub const OPERATOR: &str = "cluster-network-addons-operator";

/// Label of all objects that the operator deploys.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Value of that label.
pub const MANAGER: &str = "cnao-operator";
/// Value of that label for objects of the node state operator.
pub const NODE_STATE_MANAGER: &str = "nmstate-operator";

/// The nodes of the cluster.
pub const NODES: [&str; 2] = ["node01", "node02"];

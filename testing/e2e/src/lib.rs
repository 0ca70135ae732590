//! Tests of the product on the real cluster; they lie in `tests/e2e`. `cargo xtask test e2e` builds the image, brings the
//! cluster up, installs the operator and runs them.

pub mod availability;

/// Environment variable: the image that runs on the cluster, as `cargo xtask image` named it.
pub const IMAGE_VARIABLE: &str = "WEFT_E2E_IMAGE";

/// Environment variable: path of that image's docker archive, for clusters of a test's own.
pub const ARCHIVE_VARIABLE: &str = "WEFT_E2E_ARCHIVE";

/// Environment variable: path of the `weft-cni` binary that the image holds.
pub const CNI_BINARY_VARIABLE: &str = "WEFT_E2E_CNI_BINARY";

/// The operator's namespace.
pub const OPERATOR_NAMESPACE: &str = "cluster-network-addons";

/// Name of the operator's Deployment, and the label of its pods.
pub const OPERATOR: &str = "cluster-network-addons-operator";

/// Label of everything that the operator deploys.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Value of that label.
pub const MANAGER: &str = "cnao-operator";
/// Its value for what the operator of node network state deploys.
pub const NODE_STATE_MANAGER: &str = "nmstate-operator";

/// The nodes of the cluster.
pub const NODES: [&str; 2] = ["node01", "node02"];

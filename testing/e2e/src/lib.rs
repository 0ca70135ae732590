//! Tests of the product on the real cluster; everything lies in `tests/e2e`. `cargo xtask test e2e` builds the image,
//! brings the cluster up, installs the operator and runs them.

/// Environment variable: the image that runs on the cluster, as `cargo xtask image` named it.
pub const IMAGE_VARIABLE: &str = "WEFT_E2E_IMAGE";

/// Environment variable: path of the `weft-cni` binary that the image holds.
pub const CNI_BINARY_VARIABLE: &str = "WEFT_E2E_CNI_BINARY";

/// The operator's namespace.
pub const OPERATOR_NAMESPACE: &str = "cluster-network-addons";

/// The nodes of the cluster.
pub const NODES: [&str; 2] = ["node01", "node02"];

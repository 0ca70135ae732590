//! `weft cluster-network-operator`: the network of a cluster, from nothing (`docs/behaviour/cluster-network.md`).
//!
//! ```text
//! Network.config ── cluster_config: validate, translate ──> Network.operator
//!                                                               │
//!      operator_config: validate ──> defaults ──> safety ──> render ──> plan: errors, filled, objects
//!                                                               │
//!              reconcile: observe ──> plan ──> apply ──> prune ──> status
//! ```
//!
//! Everything above `reconcile` is pure: values in, a plan out.

pub mod names;

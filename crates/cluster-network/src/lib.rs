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

pub mod additional_networks;
pub mod canonical;
pub mod cidr;
pub mod cluster_config;
pub mod defaults;
pub mod facts;
pub mod identity;
pub mod ingress;
pub mod kube_proxy;
pub mod messages;
pub mod names;
pub mod objects;
pub mod operator_config;
pub mod pki;
pub mod pools;
pub mod proxy;
pub mod report;
pub mod safety;
pub mod signer;
pub mod trust;

#[cfg(test)]
mod base;

//! All wire formats of Weft's users: custom resources, labels, annotations.
//!
//! ```text
//! user ── NetworkAddonsConfig ──> operator        (network_addons)
//! user ── NetworkAttachmentDefinition ──> multus  (net_attach_def)
//! KubeVirt IPAM ── IPAMClaim ──> CNI plugin       (ipam_claim)
//! KubeVirt ── virtual machines ──> MAC pool, KubeVirt IPAM, DNS  (kubevirt)
//! user ── NMState ──> node state operator         (node_state)
//! installer, user ── both Networks ──> cluster network operator  (cluster_network)
//! operator ── OperatorPKI ──> certificates           (operator_pki)
//! user ── EgressRouter ──> cluster network operator  (cluster_network)
//! user ── policies ──> handlers ──> reports       (node_state)
//! operator ── PodNetworkConnectivityCheck ──> check-endpoints (connectivity_check)
//! ```
//!
//! The crate contains types and schemas, and does no I/O. The custom resource definitions in `deploy/crds/` are
//! generated from the types, and a test fails if the files are stale.

pub mod cluster_network;
pub mod connectivity_check;
pub mod ipam_claim;
pub mod kubevirt;
pub mod names;
pub mod net_attach_def;
pub mod network_addons;
pub mod node_state;
pub mod operator_pki;
pub mod placement;
mod schema;

pub use schema::Error;

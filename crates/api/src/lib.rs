//! Every wire format that a user of Weft writes or reads: custom resources, labels, annotations.
//!
//! ```text
//! user ── NetworkAddonsConfig ──> operator        (network_addons)
//! user ── NetworkAttachmentDefinition ──> multus  (net_attach_def)
//! KubeVirt IPAM ── IPAMClaim ──> CNI plugin       (ipam_claim)
//! user ── NMState ──> node state operator         (node_state)
//! installer, user ── both Networks ──> cluster network operator  (cluster_network)
//! operator ── OperatorPKI ──> certificates           (operator_pki)
//! user ── policies ──> handlers ──> reports       (node_state)
//! operator ── PodNetworkConnectivityCheck ──> check-endpoints (connectivity_check)
//! ```
//!
//! Types and schemas only: nothing here does I/O. The custom resource definitions are generated
//! from the types, checked in under `deploy/crds/`, and a test fails when the files are stale.

pub mod cluster_network;
pub mod connectivity_check;
pub mod ipam_claim;
pub mod names;
pub mod net_attach_def;
pub mod network_addons;
pub mod node_state;
pub mod operator_pki;
pub mod placement;
mod schema;

pub use schema::Error;

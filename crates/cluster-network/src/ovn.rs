//! What OVN-Kubernetes is configured with (§7). Decisions alone: its objects are not rendered yet.
//!
//! ```text
//! configuration ──┬─> ini: ovnkube.conf
//! ConfigMaps ── knobs
//! workloads that run ──> rollout: which of them are updated now, and whether images are pulled first
//! machines ──> ipsec: which workloads encrypt
//! ```

pub mod ini;
pub mod ipsec;
pub mod knobs;
pub mod rollout;

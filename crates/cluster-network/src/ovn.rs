//! Decisions about OVN-Kubernetes (§7). `render/ovn.rs` renders its objects.
//!
//! ```text
//! configuration ──┬─> ini: ovnkube.conf
//! ConfigMaps ── knobs ──> flags of its programs
//! workloads ── observed ──> rollout: which workloads are updated now, and whether images are pulled first
//! machines ── observed ──> ipsec: which workloads encrypt
//! pools ──> machines: whether they have the machine configurations of the operator
//! ```

pub mod flags;
pub mod ini;
pub mod ipsec;
pub mod knobs;
pub mod machines;
pub mod observed;
pub mod rollout;

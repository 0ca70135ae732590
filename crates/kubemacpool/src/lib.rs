//! `weft kubemacpool`: addresses of virtual machines and of pods' networks, without collisions
//! (`docs/behaviour/kubemacpool.md`).
//!
//! ```text
//! API server ── AdmissionReview ──> webhooks: pods, machines ──> patch
//!     │                                 │ Draft
//!     ├── pods, virtual machines ──> Pool: pending, stored
//!     ├── instances, pods ─────────> collisions ──> events, metrics
//!     └── namespaces, webhook configuration ──> which namespaces are managed
//! ```

pub mod mac;
pub mod pool;
pub mod range;
pub mod timestamp;

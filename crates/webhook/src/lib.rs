//! Admission webhooks: the protocol, and certificates that the program issues itself.
//!
//! ```text
//! API server ── AdmissionReview ──> admission::router ── Request ──> the component's decision
//!            <── AdmissionReview ──                   <── Verdict ──
//!
//! manager ────> certificates::keep ──> Secret of the CA, bundles of the webhooks, Secret of the server
//!     ^                 │
//!     └── next check ───┘
//! ```

pub mod admission;
pub mod certificates;
pub mod manager;
pub mod reviews;

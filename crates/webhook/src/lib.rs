//! What components with admission webhooks share: the protocol, and certificates that nobody else has to issue.
//!
//! ```text
//! API server ── AdmissionReview ──> admission::router ── Request ──> the component's decision
//!            <── AdmissionReview ──                   <── Verdict ──
//!
//! manager ────> certificates::keep ──> Secret of the authority, bundles of the webhooks, Secret of the server
//!     ^                 │
//!     └── look again ───┘
//! ```

pub mod admission;
pub mod certificates;
pub mod manager;
pub mod reviews;

//! What components with admission webhooks share: certificates that nobody else has to issue.
//!
//! ```text
//! reconcile ──> certificates::keep ──> Secret of the authority, bundles of the webhooks, Secret of the server
//!     ^                 │
//!     └── look again ───┘
//! ```

pub mod admission;
pub mod certificates;

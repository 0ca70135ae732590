//! Policies on this node: whether one is for it, when its turn is, how it went, and what all nodes together make of it
//! (nmstate §5.4, §5.5, §5.7, §5.8).
//!
//! ```text
//! policies, node ──> controller: selection ──> render ──> slot ──> apply ──> enactment
//!                         │                                │                     │
//!                         └────────> settler: status of the policy, slots given back, coalesced ──> API server
//! ```

pub mod ask;
pub mod cleanup;
pub mod controller;
pub mod enactment;
pub mod messages;
pub mod objects;
pub mod selection;
pub mod settler;
pub mod slots;
pub mod spread;
pub mod status;

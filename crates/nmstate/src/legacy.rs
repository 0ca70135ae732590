//! The original design of 2018 and 2019, served beside the present one (nmstate §3).
//!
//! ```text
//!   NodeNetworkState.spec.desiredState ──> node_state ──┐
//!                                                       ├──> normalise ──> apply
//!   policy with match, autoConfig ──> matching ─────────┘
//!                                        └──> auto_bond
//! ```

mod auto_bond;
mod interfaces;
pub(crate) mod matching;
mod messages;
pub mod node_state;
pub(crate) mod normalise;
pub(crate) mod policy;
mod render;

pub use policy::{max_unavailable, needs_lldp, priority};
pub use render::document;

//! The original design of 2018 and 2019, served beside today's (nmstate §3).
//!
//! ```text
//!   NodeNetworkState.spec.desiredState ──> node_state ──┐
//!                                                       ├──> normalise ──> apply
//!   policy with match, autoConfig ──> matching ─────────┘
//!                                        └──> auto_bond
//! ```

pub mod auto_bond;
pub mod matching;
mod messages;
pub mod node_state;
pub mod normalise;
pub mod policy;
pub mod render;

pub use policy::{is_about_neighbours, max_unavailable, priority};
pub use render::document;

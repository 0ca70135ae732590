//! Policies on this node: selection, slots, application, and the status that all nodes write together
//! (nmstate §5.4, §5.5, §5.7, §5.8).
//!
//! ```text
//! policies, node ──> controller: selection ──> render ──> slot ──> apply ──> enactment
//!                         │                                │                     │
//!                         └──> status writer: released slots and conditions, coalesced ──> status of the policy
//! ```
//!
//! A slot allows one node to apply a policy. `status.unavailableNodeCountMap` counts the slots of each generation:
//!
//! ```text
//! free ── slots::take ──> counted ──> enactment Progressing ──> success: slots::release ──> free
//!                            │                   └──> final failure: the slot stays taken, other nodes abort
//!                            └── no enactment holds it for a while: slots::LeakDetector ──> free
//! ```

mod cleanup;
pub mod controller;
pub(crate) mod enactment;
mod messages;
pub(crate) mod selection;
pub(crate) mod slots;
mod status;
mod status_writer;

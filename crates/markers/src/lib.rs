//! Marks a node with what it offers, so that pods are scheduled where their network is.
//!
//! ```text
//! rtnetlink link events ──> bridges present ──┐
//!                                             ├─ plan ──> PATCH nodes/<name>/status capacity
//! GET nodes/<name>, now and then ─> advertised ┘
//! ```
//!
//! [`bridge`] advertises one extended resource per Linux bridge (cni-plugins.md §12).

pub mod bridge;

//! Advertises the bridges of a node as extended resources, so that pods are scheduled where their network is.
//!
//! ```text
//! rtnetlink link events ──┐
//! OVSDB updates ──────────┴> bridges present ──┐
//!                                              ├─ plan ──> PATCH nodes/<name>/status capacity
//! GET nodes/<name>, periodically ─> advertised ┘
//! ```
//!
//! * [`bridge`] advertises one extended resource per Linux bridge (cni-plugins.md §12),
//! * [`ovs`] one per bridge of Open vSwitch (§10.9).

mod marker;
mod messages;
mod names;
mod plan;
mod source;

pub mod bridge;
pub mod ovs;

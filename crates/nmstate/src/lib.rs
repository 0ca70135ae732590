//! `weft-nmstate`: what nodes' networks are, and what policies make of them (`docs/behaviour/nmstate.md`).
//!
//! ```text
//!   NMState ──> operator ──> handler on every node, webhook, metrics, cert-manager
//!
//!   kernel, NetworkManager ──> report ──> NodeNetworkState
//!   NodeNetworkConfigurationPolicy ──> policy: selection, slot ──> render ──> apply ──> probes ──> commit
//!        ^                                                │                                  └──> rollback
//!        └── status <── NodeNetworkConfigurationEnactment ┘
//! ```
//!
//! Whatever touches the host goes through the [`engine`], one thread with the nmstate library on it.

pub mod conditions;
pub mod engine;
pub mod names;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the program that name, arguments and environment ask for.
pub fn main(_argv: Vec<OsString>) -> ExitCode {
    ExitCode::SUCCESS
}

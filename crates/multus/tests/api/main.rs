//! The daemon against a real API server, with fake plugins and the real shim, as a runtime calls it. Needs root (the
//! daemon enters network namespaces) and the Kubernetes binaries.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot continue has failed; helpers are part of the tests"
)]

mod admission;
mod attach;
#[path = "../built/mod.rs"]
mod built;
mod certificates;
mod collect;
mod corpus;
mod crash;
mod devices;
mod explain;
mod in_process;
#[path = "../kubelet/mod.rs"]
mod kubelet;
mod life;
mod lookup;
mod metrics;
mod networks;
mod node;
mod plug;
mod power;
mod rights;
mod runtime;
mod state;
mod thin;

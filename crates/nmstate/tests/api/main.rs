//! The handler, the operator and the other programs against real API servers, each with the permissions of its own
//! account and no others (nmstate §12).
//!
//! There are no kubelets and no controllers: nodes and pods are objects that the tests write, and hosts are simulated
//! (`host.rs`) with the real library behind expressions and differences. A handler watches a whole cluster, so
//! each test has a server to itself.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]
#![allow(
    clippy::needless_pass_by_value,
    reason = "documents are written where they are given"
)]

mod admission;
mod cert_manager;
mod client;
mod fixture;
mod host;
mod metrics;
mod old_policies;
mod operator;
mod original_design;
mod policy;
mod preview;
mod program;
mod reports;
mod rights;
mod stage;
mod webhook;

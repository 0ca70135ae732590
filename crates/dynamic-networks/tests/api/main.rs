//! The controller against a real API server, with a container runtime and a multus daemon that the tests program. Needs
//! the Kubernetes binaries.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot continue has failed; helpers are part of the tests"
)]

mod changes;
mod failures;
mod fake;
mod life;
mod node;
mod way;

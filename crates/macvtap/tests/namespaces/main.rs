//! The device plugin and a fake kubelet, in a new network namespace. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot continue has failed; helpers are part of the tests"
)]

mod kubelet;
mod life;
mod macvtaps;
mod node;

//! The device plugin and a made-up kubelet, in a network namespace of the test's own. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed; helpers are part of the tests"
)]

mod kubelet;
mod life;
mod macvtaps;
mod node;

//! The product under virtual machines: KubeVirt's own control plane makes and changes their pods.
//!
//! Guests are simulated: tests inspect everything up to the pod and its interfaces.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where it fails"
)]
#![allow(unreachable_pub, reason = "a test binary has no public items")]

mod addresses;
mod claims;
mod components;
mod life;
mod machine;
mod migration;
mod networks;
mod scene;
mod stage;

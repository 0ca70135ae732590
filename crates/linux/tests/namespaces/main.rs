//! The crate against the kernel, in network namespaces that each test makes for itself.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod events;
mod kinds;
mod links;
mod network;
mod nft;
mod packets;
mod support;
mod traffic;

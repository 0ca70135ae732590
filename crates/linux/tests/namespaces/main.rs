//! The crate on the real kernel, in network namespaces of each test.

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

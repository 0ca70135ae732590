//! The daemon between a host, which is a network namespace, and a real API server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod daemon;
mod host;
mod proxy;
mod rights;

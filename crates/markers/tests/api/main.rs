//! The markers between a host and an API server, both real.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod bridge;
mod node;
mod ovs;

//! The plugin and the daemon against dnsmasq, over links of the kernel. Each test has a network namespace as its host,
//! and a `/run` of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod leases;
mod restarts;
mod stage;

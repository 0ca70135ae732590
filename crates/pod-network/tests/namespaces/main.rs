//! Several nodes, each a network namespace, with pods and real packets between them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod kills;
mod network;
mod packets;
mod repairs;

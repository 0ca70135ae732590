//! The engine on hosts with NetworkManager: network and mount namespaces of their own, with D-Bus and NetworkManager
//! in them; nothing reaches the machine.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]
#![allow(
    clippy::unused_self,
    clippy::needless_pass_by_value,
    reason = "helpers are methods of the host, and tests pass documents as literals"
)]

mod beyond;
mod captures;
mod changes;
mod engine;
mod host;
mod kernel;
mod lldp;
mod nmstatectl;
mod recipes;
mod rollback;
#[path = "../recipes/mod.rs"]
mod shared;
mod victim;

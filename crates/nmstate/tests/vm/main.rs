//! The engine with NetworkManager on a kernel with features that many machines' kernels lack: bonds, 802.1Q and VLAN
//! filtering, dummies, VRF. Run by `cargo xtask test vm`, in a virtual machine.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod host;
mod recipes;
#[path = "../recipes/mod.rs"]
mod shared;

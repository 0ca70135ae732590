//! The plugins against the kernel, called from the outside as a runtime calls them: the built binary, run in a
//! network namespace that plays the host, on containers that are other fresh namespaces.
//!
//! Every test has a mount namespace of its own too, with its own `/run` and `/etc`, so that nothing reaches the
//! machine and tests can run side by side.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod addresses;
mod bandwidth;
mod bridge;
mod check;
mod contract;
mod delegation;
mod dice;
mod egress_router;
mod firewall;
mod fuzz;
mod host_device;
mod host_local;
mod killer;
mod kills;
mod kinds;
mod macvlan;
mod macvtap;
mod ovs;
mod portmap;
mod protocol;
mod ptp;
mod recovery;
mod rules;
mod sbr;
mod stage;
mod tap;
#[allow(dead_code, reason = "the tests beside the plugins use more of it")]
#[path = "../../src/testing.rs"]
mod testing;
mod tuning;
mod tuning_backup;

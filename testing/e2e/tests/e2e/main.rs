//! The product on the real two-node cluster, with kubectl, pods and packets.
//!
//! The tests share one cluster and change its deployment, so that they run one at a time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where it fails"
)]
#![allow(unreachable_pub, reason = "a test binary has no public items")]
#![allow(
    clippy::unused_self,
    reason = "each helper holds the guard of its turn on the stage"
)]

mod attach;
mod cluster_network;
mod components;
mod crash;
mod dhcp;
mod doctor;
mod dump;
mod egress_router;
mod hot_plug;
mod isolation;
mod log;
mod mac_pool;
mod macvtap;
mod mtu_migration;
mod native_pods;
mod node_network;
mod node_network_kill;
mod node_network_policies;
mod node_network_rollback;
mod open_vswitch;
mod operator;
mod pod_network;
mod pods;
mod record;
mod routed_nodes;
mod standalone;
mod storm;
mod support;
mod transitions;
mod virtual_machines;

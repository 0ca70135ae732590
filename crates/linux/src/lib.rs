//! The kernel as Weft sees it: synchronous, one netlink socket per network namespace, typed errors.
//!
//! ```text
//!  netns::NetNs ──run──> route::Socket::open      one per namespace, stays there after the thread left
//!                            │
//!          link · port · vlan · address · routes · rules · traffic · neighbour  requests and answers on that socket
//!                            │
//!  nft::Socket::open ──> update, commit                          packet rules, one transaction at a time
//!
//!          monitor::LinkMonitor, AddressMonitor, HostMonitor      events: nothing here polls by time
//!          nft::Monitor
//!
//!  packet: IPv4 packets of a link that has no address yet
//!  tap: links whose other end is a program, made in the namespace that the thread is in
//!  sysctl, arp: files below /proc/sys, of the namespace that the thread is in
//!  process: what has to happen between fork and exec
//!  memory: what a process has and does not need
//!  files: ones that appear whole
//! ```
//!
//! Nothing here knows CNI or Kubernetes. It is the only crate of the workspace that may say `unsafe`.

pub mod address;
pub mod arp;
mod error;
pub mod files;
pub mod link;
pub mod memory;
pub mod monitor;
pub mod neighbour;
pub mod netns;
pub mod nft;
pub mod packet;
pub mod port;
pub mod process;
pub mod random;
pub mod route;
pub mod routes;
pub mod rules;
pub mod sysctl;
pub mod tap;
pub mod thread;
pub mod traffic;
pub mod vlan;

pub use error::{Errno, Error, Feature, Result};

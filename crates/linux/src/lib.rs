//! The Linux kernel's interfaces: synchronous, with one netlink socket for each network namespace, and typed errors.
//!
//! ```text
//!  netns::NetNs ──run──> route::Socket::open      one per namespace, stays there when the thread leaves
//!                            │
//!          link · port · vlan · address · routes · rules · traffic · neighbour  requests and answers on that socket
//!                            │
//!  nft::Socket::open ──> update, commit                          packet rules, one transaction at a time
//!
//!          monitor::LinkMonitor, AddressMonitor, HostMonitor      events, so that nothing is polled
//!          nft::Monitor
//!
//!  packet: IPv4 packets of a link without an address
//!  tap: links whose other end is a program, created in the namespace of the thread
//!  sysctl, arp: files in /proc/sys, of the namespace of the thread
//!  process: work between fork and exec
//!  memory: memory of the process that it does not need
//!  backoff: growing delays of retries
//!  files: files that appear with their whole content
//! ```
//!
//! The crate depends on neither CNI nor Kubernetes. Only this crate of the workspace may use `unsafe`.

pub mod address;
pub mod arp;
pub mod backoff;
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

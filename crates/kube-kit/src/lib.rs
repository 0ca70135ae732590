//! What every controller of Weft shares.
//!
//! ```text
//!             watch ──> cache ──> queue ──> reconcile (the component's own, pure)
//!               │         │                     │ rendered objects
//!   API server <┤         └── live objects ──> merge::plan ──> apply ──> API server
//!               │                               │
//!               └── conditions, events <────────┴──> inventory ──> prune
//! ```
//!
//! Pure modules ([`merge`], [`inventory`], [`conditions`], [`queue`]'s back-off) take values and return plans; the
//! modules at the edge ([`client`], [`apply`], [`watch`], [`cache`], [`events`], [`serve`] with [`tls`] and [`auth`])
//! carry them out, and [`metrics`] count what they do. Everything is made for one current-thread runtime a process
//! ([`process::run`]): locks are held for a few instructions and never across an await.

pub mod apply;
pub mod auth;
pub mod cache;
pub mod client;
pub mod conditions;
pub mod connection;
#[cfg(feature = "grpc")]
pub mod cri;
pub mod defaults;
pub mod duration;
pub mod events;
#[cfg(feature = "grpc")]
pub mod grpc;
pub mod inventory;
pub mod merge;
pub mod metrics;
pub mod object;
pub mod patch;
pub mod path;
pub mod places;
pub mod pod;
pub mod process;
pub mod queue;
pub mod serve;
pub mod shutdown;
pub mod tls;
pub mod watch;
pub mod watch_dir;
pub mod workload;

/// The client library that this crate's interfaces are written in, so that users of both agree on one version.
pub use kube;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex; the data stays usable when another holder panicked, because every critical section here leaves
/// it whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

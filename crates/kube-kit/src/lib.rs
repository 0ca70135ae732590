//! The common parts of all controllers.
//!
//! ```text
//!             watch ──> cache ──> queue ──> reconcile (the component's own, pure)
//!               │         │                     │ rendered objects
//!   API server <┤         └── live objects ──> merge::plan ──> apply ──> API server
//!               │                               │
//!               └── conditions, events <────────┴──> inventory ──> prune
//! ```
//!
//! Pure modules ([`merge`], [`inventory`], [`conditions`]) take values and return plans. The modules at the edge
//! ([`client`], [`apply`], [`watch`], [`cache`], [`events`], [`serve`] with [`tls`] and [`auth`]) execute them, and
//! [`metrics`] counts them. A process has one current-thread runtime ([`process::run`]): locks are held for a few
//! instructions, and never across an await. [`linux::backoff`] has the delays of retries.

pub mod address;
pub mod apply;
pub mod auth;
pub mod cache;
pub mod client;
pub mod conditions;
pub mod connection;
pub mod console;
#[cfg(feature = "grpc")]
pub mod cri;
mod defaults;
pub mod document;
pub mod duration;
pub mod events;
pub mod exec;
pub mod finalizers;
#[cfg(feature = "grpc")]
pub mod grpc;
pub mod inventory;
mod kubeconfig;
pub mod lease;
pub mod merge;
pub mod metrics;
pub mod object;
pub mod pages;
pub mod patch;
pub mod path;
pub mod places;
pub mod pod;
pub mod process;
mod proxy;
pub mod queue;
pub mod serve;
pub mod shutdown;
pub mod tls;
pub mod watch;
pub mod watch_dir;
pub mod workload;

/// The client library in this crate's interfaces, re-exported so that users of both have the same version.
pub use kube;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. A poisoned mutex is used on, because every critical section here leaves the data whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

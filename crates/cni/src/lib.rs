//! The Container Network Interface, both sides of it: what a plugin reads and prints, and how a runtime finds plugins,
//! chains them and remembers their results. No netlink and no Kubernetes client: values and processes alone.
//!
//! ```text
//! runtime side   NetworkList ── chain ── Invoker ──exec──> plugin        cache: results on disk
//! plugin side    environment + stdin ── plugin::dispatch ──> Plugin ──> result or error on stdout
//! annotations    selection (what a pod asks for)       status (what it got)
//! ```
//!
//! Sources: the CNI specification 1.1.0, the network plumbing working group's de-facto standard for the annotations,
//! and `docs/behaviour/cni-plugins.md` §1 and `multus.md` §2, §6, §10.

pub mod args;
pub mod cache;
pub mod chain;
pub mod config;
pub mod env;
pub mod error;
pub mod exec;
pub mod files;
mod interpreter;
pub mod json;
mod limit;
pub mod mac;
pub mod names;
pub mod net;
pub mod note;
pub mod plugin;
pub mod result;
pub mod selection;
pub mod status;
pub mod version;

pub use error::Error;
pub use version::Version;

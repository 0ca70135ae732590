//! The Container Network Interface, both sides: a plugin's input and output, and a runtime's search, chaining and
//! result cache of plugins. Only values and processes: no netlink, no Kubernetes client.
//!
//! ```text
//! runtime side   NetworkList ── chain ── Invoker ──exec──> plugin        cache: results on disk
//! plugin side    environment + stdin ── plugin::dispatch ──> Plugin ──> result or error on stdout
//! annotations    selection (requested networks)        status (attached networks)
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

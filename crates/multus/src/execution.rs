//! Runs blocking work and plugins.
//!
//! ```text
//! daemon ──slot──> workers: a thread ──> in_process: a plugin of ours on that thread
//!                                            └────> another program ──> outside of the memory limit
//! ```

pub mod in_process;
pub(crate) mod memory_limit;
pub(crate) mod workers;

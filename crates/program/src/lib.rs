//! What the command lines of all programs have in common: flags as Go takes them, what log lines look like, and how
//! files are read and answers printed.
//!
//! ```text
//! argv ──> argv::go_flags ──> clap ──> zap::Flags ──> logging::start
//! ```

pub mod argv;
pub mod glog;
pub mod logging;
pub mod multus_log;
pub mod rotated;
pub mod terminal;
pub mod zap;

//! The command lines of all programs: flags in the form of Go, the format of log lines, the reading of files, and
//! output for people with its exit codes.
//!
//! ```text
//! argv ──> argv::go_flags ──> clap ──> zap::Flags ──> logging::start
//! ```

pub mod answer;
pub mod argv;
pub mod glog;
pub mod logging;
pub mod multus_log;
pub mod rotated;
pub mod table;
pub mod terminal;
pub mod zap;

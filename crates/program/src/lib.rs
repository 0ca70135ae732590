//! What the command lines of all programs have in common: flags as Go takes them, and what log lines look like.
//!
//! ```text
//! argv ──> argv::go_flags ──> clap ──> zap::Flags ──> logging::start
//! ```

pub mod argv;
pub mod logging;
pub mod zap;

//! wip
pub mod answer;
pub mod metrics;
pub mod model;
pub mod names;
pub mod query_log;
pub mod server;
pub mod vmi;
pub mod zone;

//! The networks of a pod: which ones, with which configuration, in which order (multus.md §1 to §4).
//!
//! ```text
//! net_conf: multus' own configuration ──┐
//! pod, NADs, configuration files ───────┴─> resolve ──> delegate, one for each network ──> default_route, device_info
//! ```

pub mod default_route;
pub mod delegate;
pub mod device_info;
pub(crate) mod net_conf;
pub(crate) mod resolve;

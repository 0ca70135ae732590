//! Checks that pods of the cluster reach the API servers and each other (`docs/behaviour/cluster-network.md` §13).
//!
//! ```text
//! pods, services, nodes ──> generator: checks ──> PodNetworkConnectivityChecks <── request ── weft network check
//!                                                    │ spec, request   ▲ status
//!                                                    ▼                 │
//!     weft check-target <── TCP, TLS ── weft check-endpoints: dial, outage ──> events, metrics
//! ```
//!
//! * [`source`] connects to endpoints and reports the results (`weft check-endpoints`),
//! * [`target`] answers the connections (`weft check-target`),
//! * [`generator`] is a controller of the cluster network operator: it creates the checks,
//! * [`cli`] has the checks run, and prints the results node by node.

pub mod cli;
mod dial;
mod flood;
pub mod generator;
mod messages;
pub mod metrics;
mod names;
mod outage;
mod pending;
pub mod source;
pub mod target;

//! Whether pods of the cluster reach what they need to (`docs/behaviour/cluster-network.md` §13).
//!
//! ```text
//! pods, services, nodes ──> generator: checks ──> PodNetworkConnectivityChecks ──> weft network check
//!                                                    │ spec        ▲ status
//!                                                    ▼             │
//!     weft check-target <── TCP, TLS ── weft check-endpoints: dial, outage ──> events, metrics
//! ```
//!
//! * [`source`] is the program that connects and tells what came of it (`weft check-endpoints`),
//! * [`target`] the one that is connected to (`weft check-target`),
//! * [`generator`] a controller of the cluster network operator: it says which pod connects to what,
//! * [`cli`] prints the results, node by node.

pub mod cli;
pub mod dial;
pub mod flood;
pub mod generator;
pub mod messages;
pub mod metrics;
pub mod names;
pub mod outage;
pub mod pending;
pub mod source;
pub mod target;

//! The operator against a real API server, with the permissions of the shipped roles alone.
//!
//! There are no nodes and no controllers: the tests write the status of workloads, and nothing collects garbage unless
//! a test starts a collector. A cluster has a single configuration resource, so each test has a server for itself,
//! which the next test reuses.

#[cfg(test)]
mod admission;
#[cfg(test)]
mod alerts;
#[cfg(test)]
mod certificates;
#[cfg(test)]
mod chart;
#[cfg(test)]
mod command_line;
#[cfg(test)]
mod components;
#[cfg(test)]
mod definitions;
#[cfg(test)]
mod detection;
#[cfg(test)]
mod drift;
#[cfg(test)]
mod fields;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod installation;
#[cfg(test)]
mod isolation;
#[cfg(test)]
mod layouts;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod node_state;
#[cfg(test)]
mod outage;
#[cfg(test)]
mod profiles;
#[cfg(test)]
mod prometheus;
#[cfg(test)]
mod removal;
#[cfg(test)]
mod rights;
#[cfg(test)]
mod secondary_dns;
#[cfg(test)]
mod status;
#[cfg(test)]
mod stubs;
#[cfg(test)]
mod takeover;
#[cfg(test)]
mod validation;
#[cfg(test)]
mod watching;

//! The operator against a real API server, with the permissions of the shipped roles and no others.
//!
//! There are no nodes and no controllers: the status of workloads is written by the tests, and nothing
//! collects garbage but where a test starts a collector. All tests share one server and one configuration resource, so they take turns.

#[cfg(test)]
mod admission;
#[cfg(test)]
mod chart;
#[cfg(test)]
mod components;
#[cfg(test)]
mod definitions;
#[cfg(test)]
mod drift;
#[cfg(test)]
mod fields;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod installation;
#[cfg(test)]
mod layouts;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod outage;
#[cfg(test)]
mod takeover;
#[cfg(test)]
mod validation;

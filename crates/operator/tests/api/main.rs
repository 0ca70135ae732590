//! The operator against a real API server, with the permissions of the shipped roles and no others.
//!
//! There are no nodes and no controllers: the status of workloads is written by the tests, and nothing
//! collects garbage. All tests share one server and one configuration resource, so they take turns.

#[cfg(test)]
mod command_line;
#[cfg(test)]
mod definitions;
#[cfg(test)]
mod detection;
#[cfg(test)]
mod drift;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod isolation;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod outage;
#[cfg(test)]
mod removal;
#[cfg(test)]
mod status;
#[cfg(test)]
mod stubs;
#[cfg(test)]
mod takeover;
#[cfg(test)]
mod validation;

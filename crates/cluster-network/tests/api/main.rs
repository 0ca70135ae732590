//! The operator against real API servers, with the rights of the shipped roles and no others.
//!
//! There are no nodes and no controllers: statuses are written by the tests, and there is no garbage collection.

#[cfg(test)]
mod beside;
#[cfg(test)]
mod certificates;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod configuration;
#[cfg(test)]
mod leader;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod node_settings;
#[cfg(test)]
mod objects;
#[cfg(test)]
mod ovn;
#[cfg(test)]
mod policy;
#[cfg(test)]
mod proxies;
#[cfg(test)]
mod stage;
#[cfg(test)]
mod status;

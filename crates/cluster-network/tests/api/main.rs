//! The operator with real API servers, and with exactly the rights of the shipped roles.
//!
//! The servers have no nodes, no controllers and no garbage collection: the tests write the statuses.

#[cfg(test)]
mod beside;
#[cfg(test)]
mod certificates;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod configuration;
#[cfg(test)]
mod console;
#[cfg(test)]
mod definitions;
#[cfg(test)]
mod egress_router;
#[cfg(test)]
mod frr;
#[cfg(test)]
mod hosted;
#[cfg(test)]
mod kills;
#[cfg(test)]
mod leader;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod mtu_migration;
#[cfg(test)]
mod node_settings;
#[cfg(test)]
mod objects;
#[cfg(test)]
mod observability;
#[cfg(test)]
mod openshift;
#[cfg(test)]
mod outage;
#[cfg(test)]
mod ovn;
#[cfg(test)]
mod policy;
#[cfg(test)]
mod proxies;
#[cfg(test)]
mod rights;
#[cfg(test)]
mod stage;
#[cfg(test)]
mod status;

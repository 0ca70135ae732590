//! The MAC pool against real API servers, with only the permissions of the shipped role.
//!
//! There are no nodes, no KubeVirt and no controllers: its kinds are minimal definitions of ours, and the status of
//! pods and instances is written by the tests. The manager watches a whole cluster, so each test has a server to
//! itself.

#[cfg(test)]
mod admission;
#[cfg(test)]
mod certificates;
#[cfg(test)]
mod changes;
#[cfg(test)]
mod collisions;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod life;
#[cfg(test)]
mod manager;
#[cfg(test)]
mod manifests;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod notices;
#[cfg(test)]
mod objects;
#[cfg(test)]
mod people;
#[cfg(test)]
mod protocol;
#[cfg(test)]
mod rights;
#[cfg(test)]
mod stage;
#[cfg(test)]
mod start;
#[cfg(test)]
mod updates;

//! The controller against real API servers, with the permissions of the shipped roles and no others.
//!
//! There are no nodes, no KubeVirt and no controllers: its kinds are minimal definitions of ours, nobody collects garbage, and
//! statuses are written by the tests. What is watched is shared by a whole cluster, so each test has a server to itself.

#[cfg(test)]
mod claims;
#[cfg(test)]
mod election;
#[cfg(test)]
mod improvements;
#[cfg(test)]
mod manager;
#[cfg(test)]
mod pool;
#[cfg(test)]
mod release;
#[cfg(test)]
mod stage;
#[cfg(test)]
mod webhook;

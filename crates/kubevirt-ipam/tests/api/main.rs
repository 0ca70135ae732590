//! The controller against real API servers, with the permissions of the shipped roles and no others.
//!
//! The servers have no nodes, no KubeVirt and no controllers: KubeVirt's kinds are minimal definitions, garbage is not
//! collected, and the tests write statuses. Watches cover a whole cluster, so each test has its own server.

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

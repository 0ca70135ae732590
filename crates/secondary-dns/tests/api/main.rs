//! The secondary DNS against real API servers, with the permissions of the shipped role and no others.
//!
//! The servers lack KubeVirt: its kind is a minimal definition, and tests write the status of instances.

#[cfg(test)]
mod configuration;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod life;
#[cfg(test)]
mod people;
#[cfg(test)]
mod upstream;

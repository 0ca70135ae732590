//! Checks against real API servers, without kubelets: listeners of the tests are the endpoints.

#[cfg(test)]
mod cli;
#[cfg(test)]
mod generator;
#[cfg(test)]
mod source;
#[cfg(test)]
mod stage;

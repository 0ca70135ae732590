//! Checks against real API servers. There are no nodes and no pods that run: endpoints are listeners of the tests.

#[cfg(test)]
mod generator;
#[cfg(test)]
mod source;
#[cfg(test)]
mod stage;

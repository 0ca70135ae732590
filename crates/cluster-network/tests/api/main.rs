//! The operator against real API servers.

#[cfg(test)]
mod certificates;
#[cfg(test)]
mod proxies;

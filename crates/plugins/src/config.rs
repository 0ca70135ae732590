//! Parsing of configs into plugin-specific types.

use cni::{Error, plugin::Call};
use serde::{Deserialize, de::DeserializeOwned};

/// Parses the config of a call. Keys are case-insensitive, and unknown keys are ignored.
pub(crate) fn read_config<T: DeserializeOwned>(call: &Call) -> Result<T, Error> {
    let failed = |error| Error::internal(format!("failed to load netconf: {error}"));
    call.config.read().map_err(failed)
}

/// Addresses requested in `args`, for all of our IPAM plugins.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WireArgs {
    pub(crate) cni: WireIps,
}

/// A list of addresses with optional prefix lengths.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WireIps {
    pub(crate) ips: Vec<String>,
}

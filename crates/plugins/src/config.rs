//! Configs as the plugins' own types.

use cni::{Error, plugin::Call};
use serde::de::DeserializeOwned;

/// Reads the config of a call. Keys are found in any case, and unknown keys are left out.
pub(crate) fn read_config<T: DeserializeOwned>(call: &Call) -> Result<T, Error> {
    let failed = |error| Error::internal(format!("failed to load netconf: {error}"));
    call.config.read().map_err(failed)
}

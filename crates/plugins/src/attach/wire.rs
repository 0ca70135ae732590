//! Config keys that several plugins share.

use cni::{Error, plugin::Call, result::Dns};
use linux::link::{InvalidMac, Mac};
use serde::Deserialize;

use crate::names::arg;

/// An object with a MAC: `runtimeConfig` or `args.cni`.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(crate) struct WireMac {
    pub(crate) mac: String,
}

/// DNS settings of a config. Distinguishes an empty list from a missing one.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WireDns {
    nameservers: Option<Vec<String>>,
    domain: String,
    search: Option<Vec<String>>,
    options: Option<Vec<String>>,
}

impl WireDns {
    /// The settings, if the config has any. An empty list counts.
    pub(crate) fn given(self) -> Option<Dns> {
        let any = self.nameservers.is_some()
            || self.search.is_some()
            || self.options.is_some()
            || !self.domain.is_empty();
        any.then(|| Dns {
            nameservers: self.nameservers.unwrap_or_default(),
            domain: self.domain,
            search: self.search.unwrap_or_default(),
            options: self.options.unwrap_or_default(),
        })
    }
}

/// The requested MAC of the pod's link: from `runtimeConfig`, `CNI_ARGS` or the config, in this order.
pub(crate) fn mac(call: &Call, runtime: &WireMac, own: &str) -> Result<Option<Mac>, Error> {
    let args = call.args()?;
    args.require_known(&[arg::MAC])?;
    let sources = [runtime.mac.as_str(), args.get(arg::MAC).unwrap_or_default(), own];
    let Some(text) = sources.into_iter().find(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let invalid = |error: InvalidMac| Error::internal(format!("invalid args {text} for MAC addr: {error}"));
    text.parse().map(Some).map_err(invalid)
}

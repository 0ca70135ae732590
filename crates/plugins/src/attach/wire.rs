//! Keys that several plugins have.

use cni::{Error, plugin::Call, result::Dns};
use linux::link::{InvalidMac, Mac};
use serde::Deserialize;

use crate::names::arg;

/// An object with a MAC: `runtimeConfig`, or `cni` in `args`.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(crate) struct WireMac {
    pub(crate) mac: String,
}

/// Resolver settings of a config, which tell an empty list from none.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WireDns {
    nameservers: Option<Vec<String>>,
    domain: String,
    search: Option<Vec<String>>,
    options: Option<Vec<String>>,
}

impl WireDns {
    /// The settings, if any is given; a list counts as given also when it is empty.
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

/// The MAC that the container's link is to have: that of `runtimeConfig`, else of `CNI_ARGS`, else of the config.
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

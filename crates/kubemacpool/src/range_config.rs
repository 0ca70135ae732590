//! The range as the ConfigMap says it, taken over without a restart (kubemacpool §11).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use kube_kit::watch::{self, Change, Name, Options, Watch};

use crate::mac::{InvalidMac, Mac};
use crate::names::{self, env};
use crate::notices::{Notices, RangeNews};
use crate::range::{InvalidRange, NoShare, Range};
use crate::settings::Share;
use crate::state::{self, Shared};
use crate::watches::Core;

#[cfg(test)]
mod tests;

/// What is to be done about a ConfigMap.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Decision {
    /// Nothing: it says the range that is in use.
    Keep,
    /// Addresses are handed out of another range from now on.
    Change {
        /// What it says.
        range: Range,
        /// What is handed out of: it, or the part of this replica.
        share: Range,
    },
    /// It says no range; the old one stays.
    Invalid(InvalidData),
    /// It says one that can't be used; the old one stays.
    Refused {
        /// The first address that it says.
        start: Mac,
        /// The last one.
        end: Mac,
        /// Why not.
        cause: Unusable,
    },
}

/// Why a ConfigMap says no range.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidData {
    /// An end is missing.
    #[error("{0} not found in ConfigMap")]
    Missing(&'static str),
    /// An end is no address.
    #[error("invalid {key} {text:?}: {cause}")]
    Address {
        /// Which.
        key: &'static str,
        /// What it says.
        text: String,
        /// What is wrong with it.
        cause: InvalidMac,
    },
}

/// Why a range can't be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Unusable {
    /// It is none.
    #[error(transparent)]
    Range(#[from] InvalidRange),
    /// It cannot be shared by all replicas.
    #[error(transparent)]
    Share(#[from] NoShare),
}

/// Decides about the data of the ConfigMap.
pub fn decide(data: &BTreeMap<String, String>, active: &Range, share: Share) -> Decision {
    let address = |key: &'static str| {
        let text = data.get(key).ok_or(InvalidData::Missing(key))?;
        Mac::parse(text).map_err(|cause| InvalidData::Address {
            key,
            text: text.clone(),
            cause,
        })
    };
    let ends = address(env::RANGE_START).and_then(|start| Ok((start, address(env::RANGE_END)?)));
    let (start, end) = match ends {
        Ok(ends) => ends,
        Err(invalid) => return Decision::Invalid(invalid),
    };
    if (active.start(), active.end()) == (start, end) {
        return Decision::Keep;
    }
    let range = Range::new(start, end).map_err(Unusable::from);
    match range.and_then(|range| Ok((range, share.of(&range)?))) {
        Ok((range, share)) => Decision::Change { range, share },
        Err(cause) => Decision::Refused { start, end, cause },
    }
}

/// Follows the one ConfigMap.
pub struct RangeConfig {
    watch: Watch<Name, BTreeMap<String, String>>,
    shared: Shared,
    notices: Notices,
    share: Share,
}

impl RangeConfig {
    /// Starts to watch.
    pub fn start(client: &Client, namespace: &str, share: Share, core: &Core) -> Self {
        let api = Api::namespaced(client.clone(), namespace);
        let named = Options::all().named(names::RANGE_CONFIG_MAP);
        Self {
            watch: watch::start_named(api, &named, |map: ConfigMap| map.data.unwrap_or_default()),
            shared: Shared::clone(&core.shared),
            notices: core.notices.clone(),
            share,
        }
    }

    /// Takes over what the ConfigMap says, for ever; tells once that all that was there has been looked at.
    pub async fn follow(mut self, synced: impl FnOnce()) {
        let mut synced = Some(synced);
        while let Some(change) = self.watch.next().await {
            match change {
                Change::Applied(name) => {
                    if let Some(data) = self.watch.store().get(&name) {
                        self.apply(&data);
                    }
                }
                Change::Invalid(_, error) => self.notices.range(RangeNews::Invalid { error }),
                Change::Deleted(_) => tracing::info!("the range's ConfigMap is gone, the range stays"),
                Change::Synced => {
                    if let Some(synced) = synced.take() {
                        synced();
                    }
                }
            }
        }
    }

    fn apply(&self, data: &BTreeMap<String, String>) {
        let active = state::lock(&self.shared).range;
        match decide(data, &active, self.share) {
            Decision::Keep => {}
            Decision::Change { range, share } => {
                let (from, to) = (range.start(), range.end());
                tracing::info!(%from, %to, "MAC address ranges changed, applying update");
                match state::random() {
                    Ok(random) => {
                        state::lock(&self.shared).set_range(range, share, random);
                        tracing::info!(%from, %to, "Successfully updated MAC allocation ranges");
                        let (start, end) = (from, to);
                        self.notices.range(RangeNews::Updated { start, end });
                    }
                    Err(error) => tracing::error!(%error, "cannot read random bytes, the old range stays"),
                }
            }
            Decision::Invalid(error) => {
                tracing::error!(%error, "invalid ConfigMap data");
                let error = error.to_string();
                self.notices.range(RangeNews::Invalid { error });
            }
            Decision::Refused { start, end, cause } => {
                tracing::error!(error = %cause, "failed to apply new ranges");
                let error = cause.to_string();
                self.notices.range(RangeNews::Refused { start, end, error });
            }
        }
    }
}

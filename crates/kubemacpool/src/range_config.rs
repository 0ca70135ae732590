//! The range in the ConfigMap, which replaces the initial one without a restart (kubemacpool §11).

use std::collections::BTreeMap;

use cni::mac::{InvalidMac, Mac};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use kube_kit::watch::{self, Change, Name, Options, Watch};

use crate::names::{self, env};
use crate::notices::{Notices, RangeNotice};
use crate::range::{InvalidRange, NoShare, Range};
use crate::settings::Share;
use crate::state::{self, Shared};
use crate::watches::Core;

#[cfg(test)]
mod tests;

/// The reaction to a ConfigMap.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Decision {
    /// The range is unchanged.
    Keep,
    /// The range changes.
    Change {
        /// The range in the ConfigMap.
        range: Range,
        /// The part of this replica.
        share: Range,
    },
    /// The ConfigMap has no range; the old one stays.
    Invalid(InvalidData),
    /// The range in the ConfigMap cannot be used; the old one stays.
    Refused {
        /// First address in the ConfigMap.
        start: Mac,
        /// Last address in the ConfigMap.
        end: Mac,
        /// Cause.
        cause: Unusable,
    },
}

/// A ConfigMap has no range.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum InvalidData {
    /// An end is missing.
    #[error("{0} not found in ConfigMap")]
    Missing(&'static str),
    /// An end is no MAC address.
    #[error("invalid {key} {text:?}: {cause}")]
    Address {
        /// Key of the end.
        key: &'static str,
        /// Value of the key.
        text: String,
        /// Cause.
        cause: InvalidMac,
    },
}

/// A range cannot be used.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum Unusable {
    /// The ends form no range.
    #[error(transparent)]
    Range(#[from] InvalidRange),
    /// The range has too few addresses for all replicas.
    #[error(transparent)]
    Share(#[from] NoShare),
}

/// Decides about the data of the ConfigMap.
pub(crate) fn decide(data: &BTreeMap<String, String>, active: &Range, share: Share) -> Decision {
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

/// Watches the ConfigMap.
pub(crate) struct RangeConfig {
    watch: Watch<Name, BTreeMap<String, String>>,
    shared: Shared,
    notices: Notices,
    share: Share,
}

impl RangeConfig {
    /// Starts the watch.
    pub(crate) fn start(client: &Client, namespace: &str, share: Share, core: &Core) -> Self {
        let api = Api::namespaced(client.clone(), namespace);
        let named = Options::all().named(names::RANGE_CONFIG_MAP);
        Self {
            watch: watch::start_named(api, &named, |map: ConfigMap| map.data.unwrap_or_default()),
            shared: Shared::clone(&core.shared),
            notices: core.notices.clone(),
            share,
        }
    }

    /// Applies changes until the watch ends; calls `synced` after the initial list.
    pub(crate) async fn follow(mut self, synced: impl FnOnce()) {
        let mut synced = Some(synced);
        while let Some(change) = self.watch.next().await {
            match change {
                Change::Applied(name) => {
                    if let Some(data) = self.watch.store().get(&name) {
                        self.apply(&data);
                    }
                }
                Change::Invalid(_, error) => self.notices.range(RangeNotice::Invalid { error }),
                Change::Deleted(_) => {
                    tracing::info!("the ConfigMap of the range was deleted, keeping the range");
                }
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
                        self.notices.range(RangeNotice::Updated { start, end });
                    }
                    Err(error) => tracing::error!(%error, "cannot read random bytes, keeping the old range"),
                }
            }
            Decision::Invalid(error) => {
                tracing::error!(%error, "invalid ConfigMap data");
                let error = error.to_string();
                self.notices.range(RangeNotice::Invalid { error });
            }
            Decision::Refused { start, end, cause } => {
                tracing::error!(error = %cause, "failed to apply new ranges");
                let error = cause.to_string();
                self.notices.range(RangeNotice::Refused { start, end, error });
            }
        }
    }
}

//! The edge: observes the bridges and the node, and executes the plan.

use crate::messages;
use crate::plan::{self, Advertised, CapacityPatch, sort};
use crate::source::Source;
use kube_kit::kube::Client;
use kube_kit::kube::core::{Request, params::GetParams};
use kube_kit::{client, object, patch};
use linux::backoff::Backoff;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;
use tokio::time::Instant;

/// Delay after the first failure; doubled up to the update interval.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Deadline of one request.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The part of a node that the marker reads.
#[derive(Debug, Deserialize)]
struct Node {
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Debug, Deserialize)]
struct Status {
    #[serde(default)]
    capacity: Option<BTreeMap<String, String>>,
}

/// A node, and the resources that a marker manages on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) node: &'a str,
    /// Prefix of the names of the resources.
    pub(crate) prefix: &'static str,
    /// Maximum back-off of failed requests.
    pub(crate) update_interval: Duration,
    /// Interval of reading the node.
    pub(crate) reconcile_interval: Duration,
}

/// Keeps one node's capacity equal to its bridges.
pub(crate) struct Marker<'a> {
    target: Target<'a>,
    client: Client,
    /// The last observed resources of the node.
    advertised: Option<Advertised>,
    /// When the node is read again.
    read_at: Instant,
    backoff: Backoff,
    /// Names whose refusal was logged.
    refused: BTreeSet<String>,
}

impl<'a> Marker<'a> {
    pub(crate) fn new(target: Target<'a>, client: Client) -> Self {
        Self {
            target,
            client,
            advertised: None,
            read_at: Instant::now(),
            backoff: Backoff::new(FIRST_PAUSE, target.update_interval),
            refused: BTreeSet::new(),
        }
    }

    /// Reconciles for ever: at the start, whenever the bridges change, when a failed request is retried, and when the
    /// node is read again. It waits until the source has listed the bridges.
    pub(crate) async fn run(mut self, mut bridges: impl Source) -> anyhow::Result<()> {
        loop {
            if Instant::now() >= self.read_at {
                bridges.list()?;
            }
            let Some(names) = bridges.names() else {
                bridges.changed().await?;
                continue;
            };
            let next = if self.reconcile(names).await.is_ok() {
                self.backoff.reset();
                self.read_at
            } else {
                Instant::now() + self.backoff.next_delay()
            };
            tokio::select! {
                changed = bridges.changed() => changed?,
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    /// Updates the advertised bridges of the node. A failure is logged, and has to be retried.
    async fn reconcile(&mut self, names: BTreeSet<String>) -> Result<(), ()> {
        let read = if Instant::now() >= self.read_at {
            self.read().await
        } else {
            Ok(())
        };
        let (bridges, refused) = sort(names);
        for name in refused.difference(&self.refused) {
            tracing::warn!(
                bridge = name,
                "the name is not a valid resource name, the bridge is not advertised"
            );
        }
        self.refused = refused;
        let Some(advertised) = &self.advertised else {
            return Err(());
        };
        let Some(change) = plan::plan(&bridges, advertised) else {
            return read;
        };
        if let Err(error) = self.patch(&change).await {
            tracing::error!("{}", messages::update_failed(&error));
            // The observed state of the node may be stale.
            self.read_at = Instant::now();
            return Err(());
        }
        let CapacityPatch { add, remove } = &change;
        let shown = |names: Vec<String>| names.join(" ");
        tracing::info!(
            add = shown(add.iter().map(ToString::to_string).collect()),
            remove = shown(remove.iter().cloned().collect()),
            "updated the capacity of the node"
        );
        self.advertised = Some(plan::desired(&bridges));
        read
    }

    /// Reads the advertised resources of the node. A failure keeps the last observed ones.
    async fn read(&mut self) -> Result<(), ()> {
        let found = match self.get().await {
            Ok(Some(capacity)) => plan::advertised(self.target.prefix, &capacity),
            Ok(None) => {
                tracing::info!(
                    node = self.target.node,
                    "the kubelet has not reported a capacity yet"
                );
                return Err(());
            }
            Err(error) => {
                tracing::error!(node = self.target.node, error, "cannot read the node");
                return Err(());
            }
        };
        let names = |advertised: &Advertised| advertised.keys().cloned().collect::<BTreeSet<_>>();
        if self
            .advertised
            .as_ref()
            .is_some_and(|cached| names(cached) != names(&found))
        {
            tracing::info!("{}", messages::reported_bridges_differ(self.target.node));
        }
        self.advertised = Some(found);
        self.read_at = Instant::now() + jittered(self.target.reconcile_interval);
        Ok(())
    }

    async fn get(&self) -> Result<Option<BTreeMap<String, String>>, String> {
        let request = Request::new(object::NODE.path(None))
            .get(self.target.node, &GetParams::default())
            .map_err(|error| error.to_string())?;
        match tokio::time::timeout(TIMEOUT, self.client.request::<Node>(request)).await {
            Ok(Ok(node)) => Ok(node.status.and_then(|status| status.capacity)),
            Ok(Err(error)) => Err(client::message(&error)),
            Err(_) => Err("no answer from the API server".to_owned()),
        }
    }

    async fn patch(&self, change: &CapacityPatch) -> Result<(), patch::Error> {
        let path = format!("{}/{}/status", object::NODE.path(None), self.target.node);
        patch::apply::<IgnoredAny>(&self.client, &path, &change.operations(self.target.prefix))
            .await
            .map(|_| ())
    }
}

/// A little less than the interval, so that the markers of a cluster do not send their requests at the same time.
fn jittered(interval: Duration) -> Duration {
    let thousandths = RandomState::new().build_hasher().finish() % 1000;
    let thousandths = u32::try_from(thousandths).unwrap_or(0);
    interval.saturating_sub(interval / 5 / 1000 * thousandths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_read_within_reconcile_interval() {
        let interval = Duration::from_mins(10);
        for _ in 0..100 {
            let next = jittered(interval);
            assert!(next <= interval && next >= interval * 4 / 5, "{next:?}");
        }
    }
}

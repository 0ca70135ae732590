//! The daemon: observes the host, applies the difference, and waits for the next event.

use std::{
    collections::BTreeSet,
    future::pending,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::ObjectReference;
use kube_kit::{
    events::{Kind, Recorder},
    kube::Client,
    serve::Readiness,
    watch::Name,
};
use linux::backoff::Backoff;
use tokio::time::{Instant, sleep_until};

use crate::{
    arrange::arrange,
    conflist,
    desired::Choices,
    events::{Files, HostEvents, Interest, Monitors, Nodes},
    kernel::Kernel,
    messages,
    metrics::Metrics,
    names::{COMPONENT, reason},
    node::Node,
};

/// Back-off after failures and repairs: the first and the longest delay.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// The daemon's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The node of this daemon.
    pub node: String,
    /// The file that it writes for container runtimes.
    pub conflist: PathBuf,
    /// The name of the network in that file.
    pub network: String,
    /// Settings of the administrator.
    pub choices: Choices,
}

/// The daemon's sockets to the kernel, opened in the network namespace of the host.
#[derive(Debug)]
pub struct HostSockets {
    kernel: Kernel,
    monitors: Monitors,
}

impl HostSockets {
    /// Opens the sockets in the calling thread's network namespace.
    ///
    /// # Errors
    /// If the kernel refuses a socket.
    pub fn open() -> linux::Result<Self> {
        Ok(Self {
            // The subscription to events precedes the first observation, so that the daemon misses no change.
            monitors: Monitors::open()?,
            kernel: Kernel::open()?,
        })
    }
}

/// Keeps the node's pod network in the desired state, and returns only with an error.
///
/// # Errors
/// If the kernel ends the subscription to events, or the directory of configurations cannot be watched.
pub async fn keep(
    settings: Settings,
    client: Client,
    sockets: HostSockets,
    readiness: Readiness,
    metrics: Metrics,
) -> anyhow::Result<()> {
    let folder = settings.conflist.parent().unwrap_or(Path::new("/")).to_owned();
    let mut files = Files::watch(&folder).with_context(|| format!("cannot watch {}", folder.display()))?;
    let mut host = HostEvents::try_from(sockets.monitors)?;
    let mut nodes = Nodes::watch(client.clone());
    let mut daemon = Daemon {
        recorder: Recorder::on_host(client, COMPONENT, &settings.node),
        kernel: sockets.kernel,
        readiness,
        metrics,
        reported: BTreeSet::new(),
        waiting: BTreeSet::new(),
        interest: Interest::default(),
        applied_once: false,
        settings,
    };
    nodes.changed().await;
    let mut delays = Delays::new();
    let mut cause = Cause::Nodes;
    loop {
        let own = Name::new("", daemon.settings.node.as_str());
        let outcome = daemon.reconcile(nodes.store().get(&own), &nodes.store().values(), cause);
        let (retry_at, ignore_host_until) = match outcome {
            Outcome::Done => (None, None),
            // Another program may revert each repair at once: the back-off bounds the load.
            Outcome::Repaired => (None, Some(delays.next())),
            Outcome::Failed => (Some(delays.next()), None),
        };
        let retry = async {
            match retry_at {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        let on_host = async {
            if let Some(until) = ignore_host_until {
                sleep_until(until).await;
            }
            tokio::select! {
                changed = host.changed(&daemon.interest) => changed.context("no events of the kernel"),
                changed = files.changed() => {
                    changed.with_context(|| format!("cannot watch {}", folder.display()))
                }
            }
        };
        cause = tokio::select! {
            () = nodes.changed() => Cause::Nodes,
            changed = on_host => {
                changed?;
                Cause::Host
            }
            () = retry => Cause::Retry,
        };
    }
}

/// The reason for a reconciliation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// A Node changed.
    Nodes,
    /// The host may have changed.
    Host,
    /// The reconciliation before failed.
    Retry,
}

/// The result of a reconciliation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The host has the desired state, except for reported problems.
    Done,
    /// The host has the desired state, after drift was repaired.
    Repaired,
    /// A change failed and is retried.
    Failed,
}

/// Delays that grow while failures or repairs follow each other.
#[derive(Debug)]
struct Delays {
    backoff: Backoff,
    end: Instant,
}

impl Delays {
    fn new() -> Self {
        Self {
            backoff: Backoff::new(FIRST_DELAY, LONGEST_DELAY),
            end: Instant::now(),
        }
    }

    /// Returns the end of the next delay.
    fn next(&mut self) -> Instant {
        let now = Instant::now();
        if now.duration_since(self.end) >= LONGEST_DELAY {
            self.backoff.reset();
        }
        self.end = now + self.backoff.next_delay();
        self.end
    }
}

struct Daemon {
    settings: Settings,
    kernel: Kernel,
    recorder: Recorder,
    readiness: Readiness,
    metrics: Metrics,
    /// Reported notices that still apply.
    reported: BTreeSet<Notice>,
    /// Nodes without an address that the log already names.
    waiting: BTreeSet<String>,
    interest: Interest,
    /// Routes and packet rules were applied completely at least once. From then on the configuration is kept, even if a
    /// change fails.
    applied_once: bool,
}

/// A warning for users, in the log and in an event on the Node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Notice {
    reason: &'static str,
    text: String,
}

impl Notice {
    fn new(reason: &'static str, text: impl Into<String>) -> Self {
        Self {
            reason,
            text: text.into(),
        }
    }
}

impl Daemon {
    /// Observes the host and applies the desired state.
    fn reconcile(&mut self, own: Option<Node>, nodes: &[Node], cause: Cause) -> Outcome {
        let name = &self.settings.node;
        let missing = match &own {
            None => Some(messages::no_node(name)),
            Some(own) if own.ranges.is_empty() => Some(messages::no_pod_range(name)),
            Some(_) => None,
        };
        let (Some(own), None) = (own, &missing) else {
            // The host keeps its state: a Node that registers again soon gets ranges again, the same or others.
            self.readiness.set(false);
            let notices = missing.map(|text| Notice::new(reason::NO_POD_RANGE, text));
            self.report(notices.into_iter().collect());
            return Outcome::Done;
        };
        match self.arrange(&own, nodes, cause) {
            Ok(outcome) => outcome,
            Err(error) => {
                self.fail(&error);
                Outcome::Failed
            }
        }
    }

    fn arrange(&mut self, own: &Node, nodes: &[Node], cause: Cause) -> Result<Outcome, Error> {
        let arranged = arrange(&mut self.kernel, own, nodes, &self.settings.choices)?;
        let because = if cause == Cause::Host {
            ", because another program changed the host"
        } else {
            ""
        };
        for change in &arranged.changes {
            tracing::info!("{change}{because}");
        }
        let failures = &arranged.failures;
        for failure in failures {
            self.metrics.failed();
            tracing::error!("{failure}");
        }
        for text in arranged.waiting.difference(&self.waiting) {
            tracing::info!("{text}");
        }
        self.waiting.clone_from(&arranged.waiting);
        self.interest = Interest {
            links: arranged.links.clone(),
            ranges: arranged.ranges.clone(),
        };
        if let Err(error) = self.kernel.forward(&own.ranges) {
            // A container without privileges may not write the setting. The plugins write it when the first pod starts.
            tracing::debug!(%error, "cannot enable forwarding");
        }
        self.applied_once |= failures.is_empty();
        let mut written = false;
        if self.applied_once {
            let text = conflist::render(&self.settings.network, &own.ranges, arranged.mtu);
            written = conflist::ensure(&self.settings.conflist, &text).map_err(|source| Error::Conflist {
                path: self.settings.conflist.clone(),
                source,
            })?;
            if written {
                tracing::info!(
                    file = %self.settings.conflist.display(),
                    mtu = arranged.mtu,
                    "wrote the configuration of the pod network"
                );
            }
        }

        self.metrics.reached(
            arranged.peers,
            arranged.ranges.len(),
            arranged.problems.len() + arranged.waiting.len(),
            arranged.mtu,
        );
        let mut notices: BTreeSet<Notice> = arranged
            .problems
            .iter()
            .map(|problem| Notice::new(reason::PEER, problem.as_str()))
            .collect();
        let other = conflist::other_before(&self.settings.conflist);
        self.readiness
            .set(self.applied_once && failures.is_empty() && other.is_none());
        notices.extend(other.map(|other| {
            let text = messages::other_network(&other, &self.settings.conflist);
            Notice::new(reason::OTHER_NETWORK, text)
        }));
        self.report(notices);

        let repairs = arranged.changes.len() + usize::from(written);
        Ok(match cause {
            _ if !failures.is_empty() => Outcome::Failed,
            Cause::Host if repairs > 0 => {
                self.metrics.repaired(repairs);
                Outcome::Repaired
            }
            _ => Outcome::Done,
        })
    }

    fn fail(&self, error: &Error) {
        self.metrics.failed();
        tracing::error!("{error}");
    }

    /// Reports new notices, in the log and in an event on the Node.
    fn report(&mut self, notices: BTreeSet<Notice>) {
        for Notice { reason, text } in notices.difference(&self.reported) {
            tracing::warn!("{text}");
            let (recorder, node, text) = (self.recorder.clone(), self.settings.node.clone(), text.clone());
            let reason = *reason;
            tokio::spawn(async move {
                let regarding = ObjectReference {
                    kind: Some("Node".to_owned()),
                    // Kubelet's events carry this UID, and `kubectl describe node` selects by it.
                    uid: Some(node.clone()),
                    name: Some(node),
                    ..ObjectReference::default()
                };
                recorder.publish(&regarding, Kind::Warning, reason, &text).await;
            });
        }
        self.reported = notices;
    }
}

/// A reconciliation failed.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Kernel(#[from] linux::Error),
    #[error("cannot write {}: {source}", path.display())]
    Conflist { path: PathBuf, source: io::Error },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn delays_grow_while_failures_follow_each_other() {
        let mut delays = Delays::new();
        let mut lengths = Vec::new();
        for _ in 0..10 {
            let start = Instant::now();
            sleep_until(delays.next()).await;
            lengths.push(start.elapsed().as_millis());
        }
        assert_eq!(
            lengths,
            [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000]
        );
        tokio::time::advance(LONGEST_DELAY).await;
        let start = Instant::now();
        sleep_until(delays.next()).await;
        assert_eq!(start.elapsed().as_millis(), 100);
    }
}

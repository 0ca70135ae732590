//! The daemon: observes the host, applies the difference, and waits for the next event.

use std::{
    collections::BTreeSet,
    future::pending,
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
        failures: BTreeSet::new(),
        is_forwarding: false,
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
        let pause = Pause::after(outcome, &mut delays);
        let retry = async {
            match pause.retry_at {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        let on_host = async {
            if let Some(until) = pause.ignore_host_until {
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

/// The time between a reconciliation and the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pause {
    /// The time of the retry, if there is one.
    retry_at: Option<Instant>,
    /// Until then, events of the host do not end the pause.
    ignore_host_until: Option<Instant>,
}

impl Pause {
    fn after(outcome: Outcome, delays: &mut Delays) -> Self {
        let end = (outcome != Outcome::Done).then(|| delays.next());
        Self {
            retry_at: end.filter(|_| outcome == Outcome::Failed),
            // Another program may revert each repair at once, and a failed attempt may cause events itself: the back-off
            // bounds the load.
            ignore_host_until: end,
        }
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
    /// Failures of the last reconciliation, which the log already names.
    failures: BTreeSet<String>,
    /// The last reconciliation found forwarding enabled, or enabled it.
    is_forwarding: bool,
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
        let own = match complete(own, &self.settings.node) {
            Ok(own) => own,
            Err(notice) => {
                self.readiness.set(false);
                self.report([notice].into());
                return Outcome::Done;
            }
        };
        self.arrange(&own, nodes, cause).unwrap_or_else(|error| {
            self.readiness.set(false);
            self.report_failures([error.to_string()].into());
            Outcome::Failed
        })
    }

    fn arrange(&mut self, own: &Node, nodes: &[Node], cause: Cause) -> linux::Result<Outcome> {
        let arranged = arrange(&mut self.kernel, own, nodes, &self.settings.choices)?;
        let after = if cause == Cause::Host {
            ", after a change of the host"
        } else {
            ""
        };
        for change in &arranged.changes {
            tracing::info!("{change}{after}");
        }
        for text in arranged.waiting.difference(&self.waiting) {
            tracing::info!("{text}");
        }
        self.waiting.clone_from(&arranged.waiting);
        self.interest = Interest {
            links: arranged.links.clone(),
            ranges: arranged.ranges.clone(),
            tunnel: arranged.tunnel,
        };
        self.enable_forwarding(own);
        let mut failures: BTreeSet<String> = arranged.failures.iter().map(ToString::to_string).collect();
        self.applied_once |= failures.is_empty();
        let written = self.applied_once && self.write_conflist(own, arranged.mtu, &mut failures);

        self.metrics.reached(
            arranged.peers,
            arranged.ranges.difference(&arranged.missing).count(),
            arranged.problems.len() + arranged.waiting.len(),
            arranged.mtu,
        );
        let mut notices: BTreeSet<Notice> = arranged
            .problems
            .iter()
            .map(|problem| Notice::new(reason::PEER, problem.as_str()))
            .collect();
        let other = conflist::other_before(&self.settings.conflist);
        let is_complete = failures.is_empty();
        self.readiness
            .set(self.applied_once && is_complete && other.is_none());
        notices.extend(other.map(|other| {
            let text = messages::other_network(&other, &self.settings.conflist);
            Notice::new(reason::OTHER_NETWORK, text)
        }));
        self.report(notices);
        self.report_failures(failures);

        let repairs = arranged.changes.len() + usize::from(written);
        Ok(match cause {
            _ if !is_complete => Outcome::Failed,
            Cause::Host if repairs > 0 => {
                self.metrics.repaired(repairs);
                Outcome::Repaired
            }
            _ => Outcome::Done,
        })
    }

    /// Writes the configuration for container runtimes. Returns true if it was written, and adds a failure.
    fn write_conflist(&self, own: &Node, mtu: Option<u32>, failures: &mut BTreeSet<String>) -> bool {
        let path = &self.settings.conflist;
        let text = conflist::render(&self.settings.network, &own.ranges, mtu);
        let written = conflist::ensure(path, &text).unwrap_or_else(|error| {
            failures.insert(format!("cannot write {}: {error}", path.display()));
            false
        });
        if written {
            tracing::info!(file = %path.display(), mtu, "wrote the configuration of the pod network");
        }
        written
    }

    fn enable_forwarding(&mut self, own: &Node) {
        let outcome = self.kernel.forward(&own.ranges);
        if let Err(error) = &outcome {
            if self.is_forwarding {
                tracing::warn!(%error, "{}", messages::NOT_FORWARDING);
            } else {
                // A container without privileges may not write the setting. The plugins write it when the first pod
                // starts.
                tracing::debug!(%error, "cannot enable forwarding");
            }
        }
        self.is_forwarding = outcome.is_ok();
    }

    /// Counts failures, and logs those that are new since the last reconciliation.
    fn report_failures(&mut self, failures: BTreeSet<String>) {
        self.metrics.failed(failures.len());
        for failure in failures.difference(&self.failures) {
            tracing::error!("{failure}");
        }
        self.failures = failures;
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

/// Returns this node, or the reason why the host keeps its state: without a Node, a range or an address. A Node that
/// registers again soon gets them again, the same or others.
fn complete(own: Option<Node>, name: &str) -> Result<Node, Notice> {
    let own = own.ok_or_else(|| Notice::new(reason::NO_POD_RANGE, messages::no_node(name)))?;
    if own.ranges.is_empty() {
        return Err(Notice::new(reason::NO_POD_RANGE, messages::no_pod_range(name)));
    }
    if own.addresses.is_empty() {
        return Err(Notice::new(reason::NO_ADDRESS, messages::no_address(name)));
    }
    Ok(own)
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

    #[tokio::test(start_paused = true)]
    async fn events_of_the_host_wait_for_the_retry_of_a_failure() {
        let mut delays = Delays::new();
        let at = |milliseconds| Some(Instant::now() + Duration::from_millis(milliseconds));
        for (outcome, retry_at, ignore_host_until) in [
            (Outcome::Done, None, None),
            (Outcome::Failed, at(100), at(100)),
            (Outcome::Failed, at(200), at(200)),
            (Outcome::Repaired, None, at(400)),
        ] {
            let expected = Pause {
                retry_at,
                ignore_host_until,
            };
            assert_eq!(Pause::after(outcome, &mut delays), expected);
        }
    }

    #[test]
    fn node_without_range_or_address_is_incomplete() {
        let node = Node {
            name: "a".to_owned(),
            ranges: vec!["10.1.0.0/24".parse().unwrap()],
            addresses: vec!["192.0.2.1".parse().unwrap()],
            ..Node::default()
        };
        let without_address = Node {
            addresses: Vec::new(),
            ..node.clone()
        };
        let without_range = Node {
            ranges: Vec::new(),
            ..node.clone()
        };
        for (own, reason, start) in [
            (None, "NoPodCIDR", "node a is not registered"),
            (Some(without_range), "NoPodCIDR", "node a has no spec.podCIDRs"),
            (
                Some(without_address),
                "NoInternalIP",
                "node a has no InternalIP yet:",
            ),
        ] {
            let notice = complete(own, "a").expect_err(start);
            assert_eq!(notice.reason, reason);
            assert!(notice.text.starts_with(start), "{}", notice.text);
        }
        assert_eq!(complete(Some(node.clone()), "a"), Ok(node));
    }
}

//! The daemon: looks, decides, changes, and waits for the next reason to look.

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

/// Pauses after failures, and after repairs that are not the last: doubled from the first up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What the daemon needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The node that it runs on.
    pub node: String,
    /// The configuration that it writes for container runtimes.
    pub conflist: PathBuf,
    /// The network's name in it.
    pub network: String,
    /// What the administrator decided about the network.
    pub choices: Choices,
}

/// What the daemon holds of the host: opened in its network namespace.
#[derive(Debug)]
pub struct OnHost {
    kernel: Kernel,
    monitors: Monitors,
}

impl OnHost {
    /// Opens everything in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> linux::Result<Self> {
        Ok(Self {
            // Listening begins before looking, so that no change is missed in between.
            monitors: Monitors::open()?,
            kernel: Kernel::open()?,
        })
    }
}

/// Keeps the node's pod network, for ever.
///
/// # Errors
/// Only when the kernel refuses its events, or the directory of configurations can't be watched.
pub async fn keep(
    settings: Settings,
    client: Client,
    on_host: OnHost,
    readiness: Readiness,
    metrics: Metrics,
) -> anyhow::Result<()> {
    let folder = settings.conflist.parent().unwrap_or(Path::new("/")).to_owned();
    let mut files = Files::watch(&folder).with_context(|| format!("cannot watch {}", folder.display()))?;
    let mut host = HostEvents::try_from(on_host.monitors)?;
    let mut nodes = Nodes::watch(client.clone());
    let mut daemon = Daemon {
        recorder: Recorder::on_host(client, COMPONENT, &settings.node),
        kernel: on_host.kernel,
        readiness,
        metrics,
        said: BTreeSet::new(),
        waiting: BTreeSet::new(),
        interest: Interest::default(),
        stands: false,
        settings,
    };
    nodes.changed().await;
    let mut pause = Pause::default();
    let mut cause = Cause::Nodes;
    loop {
        let own = Name::new("", daemon.settings.node.as_str());
        let outcome = daemon.turn(nodes.store().get(&own), &nodes.store().values(), cause);
        let (again, quiet) = match outcome {
            Outcome::Done => (None, None),
            // Somebody may undo it at once, and again and again.
            Outcome::Repaired => (None, Some(pause.next())),
            Outcome::Failed => (Some(pause.next()), None),
        };
        let retry = async {
            match again {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        let on_host = async {
            if let Some(until) = quiet {
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

/// Why the daemon looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// Nodes are different.
    Nodes,
    /// The host may be different.
    Host,
    /// Something failed before.
    Retry,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Everything is as it has to be, as far as it can.
    Done,
    /// The same, after somebody else's change was undone.
    Repaired,
    /// Something is to be tried again.
    Failed,
}

/// Pauses that grow while reasons for them follow each other.
#[derive(Debug, Default)]
struct Pause {
    length: Duration,
    ended: Option<Instant>,
}

impl Pause {
    /// The end of the next pause.
    fn next(&mut self) -> Instant {
        let now = Instant::now();
        let soon = self
            .ended
            .is_some_and(|ended| now.duration_since(ended) < LONGEST_PAUSE);
        self.length = if soon {
            (self.length * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE)
        } else {
            FIRST_PAUSE
        };
        let end = now + self.length;
        self.ended = Some(end);
        end
    }
}

struct Daemon {
    settings: Settings,
    kernel: Kernel,
    recorder: Recorder,
    readiness: Readiness,
    metrics: Metrics,
    /// What was said already and still holds.
    said: BTreeSet<Notice>,
    /// Nodes without an address, as the log was told.
    waiting: BTreeSet<String>,
    interest: Interest,
    /// Routes and packet rules stood once: from then on the configuration is kept, whatever fails.
    stands: bool,
}

/// Something that people have to know, on the log and on the Node.
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
    /// Looks, decides and changes.
    fn turn(&mut self, own: Option<Node>, nodes: &[Node], cause: Cause) -> Outcome {
        let name = &self.settings.node;
        let missing = match &own {
            None => Some(messages::no_node(name)),
            Some(own) if own.ranges.is_empty() => Some(messages::no_pod_range(name)),
            Some(_) => None,
        };
        let (Some(own), None) = (own, &missing) else {
            // What is there stays: a Node that is registered anew gets its pods' ranges back, or other ones, soon.
            self.readiness.set(false);
            let notices = missing.map(|text| Notice::new(reason::NO_POD_RANGE, text));
            self.say(notices.into_iter().collect());
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
            ", because somebody changed the host"
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
            // Not ours to set in a container without privileges: the plugins do it when the first pod comes.
            tracing::debug!(%error, "cannot switch forwarding on");
        }
        self.stands |= failures.is_empty();
        let mut written = false;
        if self.stands {
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
            .set(self.stands && failures.is_empty() && other.is_none());
        notices.extend(other.map(|other| {
            let text = messages::other_network(&other, &self.settings.conflist);
            Notice::new(reason::OTHER_NETWORK, text)
        }));
        self.say(notices);

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

    /// Says what was not said before, on the log and in an event of the Node.
    fn say(&mut self, notices: BTreeSet<Notice>) {
        for Notice { reason, text } in notices.difference(&self.said) {
            tracing::warn!("{text}");
            let (recorder, node, text) = (self.recorder.clone(), self.settings.node.clone(), text.clone());
            let reason = *reason;
            tokio::spawn(async move {
                let regarding = ObjectReference {
                    kind: Some("Node".to_owned()),
                    // As kubelet's events, which `kubectl describe node` looks for.
                    uid: Some(node.clone()),
                    name: Some(node),
                    ..ObjectReference::default()
                };
                recorder.publish(&regarding, Kind::Warning, reason, &text).await;
            });
        }
        self.said = notices;
    }
}

/// Why a turn failed.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] linux::Error),
    /// The file system refused.
    #[error("cannot write {}: {source}", path.display())]
    Conflist { path: PathBuf, source: io::Error },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_while_failures_follow_each_other() {
        let mut pause = Pause::default();
        let mut lengths = Vec::new();
        for _ in 0..10 {
            let begin = Instant::now();
            sleep_until(pause.next()).await;
            lengths.push(begin.elapsed().as_millis());
        }
        assert_eq!(
            lengths,
            [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000]
        );
        tokio::time::advance(LONGEST_PAUSE).await;
        let begin = Instant::now();
        sleep_until(pause.next()).await;
        assert_eq!(begin.elapsed().as_millis(), 100);
    }
}

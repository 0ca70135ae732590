//! Writes results into the statuses of checks, and publishes events for outages.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use api::connectivity_check::PodNetworkConnectivityCheck as Check;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use kube::api::PostParams;
use kube::{Api, Client};
use kube_kit::client::message;
use kube_kit::duration::GoDuration;
use kube_kit::events::{Kind, Recorder};
use kube_kit::lock;
use kube_kit::queue::Queue;
use kube_kit::shutdown::Shutdown;
use tokio::time::Instant;

use super::{Counts, Settings};
use crate::flood::{self, Flood};
use crate::messages;
use crate::names::{EVENT_COMPONENT, reason};
use crate::outage::{self, Edge, Outcome};
use crate::pending::Pending;

/// Immediate retries after a conflict.
const CONFLICTS: usize = 5;
/// Longest back-off. A new result ends the back-off.
const LONGEST: Duration = Duration::from_mins(1);

pub(super) struct Writer {
    checks: Api<Check>,
    pods: Api<Pod>,
    nodes: Api<Node>,
    /// The source pod of the results.
    pod: String,
    queue: Queue<String>,
    pending: Mutex<BTreeMap<String, Pending>>,
    recorder: Recorder,
    flood: Mutex<Flood>,
    /// The node of the pod, after the first lookup.
    node: Mutex<Option<ObjectReference>>,
}

impl Writer {
    pub(super) fn new(client: Client, settings: &Settings) -> Self {
        let namespace = &settings.namespace;
        Self {
            checks: Api::namespaced(client.clone(), namespace),
            pods: Api::namespaced(client.clone(), namespace),
            nodes: Api::all(client.clone()),
            pod: settings.pod.clone(),
            queue: Queue::with_longest(LONGEST),
            pending: Mutex::default(),
            // `flood` has the limits.
            recorder: Recorder::new(client, EVENT_COMPONENT).without_limit(),
            flood: Mutex::default(),
            node: Mutex::default(),
        }
    }

    /// Stores a result and queues its write.
    pub(super) fn push(&self, check: &str, outcome: Outcome) {
        let mut pending = lock(&self.pending);
        pending.entry(check.to_owned()).or_default().push(outcome);
        drop(pending);
        self.queue.add(check.to_owned());
    }

    /// Drops the results of a deleted check.
    pub(super) fn forget(&self, check: &str) {
        lock(&self.pending).remove(check);
    }

    /// The number of pending results.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.pending).values().map(Pending::len).sum()
    }

    /// Writes results until shutdown. A running write may finish.
    pub(super) async fn run(&self, shutdown: &Shutdown) {
        loop {
            let check = tokio::select! {
                () = shutdown.wait() => return,
                check = self.queue.next() => check,
            };
            match self.write(&check).await {
                Ok(()) => self.queue.succeeded(&check),
                Err(error) => {
                    let delay = self.queue.failed(check.clone());
                    tracing::warn!(check, error, retry = ?delay, "cannot write the status of the check");
                }
            }
        }
    }

    /// Writes all pending results once.
    pub(super) async fn flush(&self) {
        let checks: Vec<_> = lock(&self.pending).keys().cloned().collect();
        for check in checks {
            if let Err(error) = self.write(&check).await {
                tracing::warn!(check, error, "cannot write the status of the check");
            }
        }
    }

    /// Writes all pending results of a check into its status.
    async fn write(&self, check: &str) -> Result<(), String> {
        let (results, mut edges) = lock(&self.pending)
            .get(check)
            .map(|pending| (pending.all(), pending.edges()))
            .unwrap_or_default();
        if results.is_empty() {
            return Ok(());
        }
        for _ in 0..CONFLICTS {
            let Some(mut live) = self.live(check).await? else {
                self.forget(check);
                return Ok(());
            };
            let mut status = live.status.take().unwrap_or_default();
            // A write whose answer was lost may have succeeded.
            if !outage::catch_up(&mut status, &results, &mut edges) {
                self.done(check, &results);
                self.publish_all(&edges).await;
                return Ok(());
            }
            live.status = Some(status);
            self.attempt(check, &edges);
            match self
                .checks
                .replace_status(check, &PostParams::default(), &live)
                .await
            {
                Ok(_) => {
                    self.done(check, &results);
                    self.publish_all(&edges).await;
                    return Ok(());
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(message(&error)),
            }
        }
        Err("repeated conflicts with other writers".to_owned())
    }

    /// The current check, if its source is still this pod.
    async fn live(&self, check: &str) -> Result<Option<Check>, String> {
        let live = self.checks.get_opt(check).await;
        let live = live.map_err(|error| message(&error))?;
        Ok(live.filter(|live| live.spec.source_pod == self.pod))
    }

    fn done(&self, check: &str, results: &[Outcome]) {
        let mut pending = lock(&self.pending);
        if let Some(of_check) = pending.get_mut(check) {
            of_check.done(results);
            if of_check.is_empty() {
                pending.remove(check);
            }
        }
    }

    /// Stores the edges of a write, for the case that its answer is lost.
    fn attempt(&self, check: &str, edges: &[(Outcome, Edge)]) {
        if let Some(of_check) = lock(&self.pending).get_mut(check) {
            of_check.attempt(edges.to_vec());
        }
    }

    async fn publish_all(&self, edges: &[(Outcome, Edge)]) {
        for (_, edge) in edges {
            self.publish(edge).await;
        }
    }

    async fn publish(&self, edge: &Edge) {
        let (kind, why, text) = match edge {
            Edge::Started { failure } => (Kind::Warning, reason::OUTAGE, messages::event::outage(failure)),
            Edge::Ended { after, success } => (
                Kind::Normal,
                reason::RESTORED,
                messages::event::restored(*after, success),
            ),
        };
        if !lock(&self.flood).allows(why, Instant::now()) {
            return;
        }
        if let Some(node) = self.node().await {
            self.recorder.publish(&node, kind, why, &text).await;
        }
    }

    /// Publishes the summaries of withheld events, after the withholding ended.
    pub(super) async fn sum_up(&self) {
        let counts: Counts = lock(&self.flood).summary(Instant::now());
        for (why, count) in counts {
            let text = messages::event::withheld(count, why, GoDuration::from(flood::WITHHELD));
            if let Some(node) = self.node().await {
                self.recorder.publish(&node, Kind::Warning, why, &text).await;
            }
        }
    }

    /// The node that events refer to.
    async fn node(&self) -> Option<ObjectReference> {
        if let Some(node) = lock(&self.node).clone() {
            return Some(node);
        }
        match self.find_node().await {
            Ok(node) => {
                lock(&self.node).clone_from(&node);
                node
            }
            Err(error) => {
                tracing::warn!(
                    pod = self.pod,
                    error,
                    "cannot find the node of the pod for an event"
                );
                None
            }
        }
    }

    async fn find_node(&self) -> Result<Option<ObjectReference>, String> {
        let pod = self.pods.get_opt(&self.pod).await;
        let pod = pod.map_err(|error| message(&error))?;
        let Some(name) = pod.and_then(|pod| pod.spec?.node_name) else {
            return Ok(None);
        };
        let node = self.nodes.get_opt(&name).await;
        let node = node.map_err(|error| message(&error))?;
        Ok(node.map(|node| ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(name),
            uid: node.metadata.uid,
            ..ObjectReference::default()
        }))
    }
}

//! The work queue: reconciles several pods concurrently, each pod by one worker at a time.

use crate::cluster::{Need, ObservedPod};
use crate::names;
use crate::reconcile::{Error, Outcome, Reconciler, ReportedEvents};
use kube_kit::queue::Queue;
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{Change, Name, Watch};
use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A pod that needs work, and the events that were reported about it.
#[derive(Debug)]
struct PendingPod {
    observed: ObservedPod,
    reported: ReportedEvents,
}

/// The pods that need work. A change is queued once, however often the watch reports it.
#[derive(Debug, Default)]
struct PendingPods(BTreeMap<Name, PendingPod>);

impl PendingPods {
    /// Whether this is a new desired state.
    fn is_new(&mut self, name: &Name, observed: Option<ObservedPod>) -> bool {
        let Some(observed) = observed.filter(|observed| observed.need != Need::Nothing) else {
            self.0.remove(name);
            return false;
        };
        if self
            .0
            .get(name)
            .is_some_and(|pending| pending.observed == observed)
        {
            return false;
        }
        let reported = ReportedEvents::default();
        self.0.insert(name.clone(), PendingPod { observed, reported });
        true
    }

    /// The observed pod and its reported events, to start a worker.
    fn begin(&mut self, name: &Name) -> (Option<ObservedPod>, ReportedEvents) {
        let pending = self.0.get_mut(name);
        pending
            .map(|pending| (Some(pending.observed.clone()), mem::take(&mut pending.reported)))
            .unwrap_or_default()
    }

    /// Ends a worker. A pod that was reconciled is new when it needs work again. If the pod changed in the meantime,
    /// the reported events are dropped.
    fn end(
        &mut self,
        name: &Name,
        observed: Option<&ObservedPod>,
        reported: ReportedEvents,
        outcome: &Result<Outcome, Error>,
    ) {
        let Some(pending) = self
            .0
            .get_mut(name)
            .filter(|pending| Some(&pending.observed) == observed)
        else {
            return;
        };
        match outcome {
            Ok(Outcome::Done) => {
                self.0.remove(name);
            }
            Ok(Outcome::Rejected) | Err(_) => pending.reported = reported,
        }
    }
}

/// Reconciles pods until the shutdown, then waits for the running workers.
pub(crate) async fn run(
    mut pods: Watch<Name, ObservedPod>,
    reconciler: Arc<Reconciler>,
    synced: &watch::Sender<bool>,
    shutdown: &Shutdown,
) {
    let store = pods.store();
    let queue = Queue::with_longest(names::LONGEST_PAUSE);
    let mut pods_pending = PendingPods::default();
    let mut workers = JoinSet::new();
    loop {
        tokio::select! {
            () = shutdown.wait() => break,
            change = pods.next() => match change {
                Some(Change::Applied(name) | Change::Deleted(name)) => {
                    if pods_pending.is_new(&name, store.get(&name)) {
                        queue.add(name);
                    }
                }
                Some(Change::Synced) => { synced.send_replace(true); }
                Some(Change::Invalid(..)) => {}
                None => break,
            },
            name = queue.next(), if workers.len() < names::WORKERS => {
                let reconciler = Arc::clone(&reconciler);
                let (observed, mut reported) = pods_pending.begin(&name);
                workers.spawn(async move {
                    let outcome = reconciler.reconcile(&name, &mut reported).await;
                    (name, observed, reported, outcome)
                });
            }
            Some(ended) = workers.join_next() => {
                // Cannot fail: a panic ends the process (`kube_kit::process::end_on_panic`), and workers are never
                // aborted.
                let Ok((name, observed, reported, outcome)) = ended else { continue };
                pods_pending.end(&name, observed.as_ref(), reported, &outcome);
                match outcome {
                    Ok(_) => queue.succeeded(&name),
                    Err(error) => {
                        let least = if error.is_late() { names::LONGEST_PAUSE } else { Duration::ZERO };
                        let pause = queue.failed_for(name.clone(), least);
                        let pod = format!("{}/{}", name.namespace, name.name);
                        tracing::warn!(pod, %error, retry = ?pause, "cannot reconcile the pod's networks, requeued with back-off");
                    }
                }
            }
        }
    }
    while workers.join_next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(networks: &str, need: Need) -> ObservedPod {
        ObservedPod {
            uid: "u".into(),
            networks: networks.into(),
            need,
        }
    }

    #[test]
    fn change_is_queued_once() {
        let (mut pods_pending, name) = (PendingPods::default(), Name::new("ns", "web"));
        assert!(!pods_pending.is_new(&name, Some(observed("", Need::Nothing))));
        assert!(pods_pending.is_new(&name, Some(observed("a@net1", Need::Work))));
        assert!(
            !pods_pending.is_new(&name, Some(observed("a@net1", Need::Work))),
            "its status changed, say"
        );
        assert!(pods_pending.is_new(&name, Some(observed("a@net1,b@net2", Need::Work))));
        assert!(
            !pods_pending.is_new(&name, Some(observed("", Need::Nothing))),
            "fulfilled"
        );
        assert!(
            pods_pending.is_new(&name, Some(observed("a@net1,b@net2", Need::Work))),
            "and lost again"
        );
        // Its status can't be read, can't be read in another way, and can.
        let rejected = |text: &str| observed("a@net1,b@net2", Need::Rejection(text.into()));
        assert!(pods_pending.is_new(&name, Some(rejected("one"))));
        assert!(!pods_pending.is_new(&name, Some(rejected("one"))));
        assert!(pods_pending.is_new(&name, Some(rejected("two"))));
        assert!(pods_pending.is_new(&name, Some(observed("a@net1,b@net2", Need::Work))));
        assert!(!pods_pending.is_new(&name, None), "gone");
        assert!(pods_pending.0.is_empty());
    }

    #[test]
    fn reported_events_end_with_change() {
        let (mut pods_pending, name) = (PendingPods::default(), Name::new("ns", "web"));
        let pending = || observed("a@net1", Need::Work);
        assert!(pods_pending.is_new(&name, Some(pending())));
        let (begun, reported) = pods_pending.begin(&name);
        pods_pending.end(&name, begun.as_ref(), reported, &Ok(Outcome::Done));
        // Reconciled, then changed back between two watch events.
        assert!(pods_pending.is_new(&name, Some(pending())));

        let (begun, reported) = pods_pending.begin(&name);
        pods_pending.end(&name, begun.as_ref(), reported, &Ok(Outcome::Rejected));
        assert!(!pods_pending.is_new(&name, Some(pending())));

        // The pod changed while a worker ran.
        let (begun, reported) = pods_pending.begin(&name);
        assert!(pods_pending.is_new(&name, Some(observed("b@net2", Need::Work))));
        pods_pending.end(&name, begun.as_ref(), reported, &Ok(Outcome::Done));
        assert!(!pods_pending.is_new(&name, Some(observed("b@net2", Need::Work))));

        // Gone while it was worked on: nothing is left of it.
        let (begun, reported) = pods_pending.begin(&name);
        assert!(!pods_pending.is_new(&name, None));
        pods_pending.end(&name, begun.as_ref(), reported, &Ok(Outcome::Rejected));
        assert!(pods_pending.0.is_empty());
    }
}

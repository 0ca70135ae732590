//! Which pod is worked on when: each pod by one worker at a time, in the order of its changes, and several pods at once.

use crate::cluster::{Need, Seen};
use crate::names;
use crate::reconcile::{Error, Outcome, Reconciler, Told};
use kube_kit::queue::Queue;
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{Change, Name, Watch};
use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A pod that is not as it asks to be, and what it was told about that.
#[derive(Debug)]
struct Wish {
    seen: Seen,
    told: Told,
}

/// What is known of the pods' wishes: a change counts once, however often the pod is seen with it.
#[derive(Debug, Default)]
struct Known(BTreeMap<Name, Wish>);

impl Known {
    /// Whether this is a wish that was not known.
    fn is_new(&mut self, name: &Name, seen: Option<Seen>) -> bool {
        let Some(seen) = seen.filter(|seen| seen.need != Need::Nothing) else {
            self.0.remove(name);
            return false;
        };
        if self.0.get(name).is_some_and(|wish| wish.seen == seen) {
            return false;
        }
        let told = Told::default();
        self.0.insert(name.clone(), Wish { seen, told });
        true
    }

    /// The wish as it is now, to be worked on; what was told about it goes along.
    fn begin(&mut self, name: &Name) -> (Option<Seen>, Told) {
        let wish = self.0.get_mut(name);
        wish.map(|wish| (Some(wish.seen.clone()), mem::take(&mut wish.told)))
            .unwrap_or_default()
    }

    /// The work on a wish is over. One that was fulfilled counts as new when it turns up again; one that the pod has no
    /// more is forgotten already, with all that was told about it.
    fn end(&mut self, name: &Name, seen: Option<&Seen>, told: Told, outcome: &Result<Outcome, Error>) {
        let Some(wish) = self.0.get_mut(name).filter(|wish| Some(&wish.seen) == seen) else {
            return;
        };
        match outcome {
            Ok(Outcome::Done) => {
                self.0.remove(name);
            }
            Ok(Outcome::Rejected) | Err(_) => wish.told = told,
        }
    }
}

/// Works on pods until it is asked to end, and finishes what it has begun.
pub async fn run(
    mut pods: Watch<Name, Seen>,
    reconciler: Arc<Reconciler>,
    synced: &watch::Sender<bool>,
    shutdown: &Shutdown,
) {
    let store = pods.store();
    let queue = Queue::with_longest(names::LONGEST_PAUSE);
    let mut known = Known::default();
    let mut workers = JoinSet::new();
    loop {
        tokio::select! {
            () = shutdown.wait() => break,
            change = pods.next() => match change {
                Some(Change::Applied(name) | Change::Deleted(name)) => {
                    if known.is_new(&name, store.get(&name)) {
                        queue.add(name);
                    }
                }
                Some(Change::Synced) => { synced.send_replace(true); }
                Some(Change::Invalid(..)) => {}
                None => break,
            },
            name = queue.next(), if workers.len() < names::WORKERS => {
                let reconciler = Arc::clone(&reconciler);
                let (seen, mut told) = known.begin(&name);
                workers.spawn(async move {
                    let outcome = reconciler.reconcile(&name, &mut told).await;
                    (name, seen, told, outcome)
                });
            }
            Some(ended) = workers.join_next() => {
                // A panic ends the process (`kube_kit::process::end_on_panic`), and nobody aborts a worker.
                let Ok((name, seen, told, outcome)) = ended else { continue };
                known.end(&name, seen.as_ref(), told, &outcome);
                match outcome {
                    Ok(_) => queue.succeeded(&name),
                    Err(error) => {
                        let least = if error.is_late() { names::LONGEST_PAUSE } else { Duration::ZERO };
                        let pause = queue.failed_for(name.clone(), least);
                        let pod = format!("{}/{}", name.namespace, name.name);
                        tracing::warn!(pod, %error, retry = ?pause, "the pod's networks are not as it asks");
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

    fn seen(networks: &str, need: Need) -> Seen {
        Seen {
            uid: "u".into(),
            networks: networks.into(),
            need,
        }
    }

    #[test]
    fn a_wish_counts_once() {
        let (mut known, name) = (Known::default(), Name::new("ns", "web"));
        assert!(!known.is_new(&name, Some(seen("", Need::Nothing))));
        assert!(known.is_new(&name, Some(seen("a@net1", Need::Work))));
        assert!(
            !known.is_new(&name, Some(seen("a@net1", Need::Work))),
            "its status changed, say"
        );
        assert!(known.is_new(&name, Some(seen("a@net1,b@net2", Need::Work))));
        assert!(!known.is_new(&name, Some(seen("", Need::Nothing))), "fulfilled");
        assert!(
            known.is_new(&name, Some(seen("a@net1,b@net2", Need::Work))),
            "and lost again"
        );
        // Its status can't be read, can't be read in another way, and can.
        let rejected = |text: &str| seen("a@net1,b@net2", Need::Rejection(text.into()));
        assert!(known.is_new(&name, Some(rejected("one"))));
        assert!(!known.is_new(&name, Some(rejected("one"))));
        assert!(known.is_new(&name, Some(rejected("two"))));
        assert!(known.is_new(&name, Some(seen("a@net1,b@net2", Need::Work))));
        assert!(!known.is_new(&name, None), "gone");
        assert!(known.0.is_empty());
    }

    #[test]
    fn what_is_known_ends_with_the_wish() {
        let (mut known, name) = (Known::default(), Name::new("ns", "web"));
        let wish = || seen("a@net1", Need::Work);
        assert!(known.is_new(&name, Some(wish())));
        let (begun, told) = known.begin(&name);
        known.end(&name, begun.as_ref(), told, &Ok(Outcome::Done));
        // Fulfilled and lost again while nobody looked.
        assert!(known.is_new(&name, Some(wish())));

        let (begun, told) = known.begin(&name);
        known.end(&name, begun.as_ref(), told, &Ok(Outcome::Rejected));
        assert!(!known.is_new(&name, Some(wish())));

        // Another wish while the first was worked on.
        let (begun, told) = known.begin(&name);
        assert!(known.is_new(&name, Some(seen("b@net2", Need::Work))));
        known.end(&name, begun.as_ref(), told, &Ok(Outcome::Done));
        assert!(!known.is_new(&name, Some(seen("b@net2", Need::Work))));

        // Gone while it was worked on: nothing is left of it.
        let (begun, told) = known.begin(&name);
        assert!(!known.is_new(&name, None));
        known.end(&name, begun.as_ref(), told, &Ok(Outcome::Rejected));
        assert!(known.0.is_empty());
    }
}

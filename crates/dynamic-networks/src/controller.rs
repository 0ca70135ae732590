//! Which pod is worked on when: each pod by one worker at a time, in the order of its changes, and several pods at once.

use crate::cluster::Seen;
use crate::names;
use crate::reconcile::Reconciler;
use kube_kit::queue::Queue;
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{Change, Name, Watch};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What is known of the pods' wishes: a change counts once, however often the pod is seen with it.
#[derive(Debug, Default)]
struct Wishes(BTreeMap<Name, (String, String)>);

impl Wishes {
    /// Whether this is a wish that was not known.
    fn is_new(&mut self, name: &Name, seen: Option<Seen>) -> bool {
        let Some(seen) = seen.filter(|seen| seen.needs_work) else {
            self.0.remove(name);
            return false;
        };
        let wish = (seen.uid, seen.networks);
        if self.0.get(name) == Some(&wish) {
            return false;
        }
        self.0.insert(name.clone(), wish);
        true
    }
}

/// The pods that are worked on, and those of them that have changed meanwhile.
#[derive(Debug, Default)]
struct Busy {
    working: BTreeSet<Name>,
    again: BTreeSet<Name>,
}

impl Busy {
    /// Whether somebody may begin with this pod now; if not, it comes up again.
    fn begin(&mut self, name: &Name) -> bool {
        let free = self.working.insert(name.clone());
        if !free {
            self.again.insert(name.clone());
        }
        free
    }

    /// Whether the pod comes up again.
    fn end(&mut self, name: &Name) -> bool {
        self.working.remove(name);
        self.again.remove(name)
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
    let queue = Queue::new();
    let (mut wishes, mut busy) = (Wishes::default(), Busy::default());
    let mut workers = JoinSet::new();
    loop {
        tokio::select! {
            () = shutdown.wait() => break,
            change = pods.next() => match change {
                Some(Change::Applied(name) | Change::Deleted(name)) => {
                    if wishes.is_new(&name, store.get(&name)) {
                        reconciler.begin(&name);
                        queue.add(name);
                    } else if !wishes.0.contains_key(&name) {
                        reconciler.begin(&name);
                    }
                }
                Some(Change::Synced) => { synced.send_replace(true); }
                Some(Change::Invalid(..)) => {}
                None => break,
            },
            name = queue.next(), if workers.len() < names::WORKERS => {
                if busy.begin(&name) {
                    let reconciler = Arc::clone(&reconciler);
                    workers.spawn(async move {
                        let outcome = reconciler.reconcile(&name).await;
                        (name, outcome)
                    });
                }
            }
            Some(ended) = workers.join_next() => {
                // A panic ends the process (`kube_kit::process::end_on_panic`), and nobody aborts a worker.
                let Ok((name, outcome)) = ended else { continue };
                let again = busy.end(&name);
                match outcome {
                    Ok(()) => queue.succeeded(&name),
                    Err(error) => {
                        let pause = queue.failed(name.clone()).min(names::LONGEST_PAUSE);
                        queue.add_after(name.clone(), pause);
                        let pod = format!("{}/{}", name.namespace, name.name);
                        tracing::warn!(pod, %error, retry = ?pause, "the pod's networks are not as it asks");
                    }
                }
                if again {
                    queue.add(name);
                }
            }
        }
    }
    while workers.join_next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(networks: &str, needs_work: bool) -> Seen {
        Seen {
            uid: "u".into(),
            networks: networks.into(),
            needs_work,
        }
    }

    #[test]
    fn a_wish_counts_once() {
        let (mut wishes, name) = (Wishes::default(), Name::new("ns", "web"));
        assert!(!wishes.is_new(&name, Some(seen("", false))));
        assert!(wishes.is_new(&name, Some(seen("a@net1", true))));
        assert!(
            !wishes.is_new(&name, Some(seen("a@net1", true))),
            "its status changed, say"
        );
        assert!(wishes.is_new(&name, Some(seen("a@net1,b@net2", true))));
        assert!(!wishes.is_new(&name, Some(seen("", false))), "fulfilled");
        assert!(
            wishes.is_new(&name, Some(seen("a@net1,b@net2", true))),
            "and lost again"
        );
        assert!(!wishes.is_new(&name, None), "gone");
        assert!(wishes.0.is_empty());
    }

    #[test]
    fn one_worker_a_pod() {
        let (mut busy, web, other) = (Busy::default(), Name::new("ns", "web"), Name::new("ns", "other"));
        assert!(busy.begin(&web) && busy.begin(&other));
        assert!(!busy.begin(&web));
        assert!(busy.end(&web), "it comes up again");
        assert!(busy.begin(&web));
        assert!(!busy.end(&web) && !busy.end(&other));
    }
}

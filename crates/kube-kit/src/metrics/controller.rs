//! The metrics of a process with one main controller, and maybe others beside it.

use std::time::Duration;

use prometheus_client::registry::Registry;

use super::{Process, Reconciles, Requests, Watches, Workqueue};
use crate::queue::Queue;

/// The metrics. Clones share their values.
#[derive(Debug, Clone)]
pub struct Controller {
    /// Metrics of the reconciles.
    pub reconciles: Reconciles,
    /// Metrics of the queue.
    pub workqueue: Workqueue,
    /// Metrics of the requests to the API server.
    pub requests: Requests,
    /// Metrics of the watches.
    pub watches: Watches,
}

impl Controller {
    /// Metrics of the controller with this name, initially 0.
    pub fn new(name: &'static str) -> Self {
        Self {
            reconciles: Reconciles::new(name),
            workqueue: Workqueue::new(name),
            requests: Requests::default(),
            watches: Watches::default(),
        }
    }

    /// An empty queue of the main controller, with this maximum back-off. It counts each work on a key as a reconcile.
    pub fn queue<Key: Ord + Clone>(&self, longest: Duration) -> Queue<Key> {
        Queue::of_reconciles(self.reconciles.clone(), self.workqueue.clone(), longest)
    }

    /// An empty queue of another controller of the process, with this maximum back-off. It counts each work on a key as a
    /// reconcile. Its metrics are registered together with these.
    pub fn queue_beside<Key: Ord + Clone>(&self, name: &'static str, longest: Duration) -> Queue<Key> {
        let (reconciles, workqueue) = (self.reconciles.beside(name), self.workqueue.beside(name));
        Queue::of_reconciles(reconciles, workqueue, longest)
    }

    /// Adds the metrics, and those of the process, to a registry.
    pub fn register(&self, registry: &mut Registry) {
        self.reconciles.register(registry);
        self.workqueue.register(registry);
        self.requests.register(registry);
        self.watches.register(registry);
        Process.register(registry);
    }
}

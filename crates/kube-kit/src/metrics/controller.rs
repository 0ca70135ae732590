//! The metrics of a process with one controller.

use prometheus_client::registry::Registry;

use super::{Process, Reconciles, Requests, Watches, Workqueue};

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

    /// Adds the metrics, and those of the process, to a registry.
    pub fn register(&self, registry: &mut Registry) {
        self.reconciles.register(registry);
        self.workqueue.register(registry);
        self.requests.register(registry);
        self.watches.register(registry);
        Process.register(registry);
    }
}

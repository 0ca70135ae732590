//! Queues of virtual machines to reconcile: two, as the upstream program has two controllers; one worker, because
//! both change the same claims.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kube_kit::metrics::{Reconciles, Workqueue};
use kube_kit::queue::Queue;
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::Name;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::messages;
use crate::names::{INSTANCE_CONTROLLER, MACHINE_CONTROLLER};
use crate::reconcile::{Error, Reconciler};
use crate::state::{self, Shared};

/// Virtual machines to reconcile. Clones share them. Nothing is queued before the worker runs.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    open: Arc<AtomicBool>,
    machines: Queue<Name>,
    instances: Queue<Name>,
}

/// What is counted of both controllers.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    machines: (Reconciles, Workqueue),
    instances: (Reconciles, Workqueue),
}

impl Figures {
    /// All 0.
    pub(crate) fn new() -> Self {
        let (reconciles, queue) = (
            Reconciles::new(INSTANCE_CONTROLLER),
            Workqueue::new(INSTANCE_CONTROLLER),
        );
        Self {
            machines: (
                reconciles.beside(MACHINE_CONTROLLER),
                queue.beside(MACHINE_CONTROLLER),
            ),
            instances: (reconciles, queue),
        }
    }

    /// Adds the figures to a registry.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let (reconciles, queue) = &self.instances;
        reconciles.register(registry);
        queue.register(registry);
    }
}

impl Default for Figures {
    fn default() -> Self {
        Self::new()
    }
}

impl Queues {
    /// Empty ones that count themselves.
    pub(crate) fn new(figures: &Figures) -> Self {
        Self {
            open: Arc::default(),
            machines: Queue::counted(figures.machines.1.clone()),
            instances: Queue::counted(figures.instances.1.clone()),
        }
    }

    /// Queues virtual machines because of themselves.
    pub(crate) fn machines(&self, names: impl IntoIterator<Item = Name>) {
        self.put(&self.machines, names);
    }

    /// Queues virtual machines because of their instances, networks or claims.
    pub(crate) fn instances(&self, names: impl IntoIterator<Item = Name>) {
        self.put(&self.instances, names);
    }

    fn put(&self, queue: &Queue<Name>, names: impl IntoIterator<Item = Name>) {
        if self.open.load(Ordering::Relaxed) {
            names.into_iter().for_each(|name| queue.add(name));
        }
    }

    /// Queues all virtual machines: the worker runs from now on.
    fn open(&self, shared: &Shared) {
        self.open.store(true, Ordering::Relaxed);
        let all = state::lock(shared).all();
        self.instances(all);
    }
}

/// Reconciles virtual machines until the shutdown, and finishes the one that is begun.
pub(crate) async fn run(
    queues: Queues,
    figures: Figures,
    shared: Shared,
    reconciler: Reconciler,
    shutdown: &Shutdown,
) {
    tokio::select! {
        () = shutdown.wait() => return,
        () = reconciler.catch_up() => {}
    }
    queues.open(&shared);
    loop {
        let (name, queue, reconciles) = tokio::select! {
            biased;
            () = shutdown.wait() => return,
            name = queues.machines.next() => (name, &queues.machines, &figures.machines.0),
            name = queues.instances.next() => (name, &queues.instances, &figures.instances.0),
        };
        let began = Instant::now();
        reconciles.started();
        let done = reconciler.reconcile(&name).await;
        reconciles.ended(done.is_ok(), began.elapsed());
        match done {
            Ok(()) => queue.succeeded(&name),
            Err(error) => {
                let vm = messages::object(&name);
                let retry = queue.failed(name);
                if matches!(error, Error::Changed) {
                    tracing::debug!(vm, ?retry, "{error}");
                } else {
                    tracing::error!(vm, %error, ?retry, "Reconciler error");
                }
            }
        }
    }
}

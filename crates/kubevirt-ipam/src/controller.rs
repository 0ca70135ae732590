//! Queues of virtual machines to reconcile. Upstream has two controllers, so there are two queues. Several virtual
//! machines are reconciled at a time. One worker reconciles each of them, because both controllers change the same
//! claims.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::stream::{FuturesUnordered, StreamExt as _};
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

/// Virtual machines that are reconciled at a time. Each takes a few consecutive requests.
pub(crate) const WORKERS: usize = 8;

/// Virtual machines to reconcile. Clones share them. Nothing is queued before the worker runs.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    open: Arc<AtomicBool>,
    machines: Queue<Name>,
    instances: Queue<Name>,
}

/// Metrics of both controllers.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    machines: (Reconciles, Workqueue),
    instances: (Reconciles, Workqueue),
}

impl Figures {
    pub(crate) fn new() -> Self {
        let (reconciles, queue) = (
            Reconciles::new(INSTANCE_CONTROLLER),
            Workqueue::new(INSTANCE_CONTROLLER),
        );
        let machines = reconciles.beside(MACHINE_CONTROLLER);
        for controller in [&machines, &reconciles] {
            controller.workers(WORKERS);
        }
        Self {
            machines: (machines, queue.beside(MACHINE_CONTROLLER)),
            instances: (reconciles, queue),
        }
    }

    fn of(&self, controller: Controller) -> &Reconciles {
        match controller {
            Controller::Machines => &self.machines.0,
            Controller::Instances => &self.instances.0,
        }
    }

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
    /// Empty queues that update the metrics.
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

    /// Requeues a failed virtual machine with back-off.
    fn ended(&self, ended: Ended) {
        let Ended {
            name,
            controller,
            done,
        } = ended;
        let queue = match controller {
            Controller::Machines => &self.machines,
            Controller::Instances => &self.instances,
        };
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

    /// Queues all virtual machines. The worker runs from the first call on.
    fn open(&self, shared: &Shared) {
        self.open.store(true, Ordering::Relaxed);
        let all = state::lock(shared).all();
        self.instances(all);
    }
}

/// The queue that a virtual machine comes from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Controller {
    Machines,
    Instances,
}

/// A finished reconcile.
struct Ended {
    name: Name,
    controller: Controller,
    done: Result<(), Error>,
}

/// Virtual machines in work. Each is in work once. An entry of the other queue waits until this work ends.
#[derive(Debug, Default)]
struct Busy(BTreeMap<Name, Option<Controller>>);

impl Busy {
    /// Whether work on a virtual machine may begin now. Otherwise it begins when the present work ends.
    fn begins(&mut self, name: &Name, controller: Controller) -> bool {
        match self.0.get_mut(name) {
            Some(waiting) => {
                *waiting = Some(controller);
                false
            }
            None => self.0.insert(name.clone(), None).is_none(),
        }
    }

    /// Ends work on a virtual machine. Returns the waiting controller, whose work begins now.
    fn ends(&mut self, name: &Name) -> Option<Controller> {
        let waiting = self.0.get_mut(name).and_then(Option::take);
        if waiting.is_none() {
            self.0.remove(name);
        }
        waiting
    }
}

/// Reconciles virtual machines until the shutdown, and finishes the started ones.
pub(crate) async fn run(
    queues: Queues,
    figures: Figures,
    shared: Shared,
    reconciler: Reconciler,
    shutdown: &Shutdown,
) {
    let mut has_caught_up = tokio::select! {
        () = shutdown.wait() => return,
        has_caught_up = reconciler.catch_up() => has_caught_up,
    };
    queues.open(&shared);
    let mut later = Box::pin(reconciler.catch_up_later());
    let reconcile = async |name: Name, controller: Controller| {
        let reconciles = figures.of(controller);
        let began = Instant::now();
        reconciles.started();
        let done = reconciler.reconcile(&name).await;
        reconciles.ended(done.is_ok(), began.elapsed());
        Ended {
            name,
            controller,
            done,
        }
    };
    let (mut work, mut busy) = (FuturesUnordered::new(), Busy::default());
    loop {
        let (name, controller) = tokio::select! {
            biased;
            () = shutdown.wait() => break,
            Some(ended) = work.next() => {
                let ended: Ended = ended;
                if let Some(controller) = busy.ends(&ended.name) {
                    work.push(reconcile(ended.name.clone(), controller));
                }
                queues.ended(ended);
                // What a reconcile learns about a claim may free an address.
                let woken = state::lock(&shared).woken();
                queues.instances(woken);
                continue;
            }
            () = &mut later, if !has_caught_up => {
                has_caught_up = true;
                queues.open(&shared);
                continue;
            }
            name = queues.machines.next(), if work.len() < WORKERS => (name, Controller::Machines),
            name = queues.instances.next(), if work.len() < WORKERS => (name, Controller::Instances),
        };
        if busy.begins(&name, controller) {
            work.push(reconcile(name, controller));
        }
    }
    while let Some(ended) = work.next().await {
        queues.ended(ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_is_in_work_once() {
        let (one, other) = (Name::new("ns", "one"), Name::new("ns", "other"));
        let mut busy = Busy::default();
        assert!(busy.begins(&one, Controller::Machines));
        assert!(busy.begins(&other, Controller::Instances));
        assert!(!busy.begins(&one, Controller::Instances), "it waits");
        assert_eq!(busy.ends(&other), None);
        assert_eq!(busy.ends(&one), Some(Controller::Instances));
        assert!(!busy.begins(&one, Controller::Machines), "it is in work again");
        assert_eq!(busy.ends(&one), Some(Controller::Machines));
        assert_eq!(busy.ends(&one), None);
        assert!(busy.begins(&one, Controller::Machines));
    }
}

//! Deploys the other programs for an `NMState` (nmstate §10, §11).
//!
//! ```text
//! NMState, what is deployed ──> watch ──> reconcile ──> render ──> apply what differs
//!                                             └──> status, when it changes
//! ```
//!
//! Nothing is polled: what is deployed is watched by its label, so that whatever is changed or deleted by hand is put
//! back at once, and nothing is read or written while nothing changes.

pub mod facts;
pub mod files;
pub mod messages;
pub mod names;
pub mod object;
pub mod reconcile;
pub mod render;
pub mod replicas;
pub mod settings;
pub mod status;
pub mod watches;

use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use kube_kit::cache::{Cache, Changes};
use kube_kit::client;
use kube_kit::queue::Queue;
use kube_kit::serve::{self, Readiness, Server};
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::Change;
use tokio::time::Instant;

use self::reconcile::Reconciler;
use self::settings::Settings;
use crate::Args;

/// How long to wait for the watches to tell about objects that were created.
const ECHO: Duration = Duration::from_secs(2);
/// How long to wait at most before a failed reconcile is repeated.
const RETRY: Duration = Duration::from_mins(1);

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// When the environment lacks what has to be there, there is no way to the cluster, or the port of the probes is taken.
/// A failing API server is no error: it is tried again.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let settings = Settings::read(crate::settings::variable)?;
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    let client = client::client_from(crate::names::COMPONENT, args.kubeconfig.as_deref()).await?;
    let readiness = Readiness::new();
    let server = Server::on_port(names::HEALTH_PORT, serve::probes(readiness.clone())).await?;
    Operator::start(client, settings).run(&shutdown, &readiness).await;
    server.stop().await;
    Ok(())
}

/// A running operator.
pub struct Operator {
    reconciler: Reconciler,
    cache: Cache,
    changes: Changes,
    queue: Queue<()>,
}

impl Operator {
    /// Starts the watches.
    pub fn start(client: Client, settings: Settings) -> Self {
        let cache = Cache::new();
        let changes = watches::start(&client, &cache, &settings);
        Self {
            reconciler: Reconciler::new(client, cache.clone(), settings),
            cache,
            changes,
            queue: Queue::new(),
        }
    }

    /// Works until the end is wished for. Whatever is interrupted then is taken up at the next start.
    pub async fn run(mut self, shutdown: &Shutdown, readiness: &Readiness) {
        tracing::info!("starting the operator");
        let mut patience = Instant::now();
        loop {
            let settled = self.reconciler.is_settled();
            let synced = self.cache.is_synced();
            if synced {
                readiness.set(true);
            }
            tokio::select! {
                // Changes come first: many of them are one reconcile.
                biased;
                () = shutdown.wait() => return,
                change = self.changes.next() => self.note(&change),
                () = tokio::time::sleep_until(patience), if !settled => self.reconciler.settle(),
                () = self.queue.next(), if synced && settled => {
                    tokio::select! {
                        () = shutdown.wait() => return,
                        result = self.reconciler.reconcile() => self.done(result),
                    }
                    patience = Instant::now() + ECHO;
                    // One that asks for nothing has not waited for anything: watches and probes have their turn.
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    fn note(&self, change: &Change<kube_kit::object::ObjectId>) {
        match change {
            Change::Invalid(id, error) => tracing::warn!(%id, error, "malformed object"),
            Change::Applied(id) | Change::Deleted(id) => tracing::debug!(%id, ?change, "changed"),
            Change::Synced => {}
        }
        self.queue.add(());
    }

    fn done(&self, result: Result<(), reconcile::Error>) {
        match result {
            Ok(()) => self.queue.succeeded(&()),
            Err(error) => {
                let pause = self.queue.failed(()).min(RETRY);
                self.queue.add_after((), pause);
                let error = client::chain(&error);
                tracing::warn!(error, ?pause, "trying again");
            }
        }
    }
}

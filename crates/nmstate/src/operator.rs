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
use kube_kit::cache::{self, Blocked, Cache, Changes};
use kube_kit::client;
use kube_kit::queue::Queue;
use kube_kit::serve::{self, Readiness, Server};
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::Change;
use tokio::time::Instant;

use self::reconcile::Reconciler;
use self::settings::Settings;
use crate::Args;

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
    /// How long a watch may fail before users are told.
    patience: Duration,
    /// Watches that are refused, fail or are stale.
    blocked: Vec<Blocked>,
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
            patience: cache::PATIENCE,
            blocked: Vec::new(),
        }
    }

    /// Reports watches that fail for this long; half a minute by default.
    #[must_use]
    pub fn patient(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Works until the end is wished for. Whatever is interrupted then is taken up at the next start. Ready after
    /// the first reconcile, while all watches are up to date.
    pub async fn run(mut self, shutdown: &Shutdown, readiness: &Readiness) {
        tracing::info!("starting the operator");
        let mut check = Instant::now() + self.patience;
        // Before, the conditions of the NMState are those that an earlier process wrote.
        let mut reconciled = false;
        loop {
            let synced = self.cache.is_synced();
            readiness.set(reconciled && synced && self.blocked.is_empty());
            tokio::select! {
                // Changes come first: many of them are one reconcile.
                biased;
                () = shutdown.wait() => return,
                change = self.changes.next() => self.note(&change),
                () = tokio::time::sleep_until(check) => {
                    check = Instant::now() + self.patience / 3;
                    self.look_at_watches();
                    if !synced {
                        tokio::select! {
                            () = shutdown.wait() => return,
                            () = self.reconciler.report_blocked(&self.blocked) => {}
                        }
                    }
                }
                () = self.queue.next(), if synced => {
                    self.look_at_watches();
                    tokio::select! {
                        () = shutdown.wait() => return,
                        result = self.reconciler.reconcile() => self.done(result),
                    }
                    reconciled = true;
                    // One that asks for nothing has not waited for anything: watches and probes have their turn.
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    fn look_at_watches(&mut self) {
        let blocked = cache::blocked([&self.cache], self.patience);
        if blocked != self.blocked {
            let watches: Vec<_> = blocked.iter().map(ToString::to_string).collect();
            tracing::warn!(?watches, "watches that are not up to date");
            self.blocked = blocked;
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

//! The operator: deploys the other programs for an `NMState` (nmstate §10, §11).
//!
//! ```text
//! NMState, deployed objects ──> watch ──> reconcile ──> render ──> apply what differs
//!                                             └──> status, when it changes
//! ```
//!
//! The operator polls nothing: it watches deployed objects by their label, restores whatever is changed or deleted by
//! hand at once, and neither reads nor writes while nothing changes.

mod facts;
pub mod files;
mod messages;
mod names;
mod object;
mod reconcile;
mod render;
mod replicas;
pub mod settings;
mod status;
mod watches;

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

/// Longest back-off of a failed reconcile.
const RETRY: Duration = Duration::from_mins(1);

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// If a variable is missing, the client of the cluster cannot be created, or the port of the probes is taken. Errors of
/// the API server are retried.
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
    /// How long a watch may fail before it is reported.
    watch_timeout: Duration,
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
            queue: Queue::with_longest(RETRY),
            watch_timeout: cache::WATCH_TIMEOUT,
            blocked: Vec::new(),
        }
    }

    /// Reports watches that fail for this long (default: half a minute).
    #[must_use]
    pub fn with_watch_timeout(mut self, watch_timeout: Duration) -> Self {
        self.watch_timeout = watch_timeout;
        self
    }

    /// Works until shutdown; the next start resumes an interrupted reconcile. Ready after the first reconcile, while
    /// all watches are up to date.
    pub async fn run(mut self, shutdown: &Shutdown, readiness: &Readiness) {
        tracing::info!("starting the operator");
        let mut check = Instant::now() + self.watch_timeout;
        // Before that, the conditions of the NMState are those of an earlier process.
        let mut reconciled = false;
        loop {
            let synced = self.cache.is_synced();
            readiness.set(reconciled && synced && self.blocked.is_empty());
            tokio::select! {
                // Changes come first, so that many changes cause one reconcile.
                biased;
                () = shutdown.wait() => return,
                change = self.changes.next() => self.handle(&change),
                () = tokio::time::sleep_until(check) => {
                    check = Instant::now() + self.watch_timeout / 3;
                    self.check_watches();
                    if !synced {
                        tokio::select! {
                            () = shutdown.wait() => return,
                            () = self.reconciler.report_blocked(&self.blocked) => {}
                        }
                    }
                }
                () = self.queue.next(), if synced => {
                    self.check_watches();
                    tokio::select! {
                        () = shutdown.wait() => return,
                        result = self.reconciler.reconcile() => self.done(result),
                    }
                    reconciled = true;
                    // A reconcile without requests never yields; watches and probes need their turn.
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    fn check_watches(&mut self) {
        let blocked = cache::blocked([&self.cache], self.watch_timeout);
        if blocked != self.blocked {
            let watches: Vec<_> = blocked.iter().map(ToString::to_string).collect();
            tracing::warn!(?watches, "watches are not up to date");
            self.blocked = blocked;
        }
    }

    fn handle(&self, change: &Change<kube_kit::object::ObjectId>) {
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
                let pause = self.queue.failed(());
                let error = client::chain(&error);
                tracing::warn!(error, ?pause, "reconcile failed, retrying");
            }
        }
    }
}

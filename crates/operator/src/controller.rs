//! The operator as a running thing: watches, a queue of one, and the reconciler.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use kube::Client;
use kube_kit::{
    apply::Applier,
    cache::{self, Cache, Changes},
    events::Recorder,
    merge::Policy,
    object::{self, Kind, ObjectId},
    queue::Queue,
    serve::Readiness,
    shutdown::Shutdown,
    watch::Change,
};
use tokio::time::Instant;
use webhook::certificates;

use crate::{
    detect, images::UnknownImage, metrics::Metrics, names, reconcile::Reconciler, settings::Settings, watches,
};

/// How long the API server may take to serve a kind whose definition has changed: it is asked again after these pauses.
const SERVED: [Duration; 6] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
    Duration::from_secs(32),
];

/// How long to wait at most before a failed reconcile is repeated: after an outage, nothing tells that it is over when
/// nothing changed meanwhile.
const RETRY: Duration = Duration::from_mins(1);

/// Why the operator does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster does not answer.
    #[error(transparent)]
    Detect(#[from] detect::Error),
    /// There is nothing to run in a container.
    #[error(transparent)]
    Image(#[from] UnknownImage),
}

/// A running operator.
pub struct Operator {
    reconciler: Reconciler,
    client: Client,
    settings: Settings,
    cache: Cache,
    /// Definitions of kinds that others define, and of the configuration resource.
    definitions: Cache,
    /// Which of those kinds are watched.
    watched: BTreeSet<Kind>,
    changes: Changes,
    queue: Queue<()>,
    metrics: Metrics,
    /// How long a watch may fail before users are told.
    patience: Duration,
    /// When to ask again for kinds whose definitions have changed, and how often that was done.
    ask_again: Option<(Instant, usize)>,
    /// When certificates have to be looked at again.
    look_again: Option<SystemTime>,
}

impl Operator {
    /// Finds out about the cluster, and starts the watches.
    pub async fn start(client: Client, settings: Settings, metrics: Metrics) -> Result<Self, Error> {
        let platform = detect::platform(&client, &settings).await?;
        let own_image = detect::own_image(&client, &settings).await;
        tracing::info!(
            ?platform,
            image = own_image.as_deref().unwrap_or_default(),
            "registering Components"
        );
        let images = settings.images.clone().with_own(own_image);
        images.complete()?;
        let settings = Settings { images, ..settings };

        let cache = Cache::new();
        let definitions = Cache::new();
        metrics.watches().of(&cache);
        metrics.watches().of(&definitions);
        let mut changes = watches::start(&client, &cache, &settings);
        watches::definitions(&client, &definitions, &mut changes);
        let policy = Policy::owned_by(api::names::NETWORK_ADDONS_KIND);
        let applier = Applier::with_cache(client.clone(), policy, cache.clone());
        let recorder = Recorder::new(client.clone(), names::EVENT_COMPONENT);
        let reconciler = Reconciler::new(
            applier,
            recorder,
            settings.clone(),
            platform,
            definitions.clone(),
            metrics.clone(),
        );
        let mut operator = Self {
            reconciler,
            client,
            settings,
            cache,
            definitions,
            watched: BTreeSet::new(),
            changes,
            queue: Queue::counted(metrics.workqueue().clone()),
            metrics,
            patience: cache::PATIENCE,
            ask_again: None,
            look_again: None,
        };
        for kind in watches::found_at_start(platform) {
            operator.watch(kind);
        }
        Ok(operator)
    }

    /// Reports watches that fail for this long; half a minute by default.
    #[must_use]
    pub fn patient(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self.metrics.watches().set_patience(patience);
        self
    }

    /// Works until the end is wished for. Whatever is interrupted then is taken up at the next start. Ready while
    /// all watches are up to date.
    pub async fn run(mut self, shutdown: &Shutdown, readiness: &Readiness) {
        tracing::info!("starting the operator manager");
        let mut check = Instant::now() + self.patience;
        loop {
            let ask_again = self.ask_again.map(|(at, _)| at);
            let look_again = self.look_again;
            let synced = self.cache.is_synced() && self.definitions.is_synced();
            readiness.set(synced && !self.reconciler.is_blocked());
            tokio::select! {
                // Changes come first: many of them are one reconcile.
                biased;
                () = shutdown.wait() => return,
                change = self.changes.next() => self.note(&change),
                () = tokio::time::sleep_until(ask_again.unwrap_or_else(Instant::now)), if ask_again.is_some() => {
                    self.ask();
                }
                () = certificates::wait_until(look_again.unwrap_or(SystemTime::UNIX_EPOCH)), if look_again.is_some() => {
                    self.look_again = None;
                    self.queue.add(());
                }
                () = tokio::time::sleep_until(check) => {
                    check = Instant::now() + self.patience / 3;
                    if self.look_at_watches() && synced {
                        self.queue.add(());
                    }
                    if !synced {
                        tokio::select! {
                            () = shutdown.wait() => return,
                            () = self.reconciler.report_blockade() => {}
                        }
                    }
                }
                () = self.queue.next(), if synced => {
                    self.look_at_watches();
                    self.look_around();
                    let begin = Instant::now();
                    self.metrics.reconciles().started();
                    tokio::select! {
                        () = shutdown.wait() => return,
                        result = self.reconciler.reconcile() => {
                            self.metrics.reconciles().ended(result.is_ok(), begin.elapsed());
                            self.done(result);
                        }
                    }
                    self.look_again = self.reconciler.look_again();
                    // One that asks for nothing has not waited for anything: watches and probes have their turn.
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    fn note(&mut self, change: &Change<ObjectId>) {
        match change {
            Change::Applied(id) | Change::Deleted(id) => {
                tracing::debug!(%id, ?change, "changed");
                if let Some(kind) = watches::defined_by(id) {
                    self.definition_changed(kind, matches!(change, Change::Applied(_)));
                }
                if !self.reconciler.concerns(id) {
                    return;
                }
            }
            Change::Invalid(id, error) => tracing::warn!(%id, error, "malformed object"),
            Change::Synced => {}
        }
        self.queue.add(());
    }

    /// Watches a kind from the moment on when there can be any of it, and as long as there can be.
    fn definition_changed(&mut self, kind: Kind, defined: bool) {
        if kind == object::NETWORK_ADDONS_CONFIG {
            // Watched in any case.
        } else if defined {
            self.watch(kind);
        } else if self.watched.remove(&kind) {
            tracing::info!(kind = kind.kind, "no longer served");
            self.cache.forget(kind);
            let platform = watches::platform_without(self.reconciler.platform(), kind);
            self.reconciler.set_platform(platform);
        }
        self.ask_again = None;
        self.ask();
    }

    fn watch(&mut self, kind: Kind) {
        if self.watched.insert(kind) {
            let watch = watches::if_served(&self.client, &self.cache, kind, &self.settings);
            self.changes.push(watch);
        }
    }

    /// Has all watches ask that wait for their kind to be served, now and a few times later.
    fn ask(&mut self) {
        let asked = self.ask_again.map_or(0, |(_, times)| times);
        self.ask_again = SERVED
            .get(asked)
            .map(|pause| (Instant::now() + *pause, asked + 1));
        self.changes.retry();
    }

    /// Looks which watches are refused, fail or are stale. Returns whether that is news.
    fn look_at_watches(&mut self) -> bool {
        let blocked = cache::blocked([&self.cache, &self.definitions], self.patience);
        self.reconciler.set_blocked(blocked)
    }

    /// What kind of cluster this is may have changed with the kinds that it serves.
    fn look_around(&mut self) {
        let before = self.reconciler.platform();
        let platform = watches::platform(before, |kind| self.cache.serves(kind));
        if platform != before {
            tracing::info!(?platform, "the cluster has changed");
            self.reconciler.set_platform(platform);
        }
    }

    fn done(&mut self, result: Result<(), crate::reconcile::Error>) {
        match result {
            Ok(()) => self.queue.succeeded(&()),
            Err(error) => {
                let pause = self.queue.failed(()).min(RETRY);
                self.queue.add_after((), pause);
                tracing::warn!(%error, ?pause, "trying again");
            }
        }
        if let Some(at) = self.reconciler.held_back_until() {
            self.queue
                .add_after((), at.saturating_duration_since(Instant::now()));
        }
    }
}

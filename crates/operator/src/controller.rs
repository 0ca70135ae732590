//! The running operator: watches, a queue with one key, and the reconciler.

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
    process,
    queue::Queue,
    serve::Readiness,
    shutdown::Shutdown,
    watch::Change,
};
use tokio::time::Instant;
use webhook::certificates;

use crate::{
    detect::{self, Found},
    images::UnknownImage,
    metrics::Metrics,
    names,
    reconcile::Reconciler,
    settings::Settings,
    watches,
};

/// Delays of the retries after the definition of a kind changed: the API server needs time to serve it.
const SERVED: [Duration; 6] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
    Duration::from_secs(32),
];

/// How long requests are repeated at start, before the process ends and its kubelet starts another one.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum back-off of a failed reconcile: no event reports the end of an outage if no object changed meanwhile.
const RETRY: Duration = Duration::from_mins(1);

/// The cause of a failed start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server does not answer.
    #[error(transparent)]
    Detect(#[from] detect::Error),
    /// A container has no image.
    #[error(transparent)]
    Image(#[from] UnknownImage),
}

/// A running operator.
pub struct Operator {
    reconciler: Reconciler,
    client: Client,
    settings: Settings,
    cache: Cache,
    /// Definitions of other products' kinds, and of the configuration resource.
    definitions: Cache,
    /// The watched kinds among them.
    watched: BTreeSet<Kind>,
    changes: Changes,
    queue: Queue<()>,
    metrics: Metrics,
    /// A failing watch is reported after this time.
    watch_timeout: Duration,
    /// The time of the next retry for kinds whose definitions have changed, and the number of retries so far.
    ask_again: Option<(Instant, usize)>,
    /// The time of the next check of certificates.
    look_again: Option<SystemTime>,
}

impl Operator {
    /// Detects the platform, and starts the watches.
    pub async fn start(client: Client, settings: Settings, metrics: Metrics) -> Result<Self, Error> {
        let Found { platform, own_image } = detect::at_start(&client, &settings, PATIENCE).await?;
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
        metrics.controller().watches.of(&cache);
        metrics.controller().watches.of(&definitions);
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
            queue: metrics.controller().queue(RETRY),
            metrics,
            watch_timeout: cache::WATCH_TIMEOUT,
            ask_again: None,
            look_again: None,
        };
        for kind in watches::found_at_start(platform) {
            operator.watch(kind);
        }
        Ok(operator)
    }

    /// Sets the time after which failing watches are reported; half a minute by default.
    #[must_use]
    pub fn watch_timeout(mut self, watch_timeout: Duration) -> Self {
        self.watch_timeout = watch_timeout;
        self.metrics.controller().watches.set_timeout(watch_timeout);
        self
    }

    /// Runs until the shutdown. The next start continues interrupted work. Ready while all watches are up to date.
    pub async fn run(mut self, shutdown: &Shutdown, readiness: &Readiness) {
        tracing::info!("starting the operator manager");
        let mut check = Instant::now() + self.watch_timeout;
        loop {
            let ask_again = self.ask_again.map(|(at, _)| at);
            let look_again = self.look_again;
            let synced = self.cache.is_synced() && self.definitions.is_synced();
            readiness.set(synced && !self.reconciler.is_blocked());
            tokio::select! {
                // Changes have priority: many of them result in one reconcile.
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
                    check = Instant::now() + self.watch_timeout / 3;
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
                    tokio::select! {
                        () = shutdown.wait() => return,
                        result = process::contained(Box::pin(self.reconciler.reconcile())) => match result {
                            Ok(result) => self.done(result),
                            Err(panicked) => self.done(Err(panicked.into())),
                        }
                    }
                    self.look_again = self.reconciler.look_again();
                    // A reconcile without requests never yields by itself: watches and probes need their turn.
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
                    let applied = matches!(change, Change::Applied(_));
                    let synced = self.definitions.is_synced();
                    let defined = watches::is_defined(&self.definitions.lookup(id), applied, synced);
                    self.definition_changed(kind, defined);
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

    /// Watches a kind as long as its definition exists.
    fn definition_changed(&mut self, kind: Kind, defined: bool) {
        if kind == object::NETWORK_ADDONS_CONFIG {
            // This kind is always watched.
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

    /// Retries the watches of unserved kinds, now and a few times later.
    fn ask(&mut self) {
        let asked = self.ask_again.map_or(0, |(_, times)| times);
        self.ask_again = SERVED
            .get(asked)
            .map(|pause| (Instant::now() + *pause, asked + 1));
        self.changes.retry();
    }

    /// Updates the set of refused, failing and stale watches. Returns whether the set changed.
    fn look_at_watches(&mut self) -> bool {
        let blocked = cache::blocked([&self.cache, &self.definitions], self.watch_timeout);
        self.reconciler.set_blocked(blocked)
    }

    /// Updates the platform: it depends on the kinds that the cluster serves.
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
                let pause = self.queue.failed(());
                tracing::warn!(%error, ?pause, "trying again");
            }
        }
        if let Some(at) = self.reconciler.held_back_until() {
            self.queue
                .add_after((), at.saturating_duration_since(Instant::now()));
        }
    }
}

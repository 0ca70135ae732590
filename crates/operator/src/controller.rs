//! The operator as a running thing: watches, a queue of one, and the reconciler.

use std::time::Duration;

use kube::Client;
use kube_kit::{
    apply::Applier,
    cache::{Cache, Changes},
    events::Recorder,
    merge::Policy,
    queue::Queue,
    shutdown::Shutdown,
    watch::Change,
};
use tokio::time::Instant;

use crate::{detect, images::UnknownImage, names, reconcile::Reconciler, settings::Settings, watches};

/// How long to wait for the watches to tell about objects that were created.
const ECHO: Duration = Duration::from_secs(2);

/// How long the API server may take to serve a kind that it calls established.
const SERVED: Duration = Duration::from_secs(1);

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
    cache: Cache,
    /// Definitions of others.
    definitions: Cache,
    /// Whether wishes for node state are watched: once their API was defined.
    watches_node_state: bool,
    changes: Changes,
    queue: Queue<()>,
    /// When to ask again for the configuration resource, whose definition has changed.
    ask_again: Option<Instant>,
}

impl Operator {
    /// Finds out about the cluster, and starts the watches.
    pub async fn start(client: Client, settings: Settings) -> Result<Self, Error> {
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
        let mut changes = watches::start(&client, &cache, &settings, platform);
        changes.push(watches::definitions(&client, &definitions));
        let policy = Policy::owned_by(api::names::NETWORK_ADDONS_KIND);
        let applier = Applier::with_cache(client.clone(), policy, cache.clone());
        let recorder = Recorder::new(client.clone(), names::EVENT_COMPONENT);
        let reconciler = Reconciler::new(applier, recorder, settings, platform, definitions.clone());
        Ok(Self {
            reconciler,
            client,
            cache,
            definitions,
            watches_node_state: false,
            changes,
            queue: Queue::new(),
            ask_again: None,
        })
    }

    /// Works until the end is wished for. Whatever is interrupted then is taken up at the next start.
    pub async fn run(mut self, shutdown: &Shutdown) {
        tracing::info!("starting the operator manager");
        let mut patience = Instant::now();
        loop {
            let ask_again = self.ask_again;
            let settled = self.reconciler.is_settled();
            let ready = settled && self.cache.is_synced() && self.definitions.is_synced();
            tokio::select! {
                // Changes come first: many of them are one reconcile.
                biased;
                () = shutdown.wait() => return,
                change = self.changes.next() => self.note(&change),
                () = tokio::time::sleep_until(patience), if !settled => self.reconciler.settle(),
                () = tokio::time::sleep_until(ask_again.unwrap_or(patience)), if ask_again.is_some() => {
                    self.ask_again = None;
                    self.changes.retry();
                }
                () = self.queue.next(), if ready => {
                    tokio::select! {
                        () = shutdown.wait() => return,
                        result = self.reconciler.reconcile() => self.done(result),
                    }
                    patience = Instant::now() + ECHO;
                }
            }
        }
    }

    fn note(&mut self, change: &Change<kube_kit::object::ObjectId>) {
        match change {
            Change::Applied(id) | Change::Deleted(id) => {
                tracing::debug!(%id, ?change, "changed");
                if watches::is_definition(id) {
                    self.changes.retry();
                    self.ask_again = Some(Instant::now() + SERVED);
                    return;
                }
                if *id == watches::node_state_definition() {
                    self.watch_node_state();
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

    /// Hears of wishes for node state, from the moment on when there can be any.
    fn watch_node_state(&mut self) {
        if !self.watches_node_state {
            self.watches_node_state = true;
            self.changes.push(watches::node_state(&self.client));
        }
        self.changes.retry();
        self.ask_again = Some(Instant::now() + SERVED);
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
    }
}

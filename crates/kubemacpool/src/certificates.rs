//! The certificate manager: the mode of the program in which it issues and renews what the webhooks' server shows, and
//! what the API server trusts it by (kubemacpool §15).
//!
//! ```text
//! both Secrets, webhook configuration ──> watches ──> webhook::certificates::keep ──> the same objects
//!                                            ▲                    │
//!                                            └─── look again ─────┘
//! ```
//!
//! Every object is watched by its name, so that nothing is asked for: reading a Secret is a right that the established
//! installation does not grant (§17).

mod names;
mod settings;

use crate::names::{SERVICE, WEBHOOK_CONFIGURATION};
use kube_kit::{
    apply::Applier,
    cache::{self, Cache, Changes, Lookup},
    kube::Client,
    merge::Policy,
    object::{self, ObjectId},
    queue::Queue,
    shutdown::Shutdown,
    watch::{Change, Options},
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};
use webhook::certificates::{self, Identity, Objects};

pub use settings::{InvalidSettings, Settings, is_wanted};

/// Longest pause before a failed attempt is repeated.
const RETRY: Duration = Duration::from_secs(10);

/// Keeps the certificates until the end is wished for. A failing API server is no error: it is tried again.
pub async fn run(settings: &Settings, client: Client, shutdown: &Shutdown) {
    Manager::start(settings, client).run(shutdown).await;
}

struct Manager<'a> {
    settings: &'a Settings,
    identity: Identity,
    objects: Objects,
    applier: Applier,
    changes: Changes,
    queue: Queue<()>,
    /// Secrets that were created, and that no watch has told of yet: until then the cache does not know them.
    unseen: BTreeSet<ObjectId>,
    /// When there is something to do even if nothing changes.
    look_again: Option<SystemTime>,
}

impl<'a> Manager<'a> {
    fn start(settings: &'a Settings, client: Client) -> Self {
        let objects = objects(settings);
        let cache = Cache::new();
        let mut changes = Changes::new();
        for id in ids(&objects) {
            let Some(kind) = id.known_kind() else { continue };
            let named = Options::all().named(&id.name);
            let namespace = id.namespace.as_deref();
            changes.push(cache.watch(client.clone(), kind, namespace, &named, cache::keep_all));
        }
        Self {
            settings,
            identity: Identity {
                authority: WEBHOOK_CONFIGURATION.to_owned(),
                service: SERVICE.to_owned(),
                namespace: settings.namespace.clone(),
            },
            objects,
            applier: Applier::with_cache(
                client,
                Policy::owned_by(object::MUTATING_WEBHOOK_CONFIGURATION.kind),
                cache,
            ),
            changes,
            queue: Queue::new(),
            unseen: BTreeSet::new(),
            look_again: None,
        }
    }

    async fn run(mut self, shutdown: &Shutdown) {
        tracing::info!(
            namespace = self.settings.namespace,
            "starting the certificate manager"
        );
        loop {
            let ready = self.unseen.is_empty() && self.applier.cache().is_synced();
            tokio::select! {
                // Changes come first: many of them are looked at once.
                biased;
                () = shutdown.wait() => return,
                change = self.changes.next() => self.note(change),
                () = certificates::wait_until(self.look_again.unwrap_or(SystemTime::UNIX_EPOCH)),
                    if self.look_again.is_some() =>
                {
                    self.look_again = None;
                    self.queue.add(());
                }
                () = self.queue.next(), if ready => tokio::select! {
                    // What is interrupted is taken up at the next start.
                    () = shutdown.wait() => return,
                    () = self.keep() => {}
                },
            }
        }
    }

    fn note(&mut self, change: Change<ObjectId>) {
        match change {
            Change::Applied(id) => {
                self.unseen.remove(&id);
            }
            Change::Deleted(id) => tracing::info!(%id, "deleted"),
            Change::Invalid(id, error) => tracing::warn!(%id, error, "malformed object"),
            // Everything that there is has been told about.
            Change::Synced => self.unseen.clear(),
        }
        self.queue.add(());
    }

    async fn keep(&mut self) {
        self.look_again = None;
        let Lookup::Present(configuration) = self.applier.cache().lookup(&self.objects.configuration) else {
            // What would be issued now would be issued anew as soon as it is there.
            tracing::info!(id = %self.objects.configuration, "waiting for the webhook configuration");
            self.queue.succeeded(&());
            return;
        };
        let objects = owned(&self.objects, &configuration);
        let intervals = &self.settings.intervals;
        match certificates::keep(&self.applier, &objects, &self.identity, intervals).await {
            Ok(kept) => {
                self.unseen.extend(kept.created);
                self.look_again = Some(kept.look_again);
                self.queue.succeeded(&());
            }
            Err(error) => {
                let pause = self.queue.failed(()).min(RETRY);
                self.queue.add_after((), pause);
                tracing::warn!(%error, ?pause, "failed to keep certificates, trying again");
            }
        }
    }
}

/// What certificates are kept in.
fn objects(settings: &Settings) -> Objects {
    let secret = |name: &str, kind: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": kind,
            "metadata": {
                "name": name, "namespace": settings.namespace, "labels": settings.labels,
                "annotations": { names::ANNOTATION: "" },
            },
        })
    };
    Objects {
        authority: secret(names::AUTHORITY, names::OPAQUE),
        serving: secret(names::SERVING, names::TLS),
        configuration: object::MUTATING_WEBHOOK_CONFIGURATION.object(None, WEBHOOK_CONFIGURATION),
    }
}

/// The same objects, whose Secrets go with the webhook configuration: nobody else has a use for them.
fn owned(objects: &Objects, configuration: &Value) -> Objects {
    let kind = object::MUTATING_WEBHOOK_CONFIGURATION;
    let owner = json!([{
        "apiVersion": kind.api_version(), "kind": kind.kind,
        "name": WEBHOOK_CONFIGURATION, "uid": configuration["metadata"]["uid"],
    }]);
    let mut objects = objects.clone();
    for secret in [&mut objects.authority, &mut objects.serving] {
        secret["metadata"]["ownerReferences"] = owner.clone();
    }
    objects
}

fn ids(objects: &Objects) -> [ObjectId; 3] {
    let Objects {
        authority,
        serving,
        configuration,
    } = objects;
    let of = |secret: &Value| ObjectId::of(secret);
    [of(authority), of(serving), configuration.clone()]
}

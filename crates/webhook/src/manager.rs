//! The certificate manager: issues and renews the certificate of the webhooks' server and the CA that the API server
//! trusts (kubemacpool §15, nmstate §8).
//!
//! ```text
//! both Secrets, webhook configuration ──> watches ──> certificates::keep ──> the same objects
//!                                            ▲                │
//!                                            └── next check ──┘
//! ```
//!
//! Every object is watched by its name, and never read: upstream installations do not grant the right to get Secrets
//! (kubemacpool §17).

mod names;
mod settings;

use crate::certificates::{self, Identity, Objects};
use kube_kit::{
    apply::Applier,
    cache::{self, Cache, Changes, Lookup},
    kube::Client,
    merge::Policy,
    object::{self, Kind, ObjectId},
    queue::Queue,
    shutdown::Shutdown,
    watch::{Change, Options},
};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};

pub use settings::{InvalidSettings, Settings, is_wanted};

/// Longest delay between retries.
const RETRY: Duration = Duration::from_secs(10);

/// The configuration kinds of most components: mutating webhooks.
pub const MUTATING: &[Kind] = &[object::MUTATING_WEBHOOK_CONFIGURATION];

/// Names of the objects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Names {
    /// The webhook configuration; the CA has its name.
    pub configuration: &'static str,
    /// Kinds of configurations of that name; each may be missing.
    pub kinds: &'static [Kind],
    /// The Secret of the CA.
    pub authority: &'static str,
    /// The Service in front of the server, and the server's Secret, unless the configuration names another Service of
    /// the namespace.
    pub service: &'static str,
}

/// Manages the certificates until shutdown. API errors are retried.
pub async fn run(names: Names, settings: &Settings, client: Client, shutdown: &Shutdown) {
    let mut service = names.service.to_owned();
    while let Some(other) = Manager::start(names, settings, client.clone(), service)
        .run(shutdown)
        .await
    {
        tracing::info!(service = other, "the webhook configuration names another Service");
        service = other;
    }
}

struct Manager<'a> {
    names: Names,
    settings: &'a Settings,
    identity: Identity,
    objects: Objects,
    applier: Applier,
    changes: Changes,
    queue: Queue<()>,
    /// When to check again if nothing changes.
    next_check: Option<SystemTime>,
    other_service: Option<String>,
}

impl<'a> Manager<'a> {
    fn start(names: Names, settings: &'a Settings, client: Client, service: String) -> Self {
        let objects = objects(names, settings, &service);
        let cache = Cache::new();
        let mut changes = Changes::new();
        for id in ids(&objects) {
            let Some(kind) = id.known_kind() else { continue };
            let named = Options::all().named(&id.name);
            let namespace = id.namespace.as_deref();
            changes.push(cache.watch(client.clone(), kind, namespace, &named, cache::keep_all));
        }
        Self {
            names,
            settings,
            identity: Identity {
                authority: names.configuration.to_owned(),
                service,
                namespace: settings.namespace.clone(),
            },
            objects,
            applier: Applier::with_cache(
                client,
                Policy::owned_by(names.kinds.first().map_or("", |kind| kind.kind)),
                cache,
            ),
            changes,
            queue: Queue::with_longest(RETRY),
            next_check: None,
            other_service: None,
        }
    }

    /// Returns at shutdown, or with the Service that the configuration names instead.
    async fn run(mut self, shutdown: &Shutdown) -> Option<String> {
        tracing::info!(
            namespace = self.settings.namespace,
            "starting the certificate manager"
        );
        loop {
            let ready = self.applier.cache().is_synced();
            tokio::select! {
                // Changes come first: many of them cause one check.
                biased;
                () = shutdown.wait() => return None,
                change = self.changes.next() => self.handle(change),
                () = certificates::wait_until(self.next_check.unwrap_or(SystemTime::UNIX_EPOCH)),
                    if self.next_check.is_some() =>
                {
                    self.next_check = None;
                    self.queue.add(());
                }
                () = self.queue.next(), if ready => tokio::select! {
                    // The next start resumes interrupted work.
                    () = shutdown.wait() => return None,
                    () = self.keep() => {}
                },
            }
            if self.other_service.is_some() {
                return self.other_service;
            }
        }
    }

    fn handle(&self, change: Change<ObjectId>) {
        match change {
            Change::Applied(_) | Change::Synced => {}
            Change::Deleted(id) => tracing::info!(%id, "object deleted"),
            Change::Invalid(id, error) => tracing::warn!(%id, error, "malformed object"),
        }
        self.queue.add(());
    }

    async fn keep(&mut self) {
        self.next_check = None;
        let cache = self.applier.cache();
        let present = self
            .objects
            .configurations
            .iter()
            .filter_map(|id| match cache.lookup(id) {
                Lookup::Present(configuration) => Some((id, configuration)),
                Lookup::Absent | Lookup::Unknown => None,
            });
        let present: Vec<_> = present.collect();
        let Some((first, live)) = present.first() else {
            // Certificates issued now would be issued again once it exists.
            tracing::info!(
                name = self.names.configuration,
                "waiting for the webhook configuration"
            );
            self.queue.succeeded(&());
            return;
        };
        self.other_service = present
            .iter()
            .find_map(|(_, configuration)| other_service(configuration, &self.identity));
        if self.other_service.is_some() {
            return;
        }
        let objects = owned(&self.objects, first, live);
        let intervals = &self.settings.intervals;
        match certificates::keep(&self.applier, &objects, &self.identity, intervals).await {
            Ok(kept) => {
                self.next_check = Some(kept.next_check);
                self.queue.succeeded(&());
            }
            Err(error) => {
                let pause = self.queue.failed(());
                tracing::warn!(%error, ?pause, "cannot renew the certificates, retrying");
            }
        }
    }
}

/// The objects that hold certificates.
fn objects(objects: Names, settings: &Settings, service: &str) -> Objects {
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
        authority: secret(objects.authority, names::OPAQUE),
        serving: secret(service, names::TLS),
        configurations: objects
            .kinds
            .iter()
            .map(|kind| kind.object(None, objects.configuration))
            .collect(),
    }
}

/// The objects with Secrets owned by the webhook configuration, so that they are deleted with it.
fn owned(objects: &Objects, id: &ObjectId, configuration: &Value) -> Objects {
    let owner = json!([{
        "apiVersion": id.api_version(), "kind": id.kind,
        "name": id.name, "uid": configuration["metadata"]["uid"],
    }]);
    let mut objects = objects.clone();
    for secret in [&mut objects.authority, &mut objects.serving] {
        secret["metadata"]["ownerReferences"] = owner.clone();
    }
    objects
}

/// The webhooks' Service in the namespace, if it is not this one: only the configuration knows a prefix of the
/// installation's names.
fn other_service(configuration: &Value, identity: &Identity) -> Option<String> {
    let webhooks = configuration["webhooks"].as_array().into_iter().flatten();
    let services = webhooks.map(|webhook| &webhook["clientConfig"]["service"]);
    let mut ours = services
        .filter(|service| service["namespace"] == identity.namespace.as_str())
        .filter_map(|service| service["name"].as_str())
        .peekable();
    let first = ours.peek()?.to_string();
    let known = ours.any(|name| name == identity.service);
    (!known).then_some(first)
}

fn ids(objects: &Objects) -> impl Iterator<Item = ObjectId> {
    let Objects {
        authority,
        serving,
        configurations,
    } = objects;
    let secrets = [authority, serving].map(ObjectId::of);
    secrets.into_iter().chain(configurations.iter().cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_service_is_used_when_no_webhook_names_ours() {
        let identity = Identity {
            authority: "nmstate".to_owned(),
            service: "nmstate-webhook".to_owned(),
            namespace: "ns".to_owned(),
        };
        let service = |namespace: &str, name: &str| json!({ "clientConfig": { "service": { "namespace": namespace, "name": name } } });
        let ours = service("ns", "nmstate-webhook");
        let prefixed = service("ns", "my-nmstate-webhook");
        let url = json!({ "clientConfig": { "url": "https://127.0.0.1/" } });
        for (webhooks, expected) in [
            (json!(null), None),
            (json!([]), None),
            (json!([url]), None),
            (json!([ours]), None),
            (json!([service("other_service", "other")]), None),
            (json!([prefixed, ours]), None),
            (json!([url, prefixed]), Some("my-nmstate-webhook".to_owned())),
        ] {
            let configuration = json!({ "webhooks": webhooks });
            assert_eq!(other_service(&configuration, &identity), expected, "{webhooks}");
        }
    }
}

//! The certificate manager: a program, or a mode of one, that issues and renews what the webhooks' server shows, and what
//! the API server trusts it by (kubemacpool §15, nmstate §8).
//!
//! ```text
//! both Secrets, webhook configuration ──> watches ──> certificates::keep ──> the same objects
//!                                            ▲                │
//!                                            └── look again ──┘
//! ```
//!
//! Every object is watched by its name, so that nothing is asked for: reading a Secret is a right that an established
//! installation does not grant (kubemacpool §17).

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

/// Longest pause before a failed attempt is repeated.
const RETRY: Duration = Duration::from_secs(10);

/// The kinds of most installations: webhooks that change objects.
pub const MUTATING: &[Kind] = &[object::MUTATING_WEBHOOK_CONFIGURATION];

/// What the objects are called.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Names {
    /// The webhook configuration; the authority has its name.
    pub configuration: &'static str,
    /// Kinds of configurations of that name; any of them may be there or not.
    pub kinds: &'static [Kind],
    /// The Secret of the authority.
    pub authority: &'static str,
    /// The Service in front of the server, and the server's Secret, as long as the configuration names no other Service
    /// of the namespace.
    pub service: &'static str,
}

/// Keeps the certificates until the end is wished for. A failing API server is no error: it is tried again.
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
    /// When there is something to do even if nothing changes.
    look_again: Option<SystemTime>,
    /// The Service that the configuration names instead.
    elsewhere: Option<String>,
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
            queue: Queue::new(),
            look_again: None,
            elsewhere: None,
        }
    }

    /// Ends when that is wished for, or with the Service that the configuration names instead.
    async fn run(mut self, shutdown: &Shutdown) -> Option<String> {
        tracing::info!(
            namespace = self.settings.namespace,
            "starting the certificate manager"
        );
        loop {
            let ready = self.applier.cache().is_synced();
            tokio::select! {
                // Changes come first: many of them are looked at once.
                biased;
                () = shutdown.wait() => return None,
                change = self.changes.next() => self.note(change),
                () = certificates::wait_until(self.look_again.unwrap_or(SystemTime::UNIX_EPOCH)),
                    if self.look_again.is_some() =>
                {
                    self.look_again = None;
                    self.queue.add(());
                }
                () = self.queue.next(), if ready => tokio::select! {
                    // What is interrupted is taken up at the next start.
                    () = shutdown.wait() => return None,
                    () = self.keep() => {}
                },
            }
            if self.elsewhere.is_some() {
                return self.elsewhere;
            }
        }
    }

    fn note(&self, change: Change<ObjectId>) {
        match change {
            Change::Applied(_) | Change::Synced => {}
            Change::Deleted(id) => tracing::info!(%id, "deleted"),
            Change::Invalid(id, error) => tracing::warn!(%id, error, "malformed object"),
        }
        self.queue.add(());
    }

    async fn keep(&mut self) {
        self.look_again = None;
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
            // What would be issued now would be issued anew as soon as it is there.
            tracing::info!(
                name = self.names.configuration,
                "waiting for the webhook configuration"
            );
            self.queue.succeeded(&());
            return;
        };
        self.elsewhere = present
            .iter()
            .find_map(|(_, configuration)| other_service(configuration, &self.identity));
        if self.elsewhere.is_some() {
            return;
        }
        let objects = owned(&self.objects, first, live);
        let intervals = &self.settings.intervals;
        match certificates::keep(&self.applier, &objects, &self.identity, intervals).await {
            Ok(look_again) => {
                self.look_again = Some(look_again);
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

/// The same objects, whose Secrets go with the webhook configuration: nobody else has a use for them.
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

/// The Service of the namespace that webhooks are called by, if it is not this one: a prefix of the installation's names
/// is known to the configuration alone.
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
    fn another_service_counts_when_no_webhook_is_called_by_ours() {
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
            (json!([service("elsewhere", "other")]), None),
            (json!([prefixed, ours]), None),
            (json!([url, prefixed]), Some("my-nmstate-webhook".to_owned())),
        ] {
            let configuration = json!({ "webhooks": webhooks });
            assert_eq!(other_service(&configuration, &identity), expected, "{webhooks}");
        }
    }
}

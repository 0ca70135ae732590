//! Applies the objects of egress routers, and reports the state of each router (§17.5).

use std::collections::BTreeMap;
use std::time::Duration;

use api::cluster_network::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube_kit::apply::{Applied, Applier};
use kube_kit::cache::{self, Cache, Changes, Lookup, Object};
use kube_kit::merge::Policy;
use kube_kit::object::{DEPLOYMENT, EGRESS_ROUTER, NETWORK_ATTACHMENT_DEFINITION, ObjectId};
use kube_kit::queue::Queue;
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{Change, Options};
use serde_json::{Value, json};

use super::{Candidate, Router, check, conditions, decide};
use crate::objects::text;
use crate::render::{self, EgressRouterOwner};
use crate::report::{Failure, Level, Reports};
use crate::settings::Settings;
use crate::{messages::egress_router as messages, names};

/// Reason of the cluster's condition.
const REASON: &str = "EgressRouterError";
/// Reason of a router whose objects cannot be written.
const APPLY_FAILED: &str = "ApplyFailed";
const LONGEST: Duration = Duration::from_mins(5);

/// Reconciles until the shutdown.
pub async fn run(client: Client, settings: &Settings, reports: &Reports, shutdown: &Shutdown) {
    let mut controller = Controller::start(client, settings, reports.queue("egress_router", LONGEST));
    loop {
        // Before the first list is complete, the owner of the objects is unknown.
        let is_synced = controller.cache.is_synced();
        let namespace = tokio::select! {
            biased;
            () = shutdown.wait() => return,
            change = controller.changes.next() => {
                controller.note(&change);
                continue;
            }
            namespace = controller.queue.next(), if is_synced => namespace,
        };
        let is_done = tokio::select! {
            () = shutdown.wait() => return,
            is_done = controller.reconcile(&namespace) => is_done,
        };
        if !controller.cache.serves(NETWORK_ATTACHMENT_DEFINITION) {
            // The definition may exist by now. Without the watch, nothing reports drift.
            controller.changes.retry();
        }
        reports.set(Level::EgressRouterConfig, controller.failure().as_ref());
        if is_done {
            controller.queue.succeeded(&namespace);
        } else {
            let retry = controller.queue.failed(namespace.clone());
            tracing::warn!(namespace, ?retry, "egress routers not reconciled");
        }
    }
}

struct Controller<'a> {
    settings: &'a Settings,
    applier: Applier,
    cache: Cache,
    changes: Changes,
    /// Namespaces: all routers of a namespace have objects with the same names.
    queue: Queue<String>,
    /// Errors by namespace and name of the router.
    failures: BTreeMap<(String, String), String>,
}

impl<'a> Controller<'a> {
    fn start(client: Client, settings: &'a Settings, queue: Queue<String>) -> Self {
        let cache = Cache::new();
        let mut changes = Changes::new();
        let named = |name: &str| Options::all().named(name);
        let keep = cache::keep_all;
        let all = Options::all();
        changes.push(cache.watch(client.clone(), EGRESS_ROUTER, None, &all, keep));
        let deployments = named(names::EGRESS_ROUTER_DEPLOYMENT);
        changes.push(cache.watch(client.clone(), DEPLOYMENT, None, &deployments, keep));
        // The operator applies the definition of this kind with Multus.
        let networks = named(names::EGRESS_ROUTER_NETWORK);
        changes.push(cache.watch_if_served(
            client.clone(),
            NETWORK_ATTACHMENT_DEFINITION,
            None,
            &networks,
            keep,
        ));
        Self {
            settings,
            applier: Applier::with_cache(client, Policy::owned_by(EGRESS_ROUTER.kind), cache.clone()),
            cache,
            changes,
            queue,
            failures: BTreeMap::new(),
        }
    }

    fn note(&self, change: &Change<ObjectId>) {
        match change {
            Change::Applied(id) | Change::Deleted(id) | Change::Invalid(id, _) => {
                self.queue.add(id.namespace.clone().unwrap_or_default());
            }
            // An object may have disappeared before its first list.
            Change::Synced => {
                for router in self.cache.list(EGRESS_ROUTER) {
                    self.queue.add(text(&router, "/metadata/namespace").to_owned());
                }
            }
        }
    }

    /// The failure of the cluster's condition.
    fn failure(&self) -> Option<Failure> {
        let texts = self.failures.iter();
        let texts: Vec<String> = texts
            .map(|((namespace, name), error)| messages::not_reconciled(namespace, name, error))
            .collect();
        (!texts.is_empty()).then(|| Failure::debounced(REASON, texts.join(", ")))
    }

    /// Reconciles the routers of a namespace. Returns false if a retry can help.
    async fn reconcile(&mut self, namespace: &str) -> bool {
        let mut routers = self.cache.list(EGRESS_ROUTER);
        routers.retain(|router| {
            text(router, "/metadata/namespace") == namespace
                && router.pointer("/metadata/deletionTimestamp").is_none()
        });
        let candidates: Vec<Candidate> = routers.iter().map(candidate).collect();
        let network = NETWORK_ATTACHMENT_DEFINITION.object(Some(namespace), names::EGRESS_ROUTER_NETWORK);
        let deployment = DEPLOYMENT.object(Some(namespace), names::EGRESS_ROUTER_DEPLOYMENT);
        // The network is written first.
        let owner =
            owner_uid(&self.cache.lookup(&network)).or_else(|| owner_uid(&self.cache.lookup(&deployment)));
        let decisions = decide(&candidates, owner.as_deref());
        self.failures.retain(|(other, _), _| other != namespace);
        let mut is_done = true;
        for ((object, candidate), decision) in routers.iter().zip(&candidates).zip(decisions) {
            let mut failure = match decision {
                Ok(router) => {
                    let applied = self.apply(namespace, candidate, &router).await;
                    applied.err().map(|error| (APPLY_FAILED, error))
                }
                Err(refused) => Some((refused.reason(), refused.to_string())),
            };
            let is_available = is_available(&self.cache.lookup(&deployment), &candidate.uid);
            let reported = failure.as_ref().map(|(reason, text)| (*reason, text.as_str()));
            if let Err(error) = self.report(object, reported, is_available).await {
                failure.get_or_insert((APPLY_FAILED, error));
                is_done = false;
            }
            if let Some((reason, error)) = failure {
                tracing::warn!(
                    namespace,
                    name = candidate.name,
                    reason,
                    error,
                    "egress router not applied"
                );
                is_done &= reason != APPLY_FAILED;
                self.failures
                    .insert((namespace.to_owned(), candidate.name.clone()), error);
            }
        }
        is_done
    }

    async fn apply(&self, namespace: &str, candidate: &Candidate, router: &Router) -> Result<(), String> {
        let owner = EgressRouterOwner {
            namespace,
            name: &candidate.name,
            uid: &candidate.uid,
        };
        let objects = render::egress_router(router, &owner, self.settings);
        for object in objects.map_err(|error| error.to_string())? {
            self.end_rolling_updates(&object).await?;
            let applied = self
                .applier
                .apply_as(names::manager::EGRESS_ROUTER, &object, None);
            let applied = applied.await.map_err(|error| error.to_string())?;
            if applied != Applied::Unchanged {
                let kind = text(&object, "/kind");
                tracing::info!(
                    namespace,
                    name = candidate.name,
                    kind,
                    ?applied,
                    "egress router applied"
                );
            }
        }
        Ok(())
    }

    /// Removes the parameters of rolling updates from the Deployment. The API server refuses them beside `Recreate`. An
    /// apply keeps them, because no field manager owns the server's defaults.
    async fn end_rolling_updates(&self, object: &Value) -> Result<(), String> {
        let id = ObjectId::of(object);
        let Lookup::Present(live) = self.cache.lookup(&id) else {
            return Ok(());
        };
        if !live["spec"]["strategy"]["rollingUpdate"].is_object() {
            return Ok(());
        }
        let patch = json!({ "spec": { "strategy": { "type": "Recreate", "rollingUpdate": null } } });
        let prepared = self.applier.prepare(object, &patch).await;
        prepared.map_err(|error| error.to_string())
    }

    async fn report(
        &self,
        router: &Value,
        failure: Option<(&str, &str)>,
        is_available: bool,
    ) -> Result<(), String> {
        let before: Vec<Condition> =
            serde_json::from_value(router["status"]["conditions"].clone()).unwrap_or_default();
        let object = json!({
            "apiVersion": EGRESS_ROUTER.api_version(), "kind": EGRESS_ROUTER.kind,
            "metadata": {
                "name": text(router, "/metadata/name"), "namespace": text(router, "/metadata/namespace"),
            },
            "status": { "conditions": conditions(failure, is_available, &before, Timestamp::now()) },
        });
        let manager = names::manager::EGRESS_ROUTER;
        match self.applier.apply_as(manager, &object, Some("status")).await {
            Ok(_) => Ok(()),
            // The router was deleted meanwhile.
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn candidate(router: &Object) -> Candidate {
    let spec = serde_json::from_value(router["spec"].clone());
    Candidate {
        name: text(router, "/metadata/name").to_owned(),
        uid: text(router, "/metadata/uid").to_owned(),
        created: text(router, "/metadata/creationTimestamp").to_owned(),
        router: match spec {
            Ok(spec) => check(&spec),
            Err(error) => Err(vec![messages::malformed(&error.to_string())]),
        },
    }
}

/// UID of the egress router that owns an object.
fn owner_uid(object: &Lookup) -> Option<String> {
    let Lookup::Present(object) = object else {
        return None;
    };
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|owner| owner["kind"] == EGRESS_ROUTER.kind)?;
    Some(owner["uid"].as_str()?.to_owned())
}

/// True if a pod of this router's Deployment is available.
fn is_available(deployment: &Lookup, uid: &str) -> bool {
    let Lookup::Present(object) = deployment else {
        return false;
    };
    let available = object["status"]["availableReplicas"].as_i64().unwrap_or_default();
    available > 0 && owner_uid(deployment).as_deref() == Some(uid)
}

//! The running operator: watches, a queue with one key, and the reconciler.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, api::ListParams};
use kube_kit::{
    apply::Applier,
    cache::{self, Cache, Changes, Lookup},
    client,
    merge::Policy,
    object::{self, HOSTED_CONTROL_PLANE, Kind, ObjectId},
    queue::Queue,
    serve::Readiness,
    shutdown::Shutdown,
    watch::Change,
};
use tokio::time::Instant;

use crate::{
    facts::ApiServer, metrics::Metrics, reconcile::Reconciler, report::Reports, settings::Settings, watches,
};

/// Maximum back-off of a failed reconciliation. The end of an outage is no event, if no object changed meanwhile.
const RETRY: Duration = Duration::from_mins(1);

/// Delay of discovery after a reconciliation, while the API server does not serve a kind whose definition the operator
/// applied.
const OWN_DEFINITIONS: Duration = Duration::from_secs(2);

/// Time, at the start, after which the feature gates (§1.3) and kinds of Prometheus' operator are not awaited any more.
/// The other kinds are awaited until the API server lists them, or does not serve them any more.
const FIRST_LISTS: Duration = Duration::from_secs(30);

/// Kinds of other operators that decide the rendered objects: without their lists, the operator would take an OpenShift
/// cluster for a plain cluster, and prune objects that it needs.
const DECIDING: [Kind; 8] = [
    object::OPENSHIFT_INFRASTRUCTURE,
    object::FEATURE_GATE,
    object::MACHINE_CONFIG,
    object::MACHINE_CONFIG_POOL,
    object::CONSOLE_PLUGIN,
    object::OPENSHIFT_API_SERVER,
    object::SERVICE_MONITOR,
    object::PROMETHEUS_RULE,
];

/// Kinds that are not awaited for long: the next reconciliation repairs the effects of a late list.
const OPTIONAL: [Kind; 3] = [
    object::FEATURE_GATE,
    object::SERVICE_MONITOR,
    object::PROMETHEUS_RULE,
];

/// A running operator.
pub struct Operator {
    client: Client,
    reconciler: Reconciler,
    cache: Cache,
    /// Client and cache of the cluster that hosts the control plane. `None` for a cluster with its own control plane.
    management: Option<(Client, Cache)>,
    /// True if the cluster-wide proxy decides rendered objects.
    uses_proxy: bool,
    changes: Changes,
    queue: Queue<()>,
    /// Time of the next discovery of kinds that the API server did not serve.
    ask_again: Option<Instant>,
    /// Reports of the controllers that run beside this one.
    reports: Reports,
    /// Digests of the labels of nodes.
    nodes: BTreeMap<ObjectId, u64>,
}

impl Operator {
    /// Starts the watches. `management` is the client of the cluster that hosts the control plane, if another one does.
    pub fn start(
        client: Client,
        management: Option<Client>,
        settings: Settings,
        api_server: ApiServer,
        metrics: Metrics,
    ) -> Self {
        let cache = Cache::new();
        metrics.controller().watches.of(&cache);
        let mut changes = watches::start(&client, &cache, &settings);
        let management = management.zip(settings.hosted.as_ref()).map(|(client, hosted)| {
            let cache = Cache::new();
            metrics.controller().watches.of(&cache);
            watches::start_hosted(&client, &cache, hosted, &mut changes);
            (client, cache)
        });
        let hosting = management.clone().map(|(client, cache)| {
            let policy = Policy::owned_by(HOSTED_CONTROL_PLANE.kind);
            Applier::with_cache(client, policy, cache)
        });
        let applier = Applier::with_cache(client.clone(), Policy::owned_by("Network"), cache.clone());
        Self {
            client,
            uses_proxy: settings.uses_proxy(),
            reconciler: Reconciler::new(applier, hosting, settings, api_server, metrics.clone()),
            cache,
            management,
            changes,
            queue: metrics.controller().queue(RETRY),
            ask_again: None,
            reports: Reports::counted(metrics),
            nodes: BTreeMap::new(),
        }
    }

    /// The reports of the controllers that run beside this one.
    pub fn reports(&self) -> Reports {
        self.reports.clone()
    }

    /// Sets the time until a transient failure is reported. The default is two minutes.
    #[must_use]
    pub fn debounced_for(mut self, debounce: Duration) -> Self {
        self.reconciler.debounced_for(debounce);
        self
    }

    /// Runs until the shutdown. The next start repeats an interrupted reconciliation. The operator is ready while all
    /// watches are synced.
    pub async fn run(mut self, shutdown: &Shutdown, readiness: &Readiness) {
        tracing::info!("starting the cluster network operator");
        let mut check = Instant::now() + cache::WATCH_TIMEOUT;
        self.queue.add(());
        let mut reports = self.reports.follow();
        let mut notes = self.reports.follow_notes();
        let (mut deciding, mut hosting) = tokio::select! {
            () = shutdown.wait() => return,
            kinds = self.served() => kinds,
        };
        let mut ask_served = Instant::now() + FIRST_LISTS;
        loop {
            let management = self.management.as_ref().map(|(_, cache)| cache);
            deciding.retain(|kind| !self.cache.serves(*kind));
            hosting.retain(|kind| management.is_some_and(|cache| !cache.serves(*kind)));
            let is_listed = deciding.is_empty() && hosting.is_empty();
            let synced = self.cache.is_synced() && management.is_none_or(Cache::is_synced) && is_listed;
            readiness.set(synced && !self.reconciler.is_blocked());
            let look_again = self.reconciler.look_again();
            let ask_again = self.ask_again;
            tokio::select! {
                // Changes come first: one reconciliation handles many of them.
                biased;
                () = shutdown.wait() => return,
                change = self.changes.next() => self.note(&change),
                Ok(()) = reports.changed() => {
                    let now = reports.borrow_and_update().clone();
                    self.reconciler.reported(&now);
                    self.queue.add(());
                }
                Ok(()) = notes.changed() => {
                    let now = notes.borrow_and_update().clone();
                    self.reconciler.noted(now);
                    self.queue.add(());
                }
                () = tokio::time::sleep_until(ask_again.unwrap_or_else(Instant::now)), if ask_again.is_some() => {
                    self.ask_again = None;
                    self.changes.retry();
                }
                () = tokio::time::sleep_until(look_again.unwrap_or_else(Instant::now)), if look_again.is_some() => {
                    self.pass(shutdown).await;
                }
                () = tokio::time::sleep_until(ask_served), if !is_listed => {
                    let (served, _) = tokio::select! {
                        () = shutdown.wait() => return,
                        kinds = self.served() => kinds,
                    };
                    deciding.retain(|kind| !OPTIONAL.contains(kind) && served.contains(kind));
                    hosting.clear();
                    if !deciding.is_empty() {
                        tracing::warn!(kinds = ?deciding, "waiting for the first lists");
                    }
                    // A kind may have been served only after its watch began.
                    self.changes.retry();
                    ask_served = Instant::now() + FIRST_LISTS;
                }
                () = tokio::time::sleep_until(check) => {
                    check = Instant::now() + cache::WATCH_TIMEOUT / 3;
                    let management = self.management.as_ref().map(|(_, cache)| cache);
                    let caches = std::iter::once(&self.cache).chain(management);
                    let blocked = cache::blocked(caches, cache::WATCH_TIMEOUT);
                    self.reconciler.set_blocked(blocked);
                }
                () = self.queue.next(), if synced => self.pass(shutdown).await,
            }
        }
    }

    /// The kinds that decide the rendered objects, and that the cluster and the management cluster serve.
    async fn served(&self) -> (Vec<Kind>, Vec<Kind>) {
        let deciding = deciding(&self.client, self.uses_proxy).await;
        let Some((management, _)) = &self.management else {
            return (deciding, Vec::new());
        };
        (deciding, served(management, &watches::HOSTED_IF_SERVED).await)
    }

    fn note(&mut self, change: &Change<ObjectId>) {
        if self.is_report_of_a_node(change) {
            return;
        }
        match change {
            Change::Applied(id) | Change::Deleted(id) => tracing::debug!(%id, ?change, "changed"),
            Change::Invalid(id, error) => tracing::warn!(%id, error, "malformed object"),
            Change::Synced => {}
        }
        self.queue.add(());
    }

    /// True for a change of a node that left its labels alone: kubelets report every few minutes.
    fn is_report_of_a_node(&mut self, change: &Change<ObjectId>) -> bool {
        match change {
            Change::Applied(id) if id.kind == object::NODE.kind => {
                let Lookup::Present(node) = self.cache.lookup(id) else {
                    return false;
                };
                let mut digest = DefaultHasher::new();
                node["metadata"]["labels"].to_string().hash(&mut digest);
                let digest = digest.finish();
                self.nodes.insert(id.clone(), digest) == Some(digest)
            }
            Change::Deleted(id) => {
                self.nodes.remove(id);
                false
            }
            _ => false,
        }
    }

    async fn pass(&mut self, shutdown: &Shutdown) {
        let was_served = self.serves_networks();
        let result = tokio::select! {
            () = shutdown.wait() => return,
            result = self.reconciler.reconcile() => result,
        };
        match result {
            Ok(()) => self.queue.succeeded(&()),
            Err(error) => {
                let pause = self.queue.failed(());
                tracing::warn!(%error, ?pause, "trying again");
            }
        }
        if !was_served {
            self.changes.retry();
            self.ask_again = Some(Instant::now() + OWN_DEFINITIONS);
        }
        // A reconciliation without requests never yields: watches and probes get the thread here.
        tokio::task::yield_now().await;
    }

    /// True if the API server serves `NetworkAttachmentDefinition`, whose definition the operator applies.
    fn serves_networks(&self) -> bool {
        self.cache.serves(kube_kit::object::NETWORK_ATTACHMENT_DEFINITION)
    }
}

/// The kinds that decide the rendered objects, and that the cluster serves.
pub(crate) async fn deciding(client: &Client, uses_proxy: bool) -> Vec<Kind> {
    let mut kinds = DECIDING.to_vec();
    if uses_proxy {
        kinds.push(object::PROXY);
    }
    served(client, &kinds).await
}

/// The kinds among these that the API server serves. Retries until the API server answers: a plan without the answer
/// could prune objects that the cluster needs.
pub(crate) async fn served(client: &Client, kinds: &[Kind]) -> Vec<Kind> {
    let mut served = Vec::new();
    for kind in kinds {
        if serves(client, *kind).await {
            served.push(*kind);
        }
    }
    served
}

async fn serves(client: &Client, kind: Kind) -> bool {
    let version = kind.api_version();
    loop {
        let resources = client.list_api_group_resources(&version);
        match tokio::time::timeout(FIRST_LISTS, resources).await {
            Ok(Ok(list)) => return list.resources.iter().any(|resource| resource.name == kind.plural),
            // The group is not served, or this account lacks the permission.
            Ok(Err(kube::Error::Api(status))) if status.code < 500 => return false,
            Ok(Err(error)) => {
                let error = client::message(&error);
                tracing::warn!(error, "cannot find out whether {version} is served");
            }
            Err(_) => tracing::warn!("the API server does not say whether {version} is served"),
        }
        tokio::time::sleep(OWN_DEFINITIONS).await;
    }
}

/// Address of the API server for clients without services: from the environment, or the first endpoint of the API
/// server. Waits for an answer: without the address, the pods of the network would wait for the services that they bring.
pub(crate) async fn awaited_api_server(client: &Client, settings: &Settings) -> ApiServer {
    let end = Instant::now() + FIRST_LISTS;
    loop {
        match first_endpoint_of(client, settings).await {
            Ok(Some(found)) => return found,
            // An API server without an endpoint has just started. An account without the right never gets an answer.
            Ok(None) if Instant::now() >= end => return ApiServer::default(),
            Err(kube::Error::Api(status)) if status.code < 500 && Instant::now() >= end => {
                return ApiServer::default();
            }
            Ok(None) => tracing::warn!("the API server has no endpoint yet"),
            Err(error) => {
                let error = client::message(&error);
                tracing::warn!(error, "cannot find out the address of the API server");
            }
        }
        tokio::time::sleep(OWN_DEFINITIONS).await;
    }
}

/// Like [`awaited_api_server`], without waiting. Empty if the API server does not tell.
pub(crate) async fn api_server(client: &Client, settings: &Settings) -> ApiServer {
    match first_endpoint_of(client, settings).await {
        Ok(found) => found.unwrap_or_default(),
        Err(error) => {
            let error = client::message(&error);
            tracing::warn!(error, "cannot find out the address of the API server");
            ApiServer::default()
        }
    }
}

async fn first_endpoint_of(client: &Client, settings: &Settings) -> Result<Option<ApiServer>, kube::Error> {
    if let Some((host, port)) = &settings.api_server {
        return Ok(Some(ApiServer {
            host: host.clone(),
            port: port.clone(),
        }));
    }
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    let of_kubernetes = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
    let slices = slices.list(&of_kubernetes).await?;
    Ok(slices.items.iter().find_map(first_endpoint))
}

fn first_endpoint(slice: &EndpointSlice) -> Option<ApiServer> {
    let host = slice.endpoints.first()?.addresses.first()?.clone();
    let port = slice.ports.as_ref()?.first()?.port?;
    Some(ApiServer {
        host,
        port: port.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use tower::{BoxError, service_fn};

    use super::*;

    fn settings() -> Settings {
        let image = |name: &str| (name == "NETWORK_OPERATOR_IMAGE").then(|| "weft".to_owned());
        Settings::read("ns", image).expect("settings")
    }

    /// A client of an API server whose first answer has this status code, and whose other ones have an endpoint.
    fn failing_first(code: u16) -> Client {
        let asked = AtomicUsize::new(0);
        let service = service_fn(move |_: Request<Body>| {
            let is_first = asked.fetch_add(1, Ordering::Relaxed) == 0;
            async move {
                let (code, body) = if is_first {
                    let status =
                        json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code });
                    (code, status)
                } else {
                    let slice = json!({
                        "metadata": { "name": "kubernetes" }, "addressType": "IPv4",
                        "endpoints": [{ "addresses": ["192.0.2.1"] }], "ports": [{ "port": 6443 }],
                    });
                    (
                        200,
                        json!({ "kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "metadata": {}, "items": [slice] }),
                    )
                };
                let body = Body::from(body.to_string().into_bytes());
                Response::builder()
                    .status(code)
                    .body(body)
                    .map_err(BoxError::from)
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn address_of_the_api_server_is_awaited() {
        for code in [403, 500] {
            let found = awaited_api_server(&failing_first(code), &settings()).await;
            assert_eq!(
                (found.host.as_str(), found.port.as_str()),
                ("192.0.2.1", "6443"),
                "{code}"
            );
            assert_eq!(
                api_server(&failing_first(code), &settings()).await.host,
                "",
                "{code}"
            );
        }
    }
}

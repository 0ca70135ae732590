//! Applies the desired checks, and writes the condition `NetworkDiagnosticsAvailable` (cluster-network §13.2).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use api::cluster_network::SINGLETON;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use kube_kit::apply::apply_always;
use kube_kit::client::message;
use kube_kit::conditions::whole_seconds;
use kube_kit::document;
use kube_kit::object::{
    CLUSTER_NETWORK, CLUSTER_VERSION, CONNECTIVITY_CHECK, CUSTOM_RESOURCE_DEFINITION, ENDPOINT_SLICE, Kind,
    OPENSHIFT_INFRASTRUCTURE, OPENSHIFT_NETWORK, POD, SERVICE,
};
use kube_kit::queue::Queue;
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{Name, Options, Store, Waking, has_begun};
use serde_json::{Value, json};

use super::facts::{self, Condition, Infrastructure, Settings};
use super::{Backed, Endpoint, Existing, Facts, Generated, Plan, Service, Source, availability, plan};
use crate::names::{APP, NAMESPACE, SOURCE, TARGET};

/// Field manager of the checks.
const MANAGER: &str = "ConnectivityCheckController";
/// Field manager of the condition.
const CONDITION_MANAGER: &str = "cluster-network-operator/connectivity-check-controller";
const AVAILABLE: &str = "NetworkDiagnosticsAvailable";
/// Name of the CRD of the checks.
const DEFINITION: &str = "podnetworkconnectivitychecks.controlplane.operator.openshift.io";
/// Label of an `EndpointSlice` with the name of its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Interval between tests whether the checks are listed.
const SYNC_TEST: Duration = Duration::from_millis(200);
/// Interval between lists of checks while their kind is not served, and between reads of a missing node.
const ABSENT: Duration = Duration::from_secs(5);
/// Longest back-off.
pub const LONGEST: Duration = Duration::from_mins(5);

/// A reconciliation failed. The controller retries.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot create CRD {DEFINITION}: {0}")]
    Definition(String),
    #[error("cannot read node {node}: {error}")]
    Node { node: String, error: String },
    #[error("cannot apply check {name}: {error}")]
    Apply { name: String, error: String },
    #[error("cannot delete check {name}: {error}")]
    Delete { name: String, error: String },
    #[error("cannot write the condition {AVAILABLE}: {0}")]
    Condition(String),
}

/// Reconciles the checks until shutdown. Only the leader of an operator's replicas may run this.
pub async fn run(client: Client, queue: Queue<()>, shutdown: &Shutdown) {
    let mut controller = Controller::start(client, queue);
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = controller.queue.next_when(|| controller.has_begun()) => {}
        }
        match controller.reconcile().await {
            Ok(()) => controller.queue.succeeded(&()),
            Err(error) => {
                let delay = controller.queue.failed(());
                tracing::warn!(%error, retry = ?delay, "cannot reconcile the connectivity checks");
            }
        }
    }
}

/// The stores of a service and of its `EndpointSlice` objects.
struct Watched {
    service: Store<Name, Service>,
    slices: Store<Name, Vec<Endpoint>>,
}

struct Controller {
    client: Client,
    queue: Queue<()>,
    sources: Store<Name, Option<String>>,
    kubernetes: Watched,
    kube_apiserver: Watched,
    openshift_apiserver: Watched,
    target: Watched,
    infrastructure: Store<Name, Infrastructure>,
    upgrading: Store<Name, bool>,
    settings: Store<Name, Settings>,
    condition: Store<Name, Option<Condition>>,
    definition: Store<Name, ()>,
    checks: Store<Name, Existing>,
    /// UIDs of the sources' nodes, by pod.
    uids: HashMap<String, String>,
    /// The watches end when the controller is dropped.
    _watches: Waking<()>,
}

/// Watches a single object.
fn one<T: Send + 'static>(
    watches: &mut Waking<()>,
    kind: &Kind,
    name: &str,
    read: impl Fn(&Value) -> T + Send + 'static,
) -> Store<Name, T> {
    watches.start(kind, None, &Options::all().named(name), (), read)
}

/// Watches a service and its `EndpointSlice` objects.
fn backed(watches: &mut Waking<()>, namespace: &str, name: &str) -> Watched {
    let service = Options::all().named(name);
    let slices = Options::all().labels(format!("{SERVICE_NAME}={name}"));
    let namespace = Some(namespace);
    Watched {
        service: watches.start(&SERVICE, namespace, &service, (), facts::service),
        slices: watches.start(&ENDPOINT_SLICE, namespace, &slices, (), facts::endpoints),
    }
}

fn only<T: Clone>(store: &Store<Name, T>) -> Option<T> {
    store.values().into_iter().next()
}

/// Resource version of an object, which may be empty.
fn version(object: &Value) -> &str {
    document::text(object, "/metadata/resourceVersion")
}

impl Watched {
    fn has_begun(&self) -> bool {
        has_begun(&self.service) && has_begun(&self.slices)
    }

    fn read(&self) -> Backed {
        Backed {
            service: only(&self.service),
            endpoints: self.slices.values().into_iter().flatten().collect(),
        }
    }
}

impl Controller {
    fn start(client: Client, queue: Queue<()>) -> Self {
        queue.add(());
        let mut watches = Waking::new(client.clone(), &queue);
        let sources = Options::all().labels(format!("{APP}={SOURCE}"));
        let checks = Options::all().absent(ABSENT);
        Self {
            client,
            queue,
            sources: watches.start(&POD, Some(NAMESPACE), &sources, (), facts::node),
            kubernetes: backed(&mut watches, "default", "kubernetes"),
            kube_apiserver: backed(&mut watches, "openshift-kube-apiserver", "apiserver"),
            openshift_apiserver: backed(&mut watches, "openshift-apiserver", "api"),
            target: backed(&mut watches, NAMESPACE, TARGET),
            infrastructure: one(
                &mut watches,
                &OPENSHIFT_INFRASTRUCTURE,
                SINGLETON,
                facts::infrastructure,
            ),
            upgrading: one(&mut watches, &CLUSTER_VERSION, "version", facts::is_upgrading),
            settings: one(&mut watches, &OPENSHIFT_NETWORK, SINGLETON, facts::settings),
            condition: one(&mut watches, &CLUSTER_NETWORK, SINGLETON, |object| {
                facts::condition(object, AVAILABLE)
            }),
            definition: one(&mut watches, &CUSTOM_RESOURCE_DEFINITION, DEFINITION, |_| ()),
            checks: watches.start(&CONNECTIVITY_CHECK, Some(NAMESPACE), &checks, (), facts::existing),
            uids: HashMap::new(),
            _watches: watches,
        }
    }

    fn has_begun(&self) -> bool {
        let backed = [
            &self.kubernetes,
            &self.kube_apiserver,
            &self.openshift_apiserver,
            &self.target,
        ];
        has_begun(&self.sources)
            && backed.into_iter().all(Watched::has_begun)
            && has_begun(&self.infrastructure)
            && has_begun(&self.upgrading)
            && has_begun(&self.settings)
            && has_begun(&self.condition)
            && has_begun(&self.definition)
            && has_begun(&self.checks)
    }

    async fn reconcile(&mut self) -> Result<(), Error> {
        let settings = only(&self.settings).unwrap_or_default();
        if !settings.managed || only(&self.upgrading).unwrap_or_default() {
            return Ok(());
        }
        if self.definition.is_empty() {
            self.create_definition().await?;
        }
        if !self.checks.is_synced() {
            // The API server serves the kind shortly after the CRD is created.
            self.queue.add_after((), SYNC_TEST);
            return Ok(());
        }
        let existing = self.existing();
        if !settings.enabled {
            return self.apply_plan(plan(&BTreeMap::new(), &existing)).await;
        }
        let facts = self.facts();
        let targets = super::targets(&facts);
        let remembered: BTreeSet<String> = self.uids.keys().cloned().collect();
        let mut sources = self.sources().await?;
        let mut writes = plan(&super::checks(&sources, &targets), &existing);
        // A check is missing, maybe because its node was replaced by one of the same name: the garbage collector would
        // delete a check of the former node again and again.
        let mut doubtful: Vec<&String> = writes.apply.iter().map(|check| &check.source_pod).collect();
        doubtful.retain(|pod| remembered.contains(*pod));
        if !doubtful.is_empty() {
            for pod in doubtful {
                self.uids.remove(pod);
            }
            sources = self.sources().await?;
            writes = plan(&super::checks(&sources, &targets), &existing);
        }
        let done = self.apply_plan(writes).await;
        self.write_condition(availability(&sources, &facts)).await?;
        done
    }

    fn existing(&self) -> BTreeMap<String, Existing> {
        let names = self.checks.keys().into_iter();
        names
            .filter_map(|name| Some((name.name.clone(), self.checks.get(&name)?)))
            .collect()
    }

    /// The source pods that have a node.
    async fn sources(&mut self) -> Result<Vec<Source>, Error> {
        let pods = self.sources.keys();
        self.uids
            .retain(|pod, _| pods.iter().any(|known| known.name == *pod));
        let mut sources = Vec::new();
        for pod in pods {
            let Some(node) = self.sources.get(&pod).flatten() else {
                continue;
            };
            let known = self.uids.get(&pod.name).cloned();
            let found = match known {
                None => self.uid(&node).await?,
                known => known,
            };
            let Some(node_uid) = found else {
                // No watch reports the node once it exists.
                self.queue.add_after((), ABSENT);
                continue;
            };
            self.uids.insert(pod.name.clone(), node_uid.clone());
            let pod = pod.name;
            sources.push(Source { pod, node, node_uid });
        }
        Ok(sources)
    }

    async fn uid(&self, node: &str) -> Result<Option<String>, Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let found = nodes.get_metadata_opt(node).await;
        let found = found.map_err(|error| Error::Node {
            node: node.to_owned(),
            error: message(&error),
        })?;
        Ok(found.and_then(|node| node.metadata.uid))
    }

    fn facts(&self) -> Facts {
        let Infrastructure {
            external,
            internal,
            hosted,
        } = only(&self.infrastructure).unwrap_or_default();
        Facts {
            kubernetes: self.kubernetes.read(),
            kube_apiserver: self.kube_apiserver.read(),
            openshift_apiserver: self.openshift_apiserver.read(),
            external,
            internal,
            target: self.target.read(),
            hosted,
        }
    }

    async fn create_definition(&self) -> Result<(), Error> {
        let crd = api::connectivity_check::crd().map_err(|error| Error::Definition(error.to_string()))?;
        let crds = Api::all(self.client.clone());
        match crds.create(&PostParams::default(), &crd).await {
            Ok(_) => {
                tracing::info!("CRD of the connectivity checks created");
                Ok(())
            }
            // The CRD exists already: the watch is stale.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(Error::Definition(message(&error))),
        }
    }

    /// Applies the plan. A failed write does not stop the other writes. Returns the first error.
    async fn apply_plan(&self, plan: Plan) -> Result<(), Error> {
        let mut done = Ok(());
        for check in &plan.apply {
            let applied = self.apply(check).await;
            done = done.and(applied);
        }
        for name in plan.delete {
            let deleted = self.delete(name).await;
            done = done.and(deleted);
        }
        done
    }

    async fn apply(&self, check: &Generated) -> Result<(), Error> {
        let applied = apply_always(&self.client, &CONNECTIVITY_CHECK, MANAGER, &check.object()).await;
        let applied = applied.map_err(|error| Error::Apply {
            name: check.name.clone(),
            error: message(&error),
        })?;
        let key = Name::new(NAMESPACE, &check.name);
        self.checks.put(key, version(&applied), facts::existing(&applied));
        tracing::info!(check = check.name, endpoint = check.endpoint, "check applied");
        Ok(())
    }

    async fn delete(&self, name: String) -> Result<(), Error> {
        let checks = CONNECTIVITY_CHECK.api(&self.client, Some(NAMESPACE));
        match checks.delete(&name, &DeleteParams::background()).await {
            Ok(_) => {
                tracing::info!(check = name, "check deleted");
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => {
                let error = message(&error);
                Err(Error::Delete { name, error })
            }
        }
    }

    /// Writes the condition into the configuration of the cluster, if that exists and has another condition.
    async fn write_condition(&self, content: (&str, &str, &str)) -> Result<(), Error> {
        let key = Name::new("", SINGLETON);
        let Some(before) = self.condition.get(&key) else {
            return Ok(());
        };
        let (status, reason, text) = content;
        let same = |it: &Condition| it.content == (status.to_owned(), reason.to_owned(), text.to_owned());
        if before.as_ref().is_some_and(same) {
            return Ok(());
        }
        let since = before
            .filter(|before| before.content.0 == status && !before.since.is_empty())
            .map_or_else(
                || json!(whole_seconds(Timestamp::now())),
                |before| json!(before.since),
            );
        let object = json!({
            "apiVersion": CLUSTER_NETWORK.api_version(),
            "kind": CLUSTER_NETWORK.kind,
            "metadata": { "name": SINGLETON },
            "status": { "conditions": [{
                "type": AVAILABLE, "status": status, "reason": reason, "message": text, "lastTransitionTime": since,
            }] },
        });
        let written = apply_always(&self.client, &CLUSTER_NETWORK, CONDITION_MANAGER, &object).await;
        let written = written.map_err(|error| Error::Condition(message(&error)))?;
        self.condition
            .put(key, version(&written), facts::condition(&written, AVAILABLE));
        Ok(())
    }
}

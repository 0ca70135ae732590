//! A node in the API server, and the requests of its marker.

use cluster::ApiServer;
use kube_kit::kube::{Api, Client, core::Object};
use kube_kit::object;
use kube_kit::watch::{self, DeserializeGuard, Name, Options, Watch};
use serde_json::{Value, json};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_mins(1);

/// A node with its marker.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    server: &'static ApiServer,
    /// Prefix of the names of the marker's resources.
    prefix: &'static str,
    /// User agent of the marker.
    component: &'static str,
    /// Version of the node after the last change by the test: older versions are stale.
    changed: Cell<u64>,
}

/// The node's capacity and version.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    resources: BTreeMap<String, String>,
    version: u64,
}

impl Seen {
    fn of(node: &Object<Value, Value>) -> Self {
        let capacity = node
            .status
            .as_ref()
            .and_then(|status| status["capacity"].as_object());
        let resources = capacity.into_iter().flatten();
        let resources =
            resources.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()));
        let version = node.metadata.resource_version.as_deref().unwrap_or_default();
        Self {
            resources: resources.collect(),
            version: version.parse().expect("a number"),
        }
    }
}

/// A watch of nodes.
pub(crate) type Watched = Watch<Name, Seen>;

fn watch_nodes(client: Client) -> Watched {
    let resource = object::NODE.api_resource();
    let api: Api<DeserializeGuard<Object<Value, Value>>> = Api::all_with(client, &resource);
    watch::start_named(api, &Options::all(), |node| Seen::of(&node))
}

impl Node {
    pub(crate) fn new(name: &'static str, prefix: &'static str, component: &'static str) -> Self {
        Self {
            name,
            server: ApiServer::shared().expect("an API server"),
            prefix,
            component,
            changed: Cell::default(),
        }
    }

    /// Registers the node, as a kubelet would.
    pub(crate) fn register(&self) {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}});
        self.server.kubectl().apply(&node.to_string()).expect("a node");
        self.patch(&json!({"cpu": "4"}));
    }

    /// Changes the capacity.
    pub(crate) fn patch(&self, capacity: &Value) {
        let patch = json!({"status": {"capacity": capacity}}).to_string();
        let arguments = [
            "patch",
            "node",
            self.name,
            "--subresource=status",
            "--type=merge",
            "--patch",
            &patch,
            "--output=jsonpath={.metadata.resourceVersion}",
        ];
        let version = self.server.kubectl().run(arguments).expect("a patch");
        self.changed.set(version.trim().parse().expect("a number"));
    }

    /// Waits until these bridges are advertised and no others.
    pub(crate) async fn advertises(&self, nodes: &mut Watched, bridges: &[&str]) {
        let quantity = |bridge: &&str| (format!("{}{bridge}", self.prefix), "1k".to_owned());
        let expected: BTreeMap<String, String> = bridges.iter().map(quantity).collect();
        let name = Name::new("", self.name);
        let store = nodes.store();
        let right = |seen: &Seen| {
            let ours = seen
                .resources
                .iter()
                .filter(|(key, _)| key.starts_with(self.prefix));
            seen.version >= self.changed.get() && ours.eq(&expected)
        };
        let waited = tokio::time::timeout(DEADLINE, async {
            while !store.with(&name, right).unwrap_or_default() {
                nodes.next().await.expect("the watch continues");
            }
        });
        assert!(
            waited.await.is_ok(),
            "expected {expected:?}, found {:?}",
            store.get(&name)
        );
    }

    /// Requests of the marker about this node so far: verb and status code.
    pub(crate) fn requests(&self) -> Vec<(String, u64)> {
        let agent = format!("weft/{}", self.component);
        let log = std::fs::read_to_string(self.server.audit_log()).expect("the audit log");
        log.lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|entry| entry["userAgent"] == agent && entry["objectRef"]["name"] == self.name)
            .filter(|entry| entry["stage"] == "ResponseComplete")
            .map(|entry| {
                let code = entry["responseStatus"]["code"].as_u64().unwrap_or_default();
                (entry["verb"].as_str().unwrap_or_default().to_owned(), code)
            })
            .collect()
    }

    /// Waits until the marker has sent this many requests of a kind.
    pub(crate) async fn asked(&self, times: usize, kind: impl Fn(&(String, u64)) -> bool) {
        let waited = tokio::time::timeout(DEADLINE, async {
            while self.requests().iter().filter(|request| kind(request)).count() < times {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        assert!(waited.await.is_ok(), "only {:?}", self.requests());
    }

    /// Runs a marker with a client of its own while the test runs.
    pub(crate) fn beside<E: std::fmt::Debug>(
        &self,
        marker: impl AsyncFnOnce(Client) -> Result<(), E>,
        test: impl AsyncFnOnce(&Self, Watched),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let kubeconfig = Some(self.server.kubeconfig());
            let client = kube_kit::client::client_from(self.component, kubeconfig).await;
            let watcher = kube_kit::client::client_from("test", kubeconfig).await;
            tokio::select! {
                outcome = marker(client.expect("a client")) => panic!("the marker ended: {outcome:?}"),
                () = test(self, watch_nodes(watcher.expect("a client"))) => {}
            }
        });
    }
}

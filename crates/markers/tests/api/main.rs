//! The bridge marker between a kernel and an API server, both real.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use cluster::ApiServer;
use kube_kit::kube::{Api, Client, core::Object};
use kube_kit::object;
use kube_kit::watch::{self, DeserializeGuard, Name, Options, Watch};
use linux::link::{BridgeSpec, LinkChange};
use linux::netns::NetNs;
use linux::route::Socket;
use markers::bridge::{self, Bridges, Settings};
use serde_json::{Value, json};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::num::NonZeroU16;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_mins(1);
const PREFIX: &str = "bridge.network.kubevirt.io/";

/// A node that exists in the API only, and a network namespace in the place of its host.
struct Node {
    name: &'static str,
    server: &'static ApiServer,
    host: NetNs,
    links: Socket,
    /// Version of the node after our own last change: older ones prove nothing.
    changed: Cell<u64>,
}

/// The bridges that a node advertises, and the version of the node.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    bridges: BTreeMap<String, String>,
    version: u64,
}

impl Seen {
    fn of(node: &Object<Value, Value>) -> Self {
        let capacity = node
            .status
            .as_ref()
            .and_then(|status| status["capacity"].as_object());
        let bridges = capacity.into_iter().flatten().filter_map(|(key, value)| {
            let bridge = key.strip_prefix(PREFIX)?.to_owned();
            Some((bridge, value.as_str().unwrap_or_default().to_owned()))
        });
        let version = node.metadata.resource_version.as_deref().unwrap_or_default();
        Self {
            bridges: bridges.collect(),
            version: version.parse().expect("a number"),
        }
    }
}

/// What the API server tells of nodes.
type Watched = Watch<Name, Seen>;

fn watch_nodes(client: Client) -> Watched {
    let resource = object::NODE.api_resource();
    let api: Api<DeserializeGuard<Object<Value, Value>>> = Api::all_with(client, &resource);
    watch::start_named(api, &Options::all(), |node| Seen::of(&node))
}

impl Node {
    /// `None`, said aloud, without the right to make namespaces.
    fn new(name: &'static str) -> Option<Self> {
        let Ok(host) = NetNs::create_anonymous() else {
            println!("skipped: {name} needs root to make network namespaces");
            return None;
        };
        let server = ApiServer::shared().expect("an API server");
        let links = host.run(Socket::open).expect("the namespace").expect("a socket");
        Some(Self {
            name,
            server,
            host,
            links,
            changed: Cell::default(),
        })
    }

    /// Registers the node, as a kubelet would.
    fn register(&self) {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}});
        self.server.kubectl().apply(&node.to_string()).expect("a node");
        self.patch(&json!({"status": {"capacity": {"cpu": "4"}}}));
    }

    fn patch(&self, patch: &Value) {
        let patch = patch.to_string();
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

    fn add_bridge(&mut self, name: &str) {
        self.links
            .create_bridge(&BridgeSpec {
                name,
                mac: None,
                mtu: None,
                vlan_filtering: false,
            })
            .expect("a bridge");
    }

    fn settings(&self, reconcile: Duration) -> Settings {
        Settings {
            node: self.name.to_owned(),
            update_interval: Duration::from_secs(1),
            reconcile_interval: reconcile,
            health_port: NonZeroU16::MIN,
        }
    }

    /// Waits until these bridges are advertised and no others.
    async fn advertises(&self, nodes: &mut Watched, bridges: &[&str]) {
        let expected: BTreeMap<String, String> = bridges
            .iter()
            .map(|bridge| ((*bridge).to_owned(), "1k".to_owned()))
            .collect();
        let name = Name::new("", self.name);
        let store = nodes.store();
        let right = |seen: &Seen| seen.version >= self.changed.get() && seen.bridges == expected;
        let waited = tokio::time::timeout(DEADLINE, async {
            while !store.with(&name, right).unwrap_or_default() {
                nodes.next().await.expect("the watch goes on");
            }
        });
        assert!(
            waited.await.is_ok(),
            "expected {expected:?}, found {:?}",
            store.get(&name)
        );
    }

    /// Requests of the marker about this node so far: verb and status code.
    fn requests(&self) -> Vec<(String, u64)> {
        let log = std::fs::read_to_string(self.server.audit_log()).expect("the audit log");
        log.lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|entry| {
                entry["userAgent"] == "weft/bridge-marker" && entry["objectRef"]["name"] == self.name
            })
            .map(|entry| {
                let code = entry["responseStatus"]["code"].as_u64().unwrap_or_default();
                (entry["verb"].as_str().unwrap_or_default().to_owned(), code)
            })
            .collect()
    }

    /// Waits until the marker has sent two requests of a kind.
    async fn asked_twice(&self, kind: impl Fn(&(String, u64)) -> bool) {
        let waited = tokio::time::timeout(DEADLINE, async {
            while self.requests().iter().filter(|request| kind(request)).count() < 2 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        assert!(waited.await.is_ok(), "only {:?}", self.requests());
    }

    /// Runs the marker while `test` runs.
    fn marked<F: Future<Output = ()>>(self, reconcile: Duration, test: impl FnOnce(Self, Watched) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let settings = self.settings(reconcile);
        runtime.block_on(async {
            let kubeconfig = self.server.kubeconfig();
            let client = kube_kit::client::client_from("bridge-marker", Some(kubeconfig))
                .await
                .expect("a client");
            let watcher = kube_kit::client::client_from("test", Some(kubeconfig))
                .await
                .expect("a client");
            let bridges = self
                .host
                .run(Bridges::open)
                .expect("the namespace")
                .expect("the bridges");
            tokio::select! {
                outcome = bridge::mark(&settings, client, bridges) => panic!("the marker ended: {outcome:?}"),
                () = test(self, watch_nodes(watcher)) => {}
            }
        });
    }
}

#[test]
fn bridges_are_advertised_as_they_come_and_go() {
    // cni-plugins#62
    let Some(mut node) = Node::new("come-and-go") else {
        return;
    };
    node.register();
    node.add_bridge("br1");
    node.marked(Duration::from_hours(1), async |mut node, mut seen| {
        node.advertises(&mut seen, &["br1"]).await;
        node.add_bridge("br-2");
        node.advertises(&mut seen, &["br-2", "br1"]).await;
        let renamed = LinkChange {
            name: Some("br3"),
            ..LinkChange::default()
        };
        let link = node.links.link_by_name("br-2").expect("the bridge");
        node.links
            .change_link(&link, "rename link", &renamed)
            .expect("a new name");
        node.advertises(&mut seen, &["br1", "br3"]).await;
        node.links.delete_link_by_name("br1").expect("deleted");
        node.advertises(&mut seen, &["br3"]).await;
    });
}

#[test]
fn a_name_that_is_no_resource_name_does_not_hide_the_others() {
    let Some(mut node) = Node::new("odd-names") else {
        return;
    };
    node.register();
    for name in ["br~1", "-br", "br1"] {
        node.add_bridge(name);
    }
    node.marked(Duration::from_hours(1), async |node, mut seen| {
        node.advertises(&mut seen, &["br1"]).await;
    });
}

#[test]
fn nothing_is_written_when_nothing_changes_and_others_changes_are_repaired() {
    // cni-plugins#63
    let Some(mut node) = Node::new("repaired") else {
        return;
    };
    node.register();
    node.add_bridge("br1");
    node.patch(&json!({"status": {"capacity": {"bridge.network.kubevirt.io/br1": "1k"}}}));
    node.marked(Duration::from_secs(1), async |node, mut seen| {
        node.asked_twice(|(verb, _)| verb == "get").await;
        let requests = node.requests();
        assert!(requests.iter().all(|(verb, _)| verb == "get"), "{requests:?}");
        for change in [
            json!({"bridge.network.kubevirt.io/br1": null}),
            json!({"bridge.network.kubevirt.io/br1": "5"}),
        ] {
            node.patch(&json!({"status": {"capacity": change}}));
            node.advertises(&mut seen, &["br1"]).await;
        }
        node.patch(&json!({"status": {"capacity": {"bridge.network.kubevirt.io/gone": "1k"}}}));
        node.advertises(&mut seen, &["br1"]).await;
    });
}

#[test]
fn it_lives_on_while_the_api_fails() {
    // cni-plugins#63
    let Some(mut node) = Node::new("late") else { return };
    node.add_bridge("br1");
    node.marked(Duration::from_hours(1), async |node, mut seen| {
        node.asked_twice(|(_, code)| *code == 404).await;
        node.register();
        node.advertises(&mut seen, &["br1"]).await;
    });
}

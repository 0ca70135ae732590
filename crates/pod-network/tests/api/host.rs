//! A node: a network namespace with one link, a directory of configurations, and Nodes of the API.

use std::{fs, net::SocketAddr, ops::Deref, os::fd::AsFd as _, path::PathBuf};

use k8s_openapi::jiff;
use kube_kit::{kube::Client, serve::Readiness};
use linux::{
    address::Family,
    link::{Link, VethSpec},
    netns::NetNs,
    route::Socket,
    routes::Route,
};
use pod_network::{Choices, HostSockets, Metrics, Settings, keep, names::ROUTE_PROTOCOL};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use stage::{Admin, Server, Task, until};

use crate::proxy::Proxy;

pub(crate) const NODES: &str = "/api/v1/nodes";
/// The deployed manifest.
const MANIFEST: &str = include_str!("../../../../deploy/pod-network/pod-network.yaml");
pub(crate) const ACCOUNT: &str = "system:serviceaccount:kube-system:weft-pod-network";

/// Applies all objects of the manifest except the workload.
pub(crate) fn install(admin: &Admin) {
    let objects = MANIFEST
        .split("---\n")
        .filter(|object| !object.contains("kind: DaemonSet"));
    admin
        .kubectl()
        .apply(&objects.collect::<Vec<_>>().join("---\n"))
        .expect("rights");
}

/// An API server, and a host.
pub(crate) struct Stage {
    server: Server,
    pub(crate) namespace: NetNs,
    pub(crate) socket: Socket,
    pub(crate) eth0: Link,
    /// The namespace of the peer of `eth0`.
    _outside: NetNs,
    folder: tempfile::TempDir,
    pub(crate) readiness: Readiness,
    metrics: Metrics,
    pub(crate) proxy: Proxy,
}

impl Deref for Stage {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Stage {
    /// Returns `None`, and prints why, if the test may not create namespaces.
    pub(crate) fn take(name: &str) -> Option<Self> {
        let (Ok(namespace), Ok(outside)) = (NetNs::create_anonymous(), NetNs::create_anonymous()) else {
            println!("skipped: {name} needs root to make network namespaces");
            return None;
        };
        let mut socket = namespace.run(Socket::open).unwrap().unwrap();
        let spec = VethSpec {
            name: "eth0",
            mac: None,
            mtu: None,
            peer_name: "peer",
            peer_ns: Some(outside.as_fd()),
        };
        socket.create_veth(&spec).unwrap();
        let eth0 = socket.link_by_name("eth0").unwrap();
        for address in ["192.0.2.1/24", "2001:db8:1::1/64"] {
            socket.add_own_address(&eth0, address.parse().unwrap()).unwrap();
        }
        socket.set_up(&eth0).unwrap();
        let server = Server::take(install);
        let proxy = Proxy::to(address(&server));
        Some(Self {
            server,
            namespace,
            socket,
            eth0,
            _outside: outside,
            folder: tempfile::tempdir().unwrap(),
            readiness: Readiness::new(),
            metrics: Metrics::default(),
            proxy,
        })
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn conflist(&self) -> PathBuf {
        self.file("10-weft.conflist")
    }

    /// The configuration, if the file exists.
    pub(crate) fn configuration(&self) -> Option<Value> {
        let text = fs::read(self.conflist()).ok()?;
        Some(serde_json::from_slice(&text).expect("whole JSON"))
    }

    /// Starts the daemon of node `a`.
    pub(crate) fn daemon(&mut self) -> Task {
        self.readiness = Readiness::new();
        let settings = Settings {
            node: "a".to_owned(),
            conflist: self.conflist(),
            network: "weft".to_owned(),
            choices: Choices {
                vxlan_id: 7765,
                vxlan_port: 4789,
                cluster: Vec::new(),
                mtu: None,
            },
        };
        let sockets = self.namespace.run(HostSockets::open).unwrap().unwrap();
        let (readiness, kubeconfig) = (self.readiness.clone(), self.kubeconfig().to_owned());
        self.metrics = Metrics::default();
        let metrics = self.metrics.clone();
        let proxy = self.proxy.address;
        Task::start(async move |shutdown| {
            let mut config = stage::config(&kubeconfig, Some(ACCOUNT)).await;
            config.cluster_url = format!("https://{proxy}").parse().unwrap();
            let client = Client::try_from(config).unwrap();
            tokio::select! {
                outcome = keep(settings, client, sockets, readiness, metrics) => outcome.unwrap(),
                () = shutdown.wait() => {}
            }
        })
    }

    /// Registers a node, as kubelet and the controller manager do.
    pub(crate) fn register(&self, name: &str, ranges: &[&str], addresses: &[&str]) {
        let mut spec = json!({});
        if let Some(first) = ranges.first() {
            spec = json!({ "podCIDR": first, "podCIDRs": ranges });
        }
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name }, "spec": spec });
        self.create(NODES, &node);
        self.report_addresses(name, addresses);
    }

    pub(crate) fn report_addresses(&self, name: &str, addresses: &[&str]) {
        let addresses: Vec<_> = addresses
            .iter()
            .map(|address| json!({ "type": "InternalIP", "address": address }))
            .collect();
        self.report(&format!("{NODES}/{name}"), &json!({ "addresses": addresses }));
    }

    /// Reports a heartbeat, as kubelets do every few minutes.
    pub(crate) fn heartbeat(&self, name: &str) {
        let now = jiff::Timestamp::now().to_string();
        let conditions = json!([{ "type": "Ready", "status": "True", "lastHeartbeatTime": now }]);
        self.report(&format!("{NODES}/{name}"), &json!({ "conditions": conditions }));
    }

    /// The value of a metric of the daemon.
    pub(crate) fn metric(&self, name: &str) -> u32 {
        let mut registry = Registry::default();
        self.metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in {text}"))
            .parse()
            .unwrap()
    }

    /// The daemon's routes, as text.
    pub(crate) fn routes(&mut self) -> Vec<String> {
        let mut all = self.socket.routes(Family::V4).unwrap();
        all.extend(self.socket.routes(Family::V6).unwrap());
        let ours = all.iter().filter(|route| route.protocol == Some(ROUTE_PROTOCOL));
        let mut shown: Vec<_> = ours.map(Route::to_string).collect();
        shown.sort();
        shown
    }

    #[track_caller]
    pub(crate) fn wait_for_routes(&mut self, expected: &[&str]) {
        until("the routes", || match self.routes() {
            found if found == expected => Ok(()),
            found => Err(format!("expected {expected:?}, found {found:?}")),
        });
    }

    #[track_caller]
    pub(crate) fn wait_until_ready(&self, ready: bool) {
        until("readiness", || match self.readiness.is_ready() {
            found if found == ready => Ok(()),
            found => Err(format!("ready: {found}")),
        });
    }

    #[track_caller]
    pub(crate) fn wait_for_event(&self, start: &str) {
        until("an event", || {
            let events = self.events("default");
            if events.iter().any(|event| event.starts_with(start)) {
                Ok(())
            } else {
                Err(format!("no {start} in {events:#?}"))
            }
        });
    }
}

fn address(server: &Server) -> SocketAddr {
    let url = server.kubectl().run([
        "config",
        "view",
        "--minify",
        "--output=jsonpath={.clusters[0].cluster.server}",
    ]);
    let url = url.expect("a kubeconfig");
    url.trim()
        .trim_start_matches("https://")
        .parse()
        .expect("an address")
}

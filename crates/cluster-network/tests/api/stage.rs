//! An API server with the operator's definitions and rights, and helpers for the objects of tests.

use std::{net::SocketAddr, ops::Deref, sync::mpsc, time::Duration};

use cluster_network::{
    beside,
    controller::Operator,
    facts::ApiServer,
    failures::DEBOUNCE,
    manifests,
    metrics::Metrics,
    settings::{Ovn, Settings},
};
use kube::Client;
use kube_kit::{
    serve::{Bind, Readiness},
    shutdown::Shutdown,
};
use serde_json::{Value, json};
use stage::{Admin, Line, Method, Server};
pub(crate) use stage::{Task, until};

pub(crate) const ACCOUNT: &str = "system:serviceaccount:openshift-network-operator:cluster-network-operator";
pub(crate) const VERSION: &str = "1.2.3";

pub(crate) const CLUSTER: &str = "/apis/config.openshift.io/v1/networks/cluster";
pub(crate) const OPERATOR: &str = "/apis/operator.openshift.io/v1/networks/cluster";
pub(crate) const CLUSTER_OPERATOR: &str = "/apis/config.openshift.io/v1/clusteroperators/network";
pub(crate) const RECORD: &str = "/api/v1/namespaces/openshift-network-operator/configmaps/applied-cluster";
pub(crate) const MULTUS: &str = "/apis/apps/v1/namespaces/openshift-multus/daemonsets/multus";
pub(crate) const POD_NETWORK: &str = "/apis/apps/v1/namespaces/weft-pod-network/daemonsets/pod-network";
pub(crate) const KUBE_PROXY: &str =
    "/apis/apps/v1/namespaces/openshift-kube-proxy/daemonsets/openshift-kube-proxy";

pub(crate) struct Stage {
    server: Server,
}

impl Deref for Stage {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// Settings of the operator in tests.
pub(crate) fn settings() -> Settings {
    Settings {
        version: VERSION.to_owned(),
        image: "registry.example/weft:v1".to_owned(),
        kube_proxy_image: Some("registry.example/kube-proxy:v1".to_owned()),
        kube_rbac_proxy_image: Some("registry.example/kube-rbac-proxy:v1".to_owned()),
        multi_network_policy_image: Some("registry.example/policies:v1".to_owned()),
        whereabouts_image: Some("registry.example/whereabouts:v1".to_owned()),
        egress_router_image: None,
        frr_image: Some("registry.example/frr:v1".to_owned()),
        console_plugin_image: Some("registry.example/plugin:v1".to_owned()),
        network_metrics_image: Some("registry.example/metrics:v1".to_owned()),
        cli_image: Some("registry.example/cli:v1".to_owned()),
        cloud_network_image: Some("registry.example/cloud:v1".to_owned()),
        pull_policy: "IfNotPresent".to_owned(),
        api_server: None,
        cni_conf_dir: "/etc/cni/net.d".to_owned(),
        cni_bin_dir: "/opt/cni/bin".to_owned(),
        namespace: "openshift-network-operator".to_owned(),
        ovn: Ovn {
            image: Some("registry.example/ovn:v1".to_owned()),
            ..Ovn::default()
        },
        hosted: None,
    }
}

fn api_server() -> ApiServer {
    ApiServer {
        host: "192.0.2.1".to_owned(),
        port: "6443".to_owned(),
    }
}

/// Runs the main loop of the operator.
async fn main_loop(client: Client, shutdown: Shutdown) {
    let operator = Operator::start(client, None, settings(), api_server(), Metrics::default());
    Box::pin(operator.run(&shutdown, &Readiness::new())).await;
}

pub(crate) fn networks(namespace: &str) -> String {
    format!("/apis/k8s.cni.cncf.io/v1/namespaces/{namespace}/network-attachment-definitions")
}

/// An operator without a request for this time is idle.
const QUIET: Duration = Duration::from_millis(1500);

fn install(admin: &Admin) {
    install_definitions(admin);
    install_rights(admin);
}

/// Installs the definitions of the operator's kinds.
pub(crate) fn install_definitions(admin: &Admin) {
    admin.apply_all(&manifests::definitions().expect("definitions"));
    for path in [CLUSTER, OPERATOR, CLUSTER_OPERATOR] {
        let collection = path.rsplit_once('/').expect("a path").0;
        admin.wait_until_served(collection);
    }
}

fn install_rights(admin: &Admin) {
    let install = manifests::Install {
        image: "registry.example/weft:v1",
        version: VERSION,
        pull_policy: "IfNotPresent",
        images: manifests::Images::default(),
        api_server: None,
    };
    let mut objects = manifests::operator(&install).expect("objects");
    objects.retain(|object| object["kind"] != "Deployment");
    admin.apply_all(&objects);
}

impl Stage {
    pub(crate) fn start() -> Self {
        let server = Server::take(install);
        Self { server }
    }

    /// Returns a server without the definitions of the operator's kinds.
    pub(crate) fn without_definitions() -> Self {
        let server = Server::take(install_rights);
        Self { server }
    }

    /// Runs the operator with its own account.
    pub(crate) fn operator(&self) -> Task {
        self.operator_that_waits(DEBOUNCE)
    }

    /// Runs the operator with this debounce time of transient failures.
    pub(crate) fn operator_that_waits(&self, debounce: Duration) -> Task {
        self.operator_with(debounce, None, false)
    }

    /// Runs the operator with these settings and this debounce time of transient failures.
    pub(crate) fn operator_of(&self, settings: Settings, debounce: Duration) -> Task {
        self.operator_by(settings, debounce, None, false, None)
    }

    /// Runs the operator with its requests through this line.
    pub(crate) fn operator_through(&self, line: &Line) -> Task {
        self.operator_by(settings(), DEBOUNCE, None, false, Some(line))
    }

    /// Runs the main loop of the operator with another client, made of the usual one.
    pub(crate) fn operator_with_client(
        &self,
        client_of: impl FnOnce(Client) -> Client + Send + 'static,
    ) -> Task {
        self.task_as(ACCOUNT, move |client, shutdown| {
            main_loop(client_of(client), shutdown)
        })
    }

    /// Like [`operator_with_client`](Self::operator_with_client), with requests through this line.
    pub(crate) fn operator_through_with_client(
        &self,
        line: &Line,
        client_of: impl FnOnce(Client) -> Client + Send + 'static,
    ) -> Task {
        self.task_through(line, ACCOUNT, move |client, shutdown| {
            main_loop(client_of(client), shutdown)
        })
    }

    /// Runs the operator of a hosted cluster. The management cluster is the same server, with rights of another account.
    pub(crate) fn operator_of_hosted(&self, settings: Settings, account: &'static str) -> Task {
        let kubeconfig = self.kubeconfig().to_owned();
        self.task_as(ACCOUNT, move |client, shutdown| async move {
            let config = stage::config(&kubeconfig, Some(account)).await;
            let management = Client::try_from(config).expect("a client");
            let operator = Operator::start(
                client,
                Some(management),
                settings,
                api_server(),
                Metrics::default(),
            );
            let operator = operator.debounced_for(Duration::ZERO);
            Box::pin(operator.run(&shutdown, &Readiness::new())).await;
        })
    }

    /// Runs the operator with the controllers beside its main loop.
    pub(crate) fn operator_with_all(&self) -> Task {
        self.operator_with(DEBOUNCE, None, true)
    }

    /// Runs the operator with the controllers beside its main loop, and with this debounce time of transient failures.
    pub(crate) fn operator_with_all_that_waits(&self, debounce: Duration) -> Task {
        self.operator_with(debounce, None, true)
    }

    /// Runs the operator with all controllers and its server for metrics, and returns the address of that server.
    pub(crate) fn operator_with_metrics(&self) -> (Task, SocketAddr) {
        self.operator_that_serves(true)
    }

    /// Runs the operator without the controllers beside its main loop, and returns the address of its probes.
    pub(crate) fn operator_with_probes(&self) -> (Task, SocketAddr) {
        self.operator_that_serves(false)
    }

    fn operator_that_serves(&self, has_all: bool) -> (Task, SocketAddr) {
        let (sender, address) = mpsc::channel();
        let task = self.operator_with(DEBOUNCE, Some(sender), has_all);
        (task, address.recv().expect("an address"))
    }

    fn operator_with(
        &self,
        debounce: Duration,
        address: Option<mpsc::Sender<SocketAddr>>,
        has_all: bool,
    ) -> Task {
        self.operator_by(settings(), debounce, address, has_all, None)
    }

    fn operator_by(
        &self,
        settings: Settings,
        debounce: Duration,
        address: Option<mpsc::Sender<SocketAddr>>,
        has_all: bool,
        line: Option<&Line>,
    ) -> Task {
        let work = move |client: Client, shutdown: Shutdown| async move {
            let (metrics, readiness) = (Metrics::default(), Readiness::new());
            let bind = address
                .as_ref()
                .map_or(Bind::Off, |_| Bind::At("127.0.0.1".to_owned(), 0));
            let server = metrics
                .serve(bind, &settings.namespace, client.clone(), readiness.clone())
                .await
                .expect("a server");
            if let Some((server, address)) = server.as_ref().zip(address) {
                address.send(server.address()).expect("a test");
            }
            let operator = Operator::start(client.clone(), None, settings.clone(), api_server(), metrics);
            let operator = operator.debounced_for(debounce);
            let reports = operator.reports();
            let others = async {
                if has_all {
                    beside::run(&client, &settings, &reports, &shutdown).await;
                }
            };
            tokio::join!(Box::pin(operator.run(&shutdown, &readiness)), others);
            drop(server);
        };
        match line {
            Some(line) => self.task_through(line, ACCOUNT, work),
            None => self.task_as(ACCOUNT, work),
        }
    }

    /// Records objects that an earlier operator applied, and returns the owner reference of these objects.
    pub(crate) fn related(&self, objects: &Value) -> Value {
        self.apply(&json!({
            "apiVersion": "operator.openshift.io/v1", "kind": "Network", "metadata": { "name": "cluster" }, "spec": {},
        }));
        self.apply(&json!({
            "apiVersion": "config.openshift.io/v1", "kind": "ClusterOperator", "metadata": { "name": "network" },
            "spec": {},
        }));
        self.report(CLUSTER_OPERATOR, &json!({ "relatedObjects": objects }));
        json!({
            "apiVersion": "operator.openshift.io/v1", "kind": "Network", "name": "cluster", "controller": true,
            "uid": self.there(OPERATOR)["metadata"]["uid"],
        })
    }

    /// Applies the cluster configuration.
    pub(crate) fn configure(&self, network_type: &str) {
        self.apply(&json!({
            "apiVersion": "config.openshift.io/v1", "kind": "Network", "metadata": { "name": "cluster" },
            "spec": {
                "clusterNetwork": [{ "cidr": "10.244.0.0/16" }], "serviceNetwork": ["10.96.0.0/12"],
                "networkType": network_type,
            },
        }));
    }

    pub(crate) fn change(&self, path: &str, patch: &Value) -> Value {
        self.patch(path, patch).accepted()
    }

    /// Waits until an object exists, and returns it.
    #[track_caller]
    pub(crate) fn there(&self, path: &str) -> Value {
        self.wait_for(path, path, |object| Some(object?.clone()))
    }

    #[track_caller]
    pub(crate) fn gone(&self, path: &str) {
        self.wait_for(path, path, |object| object.is_none().then_some(()));
    }

    /// Waits for a condition of the operator configuration, as `Status Reason: message`.
    #[track_caller]
    pub(crate) fn condition(&self, kind: &str, expected: &str) {
        self.wait_for(&format!("{kind} {expected}"), OPERATOR, |object| {
            (condition(object?, kind)? == expected).then_some(())
        });
    }

    /// Waits until the operator is idle, and returns the end of the audit log at that time.
    #[track_caller]
    pub(crate) fn at_rest(&self) -> u64 {
        let mut mark = self.mark();
        until("the operator at rest", || {
            std::thread::sleep(QUIET);
            // A stalled API server is no idle operator: it answers this request after earlier ones of the operator.
            self.get(OPERATOR);
            let next = self.mark();
            let requests = self.requests_of(ACCOUNT, mark);
            mark = next;
            if requests.is_empty() {
                Ok(())
            } else {
                Err(format!("{requests:#?}"))
            }
        });
        mark
    }

    /// Reports all pods of a workload as available.
    pub(crate) fn roll_out(&self, path: &str) {
        let object = self.there(path);
        let generation = object["metadata"]["generation"].clone();
        let status = if object["kind"] == "DaemonSet" {
            json!({
                "currentNumberScheduled": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2,
                "numberAvailable": 2, "numberReady": 2, "numberMisscheduled": 0, "numberUnavailable": 0,
                "observedGeneration": generation,
            })
        } else {
            json!({
                "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2, "readyReplicas": 2,
                "observedGeneration": generation,
            })
        };
        self.report(path, &status);
    }

    /// Reports all pods of all workloads as available.
    pub(crate) fn roll_out_all(&self) {
        let workloads = ["daemonsets", "deployments"].into_iter().flat_map(|kind| {
            let all = self.list(&format!("/apis/apps/v1/{kind}"));
            all.into_iter().map(move |object| {
                let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
                format!(
                    "/apis/apps/v1/namespaces/{}/{kind}/{}",
                    text("namespace"),
                    text("name")
                )
            })
        });
        for workload in workloads {
            self.roll_out(&workload);
        }
    }

    pub(crate) fn remove(&self, path: &str) {
        self.send(Method::DELETE, path, None).accepted();
    }
}

/// A condition, as `Status Reason: message`.
pub(crate) fn condition(object: &Value, kind: &str) -> Option<String> {
    let conditions = object["status"]["conditions"].as_array()?;
    let condition = conditions.iter().find(|condition| condition["type"] == kind)?;
    let text = |key: &str| condition[key].as_str().unwrap_or_default();
    Some(format!(
        "{} {}: {}",
        text("status"),
        text("reason"),
        text("message")
    ))
}

/// Field managers of an object, with their operations and subresources.
pub(crate) fn managers(object: &Value) -> Vec<String> {
    let managers = object["metadata"]["managedFields"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    managers
        .iter()
        .map(|it| {
            format!(
                "{} {} {}",
                text(it, "manager"),
                text(it, "operation"),
                text(it, "subresource")
            )
        })
        .collect()
}

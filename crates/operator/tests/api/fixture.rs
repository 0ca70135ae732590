//! A server with an installed operator, and access to both.

use std::{
    collections::BTreeSet,
    io::Write,
    net::SocketAddr,
    process::Stdio,
    sync::{Mutex, mpsc},
    time::Duration,
};

use cluster::{GarbageCollector, Kubectl};
use kube_kit::{
    cache, client,
    object::{self, Kind},
    serve::Readiness,
};
use manifests::{Install, render_install};
use operator::{controller::Operator, images::Images, metrics::Metrics, settings::Settings};
use serde_json::{Value, json};
pub(crate) use stage::DEADLINE;
use stage::{Admin, Hold, Request, Server, Task, until};

use crate::stubs::{self, Stub};

/// Namespace of the operator and its operands.
pub(crate) const NAMESPACE: &str = "networking";
pub(crate) const VERSION: &str = "1.2.3";
/// Expected namespace of the monitoring stack.
pub(crate) const MONITORING_NAMESPACE: &str = "observers";
pub(crate) const IMAGE: &str = "registry.example/weft:test";
/// The event of a configuration that is Available, which follows the status.
pub(crate) const AVAILABLE: &str = "Normal Available: All applied components are available";
/// The operator's own pod, if it exists.
pub(crate) const POD: &str = "cluster-network-addons-operator-0";
const NAME: &str = "cluster-network-addons-operator";
/// File with the definition of the configuration resource.
const DEFINITION: &str = "network-addons-config.crd.yaml";

/// An installed operator on an API server of its own.
pub(crate) struct Fixture {
    // Ends before its server is reused.
    operator: Option<Running>,
    server: Server,
    /// Variables of the operator's environment that this fixture sets.
    environment: Vec<(&'static str, &'static str)>,
    /// Watches of the operator that this fixture holds.
    hold: Option<Hold>,
    /// The operator reports failing watches after this time.
    watch_timeout: Duration,
    /// Rolled-out workloads: kind and name.
    rolled_out: Mutex<BTreeSet<(&'static str, String)>>,
}

struct Running {
    task: Task,
    metrics: SocketAddr,
    readiness: Readiness,
}

impl Fixture {
    /// Installs the operator from its manifests without starting it.
    pub(crate) fn installed() -> Self {
        Self::on(Server::take(install))
    }

    /// A cluster with an empty namespace for the operator.
    pub(crate) fn bare() -> Self {
        let server = Server::bare();
        server.namespace(NAMESPACE, &[]);
        Self::on(server)
    }

    fn on(server: Server) -> Self {
        Self {
            operator: None,
            server,
            environment: Vec::new(),
            hold: None,
            watch_timeout: cache::WATCH_TIMEOUT,
            rolled_out: Mutex::default(),
        }
    }

    /// Installs the operator on a server with kinds of other products, without starting it.
    pub(crate) fn with(stubs: &[Stub]) -> Self {
        let fixture = Self::installed();
        stubs::define(&fixture.server, stubs);
        fixture
    }

    /// Applies the definition of the configuration resource.
    pub(crate) fn define(&self) {
        apply_files(&self.server, &[DEFINITION]);
    }

    /// Installs and starts the operator.
    pub(crate) fn running() -> Self {
        let mut fixture = Self::installed();
        fixture.start();
        fixture
    }

    /// Starts the operator, in its own thread, under its own service account.
    pub(crate) fn start(&mut self) {
        self.start_version(VERSION);
    }

    pub(crate) fn start_version(&mut self, version: &'static str) {
        let url = self.server_url().to_owned();
        self.start_with(version, &url, |settings| settings);
    }

    /// Starts the operator with these images, without the variables of the environment; a missing variable means the
    /// operator's own image.
    pub(crate) fn start_images(&mut self, images: &'static [(&'static str, &'static str)]) {
        let url = self.server_url().to_owned();
        self.start_with(VERSION, &url, |settings| {
            let named = |name: &str| {
                let found = images.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, image)| (*image).to_owned())
            };
            let images = Images::read(named);
            Settings { images, ..settings }
        });
    }

    /// Starts the operator with another address of the API server.
    pub(crate) fn start_through(&mut self, url: &str) {
        self.start_with(VERSION, url, |settings| settings);
    }

    /// Sets a variable of the operator's environment, from its next start on.
    pub(crate) fn set(&mut self, variable: &'static str, value: &'static str) {
        self.environment.push((variable, value));
    }

    /// Holds the operator's watches of this resource from its next start on.
    pub(crate) fn hold(&mut self, resource: &'static str) -> Hold {
        self.hold_these(Hold::watches_of(resource))
    }

    /// Holds the operator's watches of this resource by label from its next start on.
    pub(crate) fn hold_by_label(&mut self, resource: &'static str) -> Hold {
        self.hold_these(Hold::watches_by_label_of(resource))
    }

    fn hold_these(&mut self, hold: Hold) -> Hold {
        self.hold = Some(hold.clone());
        hold
    }

    /// Sets the time after which failing watches are reported, from the operator's next start on.
    pub(crate) fn set_watch_timeout(&mut self, watch_timeout: Duration) {
        self.watch_timeout = watch_timeout;
    }

    /// Whether the probe of the running operator succeeds.
    pub(crate) fn is_ready(&self) -> bool {
        self.operator
            .as_ref()
            .is_some_and(|running| running.readiness.is_ready())
    }

    pub(crate) fn server_url(&self) -> &str {
        self.server.api().url()
    }

    fn start_with(
        &mut self,
        version: &'static str,
        url: &str,
        change: impl FnOnce(Settings) -> Settings + Send + 'static,
    ) {
        assert!(self.operator.is_none(), "it runs already");
        let kubeconfig = self.server.kubeconfig().to_owned();
        let set = self.environment.clone();
        let url = url.parse().expect("a URL");
        let (metrics_at, metrics) = mpsc::channel();
        let (hold, watch_timeout) = (self.hold.clone(), self.watch_timeout);
        let readiness = Readiness::new();
        let probed = readiness.clone();
        let task = Task::start(async move |shutdown| {
            let mut config = stage::config(&kubeconfig, Some(&account())).await;
            config.cluster_url = url;
            let variable = |name: &str| {
                let ours = set.iter().find(|(known, _)| *known == name);
                ours.map(|(_, value)| (*value).to_owned())
                    .or_else(|| environment(version, name))
            };
            let settings = change(Settings::read(variable).expect("settings"));
            let metrics = Metrics::new(&settings).expect("metrics");
            let client = client::counted(config, &metrics.controller().requests).expect("a client");
            let client = match hold {
                Some(hold) => hold.client(client),
                None => client,
            };
            let scrapes = metrics.serve(client.clone(), 0).await.expect("a server");
            metrics_at.send(scrapes.address()).expect("a test");
            Operator::start(client, settings, metrics)
                .await
                .expect("an operator")
                .watch_timeout(watch_timeout)
                .run(&shutdown, &readiness)
                .await;
            scrapes.stop().await;
        });
        let metrics = metrics.recv().expect("metrics");
        self.operator = Some(Running {
            task,
            metrics,
            readiness: probed,
        });
    }

    pub(crate) fn stop(&mut self) {
        self.operator = None;
    }

    /// Signals the running operator to end, without waiting for its end.
    pub(crate) fn interrupt(&self) {
        if let Some(running) = &self.operator {
            running.task.interrupt();
        }
    }

    /// Local address of the running operator's metrics.
    pub(crate) fn metrics_address(&self) -> SocketAddr {
        let port = self.operator.as_ref().expect("it runs").metrics.port();
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    pub(crate) fn kubectl(&self) -> &Kubectl {
        self.server.kubectl()
    }

    pub(crate) fn admin(&self) -> &Admin {
        &self.server
    }

    /// Creates or replaces the specification of the configuration resource.
    pub(crate) fn configure(&self, spec: &Value) {
        self.configure_as("v1", "cluster", spec);
    }

    pub(crate) fn configure_as(&self, version: &str, name: &str, spec: &Value) {
        let object = json!({
            "apiVersion": format!("networkaddonsoperator.network.kubevirt.io/{version}"),
            "kind": "NetworkAddonsConfig",
            "metadata": { "name": name },
            "spec": spec,
        });
        self.kubectl()
            .apply(&object.to_string())
            .expect("an applied configuration");
    }

    /// Creates a configuration resource unchanged, with nulls and unknown fields.
    pub(crate) fn create_raw(&self, spec: &Value) {
        let object = json!({
            "apiVersion": "networkaddonsoperator.network.kubevirt.io/v1",
            "kind": "NetworkAddonsConfig",
            "metadata": { "name": "cluster" },
            "spec": spec,
        });
        let mut command = self
            .kubectl()
            .command(["create", "--validate=ignore", "--filename", "-"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("kubectl");
        let mut input = child.stdin.take().expect("standard input");
        input.write_all(object.to_string().as_bytes()).expect("input");
        drop(input);
        assert!(child.wait().expect("kubectl").success());
    }

    /// The configuration resource.
    pub(crate) fn configuration(&self) -> Value {
        self.object("networkaddonsconfig", "cluster")
            .expect("the configuration")
    }

    /// A cluster-scoped object.
    pub(crate) fn object(&self, kind: &str, name: &str) -> Option<Value> {
        self.server.get(&path(kind, None, name))
    }

    /// An object in the operator's namespace, or a cluster-scoped one.
    pub(crate) fn operand(&self, kind: &str, name: &str) -> Option<Value> {
        self.server.get(&operand_path(kind, name))
    }

    /// Waits for these conditions of upstream's types: `Type Status Reason`, sorted by type.
    pub(crate) fn wait_for_conditions(&self, expected: &[&str]) -> Value {
        self.wait_for_these(expected, conditions, || {})
    }

    /// Waits for these conditions of components: `Type Status Reason`, sorted by type.
    pub(crate) fn wait_for_components(&self, expected: &[&str]) -> Value {
        self.wait_for_these(expected, component_conditions, || {})
    }

    fn wait_for_these(
        &self,
        expected: &[&str],
        of: fn(&Value) -> Vec<String>,
        meanwhile: impl Fn(),
    ) -> Value {
        until(&format!("{expected:?}"), || {
            meanwhile();
            let configuration = self.configuration();
            let found = of(&configuration);
            if found == expected {
                Ok(configuration)
            } else {
                Err(format!("{configuration:#}\n{:#?}", self.events()))
            }
        })
    }

    /// Waits until the configuration is Available, and the operator has observed the last change of its workloads.
    pub(crate) fn wait_until_available(&self) -> Value {
        let expected = ["Available True", "Degraded False", "Progressing False"];
        self.wait_for_these(&expected, conditions, || self.follow())
    }

    /// Rolls out workloads that changed since their last roll-out, as their controller would: the operator may process
    /// a change after a test has written their status.
    fn follow(&self) {
        for (kind, name) in &*kube_kit::lock(&self.rolled_out) {
            let Some(object) = self.operand(kind, name) else {
                continue;
            };
            let generation = &object["metadata"]["generation"];
            if object["status"]["observedGeneration"] != *generation {
                self.report(kind, name, &running(kind, &object));
            }
        }
    }

    /// Waits until the status of the configuration resource meets the condition: the status may be stale for a while.
    pub(crate) fn wait_for_status(&self, mut condition: impl FnMut(&Value) -> bool) {
        self.wait_for_operand("networkaddonsconfig", "cluster", |configuration| {
            condition(&configuration["status"]).then_some(())
        });
    }

    pub(crate) fn wait_until_progressing(&self) -> Value {
        self.wait_for_conditions(&[
            "Available False Startup",
            "Degraded False",
            "Progressing True Deploying",
        ])
    }

    /// Waits until an operand exists, and returns it.
    pub(crate) fn wait_for_operand<T>(
        &self,
        kind: &str,
        name: &str,
        mut condition: impl FnMut(&Value) -> Option<T>,
    ) -> T {
        until(&format!("{kind} {name}"), || {
            let object = self
                .operand(kind, name)
                .ok_or_else(|| format!("it is not there; {:#?}", self.events()))?;
            condition(&object).ok_or_else(|| format!("{object:#}"))
        })
    }

    pub(crate) fn wait_until_gone(&self, kind: &str, name: &str) {
        until(&format!("the end of {kind} {name}"), || {
            self.operand(kind, name)
                .map_or(Ok(()), |object| Err(format!("{object:#}\n{:#?}", self.events())))
        });
    }

    /// Revokes a verb on a resource from the operator, and returns the rules for [`Self::permit`].
    pub(crate) fn forbid(&self, role: &str, resource: &str, verb: &str) -> Value {
        let rules = self.operand(role, NAME).expect("the role")["rules"].clone();
        let less = rules.as_array().expect("rules").iter().map(|rule| {
            let mut rule = rule.clone();
            let of = rule["resources"].as_array().expect("resources");
            if of.contains(&json!(resource)) {
                let verbs = rule["verbs"].as_array_mut().expect("verbs");
                verbs.retain(|known| known != verb);
            }
            rule
        });
        let less: Vec<_> = less.filter(|rule| rule["verbs"] != json!([])).collect();
        self.permit(role, &json!(less));
        let account = account();
        let question = ["auth", "can-i", verb, resource, "--as", &account, "-n", NAMESPACE];
        until("a lack of permission", || match self.kubectl().run(question) {
            Ok(answer) => Err(answer),
            Err(_) => Ok(()),
        });
        rules
    }

    /// Sets the rules of a role of the operator.
    pub(crate) fn permit(&self, role: &str, rules: &Value) {
        self.patch(role, NAME, &json!({ "rules": rules }));
    }

    /// Makes the operator retry failed steps now: no event reports new rights.
    pub(crate) fn nudge(&self) {
        // A label that is not copied to operands.
        let label = json!({ "example.org/nudge": self.mark().to_string() });
        self.patch(
            "networkaddonsconfig",
            "cluster",
            &json!({ "metadata": { "labels": label } }),
        );
    }

    /// Merges a patch into an operand.
    pub(crate) fn patch(&self, kind: &str, name: &str, patch: &Value) {
        self.server.patch(&operand_path(kind, name), patch).accepted();
    }

    /// Deletes an operand, without waiting for its end.
    pub(crate) fn remove(&self, kind: &str, name: &str) {
        self.server.delete(&operand_path(kind, name));
    }

    /// Writes the status of workloads whose pods all run.
    pub(crate) fn roll_out(&self, daemon_sets: &[&str]) {
        self.roll_out_all("daemonset", daemon_sets);
    }

    /// Writes the status that a controller would write once all pods of these Deployments run.
    pub(crate) fn roll_out_deployments(&self, deployments: &[&str]) {
        self.roll_out_all("deployment", deployments);
    }

    fn roll_out_all(&self, kind: &'static str, names: &[&str]) {
        for name in names {
            let object = self.wait_for_operand(kind, name, |object| Some(object.clone()));
            self.report(kind, name, &running(kind, &object));
            kube_kit::lock(&self.rolled_out).insert((kind, (*name).to_owned()));
        }
    }

    /// Writes the status that a controller would write while the one pod of a DaemonSet does not start.
    pub(crate) fn report_waiting(&self, daemon_set: &str) {
        let generation = self.wait_for_operand("daemonset", daemon_set, |object| {
            object["metadata"]["generation"].as_i64()
        });
        let status = json!({ "status": {
            "desiredNumberScheduled": 1, "currentNumberScheduled": 1, "updatedNumberScheduled": 1,
            "numberReady": 0, "numberAvailable": 0, "numberUnavailable": 1, "numberMisscheduled": 0,
            "observedGeneration": generation,
        } });
        kube_kit::lock(&self.rolled_out).remove(&("daemonset", daemon_set.to_owned()));
        self.report("daemonset", daemon_set, &status);
    }

    /// Writes the condition of the node state operator about its operands: whether they are available.
    pub(crate) fn report_node_state(&self, available: &str, message: &str) {
        self.wait_for_operand("nmstate", "nmstate", |_| Some(()));
        let condition = json!({ "type": "Available", "status": available, "message": message });
        self.report(
            "nmstate",
            "nmstate",
            &json!({ "status": { "conditions": [condition] } }),
        );
    }

    /// Collects garbage until the returned value is dropped.
    pub(crate) fn collect_garbage(&self) -> GarbageCollector {
        self.server.api().collect_garbage().expect("a garbage collector")
    }

    /// Writes the status of a workload.
    pub(crate) fn report(&self, kind: &str, name: &str, status: &Value) {
        let path = format!("{}/status", operand_path(kind, name));
        self.server.patch(&path, status).accepted();
    }

    /// `Type Reason: message` of the events about this configuration resource, oldest first; empty after its deletion.
    pub(crate) fn events(&self) -> Vec<String> {
        let Some(configuration) = self.object("networkaddonsconfig", "cluster") else {
            return Vec::new();
        };
        let uid = &configuration["metadata"]["uid"];
        let all = self.server.list("/api/v1/namespaces/default/events");
        let mut ours: Vec<_> = all
            .iter()
            .filter(|event| event["involvedObject"]["uid"] == *uid)
            .collect();
        ours.sort_by_key(|event| event["metadata"]["name"].as_str().map(str::to_owned));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        ours.iter()
            .map(|event| {
                format!(
                    "{} {}: {}",
                    text(&event["type"]),
                    text(&event["reason"]),
                    text(&event["message"])
                )
            })
            .collect()
    }

    pub(crate) fn wait_for_event(&self, wanted: &str) {
        until(wanted, || {
            let events = self.events();
            if events.iter().any(|event| event == wanted) {
                Ok(())
            } else {
                Err(format!("{events:#?}"))
            }
        });
    }

    /// Deletes an object, and waits for another one of the same name. Then the operator has finished all earlier work,
    /// including the events that it creates after a change of the status.
    pub(crate) fn delete_and_await_repair(&self, kind: &str, name: &str) {
        let former = self.operand(kind, name).expect("the object")["metadata"]["uid"].clone();
        self.kubectl()
            .run(["delete", "--wait=false", kind, name, "-n", NAMESPACE])
            .expect("deleted");
        self.wait_for_operand(kind, name, |object| {
            (object["metadata"]["uid"] != former).then_some(())
        });
    }

    /// The current end of the audit log.
    pub(crate) fn mark(&self) -> u64 {
        self.server.mark()
    }

    /// Requests of the operator since the mark, except watches.
    pub(crate) fn requests_since(&self, mark: u64) -> Vec<Request> {
        self.server.requests_of(&account(), mark)
    }

    /// Requests since the mark that are neither events nor the status, as `verb uri`.
    pub(crate) fn work_since(&self, mark: u64) -> Vec<String> {
        let requests = self.requests_since(mark).into_iter();
        requests
            .filter(|request| {
                !request.uri.contains("/events") && !request.uri.contains("/networkaddonsconfigs/")
            })
            .map(|request| format!("{} {}", request.verb, request.uri))
            .collect()
    }
}

/// Runs kubectl with a text as its input.
pub(crate) fn run_with_input(kubectl: &Kubectl, arguments: &[&str], input: &str) -> Result<String, String> {
    let mut command = kubectl.command(arguments);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut standard_input = child.stdin.take().ok_or("no standard input")?;
    let input = input.to_owned();
    // A separate thread, because kubectl may answer before the end of its input.
    let writer = std::thread::spawn(move || standard_input.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let written = writer.join().map_err(|_| "no writer")?;
    if !output.status.success() {
        return Err(format!(
            "kubectl {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    written.map_err(|error| error.to_string())?;
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}

/// Applies the operator's manifests.
fn install(admin: &Admin) {
    apply_files(admin, &["namespace.yaml", "operator.yaml", DEFINITION]);
}

/// Applies files of the installation, and waits until their definitions are served.
fn apply_files(admin: &Admin, names: &[&str]) {
    let yaml: Vec<_> = names.iter().map(|name| file(name)).collect();
    let applied = admin.kubectl().apply(&yaml.join("---\n"));
    applied.unwrap_or_else(|error| panic!("{names:?}: {error}"));
    stubs::wait_for_definitions(admin);
}

/// The content of a file of the installation.
pub(crate) fn file(name: &str) -> String {
    let install = Install {
        image: IMAGE,
        namespace: NAMESPACE,
        version: VERSION,
        pull_policy: "IfNotPresent",
    };
    let files = render_install(&install).expect("an installation");
    let found = files.into_iter().find(|(file, _)| *file == name);
    found.expect("the file").1
}

/// The path of an object in the operator's namespace, or of a cluster-scoped one.
fn operand_path(kind: &str, name: &str) -> String {
    path(kind, Some(NAMESPACE), name)
}

/// The path of an object, by the name of its kind in kubectl.
fn path(kind: &str, namespace: Option<&str>, name: &str) -> String {
    let is_meant = |known: &&Kind| known.kind.eq_ignore_ascii_case(kind);
    let found = match kind {
        "crd" => Some(&object::CUSTOM_RESOURCE_DEFINITION),
        _ => object::ALL.iter().find(is_meant),
    };
    let kind = found.unwrap_or_else(|| panic!("unknown kind {kind}"));
    format!("{}/{name}", kind.path(namespace))
}

/// The status of a workload whose pods all run in their newest revision.
fn running(kind: &str, workload: &Value) -> Value {
    let generation = &workload["metadata"]["generation"];
    if kind == "daemonset" {
        json!({ "status": {
            "desiredNumberScheduled": 1, "currentNumberScheduled": 1, "updatedNumberScheduled": 1,
            "numberReady": 1, "numberAvailable": 1, "numberUnavailable": 0, "numberMisscheduled": 0,
            "observedGeneration": generation,
        } })
    } else {
        let replicas = &workload["spec"]["replicas"];
        json!({ "status": {
            "replicas": replicas, "updatedReplicas": replicas, "readyReplicas": replicas,
            "availableReplicas": replicas, "observedGeneration": generation,
        } })
    }
}

fn account() -> String {
    format!("system:serviceaccount:{NAMESPACE}:{NAME}")
}

fn environment(version: &str, name: &str) -> Option<String> {
    let value = match name {
        "OPERATOR_NAMESPACE" | "OPERAND_NAMESPACE" => NAMESPACE,
        "OPERATOR_VERSION" => version,
        "OPERATOR_IMAGE" => IMAGE,
        "MONITORING_NAMESPACE" => MONITORING_NAMESPACE,
        "WATCH_NAMESPACE" | "MULTUS_IMAGE" => "",
        // Two components have upstream's images, the others the operator's own.
        "MULTUS_DYNAMIC_NETWORKS_CONTROLLER_IMAGE" => "registry.example/dynamic-networks:test",
        // The pod exists only if a test creates it.
        "POD_NAME" => POD,
        "MACVTAP_CNI_IMAGE" => "registry.example/macvtap:test",
        _ => return None,
    };
    Some(value.to_owned())
}

/// `Type Status Reason` of upstream's conditions, sorted by type.
pub(crate) fn conditions(configuration: &Value) -> Vec<String> {
    let mut all = all_conditions(configuration);
    all.retain(|line| !is_of_component(line));
    all
}

/// `Type Status Reason` of each component's own condition, sorted by type.
pub(crate) fn component_conditions(configuration: &Value) -> Vec<String> {
    let mut all = all_conditions(configuration);
    all.retain(|line| is_of_component(line));
    all
}

fn is_of_component(line: &str) -> bool {
    let kind = line.split(' ').next().unwrap_or_default();
    kind != "Available" && kind.ends_with("Available")
}

fn all_conditions(configuration: &Value) -> Vec<String> {
    let list = configuration["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let line = |c: &Value| {
        format!(
            "{} {} {}",
            text(&c["type"]),
            text(&c["status"]),
            text(&c["reason"])
        )
    };
    let mut all: Vec<_> = list.iter().map(|c| line(c).trim_end().to_owned()).collect();
    all.sort();
    all
}

/// The message of a condition.
pub(crate) fn message(configuration: &Value, kind: &str) -> String {
    let list = configuration["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let found = list.iter().find(|c| c["type"] == kind);
    found
        .and_then(|c| c["message"].as_str())
        .unwrap_or_default()
        .to_owned()
}

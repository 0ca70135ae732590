//! A server, an installed operator, and how to look at both.

use std::{
    fs,
    io::Write,
    process::Stdio,
    sync::{Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use cluster::{ApiServer, GarbageCollector, Kubectl, wait};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use kube_kit::shutdown::Shutdown;
use operator::{
    controller::Operator,
    images::Images,
    manifests::{Install, render_install},
    settings::Settings,
};
use serde_json::{Value, json};

/// How long anything may take on a slow machine.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

pub(crate) const VERSION: &str = "1.2.3";
pub(crate) const IMAGE: &str = "registry.example/weft:test";
/// The operator's own pod, where there is one.
pub(crate) const POD: &str = "cluster-network-addons-operator-0";
const NAME: &str = "cluster-network-addons-operator";

/// An installed operator in a namespace of its own; nobody else has one at the same time.
pub(crate) struct Fixture {
    pub(crate) namespace: &'static str,
    server: &'static ApiServer,
    operator: Option<Running>,
    _turn: MutexGuard<'static, ()>,
}

struct Running {
    shutdown: Shutdown,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.trigger();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("the operator ends");
            }
        }
    }
}

/// A request of the operator, from the audit log.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) verb: String,
    pub(crate) uri: String,
}

impl Fixture {
    /// Installs the operator from its manifests, and does not start it.
    pub(crate) fn installed(namespace: &'static str) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let server = ApiServer::shared().expect("an API server");
        let fixture = Self {
            namespace,
            server,
            operator: None,
            _turn: turn,
        };
        for name in ["namespace.yaml", "operator.yaml"] {
            fixture.apply_file(name);
        }
        fixture.define();
        fixture
            .kubectl()
            .delete(["networkaddonsconfigs", "--all"])
            .expect("no configuration");
        fixture
    }

    /// Applies the definition of the configuration resource.
    pub(crate) fn define(&self) {
        self.apply_file("network-addons-config.crd.yaml");
        wait_for_definitions(self.kubectl());
    }

    /// Applies a file of the installation.
    fn apply_file(&self, name: &str) {
        let install = Install {
            image: IMAGE,
            namespace: self.namespace,
            version: VERSION,
            pull_policy: "IfNotPresent",
        };
        let files = render_install(&install).expect("an installation");
        let (_, yaml) = files.iter().find(|(file, _)| *file == name).expect("the file");
        self.kubectl()
            .apply(yaml)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    /// Installs and starts the operator.
    pub(crate) fn running(namespace: &'static str) -> Self {
        let mut fixture = Self::installed(namespace);
        fixture.start();
        fixture
    }

    /// Starts the operator, in its own thread, under its own service account.
    pub(crate) fn start(&mut self) {
        self.start_version(VERSION);
    }

    pub(crate) fn start_version(&mut self, version: &'static str) {
        self.start_with(version, self.server_url(), |settings| settings);
    }

    /// Starts the operator with these images, whatever the environment says; a variable that is not among them stands
    /// for our own image, which has every program.
    pub(crate) fn start_images(&mut self, images: &'static [(&'static str, &'static str)]) {
        self.start_with(VERSION, self.server_url(), |settings| {
            let named = |name: &str| {
                let found = images.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, image)| (*image).to_owned())
            };
            let images = Images::read(named).with_all_programs();
            Settings { images, ..settings }
        });
    }

    /// Starts the operator with another way to the API server.
    pub(crate) fn start_through(&mut self, url: &str) {
        self.start_with(VERSION, url, |settings| settings);
    }

    pub(crate) fn server_url(&self) -> &'static str {
        self.server.url()
    }

    fn start_with(
        &mut self,
        version: &'static str,
        url: &str,
        change: impl FnOnce(Settings) -> Settings + Send + 'static,
    ) {
        assert!(self.operator.is_none(), "it runs already");
        let (namespace, kubeconfig) = (self.namespace, self.server.kubeconfig().to_owned());
        let url = url.parse().expect("a URL");
        let shutdown = Shutdown::new();
        let end = shutdown.clone();
        let thread = std::thread::spawn(move || {
            kube_kit::process::run(async {
                let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
                let options = KubeConfigOptions::default();
                let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
                    .await
                    .expect("a configuration");
                config.cluster_url = url;
                config.auth_info.impersonate = Some(account(namespace));
                let client = Client::try_from(config).expect("a client");
                let settings =
                    Settings::read(|name| environment(namespace, version, name)).expect("settings");
                Operator::start(client, change(settings))
                    .await
                    .expect("an operator")
                    .run(&end)
                    .await;
            })
            .expect("a runtime");
        });
        self.operator = Some(Running {
            shutdown,
            thread: Some(thread),
        });
    }

    pub(crate) fn stop(&mut self) {
        self.operator = None;
    }

    pub(crate) fn kubectl(&self) -> &Kubectl {
        self.server.kubectl()
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

    /// Creates a configuration resource exactly as given: nulls, unknown fields and all.
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
        self.object(&["networkaddonsconfig", "cluster"])
            .expect("the configuration")
    }

    pub(crate) fn object(&self, what: &[&str]) -> Option<Value> {
        self.kubectl()
            .get(what)
            .unwrap_or_else(|error| panic!("{what:?}: {error}"))
    }

    /// An object in the operator's namespace.
    pub(crate) fn operand(&self, kind: &str, name: &str) -> Option<Value> {
        self.object(&[kind, name, "--namespace", self.namespace])
    }

    /// Waits until the conditions are these: `Type Status Reason`, sorted by type.
    pub(crate) fn wait_for_conditions(&self, expected: &[&str]) -> Value {
        wait::until(&format!("{expected:?}"), DEADLINE, || {
            let configuration = self.configuration();
            let found = conditions(&configuration);
            if found == expected {
                Ok(configuration)
            } else {
                Err(format!("{configuration:#}\n{:#?}", self.events()))
            }
        })
        .unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn wait_until_available(&self) -> Value {
        self.wait_for_conditions(&["Available True", "Degraded False", "Progressing False"])
    }

    pub(crate) fn wait_until_progressing(&self) -> Value {
        self.wait_for_conditions(&[
            "Available False Startup",
            "Degraded False",
            "Progressing True Deploying",
        ])
    }

    /// Waits until there is such an operand, and returns it.
    pub(crate) fn wait_for_operand<T>(
        &self,
        kind: &str,
        name: &str,
        mut condition: impl FnMut(&Value) -> Option<T>,
    ) -> T {
        wait::until(&format!("{kind} {name}"), DEADLINE, || {
            let object = self
                .operand(kind, name)
                .ok_or_else(|| format!("it is not there; {:#?}", self.events()))?;
            condition(&object).ok_or_else(|| format!("{object:#}"))
        })
        .unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn wait_until_gone(&self, kind: &str, name: &str) {
        wait::until(&format!("the end of {kind} {name}"), DEADLINE, || {
            self.operand(kind, name)
                .map_or(Ok(()), |object| Err(format!("{object:#}\n{:#?}", self.events())))
        })
        .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Writes the status of workloads as a node would that runs all of them.
    pub(crate) fn roll_out(&self, daemon_sets: &[&str]) {
        for name in daemon_sets {
            let generation = self.wait_for_operand("daemonset", name, |object| {
                object["metadata"]["generation"].as_i64()
            });
            let status = json!({ "status": {
                "desiredNumberScheduled": 1, "currentNumberScheduled": 1, "updatedNumberScheduled": 1,
                "numberReady": 1, "numberAvailable": 1, "numberUnavailable": 0, "numberMisscheduled": 0,
                "observedGeneration": generation,
            } });
            self.report("daemonset", name, &status);
        }
    }

    /// Writes the status that a controller would write once all pods of these Deployments run.
    pub(crate) fn roll_out_deployments(&self, deployments: &[&str]) {
        for name in deployments {
            let generation = self.wait_for_operand("deployment", name, |object| {
                object["metadata"]["generation"].as_i64()
            });
            let status = json!({ "status": {
                "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1,
                "observedGeneration": generation,
            } });
            self.report("deployment", name, &status);
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
        self.report("daemonset", daemon_set, &status);
    }

    /// Collects garbage until the returned value is dropped.
    pub(crate) fn collect_garbage(&self) -> GarbageCollector {
        self.server.collect_garbage().expect("a garbage collector")
    }

    fn report(&self, kind: &str, name: &str, status: &Value) {
        let (patch, namespace) = (status.to_string(), self.namespace);
        let arguments = [
            "patch",
            kind,
            name,
            "-n",
            namespace,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ];
        self.kubectl().run(arguments).expect("a patched status");
    }

    /// `Type Reason: message` of the events about this configuration resource, oldest first.
    pub(crate) fn events(&self) -> Vec<String> {
        let uid = self.configuration()["metadata"]["uid"].clone();
        let list = self
            .kubectl()
            .json(["get", "events", "-n", "default"])
            .expect("events");
        let items = list["items"].as_array().expect("items").iter();
        let mut ours: Vec<_> = items
            .filter(|event| event["involvedObject"]["uid"] == uid)
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
        wait::until(wanted, DEADLINE, || {
            let events = self.events();
            if events.iter().any(|event| event == wanted) {
                Ok(())
            } else {
                Err(format!("{events:#?}"))
            }
        })
        .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Where the audit log ends now.
    pub(crate) fn mark(&self) -> usize {
        fs::read(self.server.audit_log()).expect("the audit log").len()
    }

    /// Requests of the operator since the mark, watches apart.
    pub(crate) fn requests_since(&self, mark: usize) -> Vec<Request> {
        let log = fs::read(self.server.audit_log()).expect("the audit log");
        let text = String::from_utf8_lossy(&log[mark..]).into_owned();
        let entries = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        entries
            .filter(|entry| entry["impersonatedUser"]["username"] == account(self.namespace))
            .filter(|entry| entry["verb"] != "watch")
            .map(|entry| Request {
                verb: entry["verb"].as_str().unwrap_or_default().to_owned(),
                uri: entry["requestURI"].as_str().unwrap_or_default().to_owned(),
            })
            .collect()
    }

    /// Requests since the mark that are neither events nor the status, as `verb uri`.
    pub(crate) fn work_since(&self, mark: usize) -> Vec<String> {
        let requests = self.requests_since(mark).into_iter();
        requests
            .filter(|request| {
                !request.uri.contains("/events") && !request.uri.contains("/networkaddonsconfigs/")
            })
            .map(|request| format!("{} {}", request.verb, request.uri))
            .collect()
    }
}

/// Waits until all definitions are served; one that was just made has no condition to wait for.
pub(crate) fn wait_for_definitions(kubectl: &Kubectl) {
    wait::until("established definitions", DEADLINE, || {
        let list = kubectl.json(["get", "crd"]).map_err(|error| error.to_string())?;
        let all = list["items"].as_array().cloned().unwrap_or_default();
        let established = |object: &Value| {
            let conditions = object["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            conditions
                .iter()
                .any(|c| c["type"] == "Established" && c["status"] == "True")
        };
        match all.iter().find(|object| !established(object)) {
            None => Ok(()),
            Some(object) => Err(format!("{object:#}")),
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

/// Definitions of kinds that this cluster does not have by itself, until this is dropped.
pub(crate) struct Definitions {
    kubectl: Kubectl,
    yaml: &'static str,
}

impl Definitions {
    /// Defines the kinds of a file, and waits until they are served.
    pub(crate) fn of(fixture: &Fixture, yaml: &'static str) -> Self {
        let kubectl = fixture.kubectl().clone();
        kubectl.apply(yaml).expect("definitions");
        wait_for_definitions(&kubectl);
        Self { kubectl, yaml }
    }
}

impl Drop for Definitions {
    fn drop(&mut self) {
        // Others must not find them; here a failure would hide why a test failed.
        let _ = run_with_input(
            &self.kubectl,
            &["delete", "--ignore-not-found", "-f", "-"],
            self.yaml,
        );
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
    // Apart, because kubectl may answer before it has read all.
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

impl Drop for Fixture {
    fn drop(&mut self) {
        self.operator = None;
        // The next fixture insists on it; here it would hide why a test failed.
        let _ = self.kubectl().delete(["networkaddonsconfigs", "--all"]);
    }
}

fn account(namespace: &str) -> String {
    format!("system:serviceaccount:{namespace}:{NAME}")
}

fn environment(namespace: &str, version: &str, name: &str) -> Option<String> {
    let value = match name {
        "OPERATOR_NAMESPACE" | "OPERAND_NAMESPACE" => namespace,
        "OPERATOR_VERSION" => version,
        "OPERATOR_IMAGE" => IMAGE,
        "WATCH_NAMESPACE" | "MULTUS_IMAGE" => "",
        // Its program is to come; with an image of its own it is deployed.
        "KUBEMACPOOL_IMAGE" => "registry.example/kubemacpool:test",
        "MULTUS_DYNAMIC_NETWORKS_CONTROLLER_IMAGE" => "registry.example/dynamic-networks:test",
        // Only where a test makes this pod.
        "POD_NAME" => POD,
        _ => return None,
    };
    Some(value.to_owned())
}

/// `Type Status Reason` of each condition, sorted by type.
pub(crate) fn conditions(configuration: &Value) -> Vec<String> {
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

//! The handler as a process: its errors at a failed start, and the lock between two handlers.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    time::Duration,
};

use axum::http::Method;
use cluster::wait;
use serde_json::{Value, json};
use stage::until;
use weft_nmstate::operator::settings::Settings;

use crate::fixture::{DEADLINE, Kind, NAMESPACE, Stage, status_of};
use crate::{operator, rights};

const NODE: &str = "node01";
const PROGRAM: &str = env!("CARGO_BIN_EXE_weft-nmstate");

/// The program under another name, with these variables alone.
fn named(name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg0(name).args(arguments).env_clear();
    command.envs(variables.iter().copied());
    command
}

fn output(name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = named(name, arguments, variables).output().expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn handler_without_required_variables_exits_with_an_error() {
    let (code, _, said) = output("manager", &["--zap-time-encoding=iso8601"], &[]);
    assert_ne!(code, Some(0));
    assert!(said.contains("NODE_NAME is mandatory"), "{said}");
    let (code, _, said) = output("manager", &[], &[("NODE_NAME", NODE)]);
    assert_eq!(code, Some(1));
    assert!(
        said.contains("Failed to find NMSTATE_INSTANCE_NODE_LOCK_FILE ENV var"),
        "{said}"
    );
    let (code, _, said) = output("manager", &["--no-such-flag"], &[("NODE_NAME", NODE)]);
    assert_eq!(code, Some(2), "{said}");
}

#[test]
fn metric_families_are_dumped_as_json() {
    let (code, printed, said) = output("manager", &["--dump-metric-families"], &[("NODE_NAME", NODE)]);
    assert_eq!(code, Some(0), "{said}");
    let families: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    let families = families.as_array().expect("a list");
    assert!(!families.is_empty());
    for family in families {
        let keys: Vec<&String> = family.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["name", "help", "type"]);
    }
}

/// A handler's process.
struct Handler {
    child: Child,
    lines: mpsc::Receiver<String>,
    ready: PathBuf,
}

impl Handler {
    fn start(stage: &Stage, dir: &Path, name: &str) -> Self {
        Self::of(stage, NAMESPACE, &dir.join("handler_lock"), dir.join(name))
    }

    /// A handler of this namespace, with these files.
    fn of(stage: &Stage, namespace: &str, lock: &Path, ready: PathBuf) -> Self {
        let mut command = named(
            "manager",
            &[],
            &[("NODE_NAME", NODE), ("POD_NAMESPACE", namespace)],
        );
        command
            .env("NMSTATE_INSTANCE_NODE_LOCK_FILE", lock)
            .env("WEFT_NMSTATE_READY_FILE", &ready)
            .env("KUBECONFIG", stage.kubeconfig())
            // The handler only reads here, which needs no NetworkManager.
            .env("WEFT_NMSTATE_BACKEND", "kernel")
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let said = BufReader::new(child.stderr.take().expect("its log"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines, ready }
    }

    /// Waits until its log has this text.
    fn says(&self, text: &str) {
        let mut said = Vec::new();
        while !said.last().is_some_and(|line: &String| line.contains(text)) {
            let line = self.lines.recv_timeout(DEADLINE);
            said.push(line.unwrap_or_else(|_| panic!("its log lacks {text:?}: {said:#?}")));
        }
    }

    fn is_ready(&self) -> bool {
        self.ready.exists()
    }

    fn wait_until_ready(&self) {
        wait::until("the handler to be ready", DEADLINE, || {
            self.is_ready()
                .then_some(())
                .ok_or_else(|| format!("{:#?}", self.lines.try_iter().collect::<Vec<_>>()))
        })
        .unwrap_or_else(|error| panic!("{error}"));
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// nmstate#71, nmstate#1, nmstate#111
#[test]
fn second_handler_of_a_node_is_not_ready_until_the_first_exits() {
    let stage = Stage::start();
    stage.node(NODE, &[]);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let first = Handler::start(&stage, dir.path(), "first");
    first.says("Try to take exclusive lock on file: ");
    first.says("Successfully took nmstate exclusive lock");
    first.wait_until_ready();
    let state = stage.wait_until_reported(NODE);
    assert_eq!(state["status"]["handlerNmstateVersion"], "nmstatectl 2.2.62");
    let interfaces = state["status"]["currentState"]["interfaces"].as_array();
    let names: Vec<_> = interfaces.into_iter().flatten().map(|it| &it["name"]).collect();
    assert!(names.contains(&&json!("lo")), "{names:?}");

    let lock = fs::read_to_string(dir.path().join("handler_lock")).expect("the lock");
    let holder = format!("process {} since ", first.child.id());
    assert!(lock.starts_with(&holder), "{lock}");
    let mut second = Handler::start(&stage, dir.path(), "second");
    second.says(&format!("is held by {holder}"));
    second.says("Try to take exclusive lock on file: ");
    assert!(first.is_ready() && !second.is_ready());
    drop(first);
    second.says("Successfully took nmstate exclusive lock");
    second.wait_until_ready();
    // It ends at SIGTERM, without an error.
    let pid = rustix::process::Pid::from_child(&second.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    let ended = wait::until("the end", Duration::from_secs(30), || {
        match second.child.try_wait() {
            Ok(Some(status)) => Ok(status),
            other => Err(format!("{other:?}")),
        }
    });
    assert!(ended.unwrap_or_else(|error| panic!("{error}")).success());
    assert!(stage.get(Kind::State, NODE).is_some());
    assert!(fs::metadata(dir.path().join("handler_lock")).is_ok());
}

/// Path of the lock between a DaemonSet's handlers on their hosts.
fn lock_on_host(set: &Value) -> PathBuf {
    let spec = &set["spec"]["template"]["spec"];
    let of = |list: &Value, is: &dyn Fn(&Value) -> bool| -> Value {
        let found = list.as_array().into_iter().flatten().find(|&it| is(it));
        found.unwrap_or_else(|| panic!("{set:#}")).clone()
    };
    let container = &spec["containers"][0];
    let variable = of(&container["env"], &|it| {
        it["name"] == "NMSTATE_INSTANCE_NODE_LOCK_FILE"
    });
    let file = variable["value"].as_str().expect("a path");
    let mount = of(&container["volumeMounts"], &|it| {
        it["mountPath"]
            .as_str()
            .is_some_and(|path| Path::new(file).starts_with(path))
    });
    let volume = of(&spec["volumes"], &|it| it["name"] == mount["name"]);
    let directory = volume["hostPath"]["path"]
        .as_str()
        .expect("a directory of the host");
    let below = Path::new(file).strip_prefix(mount["mountPath"].as_str().expect("a path"));
    Path::new(directory).join(below.expect("below the mount"))
}

// nmstate#71
#[test]
fn handlers_of_a_second_operator_wait_for_the_first() {
    const SECOND: &str = "system:serviceaccount:other:nmstate-operator";
    let stage = operator::installed();
    let subject = json!({ "kind": "ServiceAccount", "name": "nmstate-operator", "namespace": "other" });
    stage.create(
        Kind::ClusterRoleBinding,
        &json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "second" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
            "subjects": [subject],
        }),
    );
    for right in ["list nodes", "create secrets"] {
        rights::wait_until_allowed(&stage, SECOND, right);
    }
    let second = Settings {
        handler_namespace: "other".to_owned(),
        operator_namespace: "other".to_owned(),
        prefix: "other".to_owned(),
        ..operator::settings()
    };
    let running = [
        operator::operator(&stage, operator::settings()),
        operator::operator_as(&stage, SECOND, second),
    ];
    let nmstate = operator::nmstate("nmstate", &json!({}));
    stage
        .send(Method::POST, operator::NMSTATES, Some(&nmstate))
        .accepted();
    let set = |namespace: &str, name: &str| {
        let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}");
        until(&path, || {
            let answer = stage.send(Method::GET, &path, None);
            if answer.status.is_success() {
                Ok(answer.accepted())
            } else {
                Err(format!("{answer:#?}"))
            }
        })
    };
    let sets = [
        ("nmstate", set("nmstate", "nmstate-handler")),
        ("other", set("other", "other-nmstate-handler")),
    ];
    stage.wait_until_served(Kind::State.path());
    stage.wait_until_served(Kind::Policy.path());
    stage.wait_until_served(Kind::Enactment.path());
    // Both would write the status of the same NMState.
    drop(running);

    stage.node(NODE, &[]);
    let host = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let [first, second] = sets.map(|(namespace, set)| {
        let lock = lock_on_host(&set);
        let lock = host
            .path()
            .join(lock.strip_prefix("/").expect("an absolute path"));
        // The kubelet makes the directory before it mounts it.
        fs::create_dir_all(lock.parent().expect("a directory")).expect("a directory");
        move |stage: &Stage| Handler::of(stage, namespace, &lock, lock.with_file_name(namespace))
    });
    let first = first(&stage);
    first.says("Successfully took nmstate exclusive lock");
    first.wait_until_ready();
    let second = second(&stage);
    second.says("cannot take the lock");
    second.says("Try to take exclusive lock on file: ");
    assert!(first.is_ready() && !second.is_ready());
    drop(first);
    second.says("Successfully took nmstate exclusive lock");
    second.wait_until_ready();
}

// nmstate#94
#[test]
fn handler_in_client_mode_reports_and_exits() {
    let stage = Stage::start();
    stage.node(NODE, &[]);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let lock = dir.path().join("handler_lock");
    for arguments in [["--execution-type", "client"], ["-execution-type", "client"]] {
        let mut command = named(
            "manager",
            &arguments,
            &[("NODE_NAME", NODE), ("POD_NAMESPACE", NAMESPACE)],
        );
        command
            .env("NMSTATE_INSTANCE_NODE_LOCK_FILE", &lock)
            .env("KUBECONFIG", stage.kubeconfig())
            .env("WEFT_NMSTATE_BACKEND", "kernel");
        let ended = command.output().expect("it runs");
        assert!(ended.status.success(), "{ended:?}");
        stage.wait_until_reported(NODE);
        stage.delete(Kind::State, NODE);
    }

    // A malformed policy changes nothing on this host, and is reported.
    stage.create(
        Kind::State,
        &json!({
            "apiVersion": "nmstate.io/v1beta1", "kind": "NodeNetworkState", "metadata": { "name": NODE },
            "spec": { "desiredState": { "interfaces": [{ "name": "weft-none", "mtuu": 1 }] } },
        }),
    );
    let mut command = named(
        "manager",
        &["--execution-type", "client"],
        &[("NODE_NAME", NODE), ("POD_NAMESPACE", NAMESPACE)],
    );
    command
        .env("NMSTATE_INSTANCE_NODE_LOCK_FILE", &lock)
        .env("KUBECONFIG", stage.kubeconfig())
        .env("WEFT_NMSTATE_BACKEND", "kernel");
    let ended = command.output().expect("it runs");
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let state = stage.wait_until_reported(NODE);
    assert_eq!(
        status_of(&state, "Failing"),
        "True",
        "{:#}",
        state["status"]["conditions"]
    );
}

//! The handler as a process: what it says when it can't start, and who of two works.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    time::Duration,
};

use cluster::wait;
use serde_json::json;

use crate::fixture::{DEADLINE, Kind, NAMESPACE, Stage, status_of};

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
fn without_what_it_needs_it_says_so_and_ends() {
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
fn families_of_metrics_are_printed_as_json() {
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
        let ready = dir.join(name);
        let mut command = named(
            "manager",
            &[],
            &[("NODE_NAME", NODE), ("POD_NAMESPACE", NAMESPACE)],
        );
        command
            .env("NMSTATE_INSTANCE_NODE_LOCK_FILE", dir.join("handler_lock"))
            .env("WEFT_NMSTATE_READY_FILE", &ready)
            .env("KUBECONFIG", stage.kubeconfig())
            // What it does here is to read; that needs no NetworkManager.
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

    /// Waits until it says this.
    fn says(&self, text: &str) {
        let mut said = Vec::new();
        while !said.last().is_some_and(|line: &String| line.contains(text)) {
            let line = self.lines.recv_timeout(DEADLINE);
            said.push(line.unwrap_or_else(|_| panic!("it does not say {text:?}: {said:#?}")));
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

// nmstate#71, nmstate#1
#[test]
fn of_two_handlers_of_a_node_the_second_is_not_ready_until_the_first_is_gone() {
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

    let mut second = Handler::start(&stage, dir.path(), "second");
    second.says("cannot take the lock");
    second.says("Try to take exclusive lock on file: ");
    assert!(first.is_ready() && !second.is_ready());
    drop(first);
    second.says("Successfully took nmstate exclusive lock");
    second.wait_until_ready();
    // It ends when it is told to, and not with an error.
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

// nmstate#94
#[test]
fn a_handler_for_one_time_reports_and_ends() {
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

    // What cannot even be read changes nothing on this host, and is told.
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

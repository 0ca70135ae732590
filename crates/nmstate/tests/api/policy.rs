//! Policies on nodes: selection, order, failures, and leftovers of removed handlers, nodes and policies.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::Method;
use cluster::wait;
use serde_json::{Value, json};
use weft_nmstate::apply::{self, Pipeline};
use weft_nmstate::handler::Settings;
use weft_nmstate::policy::controller;

use crate::fixture::{DEADLINE, Kind, Stage, Task, settings, shared, status_of, unprobed};
use crate::host::{self, Host};

mod failures;
mod rollout;
mod selection;
mod simulation;
mod takeover;

/// The controller of policies of a node.
fn handler(stage: &Stage, node: &str, host: &Host) -> Task {
    handler_with(stage, node, host, settings())
}

fn handler_with(stage: &Stage, node: &str, host: &Host, settings: Settings) -> Task {
    handler_that(stage, node, host, settings, unprobed())
}

/// The controller with these settings for changes and probes.
fn handler_that(stage: &Stage, node: &str, host: &Host, settings: Settings, how: apply::Settings) -> Task {
    handler_by(stage, node, host, settings, how, |client| client)
}

/// The controller, which sends its requests through the client of `by`.
fn handler_by(
    stage: &Stage,
    node: &str,
    host: &Host,
    settings: Settings,
    how: apply::Settings,
    by: impl FnOnce(kube::Client) -> kube::Client + Send + 'static,
) -> Task {
    let (node, host) = (node.to_owned(), host.clone());
    stage.task(move |client, shutdown| async move {
        let client = by(client);
        let shared = shared(&node, &host, client.clone(), settings);
        let pipeline = Pipeline::new(host.engine(), client, node, how);
        tokio::select! {
            () = controller::start(shared, Arc::new(pipeline)) => {}
            () = shutdown.wait() => {}
        }
    })
}

/// Nodes of these names, each with a host and a handler.
fn nodes(stage: &Stage, names: &[&str]) -> Vec<(Host, Task)> {
    let nodes = names.iter().map(|name| {
        stage.node(name, &[("node", name)]);
        let host = Host::new(host::two_nics());
        let task = handler(stage, name, &host);
        (host, task)
    });
    nodes.collect()
}

fn policy(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy",
        "metadata": { "name": name }, "spec": spec,
    })
}

/// A document that sets the MTU of `eth1`.
fn mtu(mtu: u32) -> Value {
    json!({ "interfaces": [{ "name": "eth1", "type": "ethernet", "state": "up", "mtu": mtu }] })
}

/// Type, reason and text of the only true condition of an object.
fn said(object: &Value) -> Option<[String; 3]> {
    let conditions = object["status"]["conditions"].as_array()?;
    let mut are_true = conditions.iter().filter(|one| one["status"] == "True");
    let (one, more) = (are_true.next()?, are_true.next());
    assert!(more.is_none(), "more than one is true: {object:#}");
    let text = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
    Some([text("type"), text("reason"), text("message")])
}

/// Waits until an object has exactly this condition, and returns the object.
fn wait_until_said(stage: &Stage, kind: Kind, name: &str, expected: [&str; 3]) -> Value {
    let what = format!("{name} to say {expected:?}");
    // A handler checks a policy again after up to three minutes.
    let found = wait::until(&what, 3 * DEADLINE, || {
        let object = stage.get(kind, name);
        let is_said = |object: &Value| said(object).is_some_and(|said| said == expected);
        let explained = || format!("{object:#?}\n{:#?}", stage.events());
        object.clone().filter(is_said).ok_or_else(explained)
    });
    found.unwrap_or_else(|error| panic!("{error}"))
}

const RECONCILED: [&str; 3] = ["Available", "SuccessfullyConfigured", "successfully reconciled"];
const WAITING: [&str; 3] = [
    "Pending",
    "MaxUnavailableLimitReached",
    "Waiting for progressing nodes to finish",
];

fn configured(text: &str) -> [&str; 3] {
    ["Available", "SuccessfullyConfigured", text]
}

fn degraded(text: &str) -> [&str; 3] {
    ["Degraded", "FailedToConfigure", text]
}

fn failing(text: &str) -> [&str; 3] {
    ["Failing", "FailedToConfigure", text]
}

/// Writes into the policy `p` that so many nodes hold a slot of its first generation.
fn set_slots(stage: &Stage, held: u32) {
    let status = json!({ "unavailableNodeCountMap": { "1": held } });
    stage.report(Kind::Policy, "p", &status);
}

/// Waits until the policy `p` counts so many slots of its first generation.
fn wait_for_slots(stage: &Stage, held: u32) {
    let what = format!("{held} slots that are held");
    stage.wait_for(&what, (Kind::Policy, "p"), |policy| {
        (policy?["status"]["unavailableNodeCountMap"] == json!({ "1": held })).then_some(())
    });
}

/// Waits until there is no such object.
fn wait_until_gone(stage: &Stage, kind: Kind, name: &str) {
    stage.wait_for(&format!("{name} to be gone"), (kind, name), |object| {
        object.is_none().then_some(())
    });
}

/// Waits for a condition of the hosts.
fn wait_for(what: &str, condition: impl Fn() -> Result<(), String>) {
    wait::until(what, DEADLINE, condition).unwrap_or_else(|error| panic!("{error}"));
}

/// Waits until this is the only event about policies. The API server creates events of its own.
fn wait_for_event(stage: &Stage, event: &str) {
    wait_for("the event", || {
        let mut events = stage.events();
        events.retain(|event| event.contains(" NodeNetworkConfigurationPolicy/"));
        if events == [event] {
            Ok(())
        } else {
            Err(format!("{events:#?}"))
        }
    });
}

/// Holds hosts in the middle of a change, until it is opened.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<Waiting>, Condvar)>);

#[derive(Clone, Copy, Default)]
struct Waiting {
    open: bool,
    now: usize,
    most: usize,
}

impl Gate {
    /// Makes a host wait at every change.
    fn hold(&self, host: &Host) {
        let gate = self.clone();
        host.on_apply(move |_| {
            gate.pass();
            Ok(())
        });
    }

    fn pass(&self) {
        let (waiting, opened) = &*self.0;
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.now += 1;
        waiting.most = waiting.most.max(waiting.now);
        let mut waiting = opened
            .wait_timeout_while(waiting, 20 * DEADLINE, |waiting| !waiting.open)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
        waiting.now -= 1;
    }

    fn open(&self) {
        let (waiting, opened) = &*self.0;
        waiting.lock().unwrap_or_else(PoisonError::into_inner).open = true;
        opened.notify_all();
    }

    fn state(&self) -> Waiting {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until so many hosts wait.
    fn wait_for(&self, hosts: usize) {
        wait::until("hosts to be in the middle of a change", DEADLINE, || {
            let now = self.state().now;
            if now == hosts {
                Ok(())
            } else {
                Err(format!("{now} of {hosts}"))
            }
        })
        .unwrap_or_else(|error| panic!("{error}"));
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // Hosts of a test that failed must not be waited for.
        if std::thread::panicking() {
            self.open();
        }
    }
}

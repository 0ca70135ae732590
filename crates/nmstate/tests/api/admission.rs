//! Admission policies for nodes' reports and the requests in them (nmstate §7.3), with the roles as
//! they are deployed.

use std::sync::mpsc;

use axum::http::{Method, Request, header};
use kube_kit::client;
use serde_json::{Value, json};
use stage::{Account, until};

use crate::fixture::{ACCOUNT, Kind, NAMESPACE, Stage, Task};
use crate::host::{self, Host};
use crate::operator::{NMSTATES, installed, nmstate, operator, settings};

const NODE: &str = "node01";
/// The error of a refused desired state.
const NEEDS_POLICIES: &str =
    "the spec of a NodeNetworkState takes the right to create nodenetworkconfigurationpolicies";

/// A cluster on which the operator has deployed everything.
fn deployed() -> (Stage, Task) {
    let stage = installed();
    let running = operator(&stage, settings());
    stage
        .send(Method::POST, NMSTATES, Some(&nmstate("nmstate", &json!({}))))
        .accepted();
    stage.wait_until_served(Kind::State.path());
    (stage, running)
}

/// Sends a request as another user, with the token of a pod on a node if there is one. Returns the answer, or the
/// refusal.
pub(crate) fn send_as(
    stage: &Stage,
    (user, node): (&str, Option<&str>),
    method: Method,
    path: &str,
    body: &Value,
) -> Result<Value, String> {
    let kind = if method == Method::PATCH {
        "application/merge-patch+json"
    } else {
        "application/json"
    };
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, kind);
    if let Some(node) = node {
        request = request.header("Impersonate-Extra-authentication.kubernetes.io%2Fnode-name", node);
    }
    let body = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    let request = request.body(body).expect("a request");
    let (done, outcome) = mpsc::channel();
    let task = stage.task_as(user, move |client, _| async move {
        let answer = client.request::<Value>(request).await;
        let answer = answer.map_err(|error| client::message(&error));
        done.send(answer).expect("a test");
    });
    let answer = outcome.recv().expect("an answer");
    drop(task);
    answer
}

fn state(name: &str, spec: &Value) -> Value {
    let mut state = json!({
        "apiVersion": "nmstate.io/v1beta1", "kind": "NodeNetworkState", "metadata": { "name": name },
    });
    if !spec.is_null() {
        state["spec"] = spec.clone();
    }
    state
}

fn mtu(mtu: u32) -> Value {
    json!({ "desiredState": { "interfaces": [
        { "name": "eth1", "type": "ethernet", "state": "up", "mtu": mtu },
    ] } })
}

/// Two users who may write states; the second one may create policies too.
fn users(stage: &Stage) -> [(&'static str, Option<&'static str>); 2] {
    let group = "rbac.authorization.k8s.io";
    for (resource, verbs, users) in [
        (
            "nodenetworkstates",
            &["get", "create", "update", "patch"][..],
            &["writer", "author"][..],
        ),
        (
            "nodenetworkconfigurationpolicies",
            &["create"][..],
            &["author"][..],
        ),
    ] {
        let role = json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": { "name": resource },
            "rules": [{ "apiGroups": ["nmstate.io"], "resources": [resource], "verbs": verbs }],
        });
        stage.create(Kind::ClusterRole, &role);
        let subject = |user: &&str| json!({ "apiGroup": group, "kind": "User", "name": user });
        let binding = json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": { "name": resource },
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": resource },
            "subjects": users.iter().map(subject).collect::<Vec<_>>(),
        });
        stage.create(Kind::ClusterRoleBinding, &binding);
    }
    [("writer", None), ("author", None)]
}

/// Waits until a request is refused: the API server evaluates a new policy only after a moment.
#[track_caller]
fn wait_until_refused(text: &str, mut ask: impl FnMut() -> Result<Value, String>) {
    until(text, || match ask() {
        Err(refusal) if refusal.contains(text) => Ok(()),
        other => Err(format!("{other:#?}")),
    });
}

#[track_caller]
fn refused(answer: Result<Value, String>, text: &str) {
    let refusal = answer.expect_err("it is refused");
    assert!(refusal.contains(text), "{refusal}");
}

// nmstate#97
#[test]
fn desired_state_of_a_node_needs_the_right_to_write_policies() {
    let (stage, _running) = deployed();
    let [writer, author] = users(&stage);
    let states = Kind::State.path();
    let dry = format!("{states}?dryRun=All");
    let asking = state("node09", &mtu(4000));
    wait_until_refused(NEEDS_POLICIES, || {
        send_as(&stage, writer, Method::POST, &dry, &asking)
    });
    // Handlers create the object, report in it, and follow permitted requests in it.
    stage.node(NODE, &[]);
    let host = Host::new(host::two_nics());
    let _handler = stage.handler(NODE, &host);
    stage.wait_until_reported(NODE);
    let path = format!("{states}/{NODE}");
    let larger = json!({ "spec": mtu(4000) });
    refused(
        send_as(&stage, writer, Method::PATCH, &path, &larger),
        NEEDS_POLICIES,
    );
    until("the right of the author", || {
        send_as(&stage, author, Method::PATCH, &path, &larger).map(drop)
    });
    stage.wait_until_true(Kind::State, NODE, "Available");
    assert_eq!(host.applied().len(), 1);

    // Everything except the desired state is writable as before.
    let label = json!({ "metadata": { "labels": { "nmstate.io/force-nns-refresh": "1" } } });
    send_as(&stage, writer, Method::PATCH, &path, &label).expect("a label");
    send_as(&stage, writer, Method::PATCH, &path, &larger).expect("the same desired state");
    send_as(&stage, writer, Method::POST, &dry, &state("node09", &Value::Null)).expect("no desired state");
    for other in [
        json!({ "spec": mtu(9000) }),
        json!({ "spec": { "managed": false } }),
        json!({ "spec": null }),
    ] {
        refused(
            send_as(&stage, writer, Method::PATCH, &path, &other),
            NEEDS_POLICIES,
        );
    }
    // In the other versions too.
    let old = format!("/apis/nmstate.io/v1alpha1/nodenetworkstates/{NODE}");
    let other = json!({ "spec": mtu(9000) });
    refused(
        send_as(&stage, writer, Method::PATCH, &old, &other),
        NEEDS_POLICIES,
    );
}

fn enactment(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "nmstate.io/v1beta1", "kind": "NodeNetworkConfigurationEnactment",
        "metadata": { "name": name, "labels": { "nmstate.io/policy": "p", "nmstate.io/node": node } },
    })
}

// nmstate#98
#[test]
fn handler_writes_objects_of_its_own_node_only() {
    const FOREIGN: &str = "the handler of node node01 writes the state and the enactments of its own node";
    let (stage, _running) = deployed();
    stage.wait_until_served(Kind::Enactment.path());
    let handler = (ACCOUNT, Some(NODE));
    let (states, enactments) = (Kind::State.path(), Kind::Enactment.path());
    let none = Value::Null;
    wait_until_refused(FOREIGN, || {
        let dry = format!("{states}?dryRun=All");
        send_as(&stage, handler, Method::POST, &dry, &state("node02", &none))
    });
    let of_others = [
        enactment("node02.p", "node02"),
        // Of a node whose name begins like this one's.
        enactment("node01.lab.p", "node01.lab"),
    ];
    for of_another in &of_others {
        refused(
            send_as(&stage, handler, Method::POST, enactments, of_another),
            FOREIGN,
        );
        stage.create(Kind::Enactment, of_another);
    }
    stage.create(Kind::State, &state("node02", &none));
    let change = |kind: Kind, name: &str, part: &str| {
        let mut object = stage.get(kind, name).expect("the object");
        object["metadata"]["annotations"] = json!({ "a": "b" });
        object["status"] = json!({ "conditions": [] });
        let path = format!("{}/{name}{part}", kind.path());
        send_as(&stage, handler, Method::PUT, &path, &object)
    };
    refused(change(Kind::State, "node02", ""), FOREIGN);
    refused(change(Kind::State, "node02", "/status"), FOREIGN);
    for name in ["node02.p", "node01.lab.p"] {
        refused(change(Kind::Enactment, name, "/status"), FOREIGN);
        let path = format!("{enactments}/{name}");
        refused(send_as(&stage, handler, Method::DELETE, &path, &none), FOREIGN);
    }

    // The API server reads the node from the token of a pod.
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "handler" },
        "spec": {
            "serviceAccountName": "nmstate-handler", "nodeName": NODE,
            "containers": [{ "name": "it", "image": "it" }],
        },
    });
    stage.create(Kind::Pod, &pod);
    let of_the_pod = Account::of_pod(&stage, NAMESPACE, "nmstate-handler", "handler");
    let refusal = of_the_pod
        .create(enactments, &of_others[0])
        .expect_err("a refusal");
    assert!(refusal.message.contains(FOREIGN), "{refusal:?}");
    let own = enactment("node01.of-the-pod", NODE);
    of_the_pod.create(enactments, &own).expect("created");

    // About its own it writes everything; and a token that names no node is not held to one.
    let own = [(handler, "p"), ((ACCOUNT, None), "q")];
    for (handler, policy) in own {
        let name = format!("{NODE}.{policy}");
        send_as(&stage, handler, Method::POST, enactments, &enactment(&name, NODE)).expect("created");
        change(Kind::Enactment, &name, "/status").expect("its status");
        let path = format!("{enactments}/{name}");
        send_as(&stage, handler, Method::DELETE, &path, &none).expect("deleted");
    }
    send_as(&stage, handler, Method::POST, states, &state(NODE, &none)).expect("created");
    change(Kind::State, NODE, "").expect("changed");
    change(Kind::State, NODE, "/status").expect("its status");
    let path = format!("{enactments}/node02.p");
    send_as(&stage, (ACCOUNT, None), Method::DELETE, &path, &none).expect("deleted");
}

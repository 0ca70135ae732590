//! The operator under its shipped role: deployed objects, repairs of drift, and its status.

use std::path::Path;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use cluster::wait;
use kube_kit::serve::Readiness;
use serde_json::{Value, json};
use weft_nmstate::operator::{Operator, files::Files, settings::Settings};

use crate::fixture::{self, DEADLINE, Request, Stage, Task};
use crate::rights;

pub(crate) const ACCOUNT: &str = "system:serviceaccount:nmstate:nmstate-operator";
pub(crate) const NMSTATES: &str = "/apis/nmstate.io/v1/nmstates";
const NMSTATE: &str = "/apis/nmstate.io/v1/nmstates/nmstate";
const HANDLER: &str = "/apis/apps/v1/namespaces/nmstate/daemonsets/nmstate-handler";
const WEBHOOK: &str = "/apis/apps/v1/namespaces/nmstate/deployments/nmstate-webhook";
const METRICS: &str = "/apis/apps/v1/namespaces/nmstate/deployments/nmstate-metrics";
const CERT_MANAGER: &str = "/apis/apps/v1/namespaces/nmstate/deployments/nmstate-cert-manager";
const POLICIES: &str = "/apis/nmstate.io/v1/nodenetworkconfigurationpolicies";

/// An API server on which the files of `deploy/nmstate` were applied, but for the Deployment of the operator.
pub(crate) fn installed() -> Stage {
    let stage = Stage::bare();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/nmstate");
    let files = [
        "nmstate.io_nmstates.yaml",
        "namespace.yaml",
        "service_account.yaml",
        "role.yaml",
        "role_binding.yaml",
    ];
    let files = files.map(|name| std::fs::read_to_string(folder.join(name)).expect("a file"));
    stage.kubectl().apply(&files.join("---\n")).expect("applied");
    wait::until("the kind NMState", DEADLINE, || {
        let answer = stage.send(Method::GET, NMSTATES, None);
        (answer.status == StatusCode::OK)
            .then_some(())
            .ok_or_else(|| format!("{answer:#?}"))
    })
    .unwrap_or_else(|error| panic!("{error}"));
    // The API server applies a binding some time after its creation.
    for right in ["list nodes", "create secrets"] {
        rights::wait_until_allowed(&stage, ACCOUNT, right);
    }
    stage
}

pub(crate) fn settings() -> Settings {
    Settings::read(|name| {
        let value = match name {
            "HANDLER_NAMESPACE" | "OPERATOR_NAMESPACE" => "nmstate",
            "RELATED_IMAGE_HANDLER_IMAGE" => "weft:1",
            _ => return None,
        };
        Some(value.to_owned())
    })
    .expect("settings")
}

pub(crate) fn operator(stage: &Stage, settings: Settings) -> Task {
    operator_as(stage, ACCOUNT, settings)
}

/// The operator under this account.
pub(crate) fn operator_as(stage: &Stage, account: &str, settings: Settings) -> Task {
    stage.task_as(account, move |client, shutdown| async move {
        Operator::start(client, settings)
            .run(&shutdown, &Readiness::new())
            .await;
    })
}

pub(crate) fn nmstate(name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "nmstate.io/v1", "kind": "NMState", "metadata": { "name": name }, "spec": spec })
}

fn get(stage: &Stage, path: &str) -> Option<Value> {
    let answer = stage.send(Method::GET, path, None);
    (answer.status != StatusCode::NOT_FOUND).then(|| answer.accepted())
}

fn wait_for<T>(stage: &Stage, what: &str, path: &str, mut condition: impl FnMut(&Value) -> Option<T>) -> T {
    wait::until(what, DEADLINE, || {
        let object = get(stage, path);
        let found = object.as_ref().and_then(&mut condition);
        found.ok_or_else(|| format!("{object:#?}\n{:#?}", get(stage, NMSTATE)))
    })
    .unwrap_or_else(|error| panic!("{error}"))
}

/// `Type Status Reason` of the conditions of a nmstate.
fn condition_lines(nmstate: &Value) -> Vec<String> {
    let conditions = nmstate["status"]["conditions"].as_array();
    let line = |it: &Value| {
        let text = |key: &str| it[key].as_str().unwrap_or_default().to_owned();
        format!("{} {} {}", text("type"), text("status"), text("reason"))
    };
    conditions.into_iter().flatten().map(line).collect()
}

fn message(nmstate: &Value, condition: &str) -> String {
    let conditions = nmstate["status"]["conditions"].as_array();
    let found = conditions
        .into_iter()
        .flatten()
        .find(|it| it["type"] == condition);
    found
        .and_then(|it| it["message"].as_str())
        .unwrap_or_default()
        .to_owned()
}

const DEPLOYING: [&str; 3] = [
    "Available False Deploying",
    "Degraded False Deploying",
    "Progressing True Deploying",
];
const DEPLOYED: [&str; 3] = [
    "Available True SuccessfullyDeployed",
    "Degraded False SuccessfullyDeployed",
    "Progressing False SuccessfullyDeployed",
];

fn wait_for_conditions(stage: &Stage, expected: [&str; 3]) -> Value {
    wait_for(stage, &format!("{expected:?}"), NMSTATE, |nmstate| {
        (condition_lines(nmstate) == expected).then(|| nmstate.clone())
    })
}

/// Writes the statuses that controllers would write: the pods of the workloads exist.
fn roll_out(stage: &Stage) {
    roll_out_these(stage, &[HANDLER, WEBHOOK, METRICS, CERT_MANAGER]);
}

fn roll_out_these(stage: &Stage, workloads: &[&str]) {
    for path in workloads.iter().copied() {
        let generation = wait_for(stage, path, path, |object| {
            object["metadata"]["generation"].as_i64()
        });
        let status = if path == HANDLER {
            json!({
                "observedGeneration": generation, "currentNumberScheduled": 1, "desiredNumberScheduled": 1,
                "numberAvailable": 1, "numberReady": 1, "numberMisscheduled": 0, "updatedNumberScheduled": 1,
            })
        } else {
            json!({
                "observedGeneration": generation, "replicas": 1, "readyReplicas": 1, "availableReplicas": 1,
                "updatedReplicas": 1,
            })
        };
        let status = json!({ "status": status });
        stage
            .send(Method::PATCH, &format!("{path}/status"), Some(&status))
            .accepted();
    }
}

fn writes(stage: &Stage, mark: u64) -> Vec<Request> {
    let all = stage.requests_of(ACCOUNT, mark).into_iter();
    all.filter(|request| !["get", "list"].contains(&request.verb.as_str()))
        .collect()
}

fn patch(stage: &Stage, path: &str, patch: &Value) -> Value {
    stage.send(Method::PATCH, path, Some(patch)).accepted()
}

// nmstate#68, nmstate#77, nmstate#79; nmstate#78, the rights of the aggregated role
#[test]
fn nmstate_is_deployed_and_restored_with_the_shipped_role() {
    let stage = installed();
    let begin = stage.mark();
    let running = operator(&stage, settings());
    // Another field manager wrote the status before, and owns it.
    stage
        .send(Method::POST, NMSTATES, Some(&nmstate("nmstate", &json!({}))))
        .accepted();
    let theirs = json!({ "status": { "conditions": [
        { "type": "Available", "status": "Unknown", "reason": "Somebody" },
    ] } });
    patch(&stage, &format!("{NMSTATE}/status"), &theirs);

    let observed = wait_for_conditions(&stage, DEPLOYING);
    assert_eq!(message(&observed, "Available"), "Deploying is in progress");
    wait_for(&stage, "a line for each workload", NMSTATE, |nmstate| {
        let lines = message(nmstate, "Progressing");
        let all = lines.contains("Deployment \"nmstate-webhook\" is not yet scheduled on any nodes")
            && lines.contains("DaemonSet \"nmstate-handler\" update is being processed (generation 1, observed generation 0)")
            && lines.lines().count() == 4;
        all.then_some(())
    });
    roll_out(&stage);
    let observed = wait_for_conditions(&stage, DEPLOYED);
    assert_eq!(
        message(&observed, "Available"),
        "All components are available and ready"
    );
    let managed = observed["metadata"]["managedFields"]
        .as_array()
        .expect("managers");
    assert!(
        managed.iter().any(|entry| entry["manager"] == "nmstate-operator"
            && entry["operation"] == "Apply"
            && entry["subresource"] == "status"),
        "{managed:#?}"
    );

    // Nothing new is nothing to do, also for an operator that starts. The first one may write its status once more,
    // until it has observed the write.
    drop(running);
    let mark = stage.mark();
    let running = operator(&stage, settings());
    patch(
        &stage,
        NMSTATE,
        &json!({ "metadata": { "annotations": { "a": "b" } } }),
    );
    let reader = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "cluster-reader" },
    });
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    stage.send(Method::POST, roles, Some(&reader)).accepted();
    wait_for(
        &stage,
        "a role for readers",
        &format!("{roles}/nmstate-cluster-reader"),
        |_| Some(()),
    );
    let written = writes(&stage, mark);
    assert!(
        written.iter().all(|request| request.uri.starts_with(roles)) && written.len() == 1,
        "{written:#?}"
    );
    readers_may_read(&stage);

    drop(running);
    nothing_was_refused(&stage, begin);
}

#[test]
fn operator_without_a_right_names_it_until_it_is_granted() {
    const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/nmstate-operator";
    let stage = installed();
    let rules = get(&stage, ROLE).expect("the role")["rules"].clone();
    let mut less = rules.clone();
    for rule in less.as_array_mut().expect("rules") {
        let is_of_webhooks = rule["resources"]
            .to_string()
            .contains("mutatingwebhookconfigurations");
        if let (true, Some(verbs)) = (is_of_webhooks, rule["verbs"].as_array_mut()) {
            verbs.retain(|verb| verb != "list");
        }
    }
    patch(&stage, ROLE, &json!({ "rules": less }));
    let question = [
        "auth",
        "can-i",
        "list",
        "mutatingwebhookconfigurations",
        "--as",
        ACCOUNT,
    ];
    wait::until("a lack of rights", DEADLINE, || {
        match stage.kubectl().run(question) {
            Ok(answer) => Err(answer),
            Err(_) => Ok(()),
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));

    let readiness = Readiness::new();
    let probed = readiness.clone();
    let _running = stage.task_as(ACCOUNT, move |client, shutdown| async move {
        Operator::start(client, settings())
            .with_watch_timeout(Duration::from_secs(2))
            .run(&shutdown, &readiness)
            .await;
    });
    stage
        .send(Method::POST, NMSTATES, Some(&nmstate("nmstate", &json!({}))))
        .accepted();
    let expected = [
        "not allowed to list mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "not allowed to list validatingadmissionpolicies.admissionregistration.k8s.io",
        "not allowed to list validatingadmissionpolicybindings.admissionregistration.k8s.io",
    ];
    wait_for(&stage, "the rights by name", NMSTATE, |nmstate| {
        (message(nmstate, "Degraded") == expected.join("\n")).then_some(())
    });
    assert!(!probed.is_ready());

    patch(&stage, ROLE, &json!({ "rules": rules }));
    roll_out(&stage);
    wait_for_conditions(&stage, DEPLOYED);
    wait::until("the operator to be ready", DEADLINE, || {
        if probed.is_ready() {
            Ok(())
        } else {
            Err("it is not")
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

/// The role for readers permits to read all kinds, and no more. `cluster-reader` of a cluster aggregates it.
fn readers_may_read(stage: &Stage) {
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": { "name": "reader" },
        "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": "nmstate-cluster-reader" },
        "subjects": [{ "apiGroup": group, "kind": "User", "name": "reader" }],
    });
    let path = format!("/apis/{group}/v1/clusterrolebindings");
    stage.send(Method::POST, &path, Some(&binding)).accepted();
    let may = |verb: &str, resource: &str| {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": { "user": "reader", "resourceAttributes": { "group": "nmstate.io", "verb": verb, "resource": resource } },
        });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        stage.send(Method::POST, path, Some(&review)).accepted()["status"]["allowed"] == true
    };
    for resource in [
        "nodenetworkstates",
        "nodenetworkconfigurationpolicies",
        "nodenetworkconfigurationenactments",
    ] {
        for verb in ["get", "list", "watch"] {
            // The server applies the binding a moment later.
            wait::until("the right to read", DEADLINE, || {
                may(verb, resource)
                    .then_some(())
                    .ok_or_else(|| format!("{verb} {resource}"))
            })
            .unwrap_or_else(|error| panic!("{error}"));
        }
        assert!(!may("update", resource) && !may("delete", resource), "{resource}");
    }
}

/// The role has the rights that the operator requires.
pub(crate) fn nothing_was_refused(stage: &Stage, begin: u64) {
    let refused: Vec<Request> = stage
        .requests_of(ACCOUNT, begin)
        .into_iter()
        .filter(|request| request.code == 403)
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

// nmstate#69, nmstate#72-74; nmstate#70, the remaining objects
#[test]
fn one_nmstate_is_deployed_until_it_is_deleted() {
    let stage = installed();
    let begin = stage.mark();
    let running = operator(&stage, settings());
    stage
        .send(Method::POST, NMSTATES, Some(&nmstate("nmstate", &json!({}))))
        .accepted();
    roll_out(&stage);
    let observed = wait_for_conditions(&stage, DEPLOYED);

    // The operator restores objects that are changed or deleted by hand.
    patch(&stage, WEBHOOK, &json!({ "spec": { "replicas": 5 } }));
    wait_for(&stage, "one replica", WEBHOOK, |it| {
        (it["spec"]["replicas"] == 1).then_some(())
    });
    let service = "/api/v1/namespaces/nmstate/services/nmstate-webhook";
    stage.send(Method::DELETE, service, None).accepted();
    wait_for(&stage, "the Service", service, |_| Some(()));

    // The settings of an NMState reach the handler.
    let spec = json!({
        "logLevel": "debug", "nodeSelector": { "a": "b" }, "probeConfiguration": { "dns": { "host": "example.org" } },
    });
    patch(&stage, NMSTATE, &json!({ "spec": spec }));
    let handler = wait_for(&stage, "a handler that debugs", HANDLER, |it| {
        let args = &it["spec"]["template"]["spec"]["containers"][0]["args"];
        (args.as_array()?.len() == 3).then(|| it["spec"]["template"]["spec"].clone())
    });
    assert_eq!(handler["nodeSelector"], json!({ "a": "b" }));
    assert!(
        handler["containers"][0]["env"]
            .to_string()
            .contains("example.org")
    );
    let webhook = get(&stage, WEBHOOK).expect("the webhook");
    assert_eq!(
        webhook["spec"]["template"]["spec"]["nodeSelector"],
        json!({ "kubernetes.io/os": "linux" })
    );
    wait_for_conditions(&stage, DEPLOYING);

    // There is only one.
    stage
        .send(Method::POST, NMSTATES, Some(&nmstate("another", &json!({}))))
        .accepted();
    wait::until("the second one to go", DEADLINE, || {
        match get(&stage, &format!("{NMSTATES}/another")) {
            None => Ok(()),
            Some(object) => Err(format!("{object:#}")),
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
    assert!(get(&stage, NMSTATE).is_some());

    // It owns the deployed objects, so that the cluster collects them; definitions and policies stay.
    let uid = &observed["metadata"]["uid"];
    for path in [HANDLER, WEBHOOK, METRICS, CERT_MANAGER, service] {
        let object = get(&stage, path).expect("an object");
        assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], *uid, "{path}");
    }
    let policy = json!({
        "apiVersion": "nmstate.io/v1beta1", "kind": "NodeNetworkConfigurationPolicy", "metadata": { "name": "p" },
    });
    stage
        .send(
            Method::POST,
            "/apis/nmstate.io/v1beta1/nodenetworkconfigurationpolicies",
            Some(&policy),
        )
        .accepted();
    stage.send(Method::DELETE, NMSTATE, None).accepted();
    // The deployment of the next one ends that of the deleted one.
    stage
        .send(Method::POST, NMSTATES, Some(&nmstate("another", &json!({}))))
        .accepted();
    let uid = get(&stage, &format!("{NMSTATES}/another")).expect("the next one")["metadata"]["uid"].clone();
    wait_for(&stage, "the next one to be deployed", WEBHOOK, |it| {
        (it["metadata"]["ownerReferences"][0]["uid"] == uid).then_some(())
    });
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodenetworkstates.nmstate.io";
    assert_eq!(
        get(&stage, definition).expect("the definition")["metadata"].get("ownerReferences"),
        None
    );
    assert!(get(&stage, &format!("{POLICIES}/p")).is_some());
    drop(running);

    nothing_was_refused(&stage, begin);
}

// nmstate#117
#[test]
fn operator_that_deploys_no_metrics_does_not_wait_for_them() {
    let stage = installed();
    let _running = operator(&stage, settings());
    let off = json!({ "metricsConfiguration": { "bindAddress": "0" } });
    stage
        .send(Method::POST, NMSTATES, Some(&nmstate("nmstate", &off)))
        .accepted();
    let replicas = wait_for(&stage, "the metrics", METRICS, |it| {
        it["spec"]["replicas"].as_i64()
    });
    assert_eq!(replicas, 0);
    roll_out_these(&stage, &[HANDLER, WEBHOOK, CERT_MANAGER]);
    wait_for_conditions(&stage, DEPLOYED);
}

// nmstate#116
#[test]
fn second_nmstate_that_cannot_be_deleted_does_not_stop_the_deployment() {
    let stage = installed();
    let kept = "/apis/nmstate.io/v1/nmstates/other";
    for name in ["nmstate", "other"] {
        stage
            .send(Method::POST, NMSTATES, Some(&nmstate(name, &json!({}))))
            .accepted();
    }
    let admission = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": "keep" },
        "spec": {
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["nmstate.io"], "apiVersions": ["*"], "operations": ["DELETE"], "resources": ["nmstates"],
            }] },
            "validations": [{ "expression": "request.name != 'other'" }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": "keep" }, "spec": { "policyName": "keep", "validationActions": ["Deny"] },
    });
    let bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
    stage.send(Method::POST, admission, Some(&policy)).accepted();
    stage.send(Method::POST, bindings, Some(&binding)).accepted();
    wait::until("the other one to be kept", DEADLINE, || {
        let tried = stage.send(Method::DELETE, &format!("{kept}?dryRun=All"), None);
        if tried.status.is_success() {
            Err("it could be deleted".to_owned())
        } else {
            Ok(())
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let _running = operator(&stage, settings());
    wait_for(&stage, "the handler", HANDLER, |_| Some(()));
    wait_for_conditions(&stage, DEPLOYING);
    roll_out(&stage);
    wait_for_conditions(&stage, DEPLOYED);
    assert!(get(&stage, kept).is_some());
    stage
        .send(Method::DELETE, &format!("{bindings}/keep"), None)
        .accepted();
    // The back-off may have grown to its maximum, a minute.
    wait::until("the other one to go", 2 * DEADLINE, || match get(&stage, kept) {
        None => Ok(()),
        Some(object) => Err(format!("{object:#}")),
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

// nmstate#75, nmstate#76
#[test]
fn dedicated_nodes_make_two_webhooks_and_missing_manifests_are_reported() {
    let stage = installed();
    for name in ["infra1", "infra2"] {
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": { "kubernetes.io/os": "linux" } },
            "spec": { "taints": [{ "key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule" }] },
        });
        stage.send(Method::POST, "/api/v1/nodes", Some(&node)).accepted();
    }
    let directory = tempfile::tempdir().expect("a directory");
    let empty = Settings {
        manifests: Some(directory.path().to_owned()),
        ..settings()
    };
    let running = operator(&stage, empty);
    stage
        .send(Method::POST, NMSTATES, Some(&nmstate("nmstate", &json!({}))))
        .accepted();
    let failed = wait_for_conditions(
        &stage,
        [
            "Available False InternalError",
            "Degraded True InternalError",
            "Progressing False InternalError",
        ],
    );
    assert_eq!(
        message(&failed, "Degraded"),
        format!("no manifests rendered from {}", directory.path().display())
    );
    drop(running);
    let _running = operator(&stage, settings());
    wait_for(&stage, "two webhooks", WEBHOOK, |it| {
        (it["spec"]["replicas"] == 2).then_some(())
    });
    let budget = "/apis/policy/v1/namespaces/nmstate/poddisruptionbudgets/nmstate-webhook";
    wait_for(&stage, "one of them available", budget, |it| {
        (it["spec"]["minAvailable"] == 1).then_some(())
    });
}

// operator#85, the part of the node state operator
#[test]
fn operator_is_ready_after_its_first_status() {
    let stage = installed();
    stage
        .send(Method::POST, NMSTATES, Some(&nmstate("nmstate", &json!({}))))
        .accepted();
    let readiness = Readiness::new();
    let handle = readiness.clone();
    let _running = stage.task_as(ACCOUNT, move |client, shutdown| async move {
        Operator::start(client, settings()).run(&shutdown, &handle).await;
    });
    wait::until("readiness", DEADLINE, || {
        readiness
            .is_ready()
            .then_some(())
            .ok_or_else(|| "not ready".to_owned())
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let now = get(&stage, NMSTATE).expect("the NMState");
    assert_eq!(condition_lines(&now), DEPLOYING);
}

fn policy(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy",
        "metadata": { "name": name }, "spec": spec,
    })
}

fn limits_are_numbers_or_percentages(stage: &Stage) {
    let limited = |limit: Value| policy("limited", &json!({ "maxUnavailable": limit }));
    for limit in [json!("banana"), json!("3")] {
        let text = stage
            .send(Method::POST, POLICIES, Some(&limited(limit)))
            .refused();
        assert!(
            text.contains("maxUnavailable must be a number of nodes, or a percentage such as \"50%\""),
            "{text}"
        );
    }
    for limit in [json!(3), json!("30%")] {
        let dry = format!("{POLICIES}?dryRun=All");
        stage.send(Method::POST, &dry, Some(&limited(limit))).accepted();
    }
}

/// Edits the policy at this path, which is in progress.
fn edits_in_progress_are_admitted_on_request(stage: &Stage, path: &str) {
    let annotated =
        |value: Value| json!({ "metadata": { "annotations": { "nmstate.io/edit-in-progress": value } } });
    let spec = |text: &str| json!({ "desiredState": { "description": text } });
    let mut urgent = annotated(json!("true"));
    urgent["spec"] = spec("urgent");
    patch(stage, path, &urgent);
    patch(stage, path, &annotated(Value::Null));
    let edit = json!({ "spec": spec("unannotated") });
    let text = stage.send(Method::PATCH, path, Some(&edit)).refused();
    assert!(text.contains("policy p is still in progress"), "{text}");
}

// nmstate#19, nmstate#62, nmstate#63-65, nmstate#102, nmstate#103
#[test]
#[allow(clippy::too_many_lines, reason = "one story on one API server")]
fn deployed_webhook_admits_and_denies_policies() {
    let stage = &installed();
    let _running = operator(stage, settings());
    stage
        .send(Method::POST, NMSTATES, Some(&nmstate("nmstate", &json!({}))))
        .accepted();
    let validation = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/nncp-validation-policy-binding";
    wait_for(stage, "the validation of policies", validation, |_| Some(()));
    let long = "a".repeat(64);
    // A server evaluates a new policy only after a moment.
    let text = wait::until("the list of names", DEADLINE, || {
        let path = format!("{POLICIES}?dryRun=All");
        let answer = stage.send(Method::POST, &path, Some(&policy(&long, &json!({}))));
        if answer.status.is_success() {
            return Err(format!("{answer:#?}"));
        }
        Ok(answer.refused())
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let expected = format!(
        "invalid policy name: \"{long}\": must be no more than 63 characters or match label value format"
    );
    assert!(text.contains(&expected), "{text}");
    let key = json!({ "nodeSelector": { "a b": "c" } });
    let text = stage
        .send(Method::POST, POLICIES, Some(&policy("p", &key)))
        .refused();
    assert!(
        text.contains("nodeSelector keys must be valid qualified names"),
        "{text}"
    );
    let value = json!({ "nodeSelector": { "a": "b c" } });
    let text = stage
        .send(Method::POST, POLICIES, Some(&policy("p", &value)))
        .refused();
    assert!(
        text.contains("nodeSelector values must be valid label values"),
        "{text}"
    );

    limits_are_numbers_or_percentages(stage);

    // Without an observed result, and while the policy is in progress, its spec is immutable.
    let first =
        json!({ "nodeSelector": { "a": "b", "c": "" }, "capture": { "x": "interfaces.type==\"ethernet\"" } });
    stage
        .send(Method::POST, POLICIES, Some(&policy("p", &first)))
        .accepted();
    let path = format!("{POLICIES}/p");
    let edit = json!({ "spec": { "desiredState": { "interfaces": [] } } });
    let progressing = |reason: &str| json!({ "status": { "conditions": [{ "type": "Available", "status": "Unknown", "reason": reason }] } });
    for status in [
        None,
        Some(progressing("")),
        Some(progressing("ConfigurationProgressing")),
    ] {
        if let Some(status) = &status {
            patch(stage, &format!("{path}/status"), status);
        }
        let text = stage.send(Method::PATCH, &path, Some(&edit)).refused();
        assert!(
            text.contains("policy p is still in progress"),
            "{status:?}: {text}"
        );
        // Metadata is no configuration.
        patch(
            stage,
            &path,
            &json!({ "metadata": { "annotations": { "a": "b" } } }),
        );
    }
    edits_in_progress_are_admitted_on_request(stage, &path);
    for reason in [
        "NoMatchingNode",
        "FailedToConfigure",
        "SuccessfullyConfigured",
        "ConfigurationStalled",
    ] {
        patch(stage, &format!("{path}/status"), &progressing(reason));
        patch(
            stage,
            &path,
            &json!({ "spec": { "desiredState": { "description": reason } } }),
        );
    }
    for capture in [
        json!({ "capture": { "x": "interfaces.type==\"bond\"" } }),
        json!({ "capture": { "y": "interfaces.type==\"bond\"" } }),
        json!({ "capture": null }),
    ] {
        let text = stage
            .send(Method::PATCH, &path, Some(&json!({ "spec": capture })))
            .refused();
        assert!(
            text.contains("invalid policy operation: capture field cannot be modified"),
            "{text}"
        );
    }
    // A policy without captures gets none.
    stage
        .send(Method::POST, POLICIES, Some(&policy("q", &json!({}))))
        .accepted();
    let path = format!("{POLICIES}/q");
    patch(
        stage,
        &format!("{path}/status"),
        &progressing("SuccessfullyConfigured"),
    );
    let late = json!({ "spec": { "capture": { "x": "interfaces.type==\"bond\"" } } });
    let text = stage.send(Method::PATCH, &path, Some(&late)).refused();
    assert!(text.contains("capture field cannot be modified"), "{text}");
}

// nmstate#90, the schema
#[test]
fn objects_of_all_designs_and_versions_are_stored_whole() {
    let stage = &Stage::start();
    let state = json!({
        "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkState", "metadata": { "name": "node01" },
        "spec": { "managed": true, "nodeName": "node01", "desiredState": { "interfaces": null, "dns-resolver": {} } },
        "status": { "currentState": { "capabilities": [] }, "whatever": 1 },
    });
    // Created in its version, and read in all.
    let survives = |plural: &str, object: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let group_version = text(&object["apiVersion"]);
        let written = format!("/apis/{group_version}/{plural}?fieldValidation=Strict");
        stage.send(Method::POST, &written, Some(object)).accepted();
        let name = text(&object["metadata"]["name"]);
        ["v1", "v1alpha1", "v1beta1"].map(|version| {
            let path = format!("/apis/nmstate.io/{version}/{plural}/{name}");
            let read = get(stage, &path).expect("the object");
            assert_eq!(read["spec"], object["spec"], "{version}");
            read
        })
    };
    for read in survives("nodenetworkstates", &state) {
        assert_eq!(read.get("status"), None, "what a user says of it does not count");
    }
    let old = json!({
        "apiVersion": "nmstate.io/v1alpha1", "kind": "NodeNetworkConfigurationPolicy", "metadata": { "name": "old" },
        "spec": {
            "priority": 99, "match": { "interfaces": { "name": "eth1", "type": "ethernet" } }, "parallel": true,
            "matchRules": [], "autoConfig": { "autoBonding": true }, "maxUnavailable": 3,
            "desiredState": { "interfaces": [{ "ipv4": { "dhcp": true } }] },
        },
    });
    survives("nodenetworkconfigurationpolicies", &old);
}

// Nmstate §12: the rights of the programs in these tests are those that the operator grants.
#[test]
fn rights_of_these_tests_are_the_deployed_ones() {
    let deployed = Files::embedded().objects("rbac.yaml").expect("roles");
    for (_, right) in fixture::rights() {
        let found = deployed
            .iter()
            .find(|it| it["kind"] == right["kind"] && it["metadata"]["name"] == right["metadata"]["name"]);
        let found = found.unwrap_or_else(|| panic!("no {right:#}"));
        let rules = |role: &Value| -> Vec<String> {
            let mut rules = Vec::new();
            for rule in role["rules"].as_array().into_iter().flatten() {
                let words = |key: &str| -> Vec<String> {
                    let words = rule[key].as_array().into_iter().flatten();
                    words.map(ToString::to_string).collect()
                };
                for resource in words("resources") {
                    let mut verbs = words("verbs");
                    verbs.sort_unstable();
                    rules.push(format!(
                        "{:?} {resource} {:?} {verbs:?}",
                        words("apiGroups"),
                        words("resourceNames")
                    ));
                }
            }
            rules.sort_unstable();
            rules
        };
        assert_eq!(rules(found), rules(&right));
        assert_eq!(found["subjects"], right["subjects"]);
    }
}

/// A foreign kind without a schema.
fn stub(group: &str, version: &str, kind: &str, plural: &str, scope: &str) -> Value {
    let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group, "scope": scope,
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
            "versions": [{ "name": version, "served": true, "storage": true, "schema": { "openAPIV3Schema": any } }],
        },
    })
}

const SERVERS: &str = "/apis/config.openshift.io/v1/apiservers";
const CONSOLES: &str = "/apis/operator.openshift.io/v1/consoles";
const SECRETS: &str = "/api/v1/namespaces/nmstate/secrets";

/// OpenShift's kinds, with the objects of a cluster: a profile with an unknown cipher, a
/// console, a certificate of a former installation.
fn openshift(profile: &Value) -> Stage {
    let stage = installed();
    let kinds = [
        (
            "security.openshift.io",
            "v1",
            "SecurityContextConstraints",
            "securitycontextconstraints",
            "Cluster",
        ),
        ("config.openshift.io", "v1", "APIServer", "apiservers", "Cluster"),
        ("operator.openshift.io", "v1", "Console", "consoles", "Cluster"),
        (
            "console.openshift.io",
            "v1",
            "ConsolePlugin",
            "consoleplugins",
            "Cluster",
        ),
        (
            "monitoring.coreos.com",
            "v1",
            "PrometheusRule",
            "prometheusrules",
            "Namespaced",
        ),
        (
            "monitoring.coreos.com",
            "v1",
            "ServiceMonitor",
            "servicemonitors",
            "Namespaced",
        ),
    ];
    for (group, version, kind, plural, scope) in kinds {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let definition = stub(group, version, kind, plural, scope);
        stage.send(Method::POST, path, Some(&definition)).accepted();
        let served = format!("/apis/{group}/{version}/{plural}");
        wait_for(&stage, &served, &served, |_| Some(()));
    }
    let object = json!({
        "apiVersion": "config.openshift.io/v1", "kind": "APIServer", "metadata": { "name": "cluster" },
        "spec": { "tlsSecurityProfile": profile },
    });
    stage.send(Method::POST, SERVERS, Some(&object)).accepted();
    let object = json!({
        "apiVersion": "operator.openshift.io/v1", "kind": "Console", "metadata": { "name": "cluster" },
        "spec": { "plugins": ["theirs"] },
    });
    stage.send(Method::POST, CONSOLES, Some(&object)).accepted();
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "nmstate-webhook" } });
    stage.send(Method::POST, SECRETS, Some(&secret)).accepted();
    stage
}

// nmstate#84, nmstate §10.2, §10.5, §10.6
#[test]
fn openshift_certificates_and_ciphers_are_those_of_the_cluster() {
    let profile = json!({ "type": "Custom", "custom": {
        "ciphers": ["ECDHE-RSA-AES128-GCM-SHA256", "MADE-UP"], "minTLSVersion": "VersionTLS12",
    } });
    let stage = openshift(&profile);
    let _running = operator(&stage, settings());
    stage
        .send(Method::POST, NMSTATES, Some(&nmstate("nmstate", &json!({}))))
        .accepted();
    wait_for(&stage, "the plugin", &format!("{CONSOLES}/cluster"), |console| {
        (console["spec"]["plugins"] == json!(["theirs", "nmstate-console-plugin"])).then_some(())
    });
    let rules = "/apis/monitoring.coreos.com/v1/namespaces/nmstate/prometheusrules";
    wait_for(
        &stage,
        "the rules",
        &format!("{rules}/kubernetes-nmstate-prometheus-rules"),
        |_| Some(()),
    );
    assert_eq!(get(&stage, CERT_MANAGER), None);
    assert_eq!(get(&stage, &format!("{SECRETS}/nmstate-webhook")), None);
    let config = "/api/v1/namespaces/nmstate/configmaps/nmstate-tls-config";
    let written = wait_for(&stage, "the profile", config, |it| {
        it["data"]["profile.json"].as_str().map(str::to_owned)
    });
    assert_eq!(
        serde_json::from_str::<Value>(&written).expect("JSON"),
        profile["custom"]
    );
    let hash = |it: &Value| {
        let annotations = &it["spec"]["template"]["metadata"]["annotations"];
        annotations["nmstate.io/tls-profile-hash"]
            .as_str()
            .map(str::to_owned)
    };
    let before = wait_for(&stage, "the profile of the webhook", WEBHOOK, hash);
    let plugin = "/apis/apps/v1/namespaces/nmstate/deployments/nmstate-console-plugin";
    roll_out_these(&stage, &[HANDLER, WEBHOOK, METRICS, plugin]);
    let reported = wait_for_conditions(
        &stage,
        [
            "Available True SuccessfullyDeployed",
            "Degraded True TLSProfileNotFullyHonored",
            "Progressing False SuccessfullyDeployed",
        ],
    );
    assert!(message(&reported, "Degraded").contains("MADE-UP"), "{reported:#}");

    // Another profile causes other pods.
    let modern = json!({ "spec": { "tlsSecurityProfile": { "type": "Modern", "custom": null } } });
    patch(&stage, &format!("{SERVERS}/cluster"), &modern);
    wait_for(&stage, "another profile of the webhook", WEBHOOK, |it| {
        hash(it).filter(|now| *now != before)
    });
    let strange = json!({ "spec": { "tlsSecurityProfile": { "type": "Strange" } } });
    patch(&stage, &format!("{SERVERS}/cluster"), &strange);
    let reported = wait_for_conditions(
        &stage,
        [
            "Available False InternalError",
            "Degraded True InternalError",
            "Progressing False InternalError",
        ],
    );
    assert_eq!(
        message(&reported, "Degraded"),
        "unknown TLS profile type \"Strange\""
    );
}

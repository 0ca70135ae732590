//! Admission of policies: written and stored objects (nmstate §7).

#![allow(
    clippy::needless_pass_by_value,
    reason = "objects are made where they are used"
)]

use std::fs;
use std::net::SocketAddr;
use std::sync::mpsc;

use axum::http::{Method, StatusCode};
use cluster::wait;
use k8s_openapi::ByteString;
use kube_kit::tls::Profile;
use rcgen::{CertificateParams, KeyPair};
use rustls::version;
use serde_json::{Value, json};
use tempfile::TempDir;
use tls_client::Peer;
use weft_nmstate::webhook::{self, Settings};

use crate::fixture::{DEADLINE, Kind, Stage, Task, WEBHOOK, status_of};

const STAMP: &str = "nmstate.io/webhook-mutating-timestamp";
/// An object that shows whether the webhooks are called yet.
const PROBE: &str = "probe";

/// Webhooks that the API server calls.
struct Webhooks {
    address: SocketAddr,
    authority: String,
    _certificate: TempDir,
    _task: Task,
}

impl Webhooks {
    /// Webhooks without a registration.
    fn start(stage: &Stage) -> Self {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]);
        let certificate = params.expect("names").self_signed(&key).expect("a certificate");
        let directory = tempfile::tempdir().expect("a directory");
        let authority = certificate.pem();
        fs::write(directory.path().join("tls.crt"), &authority).expect("written");
        fs::write(directory.path().join("tls.key"), key.serialize_pem()).expect("written");
        let settings = Settings {
            bind: SocketAddr::from(([127, 0, 0, 1], 0)).into(),
            certificates: directory.path().to_owned(),
            profile: Profile::read("VersionTLS12", &[""; 0]),
        };
        let (at, address) = mpsc::channel();
        let task = stage.task_as(WEBHOOK, move |_, shutdown| async move {
            let serving = webhook::start(settings).await.expect("it starts");
            at.send(serving.address()).expect("a test");
            shutdown.wait().await;
            serving.stop().await;
        });
        Self {
            address: address.recv().expect("it starts"),
            authority,
            _certificate: directory,
            _task: task,
        }
    }

    /// Webhooks with upstream's configuration (nmstate §7.1), except that failures are not ignored.
    fn called(stage: &Stage) -> Self {
        let webhooks = Self::start(stage);
        let both = json!([
            "nodenetworkconfigurationpolicies",
            "nodenetworkconfigurationpolicies/status"
        ]);
        let hook = |name: &str, resources: Value| webhooks.hook(name, name, &["CREATE", "UPDATE"], resources);
        let mutating = json!([
            hook(
                "nodenetworkconfigurationpolicies-mutate",
                json!(["nodenetworkconfigurationpolicies"])
            ),
            hook(
                "nodenetworkconfigurationpolicies-status-mutate",
                json!(["nodenetworkconfigurationpolicies/status"])
            ),
            hook("nodenetworkconfigurationpolicies-timestamp-mutate", both),
        ]);
        stage.create(
            Kind::MutatingWebhooks,
            &configuration("MutatingWebhookConfiguration", &mutating),
        );
        wait::until("the webhooks to be called", DEADLINE, || {
            let answer = create(stage, "?dryRun=All", &policy(PROBE, json!({})));
            match stamp(&answer) {
                Some(_) => Ok(()),
                None => Err(format!("{answer:#}")),
            }
        })
        .unwrap_or_else(|error| panic!("{error}"));
        webhooks
    }

    /// The same, and the validating ones of clusters that have no validating admission policies.
    fn strict(stage: &Stage) -> Self {
        let webhooks = Self::called(stage);
        let resource = || json!(["nodenetworkconfigurationpolicies"]);
        let (create, update) = ("create-validate", "update-validate");
        let hook = |what: &str, operation: &str| {
            let name = format!("nodenetworkconfigurationpolicies-{what}");
            webhooks.hook(&name, &name, &[operation], resource())
        };
        let validating = json!([hook(create, "CREATE"), hook(update, "UPDATE")]);
        stage.create(
            Kind::ValidatingWebhooks,
            &configuration("ValidatingWebhookConfiguration", &validating),
        );
        wait::until("the webhooks to be called", DEADLINE, || {
            let wrong = policy(PROBE, json!({ "nodeSelector": { "zone": "-" } }));
            let answer = stage.send(
                Method::POST,
                &format!("{}?dryRun=All", Kind::Policy.path()),
                Some(&wrong),
            );
            if answer.status.is_success() {
                Err("not yet")
            } else {
                Ok(())
            }
        })
        .unwrap_or_else(|error| panic!("{error}"));
        webhooks
    }

    fn hook(&self, name: &str, path: &str, operations: &[&str], resources: Value) -> Value {
        json!({
            "name": format!("{name}.nmstate.io"),
            "admissionReviewVersions": ["v1", "v1beta1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "clientConfig": {
                "url": format!("https://{}/{path}", self.address),
                "caBundle": ByteString(self.authority.clone().into_bytes()),
            },
            "rules": [{
                "operations": operations, "apiGroups": ["*"], "apiVersions": ["v1alpha1", "v1beta1", "v1"],
                "resources": resources,
            }],
        })
    }

    /// Posts any body, like an API server.
    fn post(&self, path: &str, body: &[u8]) -> (u16, Value) {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        let (code, body) = peer()
            .ask(self.address, &[head.as_bytes(), body].concat())
            .expect("an answer");
        (
            code,
            serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body}")),
        )
    }
}

fn peer() -> Peer {
    Peer {
        versions: vec![&version::TLS12, &version::TLS13],
        trusted: None,
        timeout: DEADLINE,
    }
}

fn configuration(kind: &str, webhooks: &Value) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
        "metadata": { "name": "nmstate", "labels": { "app": "kubernetes-nmstate" } },
        "webhooks": webhooks,
    })
}

fn policy(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy", "metadata": { "name": name },
        "spec": spec,
    })
}

fn bridge(state: &str) -> Value {
    json!({ "desiredState": { "interfaces": [{ "name": "br1", "type": "linux-bridge", "state": state }] } })
}

fn create(stage: &Stage, query: &str, object: &Value) -> Value {
    let path = format!("{}{query}", Kind::Policy.path());
    stage.send(Method::POST, &path, Some(object)).accepted()
}

fn replace(stage: &Stage, object: &Value) -> crate::fixture::Answer {
    let name = object["metadata"]["name"].as_str().expect("a name");
    stage.send(
        Method::PUT,
        &format!("{}/{name}", Kind::Policy.path()),
        Some(object),
    )
}

fn replace_status(stage: &Stage, object: &Value) -> Value {
    let name = object["metadata"]["name"].as_str().expect("a name");
    let path = format!("{}/{name}/status", Kind::Policy.path());
    stage.send(Method::PUT, &path, Some(object)).accepted()
}

fn stamp(object: &Value) -> Option<i64> {
    object["metadata"]["annotations"][STAMP].as_str()?.parse().ok()
}

fn kinds(object: &Value) -> Vec<&str> {
    let conditions = object["status"]["conditions"].as_array();
    let conditions = conditions.into_iter().flatten();
    conditions
        .filter_map(|condition| condition["type"].as_str())
        .collect()
}

// nmstate#61
#[test]
fn admission_times_increase() {
    let stage = Stage::start();
    let _webhooks = Webhooks::called(&stage);
    let mut policy = create(&stage, "", &policy("p", bridge("up")));
    let mut last = stamp(&policy).expect("a time");
    for state in ["down", "absent", "up"] {
        policy["spec"] = bridge(state);
        // A write of the whole object has an annotation of its own, or none.
        policy["metadata"]["annotations"] = json!({ "mine": "1" });
        policy = replace(&stage, &policy).accepted();
        let now = stamp(&policy).expect("a time");
        assert!(now > last, "{now} is not after {last}");
        assert_eq!(policy["metadata"]["annotations"]["mine"], "1");
        last = now;
    }
    // A wrong clock.
    let future = last + 3_600_000_000_000;
    stage
        .send(
            Method::DELETE,
            &format!("{}/nmstate", Kind::MutatingWebhooks.path()),
            None,
        )
        .accepted();
    wait::until("the webhooks to be forgotten", DEADLINE, || {
        policy["metadata"]["annotations"] = json!({ STAMP: future.to_string() });
        policy = replace(&stage, &policy).accepted();
        if stamp(&policy) == Some(future) {
            Ok(())
        } else {
            Err(format!("{policy:#}"))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let _webhooks = Webhooks::called(&stage);
    policy["metadata"]["annotations"] = Value::Null;
    let policy = replace(&stage, &policy).accepted();
    assert_eq!(stamp(&policy), Some(future + 1));
}

// nmstate#66
#[test]
fn conditions_start_unknown_and_keep_later_writes() {
    let stage = Stage::start();
    let webhooks = Webhooks::called(&stage);
    let available = json!([{ "type": "Available", "status": "True", "reason": "SuccessfullyConfigured" }]);
    let mut made = policy("p", bridge("up"));
    made["status"] = json!({ "conditions": available });
    let mut policy = create(&stage, "", &made);
    assert!(kinds(&policy).is_empty(), "{policy:#}");
    // The API server ignores a status there anyway, so the webhook is called directly too.
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": { "uid": "u", "operation": "CREATE", "object": made },
    });
    let path = "/nodenetworkconfigurationpolicies-mutate";
    let (code, answer) = webhooks.post(path, review.to_string().as_bytes());
    let patch: ByteString = serde_json::from_value(answer["response"]["patch"].clone()).expect("a patch");
    let patch: Value = serde_json::from_slice(&patch.0).expect("JSON");
    assert_eq!(
        (code, patch),
        (
            200,
            json!([{ "op": "replace", "path": "/status/conditions", "value": [] }])
        )
    );

    // Handlers empty the conditions, and read them as Unknown.
    policy["status"] =
        json!({ "conditions": [], "unavailableNodeCountMap": { "1": 2 }, "mine": { "a": [1.5] } });
    let mut policy = replace_status(&stage, &policy);
    assert_eq!(
        kinds(&policy),
        ["Available", "Degraded", "Progressing", "Ignored"]
    );
    for condition in policy["status"]["conditions"].as_array().expect("conditions") {
        assert_eq!(condition["status"], "Unknown");
        assert_eq!(condition["lastHeartbeatTime"], condition["lastTransitionTime"]);
        assert!(condition["lastHeartbeatTime"].is_string(), "{condition:#}");
        assert!(condition["reason"].as_str().unwrap_or_default().is_empty());
    }
    assert_eq!(policy["status"]["unavailableNodeCountMap"], json!({ "1": 2 }));
    assert_eq!(policy["status"]["mine"], json!({ "a": [1.5] }));

    policy["status"]["conditions"] = available.clone();
    let mut policy = replace_status(&stage, &policy);
    assert_eq!(policy["status"]["conditions"], available);
    // A change of the spec leaves them alone: the API server ignores the status in it.
    policy["spec"] = bridge("down");
    let policy = replace(&stage, &policy).accepted();
    assert_eq!(policy["status"]["conditions"], available);

    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": { "uid": "u", "operation": "UPDATE", "object": policy },
    });
    let path = "/nodenetworkconfigurationpolicies-status-mutate";
    let (code, answer) = webhooks.post(path, review.to_string().as_bytes());
    assert_eq!(code, 200);
    assert_eq!(
        answer["response"],
        json!({ "uid": "u", "allowed": true, "status": { "code": 200, "message": "mutation not needed" } })
    );
}

// nmstate#62, nmstate#65
#[test]
fn policy_in_progress_cannot_change() {
    let stage = Stage::start();
    let _webhooks = Webhooks::strict(&stage);
    let mut policy = create(&stage, "", &policy("p", bridge("up")));
    let denied = "admission webhook \"nodenetworkconfigurationpolicies-update-validate.nmstate.io\" denied the request: \
                  policy p is still in progress";
    let refused = |policy: &Value| {
        let mut other = policy.clone();
        other["spec"] = bridge("absent");
        let answer = replace(&stage, &other);
        assert_eq!(answer.status, StatusCode::FORBIDDEN);
        assert_eq!(answer.refused(), denied);
    };
    refused(&policy);
    for reason in ["", "ConfigurationProgressing"] {
        policy["status"] =
            json!({ "conditions": [{ "type": "Available", "status": "Unknown", "reason": reason }] });
        policy = replace_status(&stage, &policy);
        refused(&policy);
        // Fields outside the spec may change at any time.
        policy["metadata"]["labels"] = json!({ "reason": reason });
        policy = replace(&stage, &policy).accepted();
    }
    for reason in ["FailedToConfigure", "SuccessfullyConfigured", "NoMatchingNode"] {
        policy["status"] =
            json!({ "conditions": [{ "type": "Available", "status": "False", "reason": reason }] });
        policy = replace_status(&stage, &policy);
        policy["spec"] = json!({ "desiredState": { "interfaces": [{ "name": reason }] } });
        policy = replace(&stage, &policy).accepted();
    }
    // Other mistakes have the texts of the admission policy.
    policy["spec"]["capture"] = json!({ "gw": "routes.running.destination==\"0.0.0.0/0\"" });
    let text = replace(&stage, &policy).refused();
    assert!(
        text.ends_with("denied the request: invalid policy operation: capture field cannot be modified"),
        "{text}"
    );
    let long = "this-is-longer-than-sixty-three-characters-hostnames-bar-bar.com";
    let answer = stage.send(
        Method::POST,
        Kind::Policy.path(),
        Some(&self::policy(long, bridge("up"))),
    );
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    let text = answer.refused();
    assert!(
        text.ends_with(&format!(
            "denied the request: invalid policy name: \"{long}\": must be no more than 63 characters or match label value format"
        )),
        "{text}"
    );
}

#[test]
fn admission_keeps_unknown_fields() {
    let stage = Stage::start();
    let _webhooks = Webhooks::strict(&stage);
    let interfaces: Vec<_> = (0..4000)
        .map(|n| json!({ "name": format!("eth1.{n}"), "type": "vlan", "vlan": { "id": n, "base-iface": "eth1" }, "description": "d".repeat(200) }))
        .collect();
    let odd = json!({
        "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy",
        "metadata": {
            "name": "odd",
            "labels": { "a": "b" },
            "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "{\"quoted\": \"~1/\\\\\"}", "": "" },
            "finalizers": ["example.com/mine"],
        },
        "spec": {
            "desiredState": {
                "interfaces": interfaces, "1e3": { "~1": [null, 1000, -0.5, 9_007_199_254_740_993_u64, "\u{0}\u{2028}"] },
                "status": { "conditions": [1] }, "metadata": { "annotations": 7 },
            },
            "priority": 7, "match": { "interfaces": [{ "name": "eth1" }] },
        },
    });
    let mut expected = odd.clone();
    // The empty key is none to the API server.
    expected["metadata"]["annotations"]
        .as_object_mut()
        .expect("annotations")
        .shift_remove("");
    let made = create(&stage, "", &expected);
    assert!(stamp(&made).is_some());
    assert!(made["spec"] == expected["spec"], "another document");
    let key = "kubectl.kubernetes.io/last-applied-configuration";
    assert_eq!(
        made["metadata"]["annotations"][key],
        odd["metadata"]["annotations"][key]
    );
    assert_eq!(made["metadata"]["finalizers"], odd["metadata"]["finalizers"]);
    // So that the stage can be emptied.
    stage
        .patch(
            Kind::Policy,
            "odd",
            &json!({ "metadata": { "finalizers": null } }),
        )
        .accepted();
}

#[test]
fn dry_runs_versions_and_generated_names_are_admitted() {
    let stage = Stage::start();
    let _webhooks = Webhooks::strict(&stage);
    let trial = create(&stage, "?dryRun=All", &policy("trial", bridge("up")));
    assert!(stamp(&trial).is_some());
    assert_eq!(stage.get(Kind::Policy, "trial"), None);
    for version in ["v1beta1", "v1alpha1"] {
        let mut old = policy(&format!("of-{version}"), bridge("up"));
        old["apiVersion"] = json!(format!("nmstate.io/{version}"));
        let path = format!("/apis/nmstate.io/{version}/nodenetworkconfigurationpolicies");
        let made = stage.send(Method::POST, &path, Some(&old)).accepted();
        assert!(stamp(&made).is_some(), "{made:#}");
    }
    let mut generated = policy("", bridge("up"));
    generated["metadata"] = json!({ "generateName": "policy-" });
    let made = create(&stage, "", &generated);
    assert!(stamp(&made).is_some(), "{made:#}");
    // Server-side apply, and a patch of the status alone.
    let applied = stage.send(
        Method::PATCH,
        &format!("{}/of-v1beta1", Kind::Policy.path()),
        Some(&json!({ "metadata": { "labels": { "a": "b" } } })),
    );
    assert!(stamp(&applied.accepted()).is_some());
    let status = stage.report(Kind::Policy, "of-v1beta1", &json!({ "conditions": [] }));
    assert_eq!(status_of(&status, "Ignored"), "Unknown");
}

#[test]
fn malformed_review_gets_an_answer() {
    let stage = Stage::start();
    let webhooks = Webhooks::start(&stage);
    let paths = [
        "/nodenetworkconfigurationpolicies-mutate",
        "/nodenetworkconfigurationpolicies-status-mutate",
        "/nodenetworkconfigurationpolicies-timestamp-mutate",
        "/nodenetworkconfigurationpolicies-create-validate",
        "/nodenetworkconfigurationpolicies-update-validate",
    ];
    let review = |object: Value| {
        json!({
            "apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview",
            "request": { "uid": "u", "operation": "UPDATE", "object": object, "oldObject": null },
        })
    };
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let huge = json!({ "spec": { "desiredState": "x".repeat(8 * 1024 * 1024) } });
    for path in paths {
        for (body, code) in [
            (String::new(), 400),
            ("{".to_owned(), 400),
            ("null".to_owned(), 400),
            (deep.clone(), 400),
            (review(huge.clone()).to_string(), 413),
            (review(Value::Null).to_string(), 500),
            (review(json!([[]])).to_string(), 500),
            (review(json!("policy")).to_string(), 500),
        ] {
            let (http, answer) = webhooks.post(path, body.as_bytes());
            let shown: String = body.chars().take(100).collect();
            assert_eq!(http, 200, "{path} {shown}");
            assert_eq!(answer["response"]["allowed"], false, "{path} {shown} {answer}");
            assert_eq!(
                answer["response"]["status"]["code"], code,
                "{path} {shown} {answer}"
            );
        }
    }
    let probe = |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        peer()
            .ask(webhooks.address, request.as_bytes())
            .expect("an answer")
    };
    assert_eq!(probe("/readyz"), (200, "ok".to_owned()));
    assert_eq!(probe("/elsewhere").0, 404);
}

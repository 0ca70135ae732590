//! Drift with a fake engine and API server.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Mutex;

use axum::http::{Method, Request as HttpRequest, Response};
use kube::Client;
use kube::client::Body;
use serde_json::json;

use super::*;
use crate::apply::Settings;
use crate::engine::{Engine, Request};

const NAME: &str = "node01.policy";

fn enactment() -> Value {
    json!({
        "apiVersion": "nmstate.io/v1beta1", "kind": "NodeNetworkConfigurationEnactment",
        "metadata": {"name": NAME, "resourceVersion": "1", "labels": {"nmstate.io/node": "node01"}},
        "status": {
            "policyGeneration": 3,
            "desiredState": {"interfaces": [{"name": "br1"}]},
            "other": "kept",
            "conditions": [{"type": "Available", "status": "True", "reason": "SuccessfullyConfigured"}],
        },
    })
}

/// An API server with one enactment, and a host that answers comparisons from a list.
#[derive(Clone)]
struct World {
    enactment: Arc<Mutex<Value>>,
    writes: Arc<Mutex<u32>>,
    differences: Arc<Mutex<VecDeque<Value>>>,
    applied: Arc<Mutex<u32>>,
    /// Whether changes fail.
    fails: bool,
}

impl World {
    fn new(differences: &[Value], fails: bool) -> Self {
        Self {
            enactment: Arc::new(Mutex::new(enactment())),
            writes: Arc::default(),
            differences: Arc::new(Mutex::new(differences.iter().cloned().collect())),
            applied: Arc::default(),
            fails,
        }
    }

    fn client(&self) -> Client {
        let world = self.clone();
        let service = tower::service_fn(move |request: HttpRequest<Body>| {
            let world = world.clone();
            async move {
                let (head, body) = request.into_parts();
                let mut now = world.enactment.lock().unwrap().clone();
                let answer = if head.method == Method::PUT {
                    assert!(
                        head.uri.path().ends_with(&format!("/{NAME}/status")),
                        "{}",
                        head.uri
                    );
                    now = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
                    *world.enactment.lock().unwrap() = now.clone();
                    *world.writes.lock().unwrap() += 1;
                    now
                } else if head.uri.path().ends_with(NAME) {
                    now
                } else {
                    assert!(
                        head.uri
                            .query()
                            .unwrap_or_default()
                            .contains("nmstate.io%2Fnode%3Dnode01"),
                        "{}",
                        head.uri
                    );
                    json!({"apiVersion": "nmstate.io/v1beta1", "kind": "List", "metadata": {}, "items": [now]})
                };
                let answer = Body::from(serde_json::to_vec(&answer).unwrap());
                Ok::<_, Infallible>(Response::new(answer))
            }
        });
        Client::new(service, "default")
    }

    fn drift(&self) -> Drift {
        let (engine, mut requests) = Engine::channel();
        let world = self.clone();
        tokio::spawn(async move {
            while let Some(request) = requests.recv().await {
                match request {
                    Request::Diff(_, back) => {
                        let difference = world.differences.lock().unwrap().pop_front().unwrap_or(json!({}));
                        drop(back.send(Ok(difference)));
                    }
                    Request::Apply(_, back) => {
                        *world.applied.lock().unwrap() += 1;
                        let error = crate::engine::Error {
                            kind: "Bug".to_owned(),
                            text: "no such device".to_owned(),
                            log: String::new(),
                        };
                        drop(back.send(if world.fails { Err(error) } else { Ok(()) }));
                    }
                    Request::Commit(back) | Request::Rollback(back) | Request::Close(back) => {
                        drop(back.send(Ok(())));
                    }
                    other => panic!("not expected: {other:?}"),
                }
            }
        });
        let settings = Settings {
            probes: false,
            ..Settings::default()
        };
        let pipeline = Pipeline::new(engine, self.client(), "node01".to_owned(), settings);
        Drift {
            enactments: objects::enactments(&self.client()),
            node: "node01".to_owned(),
            pipeline: Arc::new(pipeline),
            repaired: BTreeMap::new(),
        }
    }

    /// Status, reason and message of the aspect.
    fn condition(&self) -> Option<(String, String, String)> {
        let enactment = self.enactment.lock().unwrap();
        let conditions = enactment["status"]["conditions"].as_array().unwrap();
        let drifted = conditions
            .iter()
            .find(|condition| condition["type"] == "Drifted")?;
        let text = |key: &str| drifted[key].as_str().unwrap_or_default().to_owned();
        Some((text("status"), text("reason"), text("message")))
    }

    fn applied(&self) -> u32 {
        *self.applied.lock().unwrap()
    }
}

fn expected(status: &str, reason: &str, message: &str) -> (String, String, String) {
    (status.to_owned(), reason.to_owned(), message.to_owned())
}

fn bridge() -> Value {
    json!({"interfaces": [{"name": "br1", "mtu": 1400}]})
}

#[test]
fn malformed_condition_hides_no_other() {
    let mut enactment = enactment();
    let conditions = enactment["status"]["conditions"].as_array_mut().unwrap();
    conditions.insert(0, json!({"type": 3}));
    let enactment = serde_json::from_value(enactment).unwrap();
    assert_eq!(
        Applied::of(&enactment),
        Some(Applied {
            name: NAME.to_owned(),
            generation: 3,
            desired: json!({"interfaces": [{"name": "br1"}]}),
        })
    );
}

#[tokio::test]
async fn host_without_drift_causes_no_write() {
    let world = World::new(&[], false);
    let mut drift = world.drift();
    for _ in 0..3 {
        drift.check().await.unwrap();
    }
    assert_eq!(
        (world.condition(), *world.writes.lock().unwrap(), world.applied()),
        (None, 0, 0)
    );
}

#[tokio::test]
async fn drift_is_repaired_and_reported() {
    let world = World::new(&[bridge()], false);
    let mut drift = world.drift();
    drift.check().await.unwrap();
    assert_eq!(world.applied(), 1);
    let repaired = expected(
        "False",
        "Repaired",
        "the host differed and was repaired: interfaces br1",
    );
    assert_eq!(world.condition().as_ref(), Some(&repaired));
    assert_eq!(world.enactment.lock().unwrap()["status"]["other"], "kept");
    let writes = *world.writes.lock().unwrap();
    drift.check().await.unwrap();
    assert_eq!(
        (world.condition(), *world.writes.lock().unwrap()),
        (Some(repaired), writes)
    );
}

#[tokio::test]
async fn drift_that_comes_back_is_reported_and_not_repaired() {
    let world = World::new(&[bridge(), bridge(), bridge(), json!({}), bridge()], false);
    let mut drift = world.drift();
    for _ in 0..3 {
        drift.check().await.unwrap();
    }
    assert_eq!(world.applied(), 1);
    let back = "the host differs again after it was repaired: interfaces br1";
    assert_eq!(world.condition(), Some(expected("True", "ComesBack", back)));
    drift.check().await.unwrap();
    assert_eq!(world.condition(), Some(expected("False", "InSync", "")));
    drift.check().await.unwrap();
    assert_eq!(world.applied(), 2);
}

#[tokio::test]
async fn failed_repair_is_reported_and_retried() {
    let world = World::new(&[bridge(), bridge()], true);
    let mut drift = world.drift();
    for times in 1..=2 {
        drift.check().await.unwrap();
        assert_eq!(world.applied(), times);
    }
    let text = "the host differs: interfaces br1; it could not be repaired: no such device";
    assert_eq!(world.condition(), Some(expected("True", "RepairFailed", text)));
}

#[tokio::test]
async fn enactment_with_hidden_secrets_is_not_compared() {
    let world = World::new(&[bridge()], false);
    let macsec = json!({"interfaces": [{"name": "macsec0", "macsec": {"mka-cak": crate::secrets::HIDDEN}}]});
    world.enactment.lock().unwrap()["status"]["desiredState"] = macsec;
    let mut drift = world.drift();
    for _ in 0..2 {
        drift.check().await.unwrap();
    }
    let text = "not compared: the desired state has secrets, which the enactment does not hold";
    assert_eq!(world.condition(), Some(expected("Unknown", "HasSecrets", text)));
    assert_eq!((world.applied(), *world.writes.lock().unwrap()), (0, 1));
    assert_eq!(world.differences.lock().unwrap().len(), 1, "it was compared");
}

#[tokio::test]
async fn drift_never_applies_an_old_state_over_a_new_one() {
    let world = World::new(&[bridge()], false);
    let drift = world.drift();
    let object: DynamicObject = serde_json::from_value(enactment()).unwrap();
    let one = Applied::of(&object).unwrap();
    // Meanwhile its policy is being applied.
    world.enactment.lock().unwrap()["status"]["conditions"][0]["status"] = json!("Unknown");
    assert_eq!(
        drift
            .pipeline
            .apply_if(&one.desired, drift.is_current(&one))
            .await,
        None
    );
    drift
        .report(&one, Status::True, reason::DIFFERS, "x")
        .await
        .unwrap();
    assert_eq!((world.applied(), world.condition()), (0, None));
}

#[tokio::test(start_paused = true)]
async fn silent_api_server_does_not_block_other_changes() {
    let world = World::new(&[], false);
    let silent = tower::service_fn(|_: HttpRequest<Body>| {
        std::future::pending::<Result<Response<Body>, Infallible>>()
    });
    let mut drift = Drift {
        enactments: objects::enactments(&Client::new(silent, "default")),
        ..world.drift()
    };
    let one = Applied::of(&serde_json::from_value(enactment()).unwrap()).unwrap();
    let began = tokio::time::Instant::now();
    let applied = drift
        .pipeline
        .apply_if(&one.desired, drift.is_current(&one))
        .await;
    assert_eq!(applied, None);
    assert_eq!(began.elapsed().as_secs(), requests::TIMEOUT.as_secs());
    let text = drift.check().await.unwrap_err().to_string();
    assert_eq!(text, "no answer from the API server within 15 s");
}

#[test]
fn only_applied_enactments_are_compared() {
    let applied = |change: &dyn Fn(&mut Value)| {
        let mut object = enactment();
        change(&mut object["status"]);
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        Applied::of(&object).is_some()
    };
    assert!(applied(&|_| {}));
    assert!(!applied(
        &|status| status["conditions"][0]["status"] = json!("False")
    ));
    assert!(!applied(
        &|status| status["conditions"][0]["reason"] = json!("DryRun")
    ));
    assert!(!applied(&|status| status["desiredState"] = Value::Null));
    assert!(!applied(&|status| status["conditions"] = json!([])));
}

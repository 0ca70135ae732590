use kube::client::Body;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::apply;
use crate::engine::{self, Engine, Request};
use crate::settings::Settings;

fn desired() -> Value {
    json!({"interfaces": [{"name": "eth1", "type": "ethernet", "state": "up"}]})
}

fn asked(generation: i64) -> Asked {
    let object = json!({
        "metadata": {"name": "node01", "uid": "u", "generation": generation}, "spec": {"desiredState": desired()},
    });
    Asked::of(serde_json::from_value(object).expect("an object"))
}

/// An enforcer on a host that fails every change in this way, without an object to tell it in.
fn enforcer(kind: &'static str) -> Enforcer {
    let (engine, mut requests) = Engine::asked();
    tokio::spawn(async move {
        while let Some(request) = requests.recv().await {
            let error = engine::Error {
                kind: kind.to_owned(),
                text: "no".to_owned(),
                log: String::new(),
            };
            match request {
                Request::Apply(_, back) | Request::Rollback(back) => drop(back.send(Err(error))),
                other => panic!("not expected: {other:?}"),
            }
        }
    });
    let nothing = tower::service_fn(|_: axum::http::Request<Body>| async {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
            "message": "none",
        });
        let body = Body::from(status.to_string().into_bytes());
        let response = axum::http::Response::builder().status(404).body(body);
        Ok::<_, std::convert::Infallible>(response.expect("an answer"))
    });
    let client = kube::Client::new(nothing, "default");
    let settings = apply::Settings {
        probes: false,
        ..apply::Settings::default()
    };
    let pipeline = Pipeline::new(engine.clone(), client.clone(), "node01".to_owned(), settings);
    let shared = Shared::new("node01", client, engine, Settings::default());
    Enforcer::new(shared, Arc::new(pipeline))
}

// nmstate#89
#[tokio::test(start_paused = true)]
async fn attempts_are_further_and_further_apart_until_something_else_is_asked_for() {
    let mut enforcer = enforcer("VerificationError");
    let mut pauses = Vec::new();
    for attempts in 1..=7 {
        enforcer.look(Some(&asked(1))).await.expect("nobody to tell");
        assert_eq!(enforcer.failures, attempts);
        // Whoever looks earlier does nothing.
        enforcer.look(Some(&asked(1))).await.expect("nobody to tell");
        assert_eq!(enforcer.failures, attempts);
        let next = enforcer.retry_at().expect("another attempt");
        pauses.push((next - Instant::now()).as_secs());
        tokio::time::sleep_until(next).await;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    enforcer.look(Some(&asked(2))).await.expect("nobody to tell");
    let next = enforcer.retry_at().expect("another attempt");
    assert_eq!(next - Instant::now(), Duration::from_secs(1));
}

// nmstate#89
#[tokio::test(start_paused = true)]
async fn what_is_refused_for_good_waits_for_another_version() {
    let mut enforcer = enforcer("NotSupportedError");
    for _ in 0..3 {
        enforcer.look(Some(&asked(1))).await.expect("nobody to tell");
        assert_eq!((enforcer.failures, enforcer.retry_at()), (1, None));
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    enforcer.version = Some(("u".to_owned(), 0));
    enforcer.failures = 0;
    enforcer.look(Some(&asked(2))).await.expect("nobody to tell");
    assert_eq!(enforcer.failures, 1);
}

#[rstest]
#[case(json!(null), false)]
#[case(json!({"conditions": null}), false)]
#[case(json!({"conditions": [{"type": "Complete", "status": "False"}, "none"]}), false)]
#[case(json!({"conditions": [{"type": "Complete"}, {"type": "Failing"}]}), true)]
#[case(json!({"conditions": [{"type": "Available"}]}), true)]
fn conditions_of_others_are_no_outcome(#[case] status: Value, #[case] told: bool) {
    let object = json!({"metadata": {"name": "node01"}, "status": status});
    let asked = Asked::of(serde_json::from_value(object).expect("an object"));
    assert_eq!(asked.told, told);
}

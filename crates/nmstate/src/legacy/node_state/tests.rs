use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kube::client::Body;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::apply;
use crate::engine::{self, Backend, Engine, Request};
use crate::settings::Settings;

fn desired() -> Value {
    json!({"interfaces": [{"name": "eth1", "type": "ethernet", "state": "up"}]})
}

fn observed(generation: i64) -> ObservedState {
    let object = json!({
        "metadata": {"name": "node01", "uid": "u", "generation": generation}, "spec": {"desiredState": desired()},
    });
    ObservedState::of(serde_json::from_value(object).expect("an object"))
}

/// An enforcer on a host that fails every change with this error, without an object for the outcome.
fn enforcer(kind: &'static str) -> Enforcer {
    enforcer_on(Backend::NetworkManager, move |request| {
        let error = engine::Error {
            kind: kind.to_owned(),
            text: "no".to_owned(),
            log: String::new(),
        };
        match request {
            Request::Apply(_, back) | Request::Rollback(back) => drop(back.send(Err(error))),
            other => panic!("not expected: {other:?}"),
        }
    })
}

/// An enforcer on a host that accepts every change and then reports these differences, one after the other, and the
/// count of changes.
fn enforcer_of_what_lacks(backend: Backend, lacks: &[Value]) -> (Enforcer, Arc<AtomicU32>) {
    let changes = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&changes);
    let mut lacks: VecDeque<Value> = lacks.iter().cloned().collect();
    let enforcer = enforcer_on(backend, move |request| match request {
        Request::Apply(_, back) => {
            count.fetch_add(1, Ordering::Relaxed);
            drop(back.send(Ok(())));
        }
        Request::Commit(back) | Request::Rollback(back) => drop(back.send(Ok(()))),
        Request::Diff(_, back) => drop(back.send(Ok(lacks.pop_front().expect("another difference")))),
        other => panic!("not expected: {other:?}"),
    });
    (enforcer, changes)
}

/// An enforcer on a host with this answer.
fn enforcer_on(backend: Backend, mut answer: impl FnMut(Request) + Send + 'static) -> Enforcer {
    let (engine, mut requests) = Engine::channel();
    tokio::spawn(async move {
        while let Some(request) = requests.recv().await {
            answer(request);
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
        backend,
        ..apply::Settings::default()
    };
    let pipeline = Pipeline::new(engine.clone(), client.clone(), "node01".to_owned(), settings);
    let shared = Shared::new("node01", client, engine, Settings::default());
    Enforcer::new(shared, Arc::new(pipeline))
}

// nmstate#89
#[tokio::test(start_paused = true)]
async fn attempts_back_off_until_the_spec_changes() {
    let mut enforcer = enforcer("VerificationError");
    let mut pauses = Vec::new();
    for attempts in 1..=7 {
        enforcer
            .reconcile(Some(&observed(1)))
            .await
            .expect("no object to write");
        assert_eq!(enforcer.failures, attempts);
        // An earlier reconcile does nothing.
        enforcer
            .reconcile(Some(&observed(1)))
            .await
            .expect("no object to write");
        assert_eq!(enforcer.failures, attempts);
        let next = enforcer.next.expect("another attempt");
        pauses.push((next - Instant::now()).as_secs());
        tokio::time::sleep_until(next).await;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    enforcer
        .reconcile(Some(&observed(2)))
        .await
        .expect("no object to write");
    let next = enforcer.next.expect("another attempt");
    assert_eq!(next - Instant::now(), Duration::from_secs(1));
}

// nmstate#89
#[tokio::test(start_paused = true)]
async fn final_failure_waits_for_another_version() {
    let mut enforcer = enforcer("NotSupportedError");
    for _ in 0..3 {
        enforcer
            .reconcile(Some(&observed(1)))
            .await
            .expect("no object to write");
        assert_eq!((enforcer.failures, enforcer.next), (1, None));
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    enforcer.version = Some(("u".to_owned(), 0));
    enforcer.failures = 0;
    enforcer
        .reconcile(Some(&observed(2)))
        .await
        .expect("no object to write");
    assert_eq!(enforcer.failures, 1);
}

// nmstate#114
#[tokio::test]
async fn state_that_changed_while_the_pipeline_was_busy_is_not_applied() {
    let (mut enforcer, changed) = enforcer_of_what_lacks(Backend::NetworkManager, &[json!({})]);
    for newest in [Some(("u".to_owned(), 2)), None] {
        enforcer.newest = Some(Box::new(move || newest.clone()));
        enforcer
            .reconcile(Some(&observed(1)))
            .await
            .expect("no object to write");
        assert_eq!(changed.load(Ordering::Relaxed), 0);
        assert_eq!(
            (enforcer.failures, &enforcer.unwritten),
            (0, &None),
            "nothing is reported"
        );
    }
    enforcer.newest = Some(Box::new(|| Some(("u".to_owned(), 2))));
    enforcer
        .reconcile(Some(&observed(2)))
        .await
        .expect("no object to write");
    assert_eq!(changed.load(Ordering::Relaxed), 1);
}

// nmstate#113
#[tokio::test(start_paused = true)]
async fn start_of_network_manager_ends_the_back_off() {
    let mut enforcer = enforcer("PluginFailure");
    enforcer.retry_now();
    assert_eq!(enforcer.next, None, "nothing failed yet");
    enforcer
        .reconcile(Some(&observed(1)))
        .await
        .expect("no object to write");
    assert!(enforcer.next.is_some_and(|next| next > Instant::now()));
    enforcer.retry_now();
    assert_eq!(enforcer.next, Some(Instant::now()));
    enforcer
        .reconcile(Some(&observed(1)))
        .await
        .expect("no object to write");
    assert_eq!(enforcer.failures, 2);
}

// nmstate#88
#[rstest]
#[case::nothing_is_missing(&[json!({}), json!({})], 1)]
#[case::drift(&[json!({}), desired(), json!({})], 2)]
#[case::name_servers_that_are_to_be_gone(&[json!({}), json!({"dns-resolver": {"config": {}}}), json!({})], 2)]
#[case::what_applying_does_not_help(&[desired(), desired()], 1)]
#[tokio::test]
async fn drift_is_applied_again(#[case] lacks: &[Value], #[case] changes: u32) {
    let (mut enforcer, changed) = enforcer_of_what_lacks(Backend::NetworkManager, lacks);
    for _ in 0..2 {
        enforcer
            .reconcile(Some(&observed(1)))
            .await
            .expect("no object to write");
    }
    assert_eq!(changed.load(Ordering::Relaxed), changes);
}

#[rstest]
#[case(Backend::NetworkManager, "successfully reconciled")]
#[case(
    Backend::Kernel,
    "successfully reconciled, until the host restarts: without NetworkManager nothing is persistent"
)]
#[tokio::test]
async fn success_message_reports_persistence(#[case] backend: Backend, #[case] text: &str) {
    let (mut enforcer, _) = enforcer_of_what_lacks(backend, &[json!({})]);
    let outcome = enforcer.enforce(&desired()).await;
    assert_eq!(outcome, Some(Outcome::Done(text.to_owned())));
}

#[rstest]
#[case(json!(null), false)]
#[case(json!({"conditions": null}), false)]
#[case(json!({"conditions": [{"type": "Complete", "status": "False"}, "none"]}), false)]
#[case(json!({"conditions": [{"type": "Complete"}, {"type": "Failing"}]}), true)]
#[case(json!({"conditions": [{"type": "Available"}]}), true)]
fn conditions_of_others_are_ignored(#[case] status: Value, #[case] has_conditions: bool) {
    let object = json!({"metadata": {"name": "node01"}, "status": status});
    let observed = ObservedState::of(serde_json::from_value(object).expect("an object"));
    assert_eq!(observed.has_conditions, has_conditions);
}

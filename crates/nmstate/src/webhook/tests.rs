//! Random reviews: every patch is correct, and changes nothing else.

use ::webhook::admission::{Change, Operation, Request, Verdict};
use axum::body::{Body, to_bytes};
use axum::http::Request as HttpRequest;
use proptest::prelude::*;
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};
use tower::ServiceExt as _;

use super::*;

/// Keys with a meaning, and others.
fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "metadata",
            "annotations",
            "status",
            "conditions",
            "spec",
            "capture",
            "nodeSelector",
            "name",
            "type",
            "reason",
            "nmstate.io/webhook-mutating-timestamp",
            "a/b",
            "~",
            "~1",
            "",
        ])
        .prop_map(str::to_owned),
        ".{0,5}",
    ]
}

/// Any JSON.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(|number| json!(number)),
        any::<u64>().prop_map(|number| json!(number)),
        ".{0,8}".prop_map(Value::String),
        any::<u64>().prop_map(|number| json!(number.to_string())),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::vec((key(), inner), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Any policy, most of them such as an API server would send.
fn policy() -> impl Strategy<Value = Value> {
    let annotations = prop_oneof![
        Just(None),
        Just(Some(Value::Null)),
        prop::collection::vec((key(), ".{0,8}"), 0..4).prop_map(|members| Some(
            members
                .into_iter()
                .map(|(key, value)| (key, json!(value)))
                .collect()
        )),
        anything().prop_map(Some),
    ];
    let conditions = prop_oneof![
        Just(None),
        Just(Some(json!([]))),
        Just(Some(
            json!([{ "type": "Available", "status": "True", "reason": "SuccessfullyConfigured" }])
        )),
        anything().prop_map(Some),
    ];
    let usual = (
        annotations,
        conditions,
        prop::option::of(anything()),
        any::<[bool; 2]>(),
    );
    let usual = usual.prop_map(|(annotations, conditions, spec, [with_metadata, with_status])| {
        let mut policy = Map::new();
        let of = |key: &str, value: Option<Value>| {
            let mut members = Map::from_iter([("mine".to_owned(), json!([1]))]);
            members.extend(value.map(|value| (key.to_owned(), value)));
            Value::Object(members)
        };
        if with_metadata {
            policy.insert("metadata".to_owned(), of("annotations", annotations));
        }
        if with_status {
            policy.insert("status".to_owned(), of("conditions", conditions));
        }
        policy.extend(spec.map(|spec| ("spec".to_owned(), spec)));
        Value::Object(policy)
    });
    prop_oneof![4 => usual, 1 => anything()]
}

/// The request about an object: an update, if there was an old one.
pub(super) fn request(object: &Value, old: Option<&Value>) -> Request {
    let raw = |value: &Value| to_raw_value(value).expect("JSON");
    Request {
        client: std::net::Ipv4Addr::LOCALHOST.into(),
        uid: "1".to_owned(),
        operation: if old.is_some() {
            Operation::Update
        } else {
            Operation::Create
        },
        namespace: String::new(),
        name: "p".to_owned(),
        dry_run: false,
        object: Some(raw(object)),
        old_object: old.map(raw),
    }
}

/// Applies a patch as in RFC 6902; `None` when it can't be applied.
fn patched(object: &Value, patch: &[Change]) -> Option<Value> {
    let mut object = object.clone();
    for change in patch {
        let (path, value, must_exist) = match change {
            Change::Add { path, value } => (path, value, false),
            Change::Replace { path, value } => (path, value, true),
        };
        let (parent, key) = path.rsplit_once('/')?;
        let key = key.replace("~1", "/").replace("~0", "~");
        let parent = object.pointer_mut(parent)?.as_object_mut()?;
        if must_exist && !parent.contains_key(&key) {
            return None;
        }
        parent.insert(key, value.clone());
    }
    Some(object)
}

/// The differences between two documents, as JSON pointers.
fn changes(before: &Value, after: &Value, at: &str, found: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for key in before
                .keys()
                .chain(after.keys().filter(|key| !before.contains_key(*key)))
            {
                let at = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
                match (before.get(key), after.get(key)) {
                    (Some(before), Some(after)) => changes(before, after, &at, found),
                    _ => found.push(at),
                }
            }
        }
        _ if before == after => {}
        _ => found.push(at.to_owned()),
    }
}

/// Applies a verdict to a policy: the policy and the changed pointers, or `None` for a refusal.
fn applied(policy: &Value, verdict: &Verdict) -> Option<(Value, Vec<String>)> {
    if let Some(denial) = &verdict.denied {
        assert!((400..600).contains(&denial.code), "{denial:?}");
        assert!(verdict.patch.is_empty());
        return None;
    }
    let after = patched(policy, &verdict.patch).unwrap_or_else(|| panic!("{policy} {verdict:?}"));
    let mut found = Vec::new();
    changes(policy, &after, "", &mut found);
    Some((after, found))
}

proptest! {
    #[test]
    fn conditions_webhook_changes_only_conditions(policy in policy()) {
        // An object that is no policy is refused.
        if let Some((after, changed)) = applied(&policy, &mutate::conditions(&request(&policy, None))) {
            prop_assert!(changed.iter().all(|path| path == "/status/conditions"), "{changed:?}");
            let left = after.pointer("/status/conditions");
            prop_assert!(left.is_none_or(|left| left.is_null() || *left == json!([])), "{after}");
        }
    }

    #[test]
    fn status_webhook_changes_only_conditions(policy in policy()) {
        let verdict = mutate::status(&request(&policy, None), Timestamp::UNIX_EPOCH);
        if let Some((after, changed)) = applied(&policy, &verdict) {
            prop_assert!(changed.iter().all(|path| path == "/status" || path == "/status/conditions"), "{changed:?}");
            let conditions = after.pointer("/status/conditions").and_then(Value::as_array);
            prop_assert!(conditions.is_some_and(|conditions| !conditions.is_empty()), "{after}");
            prop_assert_eq!(verdict.message.is_some(), verdict.patch.is_empty());
        }
    }

    #[test]
    fn timestamp_webhook_changes_only_the_growing_time(policy in policy(), old in prop::option::of(policy()), second in 0..4_000_000_000_i64) {
        let now = Timestamp::from_second(second).expect("a time");
        let verdict = mutate::timestamp(&request(&policy, old.as_ref()), now);
        if let Some((after, changed)) = applied(&policy, &verdict) {
            let pointer = "/metadata/annotations/nmstate.io~1webhook-mutating-timestamp";
            let fits = |path: &String| pointer.starts_with(path.as_str());
            prop_assert!(changed.iter().all(fits), "{changed:?}");
            let time = |policy: &Value| policy.pointer(pointer)?.as_str()?.parse::<i64>().ok();
            let written = time(&after).expect("a time");
            prop_assert!(written >= second * 1_000_000_000);
            let stored = old.as_ref().and_then(time).filter(|last| *last < i64::MAX);
            prop_assert!(stored.is_none_or(|last| written > last), "{written} {stored:?}");
        }
    }

    #[test]
    fn validation_is_repeatable_and_changes_nothing(policy in policy(), old in prop::option::of(policy())) {
        for decide in [validate::create, validate::update] {
            let asked = request(&policy, old.as_ref());
            let verdict = decide(&asked);
            prop_assert_eq!(applied(&policy, &verdict).map_or(vec![], |(_, changed)| changed), Vec::<String>::new());
            prop_assert_eq!(decide(&asked), verdict);
        }
    }

    #[test]
    fn router_answers_any_body(body in prop::collection::vec(any::<u8>(), 0..300), review in anything(), object in policy(), which in 0..3) {
        let body = match which {
            0 => body,
            1 => review.to_string().into_bytes(),
            _ => json!({
                "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
                "request": { "uid": "u", "operation": "UPDATE", "object": object, "oldObject": review },
            })
            .to_string()
            .into_bytes(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            for path in [path::CONDITIONS, path::STATUS, path::TIMESTAMP, path::VALIDATE_CREATE, path::VALIDATE_UPDATE] {
                let request = HttpRequest::post(path).header("content-type", "application/json");
                let request = request.body(Body::from(body.clone())).expect("a request");
                let response = router(Timestamp::now).oneshot(request).await.expect("an answer");
                assert_eq!(response.status(), 200);
                let answer = to_bytes(response.into_body(), usize::MAX).await.expect("an answer");
                let answer: Value = serde_json::from_slice(&answer).expect("JSON");
                assert!(answer["response"]["allowed"].is_boolean(), "{answer}");
            }
        });
    }
}

use ::webhook::admission::Denial;

use super::*;
use crate::webhook::tests::request;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

fn add(path: &str, value: Value) -> Verdict {
    Verdict::patched(vec![Change::Add {
        path: path.to_owned(),
        value,
    }])
}

// nmstate#66
#[test]
fn mutation_empties_conditions() {
    for (policy, expected) in [
        (json!({ "metadata": {} }), Verdict::allowed()),
        (json!({ "status": null }), Verdict::allowed()),
        (json!({ "status": { "conditions": null } }), Verdict::allowed()),
        (json!({ "status": { "conditions": [] } }), Verdict::allowed()),
        (
            json!({ "status": { "conditions": [{ "type": "Available", "status": "True", "mine": 1 }] } }),
            Verdict::patched(vec![Change::Replace {
                path: "/status/conditions".to_owned(),
                value: json!([]),
            }]),
        ),
    ] {
        assert_eq!(conditions(&request(&policy, None)), expected, "{policy}");
    }
}

// nmstate#66
#[test]
fn empty_status_gets_unknown_conditions() {
    let unknown = |kind: &str| {
        json!({
            "type": kind, "status": "Unknown",
            "lastHeartbeatTime": "1970-01-01T00:16:40Z", "lastTransitionTime": "1970-01-01T00:16:40Z",
        })
    };
    let four = json!([
        unknown("Available"),
        unknown("Degraded"),
        unknown("Progressing"),
        unknown("Ignored")
    ]);
    for (policy, path, value) in [
        (json!({}), "/status", json!({ "conditions": four })),
        (
            json!({ "status": null }),
            "/status",
            json!({ "conditions": four }),
        ),
        (
            json!({ "status": { "mine": 1 } }),
            "/status/conditions",
            four.clone(),
        ),
        (
            json!({ "status": { "conditions": null } }),
            "/status/conditions",
            four.clone(),
        ),
        (
            json!({ "status": { "conditions": [] } }),
            "/status/conditions",
            four.clone(),
        ),
    ] {
        assert_eq!(
            status(&request(&policy, None), at(1000)),
            add(path, value),
            "{policy}"
        );
    }
    let policy = json!({ "status": { "conditions": [{ "type": "Available", "status": "False" }] } });
    let verdict = status(&request(&policy, None), at(1000));
    assert_eq!((verdict.denied, verdict.patch), (None, vec![]));
    assert_eq!(verdict.message.as_deref(), Some("mutation not needed"));
}

// nmstate#61
#[test]
fn admission_time_only_grows() {
    let key = "nmstate.io/webhook-mutating-timestamp";
    let pointer = "/metadata/annotations/nmstate.io~1webhook-mutating-timestamp";
    for (policy, path, value) in [
        (
            json!({}),
            "/metadata",
            json!({ "annotations": { key: "1000000000000" } }),
        ),
        (
            json!({ "metadata": {} }),
            "/metadata/annotations",
            json!({ key: "1000000000000" }),
        ),
        (
            json!({ "metadata": { "annotations": null } }),
            "/metadata/annotations",
            json!({ key: "1000000000000" }),
        ),
        (
            json!({ "metadata": { "annotations": { "mine": "1" } } }),
            pointer,
            json!("1000000000000"),
        ),
        (
            json!({ "metadata": { "annotations": { key: "9" } } }),
            pointer,
            json!("1000000000000"),
        ),
    ] {
        assert_eq!(
            timestamp(&request(&policy, None), at(1000)),
            add(path, value),
            "{policy}"
        );
    }
    let policy = json!({ "metadata": { "annotations": {} } });
    for (old, expected) in [
        ("999", "1000000000000"),
        ("1000000000000", "1000000000001"),
        ("2000000000000", "2000000000001"),
        // A value that is invalid, or leaves no room, is dropped.
        ("", "1000000000000"),
        ("yesterday", "1000000000000"),
        ("-7", "1000000000000"),
        ("9223372036854775807", "1000000000000"),
        ("99999999999999999999", "1000000000000"),
    ] {
        let stored = json!({ "metadata": { "annotations": { key: old } } });
        let verdict = timestamp(&request(&policy, Some(&stored)), at(1000));
        assert_eq!(verdict, add(pointer, json!(expected)), "{old}");
    }
    for stored in [json!({}), json!(null), json!({ "metadata": 7 })] {
        let verdict = timestamp(&request(&policy, Some(&stored)), at(1000));
        assert_eq!(verdict, add(pointer, json!("1000000000000")), "{stored}");
    }
}

#[test]
fn malformed_policy_is_refused_without_its_secrets() {
    let hooks: [fn(&Request) -> Verdict; 3] = [conditions, |it| status(it, at(0)), |it| timestamp(it, at(0))];
    for hook in hooks {
        let mut nothing = request(&json!({}), None);
        nothing.object = None;
        let denied = hook(&nothing).denied;
        let text = "the review holds no policy".to_owned();
        assert_eq!(
            denied,
            Some(Denial {
                code: 500,
                message: text
            })
        );
        for odd in [json!("a text with a secret"), json!(7)] {
            let Denial { code, message } = hook(&request(&odd, None)).denied.expect("a refusal");
            assert_eq!(code, 500);
            assert!(
                message.starts_with("failed decoding policy: invalid type: "),
                "{message}"
            );
        }
    }
    let odd = json!({ "status": { "conditions": "all fine" }, "metadata": { "annotations": [] }, "spec": "secret" });
    for hook in &hooks[..2] {
        let Denial { code, message } = hook(&request(&odd, None)).denied.expect("a refusal");
        assert_eq!(code, 500);
        assert!(!message.contains("secret"), "{message}");
    }
}

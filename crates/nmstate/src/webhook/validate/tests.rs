use ::webhook::admission::Denial;
use serde_json::json;

use super::*;
use crate::webhook::tests::request;

fn denied(code: u16, message: &str) -> Verdict {
    Verdict {
        denied: Some(Denial {
            code,
            message: message.to_owned(),
        }),
        ..Verdict::default()
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it is made for this")]
fn policy(spec: Value, reason: Option<&str>) -> Value {
    let conditions = reason.map(|reason| {
        json!([
            { "type": "Degraded", "status": "False", "reason": "SuccessfullyConfigured" },
            { "type": "Available", "status": "Unknown", "reason": reason },
        ])
    });
    json!({ "metadata": { "name": "p" }, "spec": spec, "status": { "conditions": conditions } })
}

// nmstate#63
#[test]
fn policy_name_must_be_a_label_value() {
    let named = |name: &str| {
        create(&request(
            &json!({ "metadata": { "name": name }, "spec": {} }),
            None,
        ))
    };
    for good in ["a", "br1-eth1", "x.y_z", &"n".repeat(63), ""] {
        assert_eq!(named(good), Verdict::allowed(), "{good}");
    }
    let long = "this-is-longer-than-sixty-three-characters-hostnames-bar-bar.com";
    for bad in [long, "-a", "a-", "ä", "a b", "a\n"] {
        let text = format!(
            "invalid policy name: \"{bad}\": must be no more than 63 characters or match label value format"
        );
        assert_eq!(named(bad), denied(422, &text));
    }
    // A policy whose name is yet to be generated.
    assert_eq!(
        create(&request(&json!({ "metadata": { "generateName": "p-" } }), None)),
        Verdict::allowed()
    );
}

// nmstate#62
#[test]
fn spec_cannot_change_while_in_progress() {
    let new = policy(json!({ "desiredState": { "a": 1 } }), None);
    for busy in [None, Some(""), Some("ConfigurationProgressing")] {
        let old = policy(json!({ "desiredState": { "a": 2 } }), busy);
        let verdict = update(&request(&new, Some(&old)));
        assert_eq!(verdict, denied(403, "policy p is still in progress"), "{busy:?}");
    }
    for through in ["SuccessfullyConfigured", "FailedToConfigure", "NoMatchingNode"] {
        let old = policy(json!({ "desiredState": { "a": 2 } }), Some(through));
        assert_eq!(
            update(&request(&new, Some(&old))),
            Verdict::allowed(),
            "{through}"
        );
    }
}

// nmstate#102
#[test]
fn update_in_progress_is_allowed_if_stalled_or_annotated() {
    let mut new = policy(json!({ "desiredState": { "a": 1 } }), None);
    let old = |reason: Option<&str>| policy(json!({ "desiredState": { "a": 2 } }), reason);
    let stuck = old(Some("ConfigurationStalled"));
    assert_eq!(update(&request(&new, Some(&stuck))), Verdict::allowed());
    for (said, allowed) in [("true", true), ("false", false)] {
        new["metadata"]["annotations"] = json!({ "nmstate.io/edit-in-progress": said });
        for busy in [None, Some(""), Some("ConfigurationProgressing")] {
            let expected = if allowed {
                Verdict::allowed()
            } else {
                denied(403, "policy p is still in progress")
            };
            assert_eq!(
                update(&request(&new, Some(&old(busy)))),
                expected,
                "{said} {busy:?}"
            );
        }
    }
    // The annotation of the stored policy does not count, only that of the edit.
    let silent = policy(json!({ "desiredState": { "a": 1 } }), None);
    let mut busy = old(Some("ConfigurationProgressing"));
    busy["metadata"]["annotations"] = json!({ "nmstate.io/edit-in-progress": "true" });
    assert_eq!(
        update(&request(&silent, Some(&busy))),
        denied(403, "policy p is still in progress")
    );
}

// nmstate#65
#[test]
fn metadata_can_change_at_any_time() {
    let mut new = policy(
        json!({ "desiredState": { "a": 1, "b": [1] }, "capture": { "x": "y" } }),
        None,
    );
    let old = policy(
        json!({ "capture": { "x": "y" }, "desiredState": { "b": [1], "a": 1 } }),
        Some("ConfigurationProgressing"),
    );
    new["metadata"]["labels"] = json!({ "mine": "1" });
    assert_eq!(update(&request(&new, Some(&old))), Verdict::allowed());
}

// nmstate#64
#[test]
fn capture_cannot_be_modified() {
    let spec = |capture: Value, state: u8| {
        policy(
            json!({ "capture": capture, "desiredState": state }),
            Some("SuccessfullyConfigured"),
        )
    };
    let (none, one, other) = (json!(null), json!({ "a": "x" }), json!({ "a": "y" }));
    for (old, new) in [(&none, &one), (&one, &other), (&one, &none)] {
        let verdict = update(&request(&spec(new.clone(), 1), Some(&spec(old.clone(), 2))));
        assert_eq!(
            verdict,
            denied(422, "invalid policy operation: capture field cannot be modified")
        );
    }
    for same in [none, one] {
        let verdict = update(&request(&spec(same.clone(), 1), Some(&spec(same, 2))));
        assert_eq!(verdict, Verdict::allowed());
    }
}

// nmstate#19
#[test]
fn node_selector_values_must_be_label_values() {
    for (selector, good) in [
        (json!({ "zone": "a", "role": "" }), true),
        (json!(null), true),
        (json!({}), true),
        (json!({ "zone": "not a value" }), false),
        (json!({ "zone": "a", "role": "-" }), false),
    ] {
        let new = policy(json!({ "nodeSelector": selector }), None);
        let expected = if good {
            Verdict::allowed()
        } else {
            denied(422, "nodeSelector values must be valid label values")
        };
        assert_eq!(create(&request(&new, None)), expected, "{selector}");
        assert_eq!(update(&request(&new, Some(&new))), expected, "{selector}");
    }
}

// nmstate#103
#[test]
fn max_unavailable_must_be_a_number_or_a_percentage() {
    let with = |limit: &Value, state: u8| {
        policy(
            json!({ "maxUnavailable": limit, "desiredState": state }),
            Some("SuccessfullyConfigured"),
        )
    };
    for good in [json!(null), json!(0), json!(3), json!("0%"), json!("50%")] {
        assert_eq!(
            create(&request(&with(&good, 1), None)),
            Verdict::allowed(),
            "{good}"
        );
        let verdict = update(&request(&with(&good, 1), Some(&with(&good, 2))));
        assert_eq!(verdict, Verdict::allowed(), "{good}");
    }
    let text = "maxUnavailable must be a number of nodes, or a percentage such as \"50%\"";
    for bad in [
        json!("banana"),
        json!("3"),
        json!("%"),
        json!("half%"),
        json!(true),
    ] {
        assert_eq!(create(&request(&with(&bad, 1), None)), denied(422, text), "{bad}");
        let verdict = update(&request(&with(&bad, 1), Some(&with(&bad, 2))));
        assert_eq!(verdict, denied(422, text), "{bad}");
        // The metadata of a policy that has such a limit already can change.
        let verdict = update(&request(&with(&bad, 1), Some(&with(&bad, 1))));
        assert_eq!(verdict, Verdict::allowed(), "{bad}");
    }
}

#[test]
fn malformed_policy_is_refused() {
    let text = "the review holds no policy";
    let mut nothing = request(&json!({}), None);
    assert_eq!(update(&nothing), denied(500, text));
    nothing.object = None;
    assert_eq!(create(&nothing), denied(500, text));
    let verdict = update(&request(&json!({}), Some(&json!("x"))));
    assert_eq!(verdict.denied.map(|denial| denial.code), Some(500));
    assert_eq!(
        create(&request(&json!({ "spec": "x" }), None))
            .denied
            .map(|denial| denial.code),
        Some(500)
    );
}

use k8s_openapi::jiff::SignedDuration;

use super::*;

fn rows(state: &State) -> Vec<String> {
    let mut conditions = Vec::new();
    state.set(&mut conditions, Timestamp::UNIX_EPOCH);
    let rows = conditions.iter();
    rows.map(|one| format!("{} {:?} {:?} {:?}", one.kind, one.status, one.reason, one.message))
        .collect()
}

#[test]
fn each_state_sets_all_conditions() {
    let text = || "text".to_owned();
    assert_eq!(
        rows(&State::Created),
        [
            r#"Available Unknown "" """#,
            r#"Failing Unknown "" """#,
            r#"Progressing Unknown "" """#,
            r#"Pending Unknown "" """#,
            r#"Aborted Unknown "" """#,
        ]
    );
    assert_eq!(
        rows(&State::Progressing),
        [
            r#"Available Unknown "ConfigurationProgressing" """#,
            r#"Failing Unknown "ConfigurationProgressing" """#,
            r#"Progressing True "ConfigurationProgressing" "Applying desired state""#,
            r#"Pending False "ConfigurationProgressing" """#,
            r#"Aborted False "ConfigurationProgressing" """#,
        ]
    );
    assert_eq!(
        rows(&State::Success("successfully reconciled".to_owned())),
        [
            r#"Available True "SuccessfullyConfigured" "successfully reconciled""#,
            r#"Failing False "SuccessfullyConfigured" """#,
            r#"Progressing False "SuccessfullyConfigured" """#,
            r#"Pending False "SuccessfullyConfigured" """#,
            r#"Aborted False "SuccessfullyConfigured" """#,
        ]
    );
    assert_eq!(
        rows(&State::Failed(text())),
        [
            r#"Available False "FailedToConfigure" """#,
            r#"Failing True "FailedToConfigure" "text""#,
            r#"Progressing False "FailedToConfigure" """#,
            r#"Pending False "FailedToConfigure" """#,
            r#"Aborted False "SuccessfullyConfigured" """#,
        ]
    );
    assert_eq!(
        rows(&State::Retrying(text())),
        [
            r#"Available False "Retrying" """#,
            r#"Failing True "Retrying" "text""#,
            r#"Progressing True "Retrying" "text""#,
            r#"Pending False "Retrying" """#,
            r#"Aborted False "SuccessfullyConfigured" """#,
        ]
    );
    assert_eq!(
        rows(&State::NotYet(text())),
        [
            r#"Available False "Retrying" """#,
            r#"Failing True "Retrying" "text""#,
            r#"Progressing False "Retrying" """#,
            r#"Pending False "Retrying" """#,
            r#"Aborted False "SuccessfullyConfigured" """#,
        ]
    );
    assert_eq!(
        rows(&State::Pending),
        [
            r#"Available False "MaxUnavailableLimitReached" """#,
            r#"Failing False "MaxUnavailableLimitReached" """#,
            r#"Progressing False "MaxUnavailableLimitReached" "Waiting for progressing nodes to finish""#,
            r#"Pending True "MaxUnavailableLimitReached" "Waiting for progressing nodes to finish""#,
            r#"Aborted False "MaxUnavailableLimitReached" """#,
        ]
    );
    assert_eq!(
        rows(&State::Aborted(text())),
        [
            r#"Available False "ConfigurationAborted" """#,
            r#"Failing False "ConfigurationAborted" """#,
            r#"Progressing False "ConfigurationAborted" """#,
            r#"Pending False "ConfigurationAborted" """#,
            r#"Aborted True "ConfigurationAborted" "text""#,
        ]
    );
}

#[test]
fn new_enactment_has_owner_and_labels() {
    let relations = BTreeMap::from([("app.kubernetes.io/part-of".to_owned(), "net".to_owned())]);
    let new = new("node01", "uid-1", "br1", &relations);
    assert_eq!(
        serde_json::to_value(new).expect("an object"),
        json!({
            "apiVersion": "nmstate.io/v1beta1",
            "kind": "NodeNetworkConfigurationEnactment",
            "metadata": {
                "name": "node01.br1",
                "labels": {
                    "app.kubernetes.io/part-of": "net",
                    "nmstate.io/node": "node01",
                    "nmstate.io/policy": "br1",
                },
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": "node01", "uid": "uid-1" }],
            },
        })
    );
}

fn later(now: Timestamp) -> Timestamp {
    now + SignedDuration::from_secs(60)
}

// nmstate#30
#[test]
fn new_generation_resets_conditions_and_attempts() {
    let now = Timestamp::UNIX_EPOCH;
    let mut status = Map::new();
    set_generation(&mut status, 1, now);
    set_attempts(&mut status, 1, 5);
    set_state(&mut status, &State::Failed("text".to_owned()), now);
    status.insert("somebodys".to_owned(), json!("own"));
    let failed = status.clone();

    set_generation(&mut status, 1, later(now));
    assert_eq!(status, failed, "the same generation changes nothing");

    set_generation(&mut status, 2, later(now));
    assert_eq!(status["policyGeneration"], 2);
    assert!(!status.contains_key("retryCount"), "{status:#?}");
    assert_eq!(status["somebodys"], "own");
    let conditions = conditions_of(&status);
    assert_eq!(conditions.len(), 5);
    for condition in conditions {
        assert_eq!(
            (condition.status, condition.reason.as_str()),
            (Status::Unknown, "")
        );
        assert_eq!(
            condition.last_transition_time.map(|time| time.0),
            Some(later(now))
        );
    }
}

#[test]
fn unchanged_capture_keeps_its_time() {
    let now = Timestamp::UNIX_EPOCH;
    let rendered = Rendered {
        desired: json!({ "interfaces": [] }),
        captured: Map::from_iter([("gw".to_owned(), json!({ "routes": { "running": [] } }))]),
        features: vec!["lldp".to_owned()],
        ..Rendered::default()
    };
    let mut status = Map::new();
    set_rendered(&mut status, &rendered, now);
    let expected = json!({
        "desiredState": { "interfaces": [] },
        "features": ["lldp"],
        "capturedStates": {
            "gw": {
                "state": { "routes": { "running": [] } },
                "metaInfo": { "version": "0", "time": "1970-01-01T00:00:00Z" },
            },
        },
    });
    assert_eq!(Value::Object(status.clone()), expected);
    set_rendered(&mut status, &rendered, later(now));
    assert_eq!(Value::Object(status.clone()), expected, "found once");

    let mut enactment = new("node01", "", "p", &BTreeMap::new());
    enactment.data = json!({ "status": status });
    assert_eq!(captured(&enactment), rendered.captured);

    set_rendered(&mut status, &Rendered::default(), later(now));
    assert_eq!(Value::Object(status), json!({}));
}

#[test]
fn enactment_without_uid_is_of_the_policy() {
    let mut enactment = new("node01", "", "p", &BTreeMap::new());
    let is_of = |enactment: &DynamicObject, uid: &str| {
        let listed: objects::Enactment =
            serde_json::from_value(objects::json(enactment)).expect("an enactment");
        assert_eq!(listed, objects::Enactment::of(enactment));
        listed.is_of(uid)
    };
    assert!(
        is_of(&enactment, "uid-1"),
        "of a handler that did not write it down"
    );
    let mut status = Map::new();
    set_policy_uid(&mut status, "uid-1");
    assert_eq!(Value::Object(status.clone()), json!({ "policyUID": "uid-1" }));
    enactment.data = json!({ "status": status });
    assert!(is_of(&enactment, "uid-1"));
    assert!(!is_of(&enactment, "uid-2"));
}

use rstest::rstest;
use serde_json::json;

use super::*;

fn eth1() -> Value {
    json!({"interfaces": [{"name": "eth1", "type": "ethernet", "state": "up"}]})
}

// nmstate#85-87
#[rstest]
#[case::report(json!(null), DesiredState::None)]
#[case::empty(json!({}), DesiredState::None)]
#[case::nothing(json!({"managed": true, "nodeName": "node01", "desiredState": {"interfaces": null}}), DesiredState::None)]
#[case::no_document(json!({"managed": true, "desiredState": null}), DesiredState::None)]
#[case::only_reported(json!({"desiredState": {"capabilities": ["bond"]}}), DesiredState::None)]
#[case::unmanaged(json!({"managed": false, "desiredState": eth1()}), DesiredState::None)]
#[case::managed(json!({"managed": true, "nodeName": "node01", "desiredState": eth1()}), DesiredState::Enforced(eth1()))]
#[case::managed_unsaid(json!({"desiredState": eth1()}), DesiredState::Enforced(eth1()))]
#[case::old_words(
    json!({"desiredState": {"interfaces": [{"name": "eth1", "ifIndex": 3, "ipv6": {"autoConf": true}}]}}),
    DesiredState::Enforced(json!({"interfaces": [{"name": "eth1", "ipv6": {"autoconf": true}}]}))
)]
#[case::other_node(
    json!({"nodeName": "node02", "desiredState": eth1()}),
    DesiredState::Invalid("spec.nodeName is node02, but the object is named after node node01: nothing is applied".to_owned())
)]
#[case::strange_managed(
    json!({"managed": "no", "desiredState": eth1()}),
    DesiredState::Invalid("spec.managed is not true or false: nothing is applied".to_owned())
)]
#[case::strange_document(
    json!({"desiredState": ["eth1"]}),
    DesiredState::Invalid("spec.desiredState is not an object: nothing is applied".to_owned())
)]
#[case::strange_node(
    json!({"nodeName": 3, "desiredState": eth1()}),
    DesiredState::Invalid("spec.nodeName is not a text: nothing is applied".to_owned())
)]
#[case::strange_spec(json!("eth1"), DesiredState::None)]
fn desired_state_is_read_from_the_spec(#[case] spec: Value, #[case] desired: DesiredState) {
    assert_eq!(DesiredState::of("node01", &spec), desired);
}

fn object(status: &Value) -> DynamicObject {
    serde_json::from_value(
        json!({"metadata": {"name": "node01", "generation": 7}, "spec": {"managed": true}, "status": status}),
    )
    .expect("an object")
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

#[test]
fn outcome_is_written_once_and_keeps_other_fields() {
    let other = json!({"type": "Complete", "status": "False", "reason": "Pruned", "extra": 1});
    let mut object = object(&json!({"currentState": {"interfaces": []}, "conditions": [other]}));
    assert!(report(
        &mut object,
        &Outcome::Failed("no such port".to_owned()),
        at(1)
    ));
    assert_eq!(
        object.data["status"],
        json!({
            "currentState": {"interfaces": []},
            "conditions": [
                other,
                {"type": "Available", "status": "False", "reason": "FailedToConfigure",
                    "lastHeartbeatTime": "1970-01-01T00:00:01Z", "lastTransitionTime": "1970-01-01T00:00:01Z"},
                {"type": "Failing", "status": "True", "reason": "FailedToConfigure", "message": "no such port",
                    "lastHeartbeatTime": "1970-01-01T00:00:01Z", "lastTransitionTime": "1970-01-01T00:00:01Z"},
            ],
            "observedGeneration": 7,
        })
    );
    // The same outcome of another version is written too.
    object.metadata.generation = Some(8);
    assert!(report(
        &mut object,
        &Outcome::Failed("no such port".to_owned()),
        at(2)
    ));
    assert_eq!(object.data["status"]["observedGeneration"], 8);
    assert!(!report(
        &mut object,
        &Outcome::Failed("no such port".to_owned()),
        at(2)
    ));
    assert!(report(
        &mut object,
        &Outcome::Done("successfully reconciled".to_owned()),
        at(3)
    ));
    assert_eq!(
        object.data["status"]["conditions"],
        json!([
            other,
            {"type": "Available", "status": "True", "reason": "SuccessfullyConfigured", "message": "successfully reconciled",
                "lastHeartbeatTime": "1970-01-01T00:00:03Z", "lastTransitionTime": "1970-01-01T00:00:03Z"},
            {"type": "Failing", "status": "False", "reason": "SuccessfullyConfigured",
                "lastHeartbeatTime": "1970-01-01T00:00:03Z", "lastTransitionTime": "1970-01-01T00:00:03Z"},
        ])
    );
    assert!(report(&mut object, &Outcome::None, at(4)));
    assert_eq!(
        object.data["status"],
        json!({"currentState": {"interfaces": []}, "conditions": [other]})
    );
    assert!(!report(&mut object, &Outcome::None, at(5)));
}

#[rstest]
#[case(json!(null))]
#[case(json!({"conditions": "none"}))]
#[case(json!({"conditions": [1, {"type": 3}, {"type": "Failing"}]}))]
fn outcome_is_written_into_a_malformed_status(#[case] status: Value) {
    let mut object = object(&status);
    assert!(report(&mut object, &Outcome::Done(String::new()), at(1)));
    let conditions = object.data["status"]["conditions"].as_array().expect("a list");
    for kind in ["Available", "Failing"] {
        assert!(
            conditions
                .iter()
                .any(|it| it["type"] == kind && it["reason"] == "SuccessfullyConfigured"),
            "{conditions:?}"
        );
    }
}

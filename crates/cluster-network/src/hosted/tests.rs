use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        ..Condition::default()
    }
}

// cluster-network#159
#[test]
fn control_plane_has_defaults() {
    let minimal = ControlPlane::of(&json!({
        "metadata": { "name": "a", "namespace": "clusters-a", "uid": "1" },
        "spec": { "controllerAvailabilityPolicy": "SingleReplica" },
    }));
    assert_eq!(
        minimal,
        ControlPlane {
            name: "a".to_owned(),
            namespace: "clusters-a".to_owned(),
            uid: "1".to_owned(),
            replicas: 1,
            ..ControlPlane::default()
        }
    );
}

// cluster-network#159, cluster-network#158
#[test]
fn control_plane_decides_replicas_placement_and_tls_profile() {
    let toleration = json!({ "key": "dedicated", "operator": "Exists", "tolerationSeconds": 5 });
    let control_plane = ControlPlane::of(&json!({
        "metadata": { "annotations": {
            "hypershift.openshift.io/control-plane-priority-class": "high",
            "hypershift.openshift.io/restart-date": "2026-01-02",
        } },
        "spec": {
            "clusterID": "id", "controllerAvailabilityPolicy": "HighlyAvailable",
            "nodeSelector": { "pool": "a" }, "labels": { "team": "b" }, "tolerations": [toleration],
            "configuration": { "apiServer": {
                "tlsAdherence": "StrictAllComponents", "tlsSecurityProfile": { "type": "Modern" },
            } },
        },
    }));
    assert_eq!(control_plane.replicas, 3);
    assert_eq!(control_plane.cluster_id, "id");
    assert_eq!(json!(control_plane.node_selector), json!({ "pool": "a" }));
    assert_eq!(json!(control_plane.labels), json!({ "team": "b" }));
    assert_eq!(control_plane.tolerations, [toleration]);
    assert_eq!(control_plane.priority_class.as_deref(), Some("high"));
    assert_eq!(control_plane.restart_date.as_deref(), Some("2026-01-02"));
    let profile = control_plane.tls_profile.expect("a profile");
    assert_eq!(profile.flags(), ["--tls-min-version=VersionTLS13"]);
}

// cluster-network#160
#[test]
fn conditions_are_mirrored_beside_those_of_others() {
    let foreign = json!({ "type": "Available", "status": "False", "reason": "X", "message": "" });
    let mut object = json!({ "status": { "conditions": [foreign] } });
    let mut ours = vec![
        condition("Degraded", "False", "", ""),
        condition("Available", "True", "R", "m"),
    ];
    let first = conditions(&object, Some(&ours), at(10)).expect("a change");
    let transition = "1970-01-01T00:00:10Z";
    assert_eq!(
        json!(first),
        json!([
            foreign,
            {
                "type": "network.operator.openshift.io/Degraded", "lastTransitionTime": transition,
                "status": "False", "reason": "AsExpected", "message": "",
            },
            {
                "type": "network.operator.openshift.io/Available", "lastTransitionTime": transition,
                "status": "True", "reason": "R", "message": "m",
            },
        ])
    );
    object["status"]["conditions"] = json!(first);
    assert_eq!(conditions(&object, Some(&ours), at(20)), None);
    // Another message is no transition, another status is one.
    ours[0].message = "text".to_owned();
    ours[1].status = "False".to_owned();
    let second = conditions(&object, Some(&ours), at(30)).expect("a change");
    assert_eq!(second[1]["lastTransitionTime"], transition);
    assert_eq!(second[1]["message"], "text");
    assert_eq!(second[2]["lastTransitionTime"], "1970-01-01T00:00:30Z");
}

// cluster-network#160
#[test]
fn missing_operator_configuration_is_reported_until_it_exists() {
    let mut object = json!({});
    let missing = conditions(&object, None, at(10)).expect("a change");
    assert_eq!(
        json!(missing),
        json!([{
            "type": "NetworkOperatorAvailable", "lastTransitionTime": "1970-01-01T00:00:10Z", "status": "Unknown",
            "reason": "NoNetworkOperConfig", "message": "No networks.operator.openshift.io cluster found",
        }])
    );
    object["status"] = json!({ "conditions": missing });
    assert_eq!(conditions(&object, None, at(20)), None);
    assert_eq!(conditions(&object, Some(&[]), at(20)), Some(Vec::new()));
}

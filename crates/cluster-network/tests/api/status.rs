//! What users are told.

use serde_json::json;

use crate::stage::{CLUSTER_OPERATOR, MULTUS, OPERATOR, Stage, condition, managers};

// cluster-network#61
#[test]
fn network_becomes_available_when_everything_is_there() {
    let stage = Stage::start();
    let _operator = stage.operator();
    // Nothing is there yet.
    let progressing = |object: &serde_json::Value| condition(object, "Progressing").unwrap_or_default();
    stage.wait_for("Deploying", CLUSTER_OPERATOR, |object| {
        (progressing(object?) == "True Deploying: Deploying").then_some(())
    });
    stage.configure("Calico");
    stage.there(MULTUS);
    stage.at_rest();
    let begin = stage.wait_for("the beginning", OPERATOR, |object| {
        let available = condition(object?, "Available")?;
        (available == "False Startup: The network is starting up")
            .then(|| object.cloned())
            .flatten()
    });
    assert!(begin["status"].get("version").is_none(), "{begin:#}");
    let since = |object: &serde_json::Value, kind: &str| {
        let conditions = object["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let condition = conditions
            .into_iter()
            .find(|it| it["type"] == kind)
            .unwrap_or_default();
        condition["lastTransitionTime"].clone()
    };
    for nodes in [2, 1] {
        stage.report(
            MULTUS,
            &json!({
                "currentNumberScheduled": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberReady": 0,
                "numberMisscheduled": 0, "numberUnavailable": nodes, "observedGeneration": 1,
            }),
        );
        let line =
            format!("DaemonSet \"/openshift-multus/multus\" is not available (awaiting {nodes} nodes)");
        let now = stage.wait_for(&line, OPERATOR, |object| {
            progressing(object?)
                .contains(&line)
                .then(|| object.cloned())
                .flatten()
        });
        assert_eq!(since(&now, "Progressing"), since(&begin, "Progressing"));
    }
    stage.roll_out_all();
    stage.condition("Available", "True : ");
    stage.condition("Progressing", "False : ");
    stage.condition("Degraded", "False : ");
    let operator = stage.there(OPERATOR);
    assert_eq!(operator["status"]["version"], "1.2.3");
    assert!(managers(&operator).contains(&"cluster-network-operator/status-manager Apply status".to_owned()));
    stage.wait_for("the version", CLUSTER_OPERATOR, |object| {
        let versions = &object?["status"]["versions"];
        (*versions == json!([{ "name": "operator", "version": "1.2.3" }])).then_some(())
    });
    // A pod that goes later is no news.
    stage.at_rest();
    stage.report(
        MULTUS,
        &json!({
            "currentNumberScheduled": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberReady": 1,
            "numberMisscheduled": 0, "numberUnavailable": 1, "observedGeneration": 1,
        }),
    );
    stage.at_rest();
    let operator = stage.there(OPERATOR);
    assert_eq!(condition(&operator, "Progressing").as_deref(), Some("False : "));
    assert_eq!(condition(&operator, "Available").as_deref(), Some("True : "));
}

// cluster-network#66
#[test]
fn missing_operator_configuration_is_told_to_the_platform() {
    let stage = Stage::start();
    let _operator = stage.operator();
    let expected = "True NoOperConfig: Failed to get networks.operator.openshift.io cluster";
    stage.wait_for(expected, CLUSTER_OPERATOR, |object| {
        (condition(object?, "Degraded")? == expected).then_some(())
    });
}

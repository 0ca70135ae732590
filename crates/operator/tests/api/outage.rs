//! An API server that is unreachable for a while.

use serde_json::json;
use stage::Line;

use crate::fixture::{Fixture, NAMESPACE};

#[test]
fn operator_resumes_after_outage() {
    let mut fixture = Fixture::installed();
    let line = Line::to(fixture.server_url());
    fixture.start_through(&line.url());
    fixture.configure(&json!({ "multus": {} }));
    fixture.roll_out(&["multus"]);
    fixture.wait_until_available();
    let uid = |fixture: &Fixture, kind| {
        fixture
            .operand(kind, "multus")
            .map(|found| found["metadata"]["uid"].clone())
    };
    let before = uid(&fixture, "daemonset");

    line.cut();
    // Meanwhile other clients delete objects and change the configuration.
    for kind in ["daemonset", "serviceaccount"] {
        fixture
            .kubectl()
            .run(["delete", "--wait=false", kind, "multus", "-n", NAMESPACE])
            .expect("deleted");
    }
    fixture.configure(&json!({ "multus": {}, "linuxBridge": {} }));
    assert_eq!(uid(&fixture, "daemonset"), None, "the operator is cut off");
    line.mend();

    fixture.wait_for_operand("daemonset", "multus", |object| {
        (Some(&object["metadata"]["uid"]) != before.as_ref()).then_some(())
    });
    fixture.wait_for_operand("serviceaccount", "multus", |_| Some(()));
    fixture.roll_out(&["multus", "kube-cni-linux-bridge-plugin", "bridge-marker"]);
    fixture.wait_until_available();
}

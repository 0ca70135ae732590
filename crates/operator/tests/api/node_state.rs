//! Node state: the operands of its operator are part of the component.

use serde_json::json;

use crate::{
    fixture::{Fixture, message},
    stubs::FORMER_NODE_STATE,
};

fn wait_for_message(fixture: &Fixture, expected: &str) {
    fixture.wait_for_operand("networkaddonsconfig", "cluster", |configuration| {
        (message(configuration, "NmstateAvailable") == expected).then_some(())
    });
}

// operator#85
#[test]
fn configuration_is_available_when_the_nmstate_is() {
    let mut fixture = Fixture::running();
    fixture.configure(&json!({ "nmstate": {} }));
    fixture.roll_out_deployments(&["nmstate-operator"]);
    wait_for_message(
        &fixture,
        "NMState \"nmstate\" is not taken up by its operator yet",
    );
    fixture.report_node_state(
        "False",
        "DaemonSet \"nmstate-handler\" is not available (awaiting 1 nodes)",
    );
    let waits = "NMState \"nmstate\" is not available \
                 (DaemonSet \"nmstate-handler\" is not available (awaiting 1 nodes))";
    wait_for_message(&fixture, waits);
    fixture.wait_until_progressing();
    fixture.report_node_state("True", "");
    let before = fixture.wait_until_available();

    // A restarted operator reads the object before its watch has synced.
    fixture.stop();
    fixture.start();
    // The account is restored in the middle of a reconcile, and the status is written at the end of a reconcile. After
    // two restorations of the account, the first reconcile is over.
    for _ in 0..2 {
        fixture.remove("serviceaccount", "nmstate-operator");
        fixture.wait_for_operand("serviceaccount", "nmstate-operator", |account| {
            account["metadata"]["deletionTimestamp"].is_null().then_some(())
        });
    }
    let after = fixture.wait_until_available();
    assert_eq!(
        after["metadata"]["resourceVersion"],
        before["metadata"]["resourceVersion"]
    );

    fixture.report_node_state("False", "a node is gone");
    fixture.wait_until_progressing();
}

// operator#86
#[test]
fn configuration_is_not_available_where_others_serve_no_v1_of_the_nmstate() {
    let mut fixture = Fixture::with(FORMER_NODE_STATE);
    fixture.start();
    fixture.configure(&json!({ "nmstate": {} }));
    wait_for_message(
        &fixture,
        "NMState \"nmstate\" cannot be created: the definition of its kind, which is not the operator's, serves no \
         nmstate.io/v1",
    );
    fixture.wait_until_progressing();
}

//! Node state: the operands of its operator are part of the component.

use std::time::Duration;

use serde_json::{Value, json};

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

// operator#98
#[test]
fn nmstate_is_watched_after_its_definition_lost_our_label() {
    const NETWORKS: &str = "network-attachment-definitions.k8s.cni.cncf.io";
    const COMPONENT: &str = "app.kubernetes.io/component";
    let label = |name: &str, value: Value| json!({ "metadata": { "labels": { name: value } } });
    let mut fixture = Fixture::installed();
    // The watch of the definition itself reports the change first.
    fixture.set_watch_timeout(Duration::from_mins(10));
    let hold = fixture.hold_by_label("customresourcedefinitions");
    fixture.start();
    fixture.configure(&json!({ "multus": {}, "nmstate": {} }));
    fixture.roll_out(&["multus"]);
    fixture.roll_out_deployments(&["nmstate-operator"]);
    fixture.report_node_state("True", "");
    fixture.wait_until_available();

    // Another operator takes the definition over.
    let lost = label("app.kubernetes.io/managed-by", Value::Null);
    fixture.patch("crd", "nmstates.nmstate.io", &lost);
    fixture.wait_until_gone("deployment", "nmstate-operator");
    fixture.wait_until_available();
    fixture.patch("crd", NETWORKS, &label(COMPONENT, json!("changed")));
    hold.release();
    // The repair shows that the watch by label has reported both changes.
    fixture.wait_for_operand("crd", NETWORKS, |definition| {
        (definition["metadata"]["labels"][COMPONENT] == "network").then_some(())
    });

    // The operator may notice the first changes because of something else that it still has to do.
    for _ in 0..3 {
        fixture.report_node_state("False", "a node is gone");
        fixture.wait_until_progressing();
        fixture.report_node_state("True", "");
        fixture.wait_until_available();
    }
}

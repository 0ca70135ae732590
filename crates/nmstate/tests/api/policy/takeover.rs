//! Slots and enactments when handlers are killed, nodes vanish, or a count is wrong.

use stage::Hold;

use super::*;
use crate::fixture::Request;

// nmstate#31
#[test]
fn killed_handler_releases_its_slot_when_it_returns() {
    let stage = Stage::start();
    stage.node("node01", &[]);
    stage.node("node02", &[]);
    let gate = Gate::default();
    let killed = Host::new(host::two_nics());
    gate.hold(&killed);
    let first = handler(&stage, "node01", &killed);
    let spec = json!({ "maxUnavailable": 1, "desiredState": mtu(1400) });
    stage.create(Kind::Policy, &policy("p", &spec));
    gate.wait_for(1);
    let waits = Host::new(host::two_nics());
    let _other = handler(&stage, "node02", &waits);
    wait_until_said(&stage, Kind::Enactment, "node02.p", WAITING);
    first.kill();
    let counted = stage.get(Kind::Policy, "p").expect("it");
    assert_eq!(
        counted["status"]["unavailableNodeCountMap"],
        json!({ "1": 1 }),
        "killed before it could give it back"
    );
    // The host is as it was, as after a restart of the handler: nothing was committed.
    let host = Host::new(host::two_nics());
    let _again = handler(&stage, "node01", &host);
    let all = configured("2/2 nodes successfully configured");
    let policy = wait_until_said(&stage, Kind::Policy, "p", all);
    assert_eq!(policy["status"]["unavailableNodeCountMap"], json!({}));
    assert_eq!(
        (host.applied(), waits.applied()),
        (vec![mtu(1400)], vec![mtu(1400)])
    );
    gate.open();
}

/// An enactment as the handler of another node would have left it.
fn enactment_of(stage: &Stage, node: &str, state: &Value) {
    let name = format!("{node}.p");
    let labels = json!({ "nmstate.io/policy": "p", "nmstate.io/node": node });
    stage.create(
        Kind::Enactment,
        &json!({
            "apiVersion": "nmstate.io/v1beta1", "kind": "NodeNetworkConfigurationEnactment",
            "metadata": { "name": name, "labels": labels },
        }),
    );
    let conditions: Vec<Value> = ["Available", "Failing", "Progressing", "Pending", "Aborted"]
        .iter()
        .map(|kind| json!({ "type": kind, "status": if state["is"] == *kind { "True" } else { "False" } }))
        .collect();
    let status = json!({
        "policyUID": state["policyUID"], "policyGeneration": 1, "conditions": conditions,
        "retryCount": state["retryCount"],
    });
    stage.report(Kind::Enactment, &name, &status);
}

// A handler is killed after it took a slot and before it wrote its enactment; a node vanishes with its slot; or a write
// was lost. No handler is left to release the slot.
#[test]
fn leaked_slot_is_detected_by_waiting_nodes() {
    let stage = Stage::start();
    stage.node("node01", &[]);
    stage.node("node02", &[]);
    enactment_of(&stage, "node02", &json!({ "is": "Progressing" }));
    let spec = json!({ "maxUnavailable": 2, "desiredState": mtu(1400) });
    stage.create(Kind::Policy, &policy("p", &spec));
    set_slots(&stage, 2);
    let began = Instant::now();
    let host = Host::new(host::two_nics());
    let _handler = handler(&stage, "node01", &host);
    wait_until_said(&stage, Kind::Enactment, "node01.p", WAITING);
    wait_until_said(&stage, Kind::Enactment, "node01.p", RECONCILED);
    println!("a leaked slot was taken after {:?}", began.elapsed());
    assert!(
        began.elapsed() > Duration::from_secs(15),
        "one that is late must be waited for"
    );
    // The slot of the other node is still its own.
    wait_for_slots(&stage, 1);
}

// nmstate#100
#[test]
fn handler_resumes_with_the_slot_of_a_killed_one() {
    let stage = Stage::start();
    stage.node("node01", &[]);
    stage.node("node02", &[]);
    let spec = json!({ "maxUnavailable": 1, "desiredState": mtu(1400) });
    stage.create(Kind::Policy, &policy("p", &spec));
    for node in ["node01", "node02"] {
        enactment_of(&stage, node, &json!({ "is": "Progressing" }));
    }
    // Two slots are taken with a limit of one: a handler that gave its slot back could not take another.
    set_slots(&stage, 2);
    let host = Host::new(host::two_nics());
    let _handler = handler(&stage, "node01", &host);
    wait_until_said(&stage, Kind::Enactment, "node01.p", RECONCILED);
    assert_eq!(host.applied(), [mtu(1400)]);
    wait_for_slots(&stage, 1);
}

// nmstate#105
#[test]
fn waiting_handler_sends_no_requests_while_slots_are_taken() {
    let stage = Stage::start();
    stage.node("node01", &[]);
    stage.node("node02", &[]);
    enactment_of(&stage, "node02", &json!({ "is": "Progressing" }));
    let spec = json!({ "maxUnavailable": 1, "desiredState": mtu(1400) });
    stage.create(Kind::Policy, &policy("p", &spec));
    set_slots(&stage, 1);
    let host = Host::new(host::two_nics());
    let _handler = handler(&stage, "node01", &host);
    wait_until_said(&stage, Kind::Enactment, "node01.p", WAITING);
    let progressing = "Policy is progressing 0/2 nodes finished, 1 pending";
    let progressing = ["Progressing", "ConfigurationProgressing", progressing];
    wait_until_said(&stage, Kind::Policy, "p", progressing);

    // Other handlers write the status for longer than a handler relies on the number of slots that it knows.
    let (mark, began, mut written) = (stage.mark(), Instant::now(), 0);
    wait::until("some seconds of writes", DEADLINE, || {
        written += 1;
        stage.report(Kind::Policy, "p", &json!({ "unavailableNodeCount": written }));
        if began.elapsed() > Duration::from_secs(5) {
            Ok(())
        } else {
            Err(format!("{written} writes"))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let requests = stage.requests_since(mark);
    let looks = requests
        .iter()
        .filter(|request| request.verb == "list" && request.uri.contains("configurationenactments?"));
    // One list looks for slots without a holder, one is for the status of the policy.
    assert!(looks.count() <= 2, "{requests:#?}");

    let given_back = Instant::now();
    set_slots(&stage, 0);
    wait_until_said(&stage, Kind::Enactment, "node01.p", RECONCILED);
    let woken = given_back.elapsed();
    // The next periodic check would be later.
    assert!(woken < Duration::from_secs(20), "woken after {woken:?}");
}

// nmstate#105
#[test]
fn edit_in_the_response_to_an_own_write_is_applied() {
    let stage = Stage::start();
    stage.node("node01", &[]);
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    let gate = Gate::default();
    let host = Host::new(host::two_nics());
    gate.hold(&host);
    // The watch of policies reports nothing.
    let hold = Hold::watches_of("nodenetworkconfigurationpolicies");
    let _handler = handler_by(&stage, "node01", &host, settings(), unprobed(), |client| {
        hold.client(client)
    });
    gate.wait_for(1);
    let other = json!({ "spec": { "desiredState": mtu(1300) } });
    stage.patch(Kind::Policy, "p", &other).accepted();
    // The write that gives back the slot of the first generation meets the edit.
    gate.open();
    let all = configured("1/1 nodes successfully configured");
    let policy = wait_until_said(&stage, Kind::Policy, "p", all);
    assert_eq!(policy["status"]["observedGeneration"], 2);
    assert_eq!(host.applied(), [mtu(1400), mtu(1300)]);
}

// nmstate#24
#[test]
fn final_failure_keeps_its_slot_and_waiting_nodes_abort() {
    let stage = Stage::start();
    stage.node("node01", &[]);
    let failed = json!({ "is": "Failing", "retryCount": { "1": 5 } });
    enactment_of(&stage, "node02", &failed);
    let spec = json!({ "maxUnavailable": 1, "desiredState": mtu(1400) });
    stage.create(Kind::Policy, &policy("p", &spec));
    set_slots(&stage, 1);
    let host = Host::new(host::two_nics());
    let _handler = handler(&stage, "node01", &host);
    let text = "reconciliation of enactment \"node01.p\" has aborted";
    wait_until_said(
        &stage,
        Kind::Enactment,
        "node01.p",
        ["Aborted", "ConfigurationAborted", text],
    );
    assert!(host.applied().is_empty());
    let event = format!("Warning ReconcileFailed NodeNetworkConfigurationPolicy/p x1: {text}");
    wait_for_event(&stage, &event);
}

#[test]
fn enactment_of_a_former_policy_does_not_count() {
    let stage = Stage::start();
    stage.node("node01", &[]);
    stage.node("node02", &[]);
    let former = json!({ "is": "Available", "policyUID": "other" });
    enactment_of(&stage, "node02", &former);
    let host = Host::new(host::two_nics());
    let _handler = handler(&stage, "node01", &host);
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    wait_until_said(&stage, Kind::Enactment, "node01.p", RECONCILED);
    // Both are written at once.
    wait_for_slots(&stage, 0);
    let text = "Policy is progressing 1/2 nodes finished";
    let progressing = ["Progressing", "ConfigurationProgressing", text];
    wait_until_said(&stage, Kind::Policy, "p", progressing);
}

#[test]
fn final_failure_of_a_former_policy_aborts_nothing() {
    let stage = Stage::start();
    stage.node("node01", &[]);
    let former = json!({ "is": "Failing", "retryCount": { "1": 5 }, "policyUID": "other" });
    enactment_of(&stage, "node02", &former);
    let spec = json!({ "maxUnavailable": 1, "desiredState": mtu(1400) });
    stage.create(Kind::Policy, &policy("p", &spec));
    set_slots(&stage, 1);
    let host = Host::new(host::two_nics());
    let _handler = handler(&stage, "node01", &host);
    wait_until_said(&stage, Kind::Enactment, "node01.p", WAITING);
    // Nor does it stand for the slot.
    set_slots(&stage, 0);
    wait_until_said(&stage, Kind::Enactment, "node01.p", RECONCILED);
}

// nmstate#31
#[test]
fn starting_handler_releases_held_slots_only() {
    for (state, left) in [
        (json!({ "is": "Progressing" }), 1),
        (json!({ "is": "Failing", "retryCount": { "1": 5 } }), 1),
        (json!({ "is": "Pending" }), 2),
        (json!({ "is": "Aborted" }), 2),
        (json!({ "is": "Available" }), 2),
        (json!({ "is": "nothing" }), 2),
        // The slot of a deleted policy of the same name.
        (
            json!({ "is": "Failing", "retryCount": { "1": 5 }, "policyUID": "other" }),
            2,
        ),
    ] {
        let stage = Stage::start();
        let node = stage.node("node01", &[]);
        // For no node, so that nothing else happens to it.
        let spec = json!({ "nodeSelector": { "no": "where" }, "desiredState": mtu(1400) });
        stage.create(Kind::Policy, &policy("p", &spec));
        set_slots(&stage, 2);
        enactment_of(&stage, "node01", &state);
        assert_eq!(node["metadata"]["name"], "node01");
        let host = Host::new(host::two_nics());
        let _handler = handler(&stage, "node01", &host);
        wait_until_gone(&stage, Kind::Enactment, "node01.p");
        let policy = stage.get(Kind::Policy, "p").expect("it");
        assert_eq!(
            policy["status"]["unavailableNodeCountMap"],
            json!({ "1": left }),
            "{state}"
        );
    }
}

// nmstate#26
#[test]
fn failed_release_of_a_slot_is_retried() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01"]);
    // Never done, so that the slots are not dropped altogether.
    stage.node("node02", &[]);
    let gate = Gate::default();
    gate.hold(&hosts[0].0);
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    gate.wait_for(1);
    let at_it = "Policy is progressing 0/2 nodes finished";
    let at_it = ["Progressing", "ConfigurationProgressing", at_it];
    wait_until_said(&stage, Kind::Policy, "p", at_it);
    // For a while the handler may not write policies.
    let role = stage.get(Kind::ClusterRole, "nmstate-handler").expect("the role");
    let mut without = role["rules"].clone();
    let status = "nodenetworkconfigurationpolicies/status";
    for rule in without.as_array_mut().expect("rules") {
        if let Some(resources) = rule["resources"].as_array_mut() {
            resources.retain(|resource| resource != status);
        }
    }
    let mark = stage.mark();
    let rules = |rules: &Value| json!({ "rules": rules });
    stage
        .patch(Kind::ClusterRole, "nmstate-handler", &rules(&without))
        .accepted();
    let refused = |stage: &Stage| {
        let writes = stage.writes_since(mark);
        writes
            .iter()
            .filter(|write| write.uri.contains("policies/p/status") && write.code == 403)
            .count()
    };
    // The handler sees it a moment later.
    stage.report(Kind::Node, "node01", &json!({}));
    gate.open();
    wait_until_said(&stage, Kind::Enactment, "node01.p", RECONCILED);
    wait_for("writes to be refused, or the slot to be given back", || {
        let refused = refused(&stage);
        if refused >= 5 {
            Ok(())
        } else {
            Err(format!("{refused} refused"))
        }
    });
    let policy = stage.get(Kind::Policy, "p").expect("it");
    assert_eq!(policy["status"]["unavailableNodeCountMap"], json!({ "1": 1 }));
    let began = Instant::now();
    stage
        .patch(Kind::ClusterRole, "nmstate-handler", &rules(&role["rules"]))
        .accepted();
    wait_for_slots(&stage, 0);
    println!("the slot was given back after {:?}", began.elapsed());
    assert_eq!(
        hosts[0].0.applied(),
        [mtu(1400)],
        "nothing is applied again for that"
    );
}

#[test]
fn status_without_a_list_of_handlers_is_written_soon() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01"]);
    let gate = Gate::default();
    gate.hold(&hosts[0].0);
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    gate.wait_for(1);
    let before = stage.forbid_pods();
    let mark = stage.mark();
    gate.open();
    wait_until_said(&stage, Kind::Enactment, "node01.p", RECONCILED);
    wait_for_slots(&stage, 0);
    wait_for("a refused list", || {
        let requests = stage.requests_since(mark);
        let is_refused = |request: &Request| request.uri.contains("/pods") && request.code == 403;
        match requests.iter().find(|request| is_refused(request)) {
            Some(_) => Ok(()),
            None => Err(format!("{requests:#?}")),
        }
    });
    let began = Instant::now();
    stage.patch(Kind::Role, "nmstate-handler", &before).accepted();
    let all = configured("1/1 nodes successfully configured");
    wait_until_said(&stage, Kind::Policy, "p", all);
    let written = began.elapsed();
    // The next periodic check is later.
    assert!(written < Duration::from_secs(30), "written after {written:?}");
}

#[test]
fn deleted_enactment_is_created_again() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01"]);
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    let all = configured("1/1 nodes successfully configured");
    wait_until_said(&stage, Kind::Policy, "p", all);
    let first = stage.get(Kind::Enactment, "node01.p").expect("it");
    stage.delete(Kind::Enactment, "node01.p");
    stage.wait_for("another one", (Kind::Enactment, "node01.p"), |enactment| {
        let enactment = enactment?;
        let is_other = enactment["metadata"]["uid"] != first["metadata"]["uid"];
        (is_other && status_of(enactment, "Available") == "True").then_some(())
    });
    assert_eq!(hosts[0].0.applied(), [mtu(1400), mtu(1400)]);
}

// nmstate#20
#[test]
fn enactment_without_policy_is_deleted() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01"]);
    stage.create(Kind::Policy, &policy("q", &json!({ "desiredState": mtu(1400) })));
    wait_until_said(&stage, Kind::Enactment, "node01.q", RECONCILED);
    // It may be gone before anything else is done to it.
    let labels = json!({ "nmstate.io/policy": "p", "nmstate.io/node": "node01" });
    let orphan = json!({
        "apiVersion": "nmstate.io/v1beta1", "kind": "NodeNetworkConfigurationEnactment",
        "metadata": { "name": "node01.p", "labels": labels },
    });
    stage.create(Kind::Enactment, &orphan);
    wait_until_gone(&stage, Kind::Enactment, "node01.p");
    wait_until_said(&stage, Kind::Enactment, "node01.q", RECONCILED);
    drop(hosts);
}

//! How many nodes apply a policy at a time, and its status meanwhile.

use super::*;

/// Enactments by the condition that is true.
fn by_state(stage: &Stage, state: &str) -> usize {
    let enactments = stage.list(Kind::Enactment);
    let so = enactments
        .iter()
        .filter(|enactment| status_of(enactment, state) == "True");
    so.count()
}

// nmstate#22, nmstate#24, nmstate#34, nmstate#43
#[test]
fn half_of_the_nodes_progress_while_the_others_wait() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01", "node02", "node03"]);
    let gate = Gate::default();
    for (host, _) in &hosts {
        gate.hold(host);
    }
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    gate.wait_for(2);
    wait_for("one to wait", || {
        let pending = by_state(&stage, "Pending");
        let progressing = by_state(&stage, "Progressing");
        if (pending, progressing) == (1, 2) {
            Ok(())
        } else {
            Err(format!("{pending} pending, {progressing} progressing"))
        }
    });
    let enactments = stage.list(Kind::Enactment);
    let waits = enactments
        .iter()
        .find(|enactment| status_of(enactment, "Pending") == "True");
    let waits = waits.expect("one");
    assert_eq!(said(waits).expect("one condition"), WAITING, "{waits:#}");
    let text = "Policy is progressing 0/3 nodes finished, 1 pending";
    let policy = wait_until_said(
        &stage,
        Kind::Policy,
        "p",
        ["Progressing", "ConfigurationProgressing", text],
    );
    assert_eq!(policy["status"]["unavailableNodeCountMap"], json!({ "1": 2 }));

    gate.open();
    let all = configured("3/3 nodes successfully configured");
    let policy = wait_until_said(&stage, Kind::Policy, "p", all);
    assert_eq!(policy["status"]["unavailableNodeCountMap"], json!({}));
    assert_eq!(gate.state().most, 2, "never more at a time");
    for name in ["node01.p", "node02.p", "node03.p"] {
        wait_until_said(&stage, Kind::Enactment, name, RECONCILED);
    }
}

// nmstate#23
#[test]
fn invalid_max_unavailable_uses_the_default() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01", "node02", "node03"]);
    let gate = Gate::default();
    for (host, _) in &hosts {
        gate.hold(host);
    }
    let spec = json!({ "maxUnavailable": "asdf", "desiredState": mtu(1400) });
    stage.create(Kind::Policy, &policy("p", &spec));
    gate.wait_for(2);
    wait_for("one to wait", || match by_state(&stage, "Pending") {
        1 => Ok(()),
        pending => Err(format!("{pending} pending")),
    });
    gate.open();
    let all = configured("3/3 nodes successfully configured");
    wait_until_said(&stage, Kind::Policy, "p", all);
    assert_eq!(gate.state().most, 2);
}

// nmstate#103
#[test]
fn invalid_max_unavailable_is_reported_until_it_is_valid() {
    let stage = Stage::start();
    let _hosts = nodes(&stage, &["node01"]);
    let spec = json!({ "maxUnavailable": "banana", "desiredState": mtu(1400) });
    stage.create(Kind::Policy, &policy("p", &spec));
    let all = configured("1/1 nodes successfully configured");
    let condition = |policy: &Value| {
        let conditions = policy["status"]["conditions"].as_array().into_iter().flatten();
        let mut conditions = conditions.filter(|one| one["type"] == "MaxUnavailableValid");
        conditions.next().cloned()
    };
    let stored = wait_until_said(&stage, Kind::Policy, "p", all);
    let mistake = condition(&stored).expect("a condition");
    assert_eq!(mistake["status"], "False", "{mistake:#}");
    assert_eq!(mistake["reason"], "InvalidMaxUnavailable");
    assert_eq!(
        mistake["message"],
        "maxUnavailable is neither a number nor a percentage: \"banana\"; the default of 50% holds"
    );

    let mended = json!({ "spec": { "maxUnavailable": 1 } });
    stage.patch(Kind::Policy, "p", &mended).accepted();
    stage.wait_for("the second generation", (Kind::Policy, "p"), |policy| {
        let policy = policy?;
        let is_done = policy["status"]["observedGeneration"] == 2 && said(policy)? == all;
        (is_done && condition(policy).is_none()).then_some(())
    });
}

// nmstate#40, nmstate#41
#[test]
fn nodes_without_handler_or_not_ready_are_not_awaited() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01"]);
    stage.node("node02", &[]);
    stage.set_ready("node02", false);
    stage.node("node03", &[]);
    stage.delete(Kind::Pod, "nmstate-handler-node03");
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    let text = "1/2 nodes successfully configured, 1 nodes ignored due to NotReady state";
    wait_until_said(&stage, Kind::Policy, "p", configured(text));
    drop(hosts);
}

// nmstate#99
#[test]
fn node_that_becomes_not_ready_while_it_applies_keeps_its_slot() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01", "node02"]);
    let (cut_off, fine) = (Gate::default(), Gate::default());
    cut_off.hold(&hosts[0].0);
    fine.hold(&hosts[1].0);
    let spec = json!({ "maxUnavailable": 2, "desiredState": mtu(1400) });
    stage.create(Kind::Policy, &policy("p", &spec));
    cut_off.wait_for(1);
    fine.wait_for(1);
    stage.set_ready("node01", false);
    fine.open();
    wait_until_said(&stage, Kind::Enactment, "node02.p", RECONCILED);
    stage.wait_for("the slot of the second node", (Kind::Policy, "p"), |policy| {
        let counts = &policy?["status"]["unavailableNodeCountMap"];
        assert_ne!(*counts, json!({}), "the first node keeps its slot");
        (*counts == json!({ "1": 1 })).then_some(())
    });
    let text = "Policy is progressing 1/2 nodes finished";
    let progressing = ["Progressing", "ConfigurationProgressing", text];
    wait_until_said(&stage, Kind::Policy, "p", progressing);

    stage.set_ready("node01", true);
    cut_off.open();
    let all = configured("2/2 nodes successfully configured");
    let policy = wait_until_said(&stage, Kind::Policy, "p", all);
    assert_eq!(policy["status"]["unavailableNodeCountMap"], json!({}));
}

#[test]
fn policy_that_changes_in_progress_is_applied_again() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01"]);
    let gate = Gate::default();
    gate.hold(&hosts[0].0);
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    gate.wait_for(1);
    let text = "Policy is progressing 0/1 nodes finished";
    let at_it = ["Progressing", "ConfigurationProgressing", text];
    wait_until_said(&stage, Kind::Policy, "p", at_it);
    let other = json!({ "spec": { "desiredState": mtu(1300) } });
    stage.patch(Kind::Policy, "p", &other).accepted();
    gate.open();
    let policy = stage.wait_for("the second generation", (Kind::Policy, "p"), |policy| {
        let policy = policy?;
        let is_done = policy["status"]["observedGeneration"] == 2 && status_of(policy, "Available") == "True";
        is_done.then(|| policy.clone())
    });
    assert_eq!(policy["status"]["unavailableNodeCountMap"], json!({}));
    let enactment = stage.get(Kind::Enactment, "node01.p").expect("it");
    assert_eq!(enactment["status"]["policyGeneration"], 2);
    assert_eq!(enactment["status"]["desiredState"], mtu(1300));
    assert_eq!(hosts[0].0.applied(), [mtu(1400), mtu(1300)]);
}

// nmstate#102
#[test]
fn edit_ends_an_attempt_that_waits_for_probes() {
    let stage = Stage::start();
    stage.node("node01", &[]);
    stage.set_ready("node01", false);
    let host = Host::new(host::two_nics());
    // A node that is NotReady keeps the probes waiting, for longer than any test waits.
    let how = apply::Settings {
        selection_timeout: Duration::ZERO,
        timeout: 20 * DEADLINE,
        ..apply::Settings::default()
    };
    let _handler = handler_that(&stage, "node01", &host, settings(), how);
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    wait_for("the first attempt", || match host.applied().as_slice() {
        [only] if *only == mtu(1400) => Ok(()),
        applied => Err(format!("{applied:?}")),
    });
    let other = json!({ "spec": { "desiredState": mtu(1300) } });
    stage.patch(Kind::Policy, "p", &other).accepted();
    wait_for("the roll-back", || match host.rollbacks() {
        1 => Ok(()),
        rollbacks => Err(format!("{rollbacks} roll-backs")),
    });
    stage.set_ready("node01", true);
    let all = configured("1/1 nodes successfully configured");
    let policy = wait_until_said(&stage, Kind::Policy, "p", all);
    assert_eq!(policy["status"]["observedGeneration"], 2);
    assert_eq!(policy["status"]["unavailableNodeCountMap"], json!({}));
    assert_eq!(host.applied(), [mtu(1400), mtu(1300)]);
    let enactment = wait_until_said(&stage, Kind::Enactment, "node01.p", RECONCILED);
    assert_eq!(enactment["status"].get("retryCount"), None, "{enactment:#}");
}

#[test]
fn policy_deleted_in_progress_leaves_no_enactment() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01"]);
    let gate = Gate::default();
    gate.hold(&hosts[0].0);
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    gate.wait_for(1);
    stage.delete(Kind::Policy, "p");
    gate.open();
    wait_until_gone(&stage, Kind::Enactment, "node01.p");
    // The next policy finds the node as usable as ever.
    stage.create(Kind::Policy, &policy("q", &json!({ "desiredState": mtu(1300) })));
    let all = configured("1/1 nodes successfully configured");
    wait_until_said(&stage, Kind::Policy, "q", all);
    assert!(stage.get(Kind::Enactment, "node01.p").is_none());
}

// nmstate#107
#[test]
fn captures_of_a_dry_run_are_not_kept() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01"]);
    let spec = json!({
        "capture": { "nic": "interfaces.name==\"eth1\"" },
        "desiredState": { "interfaces": [{
            "name": "eth1", "type": "ethernet", "state": "up", "mtu": "{{ capture.nic.interfaces.0.mtu }}",
        }] },
    });
    let mut tried = policy("p", &spec);
    tried["metadata"]["annotations"] = json!({ "nmstate.io/dry-run": "true" });
    stage.create(Kind::Policy, &tried);
    let none = configured("1/1 nodes tried, nothing was applied");
    wait_until_said(&stage, Kind::Policy, "p", none);
    let enactment = stage.get(Kind::Enactment, "node01.p").expect("it");
    assert_eq!(enactment["status"].get("capturedStates"), None, "{enactment:#}");
    // The host changes before the policy is applied.
    hosts[0]
        .0
        .change(|current| current["interfaces"][1]["mtu"] = json!(1400));
    let meant = json!({ "metadata": { "annotations": { "nmstate.io/dry-run": null } } });
    stage.patch(Kind::Policy, "p", &meant).accepted();
    let all = configured("1/1 nodes successfully configured");
    wait_until_said(&stage, Kind::Policy, "p", all);
    let applied = hosts[0].0.applied();
    assert_eq!(applied[0]["interfaces"][0]["mtu"], 1400, "{applied:#?}");
    let enactment = stage.get(Kind::Enactment, "node01.p").expect("it");
    let found = &enactment["status"]["capturedStates"]["nic"]["state"];
    assert_eq!(found["interfaces"][0]["mtu"], 1400, "{enactment:#}");

    // Another dry run uses the captures of the applied policy, and keeps them.
    hosts[0]
        .0
        .change(|current| current["interfaces"][1]["mtu"] = json!(1300));
    let trial = json!({ "metadata": { "annotations": { "nmstate.io/dry-run": "true" } } });
    stage.patch(Kind::Policy, "p", &trial).accepted();
    wait_until_said(&stage, Kind::Policy, "p", none);
    let enactment = stage.get(Kind::Enactment, "node01.p").expect("it");
    let status = &enactment["status"];
    assert_eq!(status["diff"]["interfaces"][0]["mtu"], 1400, "{enactment:#}");
    let found = &status["capturedStates"]["nic"]["state"];
    assert_eq!(found["interfaces"][0]["mtu"], 1400, "{enactment:#}");
}

#[test]
fn dry_run_reports_changes_and_is_applied_without_the_annotation() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01"]);
    let mut tried = policy("p", &json!({ "desiredState": mtu(1400) }));
    tried["metadata"]["annotations"] = json!({ "nmstate.io/dry-run": "true" });
    stage.create(Kind::Policy, &tried);
    let none = configured("1/1 nodes tried, nothing was applied");
    wait_until_said(&stage, Kind::Policy, "p", none);
    let enactment = stage.get(Kind::Enactment, "node01.p").expect("it");
    assert_eq!(status_of(&enactment, "Available"), "True", "{enactment:#}");
    let difference = &enactment["status"]["diff"]["interfaces"][0];
    assert_eq!(
        (&difference["name"], &difference["mtu"]),
        (&json!("eth1"), &json!(1400))
    );
    assert!(hosts[0].0.applied().is_empty());

    let meant = json!({ "metadata": { "annotations": { "nmstate.io/dry-run": null } } });
    stage.patch(Kind::Policy, "p", &meant).accepted();
    let all = configured("1/1 nodes successfully configured");
    wait_until_said(&stage, Kind::Policy, "p", all);
    assert_eq!(hosts[0].0.applied(), [mtu(1400)]);
    let enactment = stage.get(Kind::Enactment, "node01.p").expect("it");
    assert_eq!(enactment["status"].get("diff"), None, "{enactment:#}");
}

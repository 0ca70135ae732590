//! The selection of policies for a node, and the end of their selection.

use super::*;

// nmstate#15, nmstate#16
#[test]
fn policy_without_selector_is_for_all_nodes_and_unmatched_is_ignored() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01", "node02"]);
    let spec = json!({ "nodeSelector": { "node": "node03" }, "desiredState": mtu(1400) });
    stage.create(Kind::Policy, &policy("p", &spec));
    let ignored = ["Ignored", "NoMatchingNode", "Policy does not match any node"];
    wait_until_said(&stage, Kind::Policy, "p", ignored);
    assert!(stage.list(Kind::Enactment).is_empty());

    let everywhere = json!({ "spec": { "nodeSelector": null } });
    stage.patch(Kind::Policy, "p", &everywhere).accepted();
    let all = configured("2/2 nodes successfully configured");
    let policy = wait_until_said(&stage, Kind::Policy, "p", all);
    assert_eq!(policy["status"]["observedGeneration"], 2);
    for (name, (host, _)) in ["node01.p", "node02.p"].iter().zip(&hosts) {
        let enactment = wait_until_said(&stage, Kind::Enactment, name, RECONCILED);
        assert_eq!(enactment["status"]["policyGeneration"], 2);
        assert_eq!(enactment["status"]["desiredState"], mtu(1400));
        assert_eq!(host.applied(), [mtu(1400)]);
        assert_eq!(host.commits(), 1);
    }
}

// nmstate#17, nmstate#18
#[test]
fn node_gets_a_policy_with_its_label_and_keeps_it_without() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01", "node02"]);
    let spec = json!({ "nodeSelector": { "zone": "a" }, "desiredState": mtu(1400) });
    stage.create(Kind::Policy, &policy("p", &spec));
    let ignored = ["Ignored", "NoMatchingNode", "Policy does not match any node"];
    wait_until_said(&stage, Kind::Policy, "p", ignored);

    let labelled = |value: Value| json!({ "metadata": { "labels": { "zone": value } } });
    stage
        .patch(Kind::Node, "node01", &labelled(json!("a")))
        .accepted();
    wait_until_said(&stage, Kind::Enactment, "node01.p", RECONCILED);
    let one = configured("1/1 nodes successfully configured");
    wait_until_said(&stage, Kind::Policy, "p", one);
    assert_eq!(hosts[0].0.applied(), [mtu(1400)]);
    assert!(hosts[1].0.applied().is_empty());
    assert!(stage.get(Kind::Enactment, "node02.p").is_none());

    stage
        .patch(Kind::Node, "node01", &labelled(json!("b")))
        .accepted();
    wait_until_gone(&stage, Kind::Enactment, "node01.p");
    wait_until_said(&stage, Kind::Policy, "p", ignored);
    assert_eq!(
        hosts[0].0.current()["interfaces"][1]["mtu"],
        1400,
        "nothing is undone"
    );
}

// nmstate#106
#[test]
fn policy_is_applied_again_after_a_referenced_annotation_changes() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01"]);
    let host = &hosts[0].0;
    let desired = json!({ "interfaces": [{
        "name": "eth1", "type": "ethernet", "state": "up", "mtu": "{{ node.annotations.example.com/mtu }}",
    }] });
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": desired })));
    stage.create(Kind::Policy, &policy("q", &json!({ "desiredState": mtu(1200) })));
    let one = degraded("1/1 nodes failed to configure");
    wait_until_said(&stage, Kind::Policy, "p", one);
    let all = configured("1/1 nodes successfully configured");
    wait_until_said(&stage, Kind::Policy, "q", all);

    let annotated = |value: &str| json!({ "metadata": { "annotations": { "example.com/mtu": value } } });
    for size in [1400, 1300] {
        stage
            .patch(Kind::Node, "node01", &annotated(&size.to_string()))
            .accepted();
        wait_for("the value of the annotation", || {
            let now = host.current()["interfaces"][1]["mtu"].clone();
            if now == size {
                Ok(())
            } else {
                Err(format!("{now}"))
            }
        });
        wait_until_said(&stage, Kind::Policy, "p", all);
    }
    // Another annotation leads to no attempt.
    let other = json!({ "metadata": { "annotations": { "example.com/other": "1" } } });
    stage.patch(Kind::Node, "node01", &other).accepted();
    stage.create(Kind::Policy, &policy("r", &json!({ "desiredState": mtu(1100) })));
    wait_until_said(&stage, Kind::Policy, "r", all);
    let sizes: Vec<Value> = host
        .applied()
        .iter()
        .map(|applied| applied["interfaces"][0]["mtu"].clone())
        .collect();
    assert_eq!(sizes, [1200, 1400, 1300, 1100]);
}

#[test]
fn selector_with_an_invalid_key_is_refused() {
    let stage = Stage::start();
    let spec = json!({ "nodeSelector": { "no key": "" }, "desiredState": {} });
    let refused = stage
        .send(Method::POST, Kind::Policy.path(), Some(&policy("p", &spec)))
        .refused();
    assert!(
        refused.contains("nodeSelector keys must be valid qualified names"),
        "{refused}"
    );
}

// nmstate#20
#[test]
fn enactments_are_deleted_with_their_policy() {
    let stage = Stage::start();
    let mut hosts = nodes(&stage, &["node01", "node02"]);
    stage.create(Kind::Policy, &policy("p", &json!({ "desiredState": mtu(1400) })));
    let all = configured("2/2 nodes successfully configured");
    wait_until_said(&stage, Kind::Policy, "p", all);

    let (host, away) = hosts.pop().expect("two");
    drop(away);
    stage.delete(Kind::Policy, "p");
    wait_until_gone(&stage, Kind::Enactment, "node01.p");
    assert!(stage.get(Kind::Enactment, "node02.p").is_some());
    let back = handler(&stage, "node02", &host);
    wait_until_gone(&stage, Kind::Enactment, "node02.p");
    assert_eq!(host.current()["interfaces"][1]["mtu"], 1400, "nothing is undone");
    drop(back);
}

// nmstate#21
#[test]
fn labels_and_status_of_a_policy_cause_no_pass() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01"]);
    stage.create(Kind::Policy, &policy("a", &json!({ "desiredState": mtu(1400) })));
    let all = configured("1/1 nodes successfully configured");
    wait_until_said(&stage, Kind::Policy, "a", all);

    let mark = stage.mark();
    let labels = json!({ "metadata": { "labels": { "team": "net" }, "annotations": { "note": "x" } } });
    stage.patch(Kind::Policy, "a", &labels).accepted();
    stage.report(Kind::Policy, "a", &json!({ "unavailableNodeCount": 7 }));
    // A later policy is applied in its turn.
    stage.create(Kind::Policy, &policy("b", &json!({ "desiredState": mtu(1300) })));
    let policy = wait_until_said(&stage, Kind::Policy, "b", all);
    assert_eq!(policy["metadata"]["generation"], 1);
    assert_eq!(hosts[0].0.applied(), [mtu(1400), mtu(1300)]);
    let writes = stage.writes_since(mark);
    let about_a = writes
        .iter()
        .filter(|write| write.uri.contains("node01.a") || write.uri.contains("policies/a"));
    assert_eq!(about_a.count(), 0, "{writes:#?}");
    let kept = stage.get(Kind::Policy, "a").expect("it is there");
    assert_eq!(kept["status"]["unavailableNodeCount"], 7);
}

// nmstate#32
#[test]
fn node_applies_policies_sequentially_by_name() {
    let stage = Stage::start();
    for (name, size) in [("c", 1300), ("a", 1100), ("b", 1200)] {
        let spec = json!({ "nodeSelector": { "zone": "a" }, "desiredState": mtu(size) });
        stage.create(Kind::Policy, &policy(name, &spec));
    }
    let hosts = nodes(&stage, &["node01"]);
    let ignored = ["Ignored", "NoMatchingNode", "Policy does not match any node"];
    for name in ["a", "b", "c"] {
        wait_until_said(&stage, Kind::Policy, name, ignored);
    }
    let labelled = json!({ "metadata": { "labels": { "zone": "a" } } });
    stage.patch(Kind::Node, "node01", &labelled).accepted();
    let all = configured("1/1 nodes successfully configured");
    for name in ["a", "b", "c"] {
        wait_until_said(&stage, Kind::Policy, name, all);
    }
    assert_eq!(hosts[0].0.applied(), [mtu(1100), mtu(1200), mtu(1300)]);
}

#[test]
fn recreated_policy_is_another_policy() {
    let stage = Stage::start();
    let hosts = nodes(&stage, &["node01"]);
    let captured = |size: u32| {
        json!({
            "capture": { "nic": "interfaces.name==\"eth1\"" },
            "desiredState": { "interfaces": [{
                "name": "{{ capture.nic.interfaces.0.name }}", "type": "ethernet", "state": "up", "mtu": size,
            }] },
        })
    };
    stage.create(Kind::Policy, &policy("p", &captured(1400)));
    let all = configured("1/1 nodes successfully configured");
    wait_until_said(&stage, Kind::Policy, "p", all);
    let before = stage.get(Kind::Enactment, "node01.p").expect("an enactment");
    let found = &before["status"]["capturedStates"]["nic"];
    assert_eq!(found["state"]["interfaces"][0]["mtu"], 1500, "{before:#}");
    assert_eq!(found["metaInfo"]["version"], "0");

    stage.delete(Kind::Policy, "p");
    let second = stage.create(Kind::Policy, &policy("p", &captured(1300)));
    assert_eq!(second["metadata"]["generation"], 1);
    stage.wait_for(
        "the second policy's captures",
        (Kind::Enactment, "node01.p"),
        |it| {
            let captured = &it?["status"]["capturedStates"]["nic"]["state"];
            (captured["interfaces"][0]["mtu"] == 1400).then_some(())
        },
    );
    wait_until_said(&stage, Kind::Policy, "p", all);
    assert_eq!(hosts[0].0.current()["interfaces"][1]["mtu"], 1300);
}

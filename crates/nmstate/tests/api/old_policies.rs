//! Policies and states of the original design through the whole handler, and the recipes as they stand (nmstate §3.2).

use std::fs;
use std::path::Path;

use cluster::wait;
use serde_json::{Value, json};

use crate::fixture::{DEADLINE, Kind, Stage};
use crate::host::{self, Host};

fn policy(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy",
        "metadata": { "name": name }, "spec": spec,
    })
}

/// The message of an enactment on a node where no interface matches.
const UNMATCHED: &str =
    "successfully reconciled: no interface of this node matches the policy, nothing was changed";

fn hearing(vlan: u16) -> Value {
    json!({ "enabled": true, "neighbors": [[
        { "type": 127, "ieee-802-1-vlans": [{ "name": "v", "vid": vlan }], "oui": "00:80:c2", "subtype": 3 },
    ]] })
}

// nmstate#91, nmstate#104
#[test]
fn policy_with_match_is_applied_on_matching_nodes() {
    let stage = Stage::start();
    let (with, without) = (Host::new(host::two_nics()), Host::new(host::two_nics()));
    without.change(|current| current["interfaces"][1]["name"] = json!("ens7"));
    stage.node("node01", &[]);
    stage.node("node02", &[]);
    let _handlers = [stage.handler("node01", &with), stage.handler("node02", &without)];
    let spec = json!({
        "match": { "interfaces": { "name": "eth1", "type": "ethernet" } },
        "parallel": true,
        "desiredState": { "interfaces": [{ "ipv4": { "enabled": true, "dhcp": true } }] },
    });
    stage.create(Kind::Policy, &policy("dhcp", spec));
    let enactment = stage.wait_until_true(Kind::Enactment, "node01.dhcp", "Available");
    let document = json!({ "interfaces": [
        { "name": "eth1", "type": "ethernet", "state": "up", "ipv4": { "enabled": true, "dhcp": true } },
    ] });
    assert_eq!(enactment["status"]["desiredState"], document);
    assert_eq!(with.applied(), [document]);
    let other = stage.wait_until_true(Kind::Enactment, "node02.dhcp", "Available");
    let conditions = other["status"]["conditions"].as_array().expect("conditions");
    assert!(
        conditions.iter().any(|it| it["message"] == UNMATCHED),
        "{conditions:?}"
    );
    assert_eq!(without.applied(), Vec::<Value>::new());
    stage.wait_until_true(Kind::Policy, "dhcp", "Available");
}

// nmstate#92
#[test]
fn interfaces_on_one_vlan_are_bonded_once() {
    let stage = Stage::start();
    let mut report = host::two_nics();
    let mut third = report["interfaces"][1].clone();
    third["name"] = json!("eth2");
    report["interfaces"][1]["lldp"] = hearing(101);
    third["lldp"] = hearing(101);
    report["interfaces"][0]["lldp"] = hearing(7);
    let single = Host::new(report.clone());
    report["interfaces"].as_array_mut().expect("cards").push(third);
    let host = Host::new(report);
    stage.node("node01", &[]);
    stage.node("node02", &[]);
    let _handlers = [stage.handler("node01", &host), stage.handler("node02", &single)];
    let spec = json!({
        "match": { "interfaces": { "type": "ethernet", "lldp": { "vlan-ids": [101] } } },
        "autoConfig": { "autoBonding": true },
    });
    stage.create(Kind::Policy, &policy("bonds", spec));
    stage.wait_until_true(Kind::Enactment, "node01.bonds", "Available");
    stage.wait_until_true(Kind::Enactment, "node02.bonds", "Available");
    let bond = json!({ "interfaces": [{
        "name": "bond101", "type": "bond", "state": "up",
        "link-aggregation": { "mode": "active-backup", "options": { "miimon": 100 }, "port": ["eth1", "eth2"] },
    }] });
    assert_eq!(host.applied(), [bond]);
    assert_eq!(single.applied(), Vec::<Value>::new());

    stage
        .patch(Kind::Policy, "bonds", &json!({ "spec": { "maxUnavailable": 2 } }))
        .accepted();
    stage.wait_for(
        "the new generation",
        (Kind::Enactment, "node01.bonds"),
        |object| {
            let status = &object?["status"];
            let done =
                status["policyGeneration"] == 2 && crate::fixture::status_of(object?, "Available") == "True";
            done.then_some(())
        },
    );
    assert_eq!(host.applied().len(), 1, "{:#?}", host.applied());
}

// nmstate#27, nmstate#29
#[test]
fn enabling_lldp_needs_a_slot_and_its_failures_count() {
    let stage = Stage::start();
    let hosts = ["node01", "node02"].map(|_| Host::new(host::two_nics()));
    stage.node("node01", &[]);
    stage.node("node02", &[]);
    for host in &hosts {
        host.refuse(host::error("VerificationError", "no LLDP here"));
    }
    let _handlers = [
        stage.handler("node01", &hosts[0]),
        stage.handler("node02", &hosts[1]),
    ];
    let spec = json!({
        "match": { "interfaces": { "type": "ethernet", "lldp": { "vlan-ids": [101] } } },
        "maxUnavailable": 1,
        "desiredState": { "interfaces": [{ "mtu": 9000 }] },
    });
    stage.create(Kind::Policy, &policy("listens", spec));
    stage.wait_for(
        "one to fail and the other to give up",
        (Kind::Policy, "listens"),
        |_| {
            let is = |node: &str, condition: &str| {
                let enactment = stage.get(Kind::Enactment, &format!("{node}.listens"));
                enactment.is_some_and(|it| crate::fixture::status_of(&it, condition) == "True")
            };
            let both = |failing, aborted| {
                is(failing, "Failing") && !is(failing, "Progressing") && is(aborted, "Aborted")
            };
            (both("node01", "node02") || both("node02", "node01")).then_some(())
        },
    );
    let mut attempts = hosts.map(|host| host.applied().len());
    attempts.sort_unstable();
    assert_eq!(attempts, [0, 5]);
}

// nmstate#93
#[test]
fn malformed_original_policies_report_the_reason() {
    let stage = Stage::start();
    let host = Host::new(host::two_nics());
    stage.node("node01", &[]);
    let _handler = stage.handler("node01", &host);
    let rule = json!({ "interfaces": { "type": "ethernet", "lldp": { "vlan-ids": [101] } } });
    let eth1 = json!({ "interfaces": [{ "name": "eth1", "type": "ethernet", "state": "up" }] });
    for (name, spec, reason) in [
        (
            "both",
            json!({ "match": rule, "autoConfig": { "autoBonding": true }, "desiredState": eth1 }),
            "autoConfig cannot be used together with desiredState",
        ),
        (
            "capture",
            json!({ "match": rule, "capture": { "a": "interfaces.name==\"eth1\"" }, "desiredState": eth1 }),
            "capture cannot be used together with match or autoConfig",
        ),
    ] {
        stage.create(Kind::Policy, &policy(name, spec));
        let enactment = stage.wait_until_true(Kind::Enactment, &format!("node01.{name}"), "Failing");
        let conditions = enactment["status"]["conditions"].as_array().expect("conditions");
        let failing = conditions
            .iter()
            .find(|it| it["type"] == "Failing")
            .expect("a failure");
        assert_eq!(
            failing["message"],
            format!("failure generating desiredState and capturedStates: {reason}")
        );
        stage.wait_until_true(Kind::Policy, name, "Degraded");
    }
    assert_eq!(host.applied(), Vec::<Value>::new());
}

// nmstate#87
#[test]
fn reports_continue_with_any_desired_state() {
    let stage = Stage::start();
    let host = Host::new(host::two_nics());
    stage.node("node01", &[]);
    let state = |spec: &Value| {
        json!({
            "apiVersion": "nmstate.io/v1beta1", "kind": "NodeNetworkState", "metadata": { "name": "node01" }, "spec": spec,
        })
    };
    let desired =
        json!({ "interfaces": [{ "name": "eth1", "type": "ethernet", "state": "up", "mtu": 9000 }] });
    let unmanaged = json!({ "managed": false, "desiredState": desired });
    stage.create(Kind::State, &state(&unmanaged));
    let _handler = stage.handler("node01", &host);
    for (mtu, spec) in [
        (1401, unmanaged),
        (
            1402,
            json!({ "managed": true, "nodeName": "node02", "desiredState": desired }),
        ),
        (
            1403,
            json!({ "managed": true, "desiredState": { "no such section": 1 } }),
        ),
        (
            1404,
            json!({ "managed": true, "nodeName": null, "desiredState": null }),
        ),
    ] {
        stage
            .patch(Kind::State, "node01", &json!({ "spec": spec }))
            .accepted();
        host.change(|current| current["interfaces"][1]["mtu"] = json!(mtu));
        let reported = stage.wait_for("a report", (Kind::State, "node01"), |object| {
            let interfaces = object?["status"]["currentState"]["interfaces"].as_array()?;
            let eth1 = interfaces.iter().find(|it| it["name"] == "eth1")?;
            (eth1["mtu"] == mtu).then(|| object.cloned())
        });
        let reported = reported.expect("a state");
        assert_eq!(
            reported["spec"]["managed"], spec["managed"],
            "the spec is the user's"
        );
    }
    assert!(
        !host.applied().contains(&desired),
        "no object has this desired state: {:#?}",
        host.applied()
    );
}

#[test]
fn recipes_are_accepted_by_the_api_server() {
    let stage = Stage::start();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/nmstate");
    let mut count = 0;
    for directory in [directory.clone(), directory.join("original")] {
        for entry in fs::read_dir(directory).expect("the examples") {
            let path = entry.expect("an entry").path();
            if path.is_file() {
                let file = path.to_str().expect("a path");
                wait::until(file, DEADLINE, || {
                    stage
                        .kubectl()
                        .run(["apply", "-f", file])
                        .map(drop)
                        .map_err(|error| error.to_string())
                })
                .unwrap_or_else(|error| panic!("{error}"));
                count += 1;
            }
        }
    }
    assert!(count > 20, "{count} files");
    for policy in stage.list(Kind::Policy) {
        let desired = &policy["spec"]["desiredState"];
        assert!(
            desired.is_object() || policy["spec"]["autoConfig"]["autoBonding"] == true,
            "{policy:#?}"
        );
    }
    let state = stage.get(Kind::State, "node01").expect("the state");
    assert_eq!(state["spec"]["nodeName"], "node01");
}

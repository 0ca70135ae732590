use serde_json::json;

use super::*;
use crate::engine::Backend;
use crate::render::NodeFacts;

/// The outcome of a policy on a node with a route over its uplink, and a bridge over another card.
async fn outcome_of(spec: Value) -> Outcome {
    let route = json!({
        "destination": "0.0.0.0/0", "next-hop-interface": "eth0", "next-hop-address": "203.0.113.1",
        "table-id": 254, "metric": 100,
    });
    let card = |name: &str| {
        json!({
            "name": name, "type": "ethernet", "state": "up", "mtu": 1500, "mac-address": "02:00:00:00:00:01",
            "ipv4": { "enabled": false }, "ipv6": { "enabled": false },
        })
    };
    let mut interfaces = vec![card("eth0"), card("eth1")];
    interfaces[0]["ipv4"] =
        json!({ "enabled": true, "dhcp": false, "address": [{ "ip": "203.0.113.2", "prefix-length": 24 }] });
    interfaces[1]["controller"] = json!("br1");
    interfaces.push(json!({
        "name": "br1", "type": "linux-bridge", "state": "up", "ipv4": { "enabled": false },
        "bridge": { "port": [{ "name": "eth1", "stp-hairpin-mode": false, "stp-path-cost": 100, "stp-priority": 32,
            "vlan": { "mode": "trunk", "trunk-tags": [{ "id-range": { "min": 2, "max": 4094 } }] } }] },
    }));
    let node = ReportedNode {
        facts: NodeFacts {
            name: "node01".to_owned(),
            labels: [("zone".to_owned(), "1".to_owned())].into(),
            ..NodeFacts::default()
        },
        report: Some(json!({
            "routes": { "running": [route], "config": [route] },
            "interfaces": interfaces,
        })),
    };
    let policy = Policy {
        name: "p".to_owned(),
        spec,
    };
    let library = Engine::start(Backend::NetworkManager).expect("an engine");
    outcome(&library, &policy, &node, None).await
}

fn nothing() -> Outcome {
    Outcome::Changes(Vec::new(), Vec::new())
}

/// The desired state of the policies below: alone, it would change the node.
fn desired_state() -> Value {
    json!({ "interfaces": [{ "name": "eth0", "mtu": 1400 }] })
}

#[tokio::test]
async fn policy_that_handlers_refuse_fails_in_the_preview() {
    for spec in [
        json!({ "capture": "interfaces.name==\"eth0\"", "desiredState": desired_state() }),
        json!({ "capture": ["interfaces.name==\"eth0\""], "desiredState": desired_state() }),
        json!({ "capture": [1], "match": { "interfaces": { "name": "eth0" } }, "desiredState": desired_state() }),
    ] {
        let outcome = outcome_of(spec.clone()).await;
        let is_refused =
            matches!(&outcome, Outcome::Fails(text) if text.starts_with("InvalidArgument: invalid type: "));
        assert!(is_refused, "{spec}: {outcome:?}");
    }
}

#[tokio::test]
async fn null_members_count_as_missing() {
    let spec = json!({ "capture": null, "nodeSelector": null, "match": null, "autoConfig": null, "desiredState": desired_state() });
    let outcome = outcome_of(spec).await;
    assert!(
        matches!(&outcome, Outcome::Changes(changes, _) if changes.len() == 1),
        "{outcome:?}"
    );
    for nothing_wanted in [
        json!({ "desiredState": null }),
        json!({ "desiredState": {} }),
        json!({}),
    ] {
        assert_eq!(outcome_of(nothing_wanted).await, nothing());
    }
}

#[tokio::test]
async fn selector_value_that_is_no_string_matches_nothing() {
    let spec = json!({ "nodeSelector": { "zone": 1 }, "desiredState": desired_state() });
    assert_eq!(
        outcome_of(spec).await,
        Outcome::NotSelected(vec!["zone: ".to_owned()])
    );
}

#[tokio::test]
async fn equal_state_is_no_change() {
    for desired in [
        // A route without its table, which is the main one, and without its metric.
        json!({ "routes": { "config": [
            { "destination": "0.0.0.0/0", "next-hop-interface": "eth0", "next-hop-address": "203.0.113.1" },
        ] } }),
        // A port without its defaults.
        json!({ "interfaces": [
            { "name": "br1", "type": "linux-bridge", "state": "up", "bridge": { "port": [{ "name": "eth1" }] } },
        ] }),
    ] {
        assert_eq!(
            outcome_of(json!({ "desiredState": desired.clone() })).await,
            nothing(),
            "{desired}"
        );
    }
}

#[tokio::test]
async fn all_vlans_of_a_port_are_shown_as_a_range() {
    let desired = json!({ "interfaces": [
        { "name": "br2", "type": "linux-bridge", "state": "up", "bridge": { "port": [{ "name": "eth0" }] } },
    ] });
    let outcome = outcome_of(json!({ "desiredState": desired })).await;
    let Outcome::Changes(changes, _) = &outcome else {
        panic!("{outcome:?}");
    };
    let bridge = changes.iter().find(|change| change.what == "linux-bridge br2");
    let ports = bridge.map(|bridge| bridge.details.as_slice());
    assert_eq!(
        ports,
        Some(
            [
                "bridge.port: {name: eth0, vlan: {mode: trunk, trunk-tags: {id-range: {min: 2, max: 4094}}}}"
                    .to_owned()
            ]
            .as_slice()
        ),
    );
}

#[tokio::test]
async fn capture_errors_equal_those_in_enactments() {
    for (capture, error) in [
        ("interfaces.name==\"eth0", "PolicyError: No ending double quote\n"),
        (
            "interfaces.name==capture.nic.interfaces.0.name",
            "PolicyError: Capture nic not found\n",
        ),
        (
            "links.name==\"eth0\"",
            "PolicyError: Unsupported capture keyword 'links'\n",
        ),
    ] {
        let outcome =
            outcome_of(json!({ "capture": { "c": capture }, "desiredState": desired_state() })).await;
        assert!(
            matches!(&outcome, Outcome::Fails(text) if text.starts_with(error)),
            "{outcome:?}"
        );
    }
}

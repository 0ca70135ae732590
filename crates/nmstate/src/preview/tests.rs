use serde_json::json;

use super::changes::{self, Change};
use super::evaluate::Outcome;
use super::*;

fn change(sign: char, what: &str, details: &[&str]) -> Change {
    Change {
        sign,
        what: what.to_owned(),
        details: details.iter().map(|detail| (*detail).to_owned()).collect(),
    }
}

#[test]
fn changes_are_formatted() {
    let report = json!({
        "dns-resolver": {"config": {"server": ["192.0.2.1"]}},
        "interfaces": [
            {"name": "eth1", "type": "ethernet", "state": "up", "mtu": 1500, "ipv4": {"enabled": false}},
            {"name": "eth1.101", "type": "vlan", "state": "up"},
            {"name": "eth2", "type": "ethernet", "state": "down"},
        ],
    });
    let diff = json!({
        "interfaces": [
            {"name": "br1", "type": "linux-bridge", "state": "up", "bridge": {"port": [{"name": "eth1"}]}},
            {"name": "eth1", "mtu": 9000, "ipv4": {"enabled": true, "dhcp": false,
                "address": [{"ip": "192.0.2.5", "prefix-length": 24}]}},
            {"name": "eth1.101", "type": "vlan", "state": "absent"},
            {"name": "eth2", "type": "ethernet", "state": "up"},
        ],
        "routes": {"config": [
            {"destination": "198.51.100.0/24", "next-hop-address": "192.0.2.1", "next-hop-interface": "eth1", "table-id": 200},
            {"state": "absent", "next-hop-interface": "eth2"},
        ]},
        "dns-resolver": {"config": {"server": ["192.0.2.1", "192.0.2.2"], "search": []}},
    });
    assert_eq!(
        changes::of(&diff, &report),
        [
            change('+', "linux-bridge br1", &["bridge.port: {name: eth1}"]),
            change(
                '~',
                "ethernet eth1",
                &[
                    "mtu: 1500 → 9000",
                    "ipv4.enabled: false → true",
                    "ipv4.dhcp: false",
                    "ipv4.address: 192.0.2.5/24",
                ]
            ),
            change('-', "vlan eth1.101", &[]),
            change('~', "ethernet eth2", &["state: down → up"]),
            change('+', "route 198.51.100.0/24 via 192.0.2.1 dev eth1 table 200", &[]),
            change('-', "route to anywhere dev eth2", &[]),
            change(
                '~',
                "dns-resolver",
                &[
                    "config.server: 192.0.2.1 → 192.0.2.1, 192.0.2.2",
                    "config.search: (none)"
                ]
            ),
        ]
    );
}

#[test]
fn table_fits_the_terminal_and_groups_nodes() {
    let bridge = || {
        Outcome::Changes(
            vec![
                change('+', "linux-bridge br1", &["bridge.port: {name: eth1}"]),
                change('~', "ethernet eth1", &["mtu: 1500 → 9000"]),
            ],
            vec!["something is not known"],
        )
    };
    let outcomes: Vec<(String, Outcome)> = [
        ("node01", bridge()),
        ("node02", bridge()),
        ("node03", Outcome::NotSelected(vec!["zone: a".to_owned()])),
        ("node04", Outcome::Changes(Vec::new(), Vec::new())),
    ]
    .map(|(node, outcome)| (node.to_owned(), outcome))
    .into();
    assert_eq!(
        text::table(&outcomes, 80),
        "\
NODE    SELECTED  WOULD CHANGE
node01  yes       + linux-bridge br1, ~ ethernet eth1
node02  yes       + linux-bridge br1, ~ ethernet eth1
node03  no        its labels lack zone: a
node04  yes       nothing

node01, node02:
  + linux-bridge br1
      bridge.port: {name: eth1}
  ~ ethernet eth1
      mtu: 1500 → 9000
"
    );
    let narrow = text::table(&outcomes, text::width(Some("3")));
    assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
    assert_eq!(text::notes(&outcomes), ["something is not known"]);
    assert_eq!((text::width(None), text::width(Some("wide"))), (80, 80));
}

// nmstate#115
#[test]
fn json_has_every_outcome_and_change() {
    let outcomes = [
        Outcome::Changes(
            vec![
                change('+', "linux-bridge br1", &["bridge.port: {name: eth1}"]),
                change('~', "ethernet eth1", &["mtu: 1500 → 9000"]),
                change('-', "vlan eth1.101", &[]),
            ],
            vec!["something is not known"],
        ),
        Outcome::Changes(Vec::new(), Vec::new()),
        Outcome::NotSelected(vec!["zone: a".to_owned()]),
        Outcome::Unknown("no report".to_owned()),
        Outcome::Fails("no such\ncapture".to_owned()),
    ];
    let outcomes: Vec<_> = outcomes.into_iter().map(|it| ("n".to_owned(), it)).collect();
    assert_eq!(
        json::policy("p", &outcomes),
        json!({ "name": "p", "notes": ["something is not known"], "nodes": [
            { "name": "n", "outcome": "Changes", "changes": [
                { "action": "create", "what": "linux-bridge br1", "details": ["bridge.port: {name: eth1}"] },
                { "action": "change", "what": "ethernet eth1", "details": ["mtu: 1500 → 9000"] },
                { "action": "remove", "what": "vlan eth1.101", "details": [] },
            ] },
            { "name": "n", "outcome": "Changes", "changes": [] },
            { "name": "n", "outcome": "NotSelected", "missingLabels": ["zone: a"] },
            { "name": "n", "outcome": "Unknown", "message": "no report" },
            { "name": "n", "outcome": "Fails", "message": "no such\ncapture" },
        ] })
    );
}

#[test]
fn exit_code_is_that_of_the_worst_node() {
    let code = |outcomes: &[Outcome]| {
        let outcomes: Vec<_> = outcomes
            .iter()
            .map(|outcome| ("n".to_owned(), outcome.clone()))
            .collect();
        text::code(&outcomes)
    };
    let (nothing, other) = (
        Outcome::Changes(Vec::new(), Vec::new()),
        Outcome::NotSelected(Vec::new()),
    );
    let some = Outcome::Changes(vec![change('+', "vlan v", &[])], Vec::new());
    let fails = Outcome::Fails("no".to_owned());
    assert_eq!(code(&[nothing.clone(), other.clone()]), 0);
    assert_eq!(code(&[nothing, some.clone(), other]), 1);
    assert_eq!(code(&[fails, some]), 2);
}

#[test]
fn policies_are_found_among_other_objects_and_in_lists() {
    let text = "\
kind: Namespace
---
kind: List
items:
- kind: NodeNetworkConfigurationPolicy
  metadata: {name: a}
  spec: {desiredState: {}}
---
kind: NodeNetworkConfigurationPolicy
metadata: {name: b}
---
";
    let policies = parsed(text).expect("YAML");
    assert_eq!(
        policies,
        [
            Policy {
                name: "a".to_owned(),
                spec: json!({"desiredState": {}}),
            },
            Policy {
                name: "b".to_owned(),
                spec: json!(null),
            },
        ]
    );
}

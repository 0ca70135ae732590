//! The recipes in `examples/nmstate`: the engine accepts each of them on a host with matching interfaces.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::evaluate::{self, Outcome};
use super::gather::ReportedNode;
use super::{Policy, parsed};
use crate::engine::{Backend, Engine};
use crate::legacy::node_state::DesiredState;
use crate::render::NodeFacts;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/nmstate")
}

/// The files of a directory, sorted by name.
fn files(directory: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(directory).expect("the examples");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_file())
        .map(|path| {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, fs::read_to_string(path).expect("a text"))
        })
        .collect();
    files.sort();
    files
}

fn card(name: &str, more: &Value) -> Value {
    let mut card = json!({
        "name": name, "type": "ethernet", "state": "up", "mtu": 1500, "mac-address": "02:00:00:00:00:01",
        "ipv4": {"enabled": false}, "ipv6": {"enabled": false},
    });
    for (key, value) in more.as_object().expect("members") {
        card[key] = value.clone();
    }
    card
}

/// A node with an uplink, a name server and two spare interfaces on VLAN 101; one of them may be in a bridge.
fn node(has_bridge: bool) -> ReportedNode {
    let lldp = json!({"lldp": {"enabled": true, "neighbors": [[
        {"type": 127, "ieee-802-1-vlans": [{"name": "v", "vid": 101}], "oui": "00:80:c2", "subtype": 3},
    ]]}});
    let uplink = json!({"ipv4": {"enabled": true, "dhcp": false, "address": [{"ip": "203.0.113.2", "prefix-length": 24}]}});
    let mut interfaces = vec![card("eth0", &uplink), card("eth1", &lldp), card("eth2", &lldp)];
    if has_bridge {
        interfaces.push(json!({"name": "br1", "type": "linux-bridge", "state": "up", "bridge": {"port": [{"name": "eth1"}]}}));
        interfaces[1]["controller"] = json!("br1");
    }
    let route = json!({"destination": "0.0.0.0/0", "next-hop-interface": "eth0", "next-hop-address": "203.0.113.1", "table-id": 254});
    let dns = json!({"config": {"server": ["192.0.2.99"]}});
    ReportedNode {
        facts: NodeFacts {
            name: "node01".to_owned(),
            labels: [
                ("kubernetes.io/hostname".to_owned(), "node01".to_owned()),
                ("node-role.kubernetes.io/worker".to_owned(), String::new()),
            ]
            .into(),
            annotations: [("example.com/storage-address".to_owned(), "192.0.2.11".to_owned())].into(),
        },
        report: Some(json!({
            "dns-resolver": dns,
            "routes": {"running": [route], "config": [route]},
            "interfaces": interfaces,
        })),
    }
}

/// The changes on a node, one per line.
async fn changes(policy: &Policy, node: &ReportedNode) -> Vec<String> {
    let library = Engine::start(Backend::NetworkManager).expect("an engine");
    match evaluate::outcome(&library, policy, node, None).await {
        Outcome::Changes(changes, _) => changes
            .iter()
            .map(|change| format!("{} {}", change.sign, change.what))
            .collect(),
        other => panic!("{}: {other:?}", policy.name),
    }
}

#[tokio::test]
async fn recipes_change_the_interfaces_in_their_names() {
    for (file, text) in files(&directory()) {
        let policies = parsed(&text).expect("YAML");
        let [policy] = policies.as_slice() else {
            panic!("{file}: {policies:?}");
        };
        assert_eq!(format!("{}.yaml", policy.name), file);
        let has_bridge =
            ["linux-bridge-absent.yaml", "linux-bridge-without-port.yaml"].contains(&file.as_str());
        let changes = changes(policy, &node(has_bridge)).await;
        let expected: &[&str] = match policy.name.as_str() {
            "bond" => &["+ bond bond0"],
            "bond-vlan" => &["+ bond bond0", "+ vlan bond0.102"],
            "dns" | "dns-absent" => &["~ dns-resolver", "~ ethernet eth1"],
            "linux-bridge-absent" => &["- linux-bridge br1"],
            "linux-bridge-without-port" => &["~ linux-bridge br1", "~ ethernet eth1"],
            "linux-bridge" | "linux-bridge-vlans" | "workers" | "dry-run" => &["+ linux-bridge br1"],
            "lldp" => &["~ ethernet eth0"],
            "ovs-bridge" => &["+ ovs-bridge ovs-br1"],
            "ovs-bridge-interface" => &["+ ovs-bridge ovs-br1", "+ ovs-interface ovs1"],
            "route" => &[
                "~ ethernet eth1",
                "+ route 198.51.100.0/24 via 192.0.2.1 dev eth1 metric 150",
            ],
            "uplink-bridge" => &["+ linux-bridge br-uplink"],
            "vlan" => &["+ vlan eth1.102"],
            "vrf" => &[
                "+ vrf vrf1",
                "~ ethernet eth1",
                "+ route 0.0.0.0/0 via 192.0.2.1 dev eth1 table 1001",
            ],
            _ => &["~ ethernet eth1"],
        };
        for change in expected {
            assert!(changes.iter().any(|it| it == change), "{file}: {changes:#?}");
        }
    }
}

// nmstate#91-92
#[tokio::test]
async fn examples_of_the_original_design_are_rendered() {
    for (file, text) in files(&directory().join("original")) {
        let object: Value = serde_yaml::from_str(&text).expect("YAML");
        if object["kind"] == "NodeNetworkState" {
            let desired = DesiredState::of("node01", &object["spec"]);
            if file == "node-network-state-report.yaml" {
                assert_eq!(desired, DesiredState::None);
                continue;
            }
            let DesiredState::Enforced(desired) = desired else {
                panic!("{file}: {desired:?}");
            };
            let policy = Policy {
                name: file,
                spec: json!({"desiredState": desired}),
            };
            assert_eq!(changes(&policy, &node(false)).await, ["~ ethernet eth1"]);
            continue;
        }
        let policies = parsed(&text).expect("YAML");
        let expected: &[&str] = match policies[0].name.as_str() {
            "match-eth1" => &["~ ethernet eth1"],
            "match-vlans" => &["~ ethernet eth1", "~ ethernet eth2"],
            "auto-bonding" => &["+ bond bond101"],
            other => panic!("{file}: {other}"),
        };
        let changes = changes(&policies[0], &node(false)).await;
        for change in expected {
            assert!(changes.iter().any(|it| it == change), "{file}: {changes:#?}");
        }
    }
}

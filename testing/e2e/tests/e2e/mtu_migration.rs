//! Migration of the nodes' MTU by the cluster network operator, carried out by real handlers of node state.

use cluster::run;
use serde_json::{Value, json};

use crate::pod_network::{GATEWAY, NODES, Own};

/// The interface of the nodes' default route, with the profile that a node of a real cluster has. The harness
/// configures the interface without NetworkManager.
const UPLINK: &str = "eth0";
const PROFILE: &str = "ip route delete default
nmcli connection add type ethernet con-name uplink ifname $UPLINK ipv4.method manual ipv4.addresses $ADDRESS \
 ipv4.gateway $GATEWAY ipv6.method disabled
nmcli --wait 60 connection up uplink";

const FORMER: u64 = 1_500;
const TARGET: u64 = 1_400;
const ABORTED: u64 = 1_450;
/// Number of attempts to abort a migration between its two nodes: on a busy machine the test may come too late.
const ATTEMPTS: u32 = 5;

/// The nodes get another MTU and keep it, without a lost datagram between pods. Then a second migration is aborted
/// after its first node.
pub(crate) fn is_carried_out(own: &Own, image: &str, server: &str) {
    for node in NODES {
        let address = own.node(node, &["ip", "-4", "-o", "address", "show", "dev", UPLINK]);
        let address = address.split_whitespace().nth(3).unwrap();
        let profile = format!("UPLINK={UPLINK} GATEWAY={GATEWAY} ADDRESS={address}\n{PROFILE}");
        own.node(node, &["sh", "-euc", &profile]);
    }
    install_node_state(own, image);
    own.apply("cluster-network/mtu-migration.yaml", image);
    assert_eq!(mtus(own), [FORMER; 2]);
    // The API server sends from there. A link of the harness drops packets that exceed its receiver's MTU: the open
    // connections of the nodes' programs would hang until their clients close them.
    let other_end = ["ip", "link", "set", "cluster0", "mtu", &TARGET.to_string()];
    own.node("control", &other_end);

    let datagrams = own.start("client", &format!("ping -q -i 0.05 -W 5 {server}"));
    begin(own, TARGET);
    finished_with(own, TARGET);
    own.kubectl(&["exec", "client", "--", "killall", "-INT", "ping"]);
    let summary = datagrams.wait_with_output().unwrap();
    let summary = String::from_utf8_lossy(&summary.stdout);
    assert!(summary.contains(" 0% packet loss"), "{summary}");

    let mut attempts = 1;
    while !is_aborted(own) {
        assert!(
            attempts < ATTEMPTS,
            "each migration was complete before its abort"
        );
        attempts += 1;
        begin(own, TARGET);
        finished_with(own, TARGET);
    }
}

/// Begins the second migration, and aborts it after its first node. Returns false if the second node was not slower:
/// such a migration may be complete, and then the nodes keep their MTU.
fn is_aborted(own: &Own) -> bool {
    begin(own, ABORTED);
    own.wait("a node with the MTU of the second migration", || {
        mtus(own).contains(&ABORTED).then_some(())
    });
    migrate(own, &Value::Null);
    let then = mtus(own);
    own.wait("the operator to finish the abort", || {
        is_finished(own).then_some(())
    });
    let now = mtus(own);
    if then == [ABORTED; 2] && now == then {
        return false;
    }
    assert_eq!(now, [TARGET; 2], "{then:?} at the abort");
    true
}

/// Deploys the operator of node state, and waits until each node has reported.
fn install_node_state(own: &Own, image: &str) {
    for manifest in [
        "namespace.yaml",
        "nmstate.io_nmstates.yaml",
        "service_account.yaml",
        "role.yaml",
        "role_binding.yaml",
        "operator.yaml",
    ] {
        own.apply(&format!("nmstate/{manifest}"), image);
    }
    own.wait("the kind NMState to be served", || {
        own.try_apply("nmstate/nmstate.io_v1_nmstate_cr.yaml", image).ok()
    });
    own.wait("a report of each node", || {
        let reports = own.0.kubectl().json(["get", "nodenetworkstates"]).ok()?;
        let has_uplink = |report: &&Value| {
            let routes = &report["status"]["currentState"]["routes"]["running"];
            let mut routes = routes.as_array().into_iter().flatten();
            routes.any(|route| route["next-hop-interface"] == UPLINK)
        };
        let reported = reports["items"].as_array()?.iter().filter(has_uplink).count();
        (reported == NODES.len()).then_some(())
    });
}

/// Begins a migration to this MTU.
fn begin(own: &Own, mtu: u64) {
    migrate(
        own,
        &json!({ "nodePolicies": "Apply", "mtu": { "machine": { "to": mtu } } }),
    );
}

/// Waits for the end of a migration, which gives the nodes this MTU.
fn finished_with(own: &Own, mtu: u64) {
    own.wait("the operator to finish the migration", || {
        is_finished(own).then_some(())
    });
    assert_eq!(mtus(own), [mtu; 2]);
}

fn migrate(own: &Own, migration: &Value) {
    let patch = json!({ "spec": { "migration": migration } }).to_string();
    own.kubectl(&[
        "patch",
        "network.operator",
        "cluster",
        "--type=merge",
        "--patch",
        &patch,
    ]);
}

/// Returns true once the operator has removed the migration and its policies, and reports no progress.
fn is_finished(own: &Own) -> bool {
    let kubectl = own.0.kubectl();
    let network = kubectl.json(["get", "network.operator", "cluster"]);
    let policies = kubectl.json(["get", "nodenetworkconfigurationpolicies"]);
    let (Ok(network), Ok(policies)) = (network, policies) else {
        return false;
    };
    network["spec"]["migration"].is_null()
        && policies["items"].as_array().is_some_and(Vec::is_empty)
        && own.operator_is("Progressing", "False")
        && own.operator_is("Degraded", "False")
}

/// The MTU of each node's uplink.
fn mtus(own: &Own) -> [u64; 2] {
    NODES.map(|node| {
        let mut read = own
            .0
            .node_command(node, ["cat", &format!("/sys/class/net/{UPLINK}/mtu")])
            .unwrap();
        run::output(&mut read).unwrap().trim().parse().unwrap()
    })
}

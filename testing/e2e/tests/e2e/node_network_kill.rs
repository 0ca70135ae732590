//! Handlers and NetworkManager that end during a change.

use serde_json::{Value, json};

use crate::node_network::{NodeNetwork, condition};
use crate::support::Stage;

const NODE: &str = "node01";
const POLICY: &str = "survivor";

/// A bridge without ports. Its address identifies the generation.
fn bridge(address: &str) -> Value {
    json!({
        "nodeSelector": { "kubernetes.io/hostname": NODE },
        "desiredState": { "interfaces": [{
            "name": "br9", "type": "linux-bridge", "state": "up",
            "ipv4": { "enabled": true, "dhcp": false, "address": [{ "ip": address, "prefix-length": 24 }] },
            "bridge": { "options": { "stp": { "enabled": false } }, "port": [] },
        }] },
    })
}

/// A script that succeeds if the bridge has this address.
fn look_for(address: &str) -> String {
    format!("ip -4 -brief address show br9 | grep -F ' {address}/'")
}

/// A change in progress.
struct Change<'a> {
    network: &'a NodeNetwork<'a>,
    address: &'a str,
}

impl<'a> Change<'a> {
    /// Makes the handler start a change.
    fn begin(network: &'a NodeNetwork<'a>, address: &'a str) -> Self {
        network.apply_policy(POLICY, &bridge(address));
        Self { network, address }
    }

    /// Makes the handler start a change that it does not commit: the name server answers until the host has the change,
    /// so the handler selects the probe, which then fails.
    fn begin_uncommitted(network: &'a NodeNetwork<'a>, address: &'a str) -> Self {
        let look = ["sh", "-euc", &look_for(address)];
        let look = network.stage.cluster.node_command(NODE, look);
        network.names.silence_once(look.expect("the node"));
        Self::begin(network, address)
    }

    fn is_made(&self) -> bool {
        self.network.try_script(NODE, &look_for(self.address)).is_some()
    }

    fn wait_made(&self) {
        self.network
            .stage
            .wait("the change on the host", || self.is_made().then_some(()));
    }

    /// Waits until only the probes delay the commit.
    fn wait_probed(&self) {
        self.wait_made();
        let asked = self.network.names.questions();
        self.network.stage.wait("the probes after the change", || {
            (self.network.names.questions() > asked).then_some(())
        });
    }

    /// Waits until the successor of the killed program finishes the change and returns the slot.
    fn finished(&self) {
        self.network.names.speak();
        self.network
            .available(POLICY, "1/1 nodes successfully configured");
        assert!(self.is_made());
        let policy = self.network.policy(POLICY).unwrap_or_default();
        let slots = &policy["status"]["unavailableNodeCountMap"];
        assert!(slots.as_object().is_none_or(serde_json::Map::is_empty), "{slots}");
        let enactment = self.network.enactment(NODE, POLICY).unwrap_or_default();
        assert!(
            condition(&enactment, "Available", "True").is_some(),
            "{enactment:#}"
        );
    }
}

// nmstate#31, nmstate#44, nmstate#70
#[test]
fn change_completes_after_a_kill_at_any_point() {
    let Some(stage) = Stage::enter() else { return };
    let network = NodeNetwork::deploy(&stage);
    let rollbacks = || {
        let log = network.manager_log(NODE);
        log.matches("op=\"checkpoint-rollback\"").count()
    };

    // Before the change: the handler still selects the probes, for at most ten seconds.
    let handler = network.handler(NODE);
    let asked = network.names.questions();
    network.names.silence();
    let change = Change::begin(&network, "198.51.100.1");
    stage.wait("the choice of probes", || {
        (network.names.questions() > asked).then_some(())
    });
    network.kill(NODE, handler);
    assert!(!change.is_made());
    network.enacted(NODE, POLICY, "Progressing");
    change.finished();

    // Directly after the change.
    let before = rollbacks();
    let change = Change::begin_uncommitted(&network, "198.51.100.2");
    change.wait_made();
    network.kill_handler(NODE);
    change.finished();
    assert!(rollbacks() > before, "{}", network.manager_log(NODE));

    // While it only waits for the probes before the commit.
    let before = rollbacks();
    let change = Change::begin_uncommitted(&network, "198.51.100.3");
    change.wait_probed();
    network.kill_handler(NODE);
    change.finished();
    assert!(rollbacks() > before, "{}", network.manager_log(NODE));

    // At SIGTERM, the handler rolls the change back by itself, before a successor exists.
    let before = rollbacks();
    let change = Change::begin_uncommitted(&network, "198.51.100.4");
    change.wait_probed();
    network.stop_handler(NODE);
    assert!(rollbacks() > before, "{}", network.manager_log(NODE));
    change.finished();

    // NetworkManager: its checkpoint ends with it, and a change that passes the probes is kept.
    let before = rollbacks();
    let change = Change::begin_uncommitted(&network, "198.51.100.5");
    change.wait_probed();
    network.crash_manager(NODE);
    change.finished();
    assert_eq!(rollbacks(), before, "{}", network.manager_log(NODE));

    // No roll-back is pending.
    let profiles = network.script(
        NODE,
        "cat /etc/NetworkManager/system-connections/br9.nmconnection",
    );
    assert!(profiles.contains("198.51.100.5/24"), "{profiles}");

    // The removal of node state keeps the configuration of nodes and the policies.
    network.undeploy();
    let kinds = stage.kubectl(&["get", "crds", "-o", "name"]);
    for kind in [
        "nmstates",
        "nodenetworkconfigurationenactments",
        "nodenetworkconfigurationpolicies",
        "nodenetworkstates",
    ] {
        assert!(kinds.contains(&format!("/{kind}.nmstate.io")), "{kinds}");
    }
    assert!(network.policy(POLICY).is_some() && network.report(NODE).is_some());
    assert!(change.is_made());
}

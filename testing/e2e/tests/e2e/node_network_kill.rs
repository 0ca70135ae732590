//! Handlers that are killed.

use serde_json::{Value, json};

use crate::node_network::{NodeNetwork, condition};
use crate::support::Stage;

const NODE: &str = "node01";
const POLICY: &str = "survivor";

/// A bridge without ports, with an address that tells one generation from another.
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

/// A change that is being made.
struct Change<'a> {
    network: &'a NodeNetwork<'a>,
    address: &'a str,
}

impl<'a> Change<'a> {
    /// Has the handler begin it; the name server answers so many questions of its probes.
    fn begin(network: &'a NodeNetwork<'a>, address: &'a str, answers: i64) -> Self {
        network.names.fall_silent_after(answers);
        network.apply_policy(POLICY, &bridge(address));
        Self { network, address }
    }

    fn is_made(&self) -> bool {
        let shown = self.network.try_script(NODE, "ip -4 -brief address show br9");
        shown.is_some_and(|shown| shown.contains(&format!("{}/", self.address)))
    }

    fn wait_made(&self) {
        self.network
            .stage
            .wait("the change on the host", || self.is_made().then_some(()));
    }

    /// Whoever comes after the one that was killed finishes it, and gives back the slot.
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

// nmstate#31, nmstate#44
#[test]
fn a_handler_may_die_at_any_point_of_a_change() {
    let Some(stage) = Stage::enter() else { return };
    let network = NodeNetwork::deploy(&stage);
    let rollbacks = || {
        let log = network.manager_log(NODE);
        log.matches("op=\"checkpoint-rollback\"").count()
    };

    // Before it has touched anything: it still finds out which probes count.
    let asked = network.names.questions();
    let change = Change::begin(&network, "198.51.100.1", 0);
    network.enacted(NODE, POLICY, "Progressing");
    stage.wait("the choice of probes", || {
        (network.names.questions() > asked).then_some(())
    });
    network.kill_handler(NODE);
    assert!(!change.is_made());
    change.finished();

    // When the change has just been made: the one answer is for the choice of probes.
    let before = rollbacks();
    let change = Change::begin(&network, "198.51.100.2", 1);
    change.wait_made();
    network.kill_handler(NODE);
    change.finished();
    assert!(rollbacks() > before, "{}", network.manager_log(NODE));

    // When it only waits for the probes before it commits.
    let before = rollbacks();
    let change = Change::begin(&network, "198.51.100.3", 1);
    change.wait_made();
    let asked = network.names.questions();
    stage.wait("the probes after the change", || {
        (network.names.questions() > asked).then_some(())
    });
    network.kill_handler(NODE);
    change.finished();
    assert!(rollbacks() > before, "{}", network.manager_log(NODE));

    // Nothing is left to be undone.
    let profiles = network.script(
        NODE,
        "cat /etc/NetworkManager/system-connections/br9.nmconnection",
    );
    assert!(profiles.contains("198.51.100.3/24"), "{profiles}");
}

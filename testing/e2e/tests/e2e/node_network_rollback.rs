//! Roll-back of changes that disconnect a node.

use std::cell::Cell;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::node_network::{History, NOBODY, NodeNetwork, ROUTER, condition};
use crate::support::Stage;

/// Timeout of the probes.
const PROBES: Duration = Duration::from_mins(2);
/// Deadline of a roll-back, for slow machines.
const UNDOING: Duration = Duration::from_mins(1);

fn on(node: &str, desired: &Value) -> Value {
    json!({ "nodeSelector": { "kubernetes.io/hostname": node }, "desiredState": desired })
}

// nmstate#45, nmstate#47
#[test]
fn broken_default_route_and_broken_name_server_are_rolled_back() {
    let Some(stage) = Stage::enter() else { return };
    let network = NodeNetwork::deploy(&stage);
    // The only default route is that of eth1.
    network.script("node01", "ip route delete default dev eth0");
    let route = || {
        network.script(
            "node01",
            "ip -4 route show default; ip -4 -brief address show eth1",
        )
    };
    let servers = || network.script("node02", "cat /etc/resolv.conf");
    let before = (route(), servers());
    assert!(
        before.0.contains(ROUTER) && before.1.contains(ROUTER),
        "{before:?}"
    );

    let gateway = json!({
        "interfaces": [{
            "name": "eth1", "type": "ethernet", "state": "up",
            "ipv4": { "enabled": true, "dhcp": false, "address": [{ "ip": "192.0.2.77", "prefix-length": 24 }] },
        }],
        "dns-resolver": { "config": { "server": [ROUTER] } },
        "routes": { "config": [{
            "destination": "0.0.0.0/0", "next-hop-address": NOBODY, "next-hop-interface": "eth1",
            "metric": 150, "table-id": 254,
        }] },
    });
    let histories = ["gateway", "resolver"].map(|policy| History::start(&stage, policy));
    network.apply_policy("gateway", &on("node01", &gateway));
    let resolver = json!({ "dns-resolver": { "config": { "server": [NOBODY] } } });
    network.apply_policy("resolver", &on("node02", &resolver));

    // Both changes exist until the probes time out. Meanwhile one node loses NetworkManager with its checkpoint, and
    // the other node loses the API server.
    stage.wait("the broken route", || route().contains(NOBODY).then_some(()));
    network.wait_probing("node01");
    network.crash_manager("node01");
    stage.wait("the broken name server", || {
        servers().contains(NOBODY).then_some(())
    });
    let cut = network.cut_off("node02");
    let began = Instant::now();
    // Each change is tried again shortly after its roll-back.
    let undone = [Cell::new(false), Cell::new(false)];
    stage.wait("route and name server as before", || {
        undone[0].set(undone[0].get() || route() == before.0);
        undone[1].set(undone[1].get() || servers() == before.1);
        (undone[0].get() && undone[1].get()).then_some(())
    });
    assert!(began.elapsed() < PROBES + UNDOING, "{:?}", began.elapsed());
    assert!(cut.was_felt());
    let untold = network.enactment("node02", "resolver").unwrap_or_default();
    assert!(
        condition(&untold, "Failing", "True").is_none() && untold["status"]["retryCount"].is_null(),
        "{untold:#}"
    );
    drop(cut);
    for (node, policy) in [("node01", "gateway"), ("node02", "resolver")] {
        stage.wait(&format!("the failed attempt of {node}"), || {
            let enactment = network.enactment(node, policy)?;
            let attempts = enactment["status"]["retryCount"].as_object()?.values().next()?;
            (attempts.as_u64()? > 0).then_some(())
        });
    }
    let logs = ["node01", "node02"].map(|node| network.handler_log(node));
    stage.kubectl(&["delete", "nncp", "gateway", "resolver", "--wait=false"]);
    // Restarted handlers roll back a pending change at once.
    for node in ["node01", "node02"] {
        network.kill_handler(node);
    }
    for policy in ["gateway", "resolver"] {
        network.remove_policy(policy);
    }
    stage.wait_equal("all of it as before, for good", &before, || (route(), servers()));
    for ((history, log), probe) in histories.into_iter().zip(&logs).zip(["ping", "dns"]) {
        let history = history.end();
        let failing = history
            .iter()
            .find_map(|enactment| condition(enactment, "Failing", "True"));
        let text = failing
            .map(|condition| condition["message"].to_string())
            .unwrap_or_default();
        println!("{probe}: {text}");
        // A node without the API server makes only one attempt. The probe may fail before the node has lost the server.
        let is_final = text.contains("failed runnig probe 'dns' with after network");
        assert!(text.contains("Retrying 1/") || is_final, "{history:#?}");
        assert!(
            !history
                .iter()
                .any(|enactment| condition(enactment, "Available", "True").is_some()),
            "{history:#?}"
        );
        assert!(
            log.contains(&format!(
                "failed runnig probe '{probe}' with after network reconfiguration"
            )),
            "{log}"
        );
    }
    // Only the other node had a checkpoint.
    let lost = logs.map(|log| log.contains("NetworkManager was restarted and lost its checkpoint"));
    assert_eq!(lost, [true, false]);
    for node in ["node01", "node02"] {
        assert_eq!(
            network.script(node, "ls /etc/NetworkManager/system-connections"),
            "eth1.nmconnection\n"
        );
    }
}

//! Guests that move from node to node.

use serde_json::json;

use crate::machine::{Launcher, Machine};
use crate::stage::Stage;

/// Waits until the guest is on another node than that of `before`, with the same addresses, and its former pod has ended.
fn has_moved(stage: &Stage, machine: &Machine, before: &Launcher, macs: &[(String, String)]) {
    stage.wait_for("the migration succeeds", || {
        let phases: Vec<String> = stage
            .list("vmim")
            .iter()
            .map(|migration| migration["status"]["phase"].as_str().unwrap_or("none").to_owned())
            .collect();
        if phases == ["Succeeded"] {
            Ok(())
        } else {
            Err(format!("{phases:?}"))
        }
    });
    let after = machine.launcher();
    assert_ne!(after.node(), before.node());
    assert_eq!(
        after.plugged(),
        before.plugged(),
        "the same addresses in the same interfaces"
    );
    assert_eq!(machine.macs(), macs);
    stage.wait_for("the former pod has ended", || {
        match machine
            .launchers()
            .iter()
            .find(|launcher| launcher.name() == before.name())
        {
            Some(launcher) if launcher.phase() != "Succeeded" => Err(launcher.phase().to_owned()),
            _ => Ok(()),
        }
    });
    let collisions = stage.list("events");
    let collisions: Vec<_> = collisions
        .iter()
        .filter(|event| event["reason"] == "MACCollision")
        .collect();
    assert!(
        collisions.is_empty(),
        "a guest that moves collides with itself: {collisions:#?}"
    );
}

#[test]
fn guest_that_migrates_keeps_its_addresses() {
    let Some(stage) = Stage::enter("kv-migrate") else {
        return;
    };
    let machine = Machine::running(&stage, "alpha", &["blue"]);
    let (before, macs) = (machine.launcher(), machine.macs());
    machine.migrate();
    has_moved(&stage, &machine, &before, &macs);
}

#[test]
fn eviction_of_a_pod_moves_its_guest() {
    let Some(stage) = Stage::enter("kv-evict") else {
        return;
    };
    let machine = Machine::running(&stage, "alpha", &["blue"]);
    let (before, macs) = (machine.launcher(), machine.macs());
    let path = format!(
        "/api/v1/namespaces/{}/pods/{}/eviction",
        stage.namespace,
        before.name()
    );
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": { "namespace": stage.namespace, "name": before.name() },
    });
    let answer = stage.send("create", &path, &eviction).unwrap_err();
    assert!(
        answer.contains("Eviction triggered evacuation of VMI"),
        "{answer}"
    );
    has_moved(&stage, &machine, &before, &macs);
}

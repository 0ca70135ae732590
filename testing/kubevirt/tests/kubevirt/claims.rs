//! Claims of addresses during the lifetime of KubeVirt's machines.

use serde_json::{Value, json};

use crate::addresses::{NETWORK, claim, lan};
use crate::machine::Machine;
use crate::stage::Stage;

/// A finalizer of the test, which delays the end of an instance.
const FINALIZER: &str = "example.com/held";

fn wait_until_gone(stage: &Stage, when: &str) {
    stage.wait_for(&format!("the end of the claim after {when}"), || {
        match claim(stage) {
            None => Ok(()),
            Some(claim) => Err(format!("{claim:?}")),
        }
    });
}

fn hold(stage: &Stage, finalizers: &Value) {
    let patch = json!({ "metadata": { "finalizers": finalizers } }).to_string();
    stage.run(&["patch", "vmi", "alpha", "--type=merge", "--patch", &patch]);
}

#[test]
fn claim_of_a_stopped_vm_is_kept_for_its_next_start() {
    let Some(stage) = Stage::enter("kv-stopped") else {
        return;
    };
    stage.apply(&lan());
    let machine = Machine::running(&stage, "alpha", &[NETWORK]);
    let (first, addresses) = (
        claim(&stage).expect("a claim"),
        machine.launcher().addresses(NETWORK),
    );
    let strategy = |strategy: &str| {
        let patch = json!({ "spec": { "runStrategy": strategy } }).to_string();
        stage.run(&["patch", "vm", "alpha", "--type=merge", "--patch", &patch]);
    };
    strategy("Halted");
    stage.wait_for("the instance and its pods are gone", || {
        match (machine.instance(), machine.launchers().len()) {
            (None, 0) => Ok(()),
            remaining => Err(format!("{remaining:?}")),
        }
    });
    assert_eq!(claim(&stage), Some(first.clone()));
    strategy("Always");
    machine.wait_until_running(None);
    assert_eq!(claim(&stage), Some(first));
    assert_eq!(machine.launcher().addresses(NETWORK), addresses);
}

#[test]
fn claim_is_released_when_the_vm_and_all_of_its_instance_are_gone() {
    let Some(stage) = Stage::enter("kv-released") else {
        return;
    };
    stage.apply(&lan());
    for (how, cascade) in [
        ("a deletion", "background"),
        ("a deletion in the foreground", "foreground"),
    ] {
        let machine = Machine::running(&stage, "alpha", &[NETWORK]);
        assert!(claim(&stage).is_some(), "{how}");
        stage.run(&["delete", "vm", "alpha", &format!("--cascade={cascade}")]);
        wait_until_gone(&stage, how);
        assert_eq!(machine.launchers().len(), 0, "{how}");
    }

    let machine = Machine::running(&stage, "alpha", &[NETWORK]);
    let mut finalizers = machine.instance().expect("an instance")["metadata"]["finalizers"].clone();
    finalizers
        .as_array_mut()
        .expect("finalizers")
        .push(json!(FINALIZER));
    hold(&stage, &finalizers);
    stage.run(&["delete", "vm", "alpha", "--cascade=foreground", "--wait=false"]);
    // KubeVirt removes its finalizers after the guest ended.
    let remaining = stage.wait("the end of the instance except for the finalizer", || {
        let instance = machine.instance().expect("the instance");
        (instance["metadata"]["finalizers"]
            .as_array()?
            .iter()
            .all(|it| it == FINALIZER || it == "foregroundDeletion"))
        .then_some(instance)
    });
    assert!(
        claim(&stage).is_some(),
        "the instance still exists: {remaining:#}"
    );
    hold(&stage, &json!([]));
    wait_until_gone(&stage, "the end of the held instance");
}

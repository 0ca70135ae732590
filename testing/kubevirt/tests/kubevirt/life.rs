//! From the creation of a virtual machine to its end.

use std::collections::BTreeSet;

use crate::machine::Machine;
use crate::stage::Stage;

/// Addresses that the pool hands out are locally administered ones.
const LOCAL: &str = "02:";

// kubemacpool#17
#[test]
fn vm_with_a_secondary_network_runs_with_addresses_of_the_pool_in_guest_and_pod() {
    let Some(stage) = Stage::enter("kv-start") else {
        return;
    };
    let machine = Machine::running(&stage, "alpha", &["blue"]);

    let macs = machine.macs();
    let names: Vec<&str> = macs.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["default", "blue"]);
    assert!(macs.iter().all(|(_, mac)| mac.starts_with(LOCAL)), "{macs:?}");
    let distinct: BTreeSet<&str> = macs.iter().map(|(_, mac)| mac.as_str()).collect();
    assert_eq!(distinct.len(), 2, "{macs:?}");

    let launcher = machine.launcher();
    let [requested] = &launcher.requested()[..] else {
        panic!("one network is requested: {:#}", launcher.0)
    };
    assert_eq!(requested[..2], ["blue".to_owned(), macs[1].1.clone()]);
    // The name that virt-controller makes of the network's.
    assert_eq!(requested[2], "pod16477688c0e");
    assert_eq!(launcher.plugged(), std::slice::from_ref(requested));
    let mut expected = macs;
    expected.sort();
    assert_eq!(machine.guest_macs(), expected);
}

#[test]
fn vm_that_restarts_has_the_same_addresses_in_another_pod() {
    let Some(stage) = Stage::enter("kv-restart") else {
        return;
    };
    let machine = Machine::running(&stage, "alpha", &["blue"]);
    let (macs, before) = (machine.macs(), machine.launcher());
    let instance = machine.instance().unwrap();

    machine.restart();
    machine.wait_until_running(instance["metadata"]["uid"].as_str());

    let after = machine.launcher();
    assert_ne!(after.name(), before.name());
    assert_eq!(machine.macs(), macs);
    assert_eq!(after.plugged(), before.plugged());
}

// kubemacpool#47
#[test]
fn vm_that_is_deleted_leaves_nothing_and_gives_back_its_addresses() {
    let Some(stage) = Stage::enter("kv-delete") else {
        return;
    };
    let before = stage.veths();
    let machine = Machine::running(&stage, "alpha", &["blue", "green"]);
    let macs = machine.macs();
    let taken = machine.warnings_about_another(&macs);
    assert!(taken.contains("is already used by vm/kv-delete/alpha"), "{taken}");
    // One veth for each interface.
    assert_eq!(stage.veths().difference(&before).count(), 3);

    stage.run(&["delete", "vm", "alpha"]);
    stage.wait_for("the removal of all objects of the VM", || {
        let remaining: Vec<_> = ["vm", "vmi", "pods"]
            .iter()
            .flat_map(|kind| stage.list(kind))
            .collect();
        let veths = stage.veths();
        let veths: Vec<_> = veths.difference(&before).collect();
        if remaining.is_empty() && veths.is_empty() {
            Ok(())
        } else {
            Err(format!("{} objects, interfaces {veths:?}", remaining.len()))
        }
    });

    stage.wait_for("the addresses are free again", || {
        match machine.warnings_about_another(&macs) {
            none if none.is_empty() => Ok(()),
            warnings => Err(warnings),
        }
    });
}

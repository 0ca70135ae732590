//! Networks that come to virtual machines that run, and go again.

use crate::machine::Machine;
use crate::stage::Stage;

// kubemacpool#33-34
#[test]
fn network_is_plugged_into_a_running_vm_and_unplugged_again_in_the_same_pod() {
    let Some(stage) = Stage::enter("kv-hotplug") else {
        return;
    };
    let machine = Machine::running(&stage, "alpha", &["blue"]);
    let (before, first) = (machine.launcher(), machine.macs());

    machine.plug("green");
    stage.wait_for("the guest has the new interface", || {
        let green = machine
            .guest_interface("green")
            .ok_or("the instance says nothing of it")?;
        if green["infoSource"] == "domain, multus-status" {
            Ok(())
        } else {
            Err(green.to_string())
        }
    });
    let macs = machine.macs();
    let (_, mac) = macs
        .iter()
        .find(|(name, _)| name == "green")
        .expect("the interface");
    assert!(
        mac.starts_with("02:"),
        "the pool has given it an address: {macs:?}"
    );
    assert_eq!(macs[..2], first, "the addresses of the others stay");
    let launcher = machine.launcher();
    assert_eq!(launcher.name(), before.name());
    let plugged = launcher.plugged();
    assert_eq!(plugged, launcher.requested());
    assert!(
        plugged
            .iter()
            .any(|[name, plugged, _]| name == "green" && plugged == mac),
        "{plugged:?}"
    );
    assert_eq!(plugged.len(), 2);

    machine.unplug("green");
    stage.wait_for("the interface is gone from VM, instance and pod", || {
        let macs = machine.macs();
        let (guest, plugged) = (machine.guest_interface("green"), machine.launcher().plugged());
        if macs == first && guest.is_none() && plugged == before.plugged() {
            Ok(())
        } else {
            Err(format!("VM {macs:?}, instance {guest:?}, pod {plugged:?}"))
        }
    });
    assert_eq!(machine.launcher().name(), before.name());
}

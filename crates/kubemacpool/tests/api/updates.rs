//! What users get and read who change virtual machines (kubemacpool §10.4).

use serde_json::json;
use stage::Hold;

use crate::fixture::Stage;
use crate::manager::Managing;
use crate::objects::{Kind, MACHINES_WEBHOOK, Nic, addresses, machine};

// kubemacpool#39
#[test]
fn one_that_the_pool_never_saw_keeps_what_its_old_object_has() {
    let stage = Stage::start();
    stage.namespace("vms", &[(MACHINES_WEBHOOK, "ignore")]);
    let hold = Hold::watches_of("virtualmachines");
    let manager = Managing::ready_behind(&stage, hold.clone());
    let given = "0a:00:00:00:00:01";
    let before = machine("vm", &[Nic::multus("a"), Nic::multus("b").with(given)]);
    let before = stage.create(Kind::Machine, "vms", &before);
    assert_eq!(addresses(&before), ["", given], "nobody was asked");
    stage.label("vms", MACHINES_WEBHOOK, None);
    let probe = machine("probe", &[Nic::masquerade("default")]);
    stage.wait_until_asked(Kind::Machine, "vms", &probe, |answer| {
        answer.status.is_success() && addresses(&answer.object) != [""]
    });

    let mut grown = machine("vm", &["a", "b", "c"].map(Nic::multus));
    grown["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
    let grown = addresses(&stage.replace(Kind::Machine, "vms", &grown).accepted());
    assert_eq!(grown[..2], ["", given]);
    assert!(grown[2].starts_with("02:"), "{grown:?}");
    manager.wait_until_known("vms", "vm", false);
    assert_eq!(manager.holders(given), ["vm/vms/vm:b?"]);
    assert_eq!(manager.holders(&grown[2]), ["vm/vms/vm:c?"]);
    hold.release();
    manager.wait_for_holders(given, &["vm/vms/vm:b"]);
    manager.wait_for_holders(&grown[2], &["vm/vms/vm:c"]);
}

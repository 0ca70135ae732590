//! Updates of virtual machines by users (kubemacpool §10.4).

use serde_json::{Value, json};
use stage::Hold;

use crate::admission::{VM_DENIED, WIDE, manager};
use crate::fixture::Stage;
use crate::manager::Managing;
use crate::objects::{Kind, MACHINES_WEBHOOK, Nic, addresses, machine};

const INTERFACES: &str = "/spec/template/spec/domain/devices/interfaces";
const NETWORKS: &str = "/spec/template/spec/networks";

/// The manifest of `vms/vm` with these interfaces, without addresses.
fn manifest(names: &[&str]) -> Value {
    let nics: Vec<_> = names.iter().copied().map(Nic::multus).collect();
    let mut vm = machine("vm", &nics);
    vm["metadata"]["namespace"] = json!("vms");
    vm
}

/// A manager with this range, and an observed virtual machine, as stored.
fn start(range: (&str, &str), names: &[&str]) -> (Stage, Managing, Value) {
    let stage = Stage::start();
    stage.namespace("vms", &[]);
    let manager = manager(&stage, range);
    stage.apply(&manifest(names));
    let vm = stored(&stage);
    wait_until_held(&manager, &vm);
    (stage, manager, vm)
}

fn stored(stage: &Stage) -> Value {
    stage.get(Kind::Machine, "vms", "vm").expect("it is there")
}

/// Waits until each interface of a virtual machine has its address, and no other object has that address.
fn wait_until_held(manager: &Managing, vm: &Value) {
    let interfaces = vm.pointer(INTERFACES).and_then(Value::as_array);
    for interface in interfaces.expect("interfaces") {
        let name = interface["name"].as_str().expect("a name");
        let mac = interface["macAddress"].as_str().expect("an address");
        manager.wait_for_holders(mac, &[&format!("vm/vms/vm:{name}")]);
    }
}

/// The result of `kubectl patch`: the stored virtual machine, or the error.
fn patch(stage: &Stage, operations: &[Value]) -> Result<Value, String> {
    let operations = json!(operations).to_string();
    let patched = stage.kubectl().json([
        "patch",
        "virtualmachines.kubevirt.io",
        "vm",
        "--namespace",
        "vms",
        "--type",
        "json",
        "--patch",
        &operations,
    ]);
    patched.map_err(|error| error.to_string())
}

/// Patches the virtual machine with an invalid label, which the API server rejects after all webhooks: the update is
/// admitted but never stored.
fn refused_behind(stage: &Stage, operations: &[Value]) {
    let label = json!({ "op": "add", "path": "/metadata/labels", "value": { "not a label": "" } });
    let text = patch(stage, &[operations, &[label]].concat()).expect_err("it is refused");
    assert!(text.contains("metadata.labels: Invalid value"), "{text}");
}

/// The patch that adds an interface with its network.
fn added(nic: Nic) -> [Value; 2] {
    let vm = machine("", &[nic]);
    [INTERFACES, NETWORKS].map(|list| {
        let value = vm.pointer(&format!("{list}/0")).expect("one");
        json!({ "op": "add", "path": format!("{list}/-"), "value": value })
    })
}

/// The patch that removes an interface with its network.
fn removed(index: usize) -> [Value; 2] {
    [INTERFACES, NETWORKS].map(|list| json!({ "op": "remove", "path": format!("{list}/{index}") }))
}

/// The warnings about a creation of another virtual machine with this address.
fn warnings(stage: &Stage, mac: &str) -> Vec<String> {
    let other = machine("other", &[Nic::multus("net").with(mac)]);
    let answer = stage.create_dry(Kind::Machine, "vms", &other);
    let warnings = answer.warnings.clone();
    answer.accepted();
    warnings
}

// kubemacpool#8, kubemacpool#32
#[test]
fn changed_and_old_address_are_held_until_stored() {
    let (stage, manager, vm) = start(WIDE, &["a", "b"]);
    let given = addresses(&vm);
    let [kept, old] = [0, 1].map(|index| given[index].as_str());
    let (new, as_written) = ("00:00:5e:00:53:01", "00-00-5E-00-53-01");
    let path = format!("{INTERFACES}/1/macAddress");
    let change = [json!({ "op": "replace", "path": path, "value": as_written })];
    let used = |mac: &str| format!("MAC {mac} is already used by vm/vms/vm, interface b");

    refused_behind(&stage, &change);
    assert_eq!(manager.holders(old), ["vm/vms/vm:b"]);
    assert_eq!(manager.holders(new), ["vm/vms/vm:b?"]);
    assert_eq!(warnings(&stage, old), [used(old)]);
    assert_eq!(warnings(&stage, "0000.5e00.5301"), [used(new)]);

    let changed = patch(&stage, &change).expect("it is stored");
    assert_eq!(addresses(&changed), [kept, as_written]);
    manager.wait_for_holders(new, &["vm/vms/vm:b"]);
    manager.wait_for_holders(old, &[]);
    assert_eq!(manager.holders(kept), ["vm/vms/vm:a"]);
    assert_eq!(warnings(&stage, old), [""; 0]);
}

// kubemacpool#33-35, kubemacpool#40
#[test]
fn interface_changes_keep_other_addresses() {
    let (stage, manager, vm) = start(("02:00:00:00:00:10", "02:00:00:00:00:14"), &["a", "b", "c"]);
    let given = addresses(&vm);
    let [first, second, third] = [0, 1, 2].map(|index| given[index].as_str());
    let spare: Vec<_> = (0x10..=0x14)
        .map(|last| format!("02:00:00:00:00:{last:02x}"))
        .filter(|mac| !given.contains(mac))
        .collect();

    refused_behind(&stage, &added(Nic::multus("d")));
    let pending: Vec<_> = spare.iter().flat_map(|mac| manager.holders(mac)).collect();
    assert_eq!(pending, ["vm/vms/vm:d?"], "of {spare:?}");
    wait_until_held(&manager, &vm);
    let grown = patch(&stage, &added(Nic::multus("d"))).expect("it is stored");
    let with_fourth = addresses(&grown);
    assert_eq!(with_fourth[..3], given);
    let fourth = with_fourth[3].as_str();
    wait_until_held(&manager, &grown);
    let left: Vec<_> = spare.iter().filter(|mac| *mac != fourth).collect();
    let [left] = left[..] else {
        panic!("one of {spare:?}: {with_fourth:?}")
    };
    manager.wait_for_holders(left, &[]);

    refused_behind(&stage, &removed(2));
    assert_eq!(manager.holders(third), ["vm/vms/vm:c"]);
    stage.apply(&manifest(&["a", "b", "d"]));
    let shrunk = stored(&stage);
    assert_eq!(addresses(&shrunk), [first, second, fourth]);
    manager.wait_for_holders(third, &[]);
    wait_until_held(&manager, &shrunk);

    stage.apply(&manifest(&["a", "e", "d"]));
    let exchanged = stored(&stage);
    let with_fifth = addresses(&exchanged);
    let fifth = with_fifth[1].as_str();
    assert_eq!(with_fifth, [first, fifth, fourth]);
    // The removed address is held until the update is observed, so this update does not allocate it.
    assert!(![first, second, fourth, ""].contains(&fifth), "{with_fifth:?}");
    manager.wait_for_holders(second, &[]);
    wait_until_held(&manager, &exchanged);

    let with_unsupported = patch(&stage, &added(Nic::unsupported("f"))).expect("it is stored");
    assert_eq!(addresses(&with_unsupported), [first, fifth, fourth, ""]);
}

// kubemacpool#36, kubemacpool#37
#[test]
fn refused_update_keeps_addresses() {
    let (stage, manager, vm) = start(("02:00:00:00:00:10", "02:00:00:00:00:11"), &["a", "b"]);
    for (names, text) in [
        (
            ["a", "b", "b"],
            "Failed to mutate virtual machine: every interface must have a unique name",
        ),
        (["a", "b", "c"], "the range is full"),
    ] {
        let mut wanted = manifest(&names);
        wanted["metadata"]["resourceVersion"] = vm["metadata"]["resourceVersion"].clone();
        assert_eq!(
            stage.replace(Kind::Machine, "vms", &wanted).refused(),
            format!("{VM_DENIED}Failed to update virtual machine allocation error: {text}")
        );
        assert_eq!(stored(&stage), vm, "{text}");
        wait_until_held(&manager, &vm);
        manager.wait("no admission to be open", |state| match state.pool.oldest() {
            None => Ok(()),
            Some(_) => Err("one is".to_owned()),
        });
    }
    // Both addresses are still held, so none is free.
    let other = machine("other", &[Nic::multus("net")]);
    assert_eq!(
        stage.refused(Kind::Machine, "vms", &other),
        format!(
            "{VM_DENIED}Failed to create virtual machine allocation error: Failed to allocate mac to the vm object: \
             the range is full"
        )
    );
}

// kubemacpool#39
#[test]
fn unseen_machine_keeps_addresses_of_old_object() {
    let stage = Stage::start();
    stage.namespace("vms", &[(MACHINES_WEBHOOK, "ignore")]);
    let hold = Hold::watches_of("virtualmachines");
    let manager = Managing::ready_behind(&stage, hold.clone());
    let given = "0a:00:00:00:00:01";
    let before = machine("vm", &[Nic::multus("a"), Nic::multus("b").with(given)]);
    let before = stage.create(Kind::Machine, "vms", &before);
    assert_eq!(addresses(&before), ["", given], "the webhook was not called");
    stage.label("vms", MACHINES_WEBHOOK, None);
    let probe = machine("probe", &[Nic::masquerade("default")]);
    stage.wait_until_called(Kind::Machine, "vms", &probe, |answer| {
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

//! Claims over the life of a virtual machine (kubevirt-ipam §5, §7, §8).

use serde_json::{Value, json};

use crate::manager::Managing;
use crate::stage::{Stage, claims, instance, instances, machines, networks, owner};

const SECONDARY: &str = "vm1.random.net";
const PRIMARY: &str = "vm1.podnet";

fn start() -> (Stage, Managing) {
    let stage = Stage::start().granted();
    let manager = Managing::start(&stage);
    (stage, manager)
}

/// A running virtual machine with its two claims.
fn running() -> (Stage, Managing, Value, Value) {
    let (stage, manager) = start();
    stage.both_networks();
    let (vm, vmi) = stage.running("vm1");
    for name in [SECONDARY, PRIMARY] {
        stage.wait_until_held(name, true);
    }
    (stage, manager, vm, vmi)
}

/// Waits until the controller has processed all earlier changes: it starts work in order, and then has no more in work.
#[track_caller]
fn settle(stage: &Stage, manager: &Managing, name: &str) {
    stage.primary_network();
    let mut marker = instance(name);
    marker["spec"]["networks"] = json!([{ "name": "podnet", "pod": {} }]);
    stage.create(&instances("ns1"), &marker);
    stage.wait_until_held(&format!("{name}.podnet"), true);
    manager.wait_until_idle();
}

// kubevirt-ipam#42
#[test]
fn running_machine_has_claims_on_its_networks() {
    let stage = Stage::start().granted();
    let mark = stage.mark();
    let _manager = Managing::start(&stage);
    stage.both_networks();
    let (vm, _) = stage.running("vm1");
    for (name, network) in [(SECONDARY, "goodnet"), (PRIMARY, "primarynet")] {
        let claim = stage.wait_until_held(name, true);
        assert_eq!(claim["metadata"]["labels"], json!({ "kubevirt.io/vm": "vm1" }));
        assert_eq!(
            claim["metadata"]["finalizers"],
            json!(["kubevirt.io/persistent-ipam"])
        );
        assert_eq!(claim["metadata"]["ownerReferences"], json!([owner(&vm)]));
        assert_eq!(claim["spec"], json!({ "network": network, "interface": "" }));
    }
    stage.wait_for_event(
        "Normal IPAMClaimCreated VirtualMachineInstance/vm1 x1: IPAMClaim \"vm1.random.net\"",
    );
    stage.assert_never_refused(mark);
}

// kubevirt-ipam#55
#[test]
fn instance_that_stands_alone_owns_its_claims() {
    let (stage, _manager) = start();
    stage.both_networks();
    let vmi = stage.instance("vm1");
    let claim = stage.wait_until_held(SECONDARY, true);
    assert_eq!(claim["metadata"]["ownerReferences"], json!([owner(&vmi)]));
    assert_eq!(
        claim["metadata"]["ownerReferences"][0]["kind"],
        "VirtualMachineInstance"
    );
}

// kubevirt-ipam#43
#[test]
fn default_network_of_multus_gets_no_claim() {
    let (stage, manager) = start();
    stage.both_networks();
    let mut vmi = instance("vm1");
    vmi["spec"]["networks"] =
        json!([{ "name": "main", "multus": { "networkName": "ns1/supadupanet", "default": true } }]);
    stage.create(&instances("ns1"), &vmi);
    settle(&stage, &manager, "later");
    assert_eq!(stage.claim_names(), ["later.podnet"]);
}

// kubevirt-ipam#44, kubevirt-ipam#45
#[test]
fn missing_or_broken_network_is_reported_and_awaited() {
    let (stage, _manager) = start();
    stage.instance("vm1");
    stage.wait_for_event("Warning NADNotFound VirtualMachineInstance/vm1 x1: network \"random_net\"");
    stage.network("supadupanet", "this is not JSON !!!");
    stage.wait_for_event("Warning InvalidNAD VirtualMachineInstance/vm1 x1: network \"random_net\"");
    assert_eq!(stage.claim_names(), [""; 0]);
    stage.network("supadupanet", r#"{"name":"goodnet","allowPersistentIPs":true}"#);
    stage.wait_until_held(SECONDARY, true);
}

// kubevirt-ipam#46, kubevirt-ipam#61
#[test]
fn claims_are_released_when_machine_and_instance_are_gone() {
    let (stage, _manager, ..) = running();
    let before = stage.claim(SECONDARY).expect("a claim");
    stage.delete(&format!("{}/vm1", instances("ns1")));
    stage.delete(&format!("{}/vm1", machines("ns1")));
    let mut after = stage.wait_until_held(SECONDARY, false);
    stage.wait_until_held(PRIMARY, false);
    for key in ["finalizers", "resourceVersion", "managedFields"] {
        after["metadata"][key] = before["metadata"][key].clone();
    }
    assert_eq!(after, before, "nothing else of it is changed");
}

// kubevirt-ipam#47, kubevirt-ipam#50, kubevirt-ipam#60
#[test]
fn stopped_machine_keeps_its_claims_until_it_is_deleted() {
    let (stage, manager, ..) = running();
    stage.delete(&format!("{}/vm1", instances("ns1")));
    settle(&stage, &manager, "later");
    stage.wait_until_held(SECONDARY, true);
    stage.held(&machines("ns1"), "vm1");
    stage.wait_until_held(SECONDARY, false);
    stage.wait_until_held(PRIMARY, false);
}

// kubevirt-ipam#48, kubevirt-ipam#49
#[test]
fn ending_instance_that_stands_alone_keeps_its_claims_as_long_as_it_has_pods() {
    let (stage, manager) = start();
    stage.both_networks();
    let mut vmi = instance("vm1");
    vmi["status"] = json!({ "activePods": { "uid": "node01" } });
    stage.create(&instances("ns1"), &vmi);
    stage.wait_until_held(SECONDARY, true);
    stage.held(&instances("ns1"), "vm1");
    settle(&stage, &manager, "later");
    stage.wait_until_held(SECONDARY, true);
    let without = json!({ "status": { "activePods": null } });
    stage
        .patch(&format!("{}/vm1", instances("ns1")), &without)
        .accepted();
    stage.wait_until_held(SECONDARY, false);
}

// kubevirt-ipam#51, kubevirt-ipam#62
#[test]
fn deleted_machine_with_an_instance_keeps_its_claims() {
    let (stage, manager, ..) = running();
    stage.held(&machines("ns1"), "vm1");
    stage.held(&instances("ns1"), "vm1");
    settle(&stage, &manager, "later");
    stage.wait_until_held(SECONDARY, true);
    stage.let_go(&instances("ns1"), "vm1");
    stage.wait_until_held(SECONDARY, false);
}

// kubevirt-ipam#63
#[test]
fn machine_that_is_created_leads_to_no_request() {
    let (stage, manager) = start();
    settle(&stage, &manager, "earlier");
    let mark = stage.mark();
    stage.machine("vm1");
    settle(&stage, &manager, "later");
    let requests = stage.requests_since(mark);
    assert!(
        requests.iter().all(|request| !request.uri.contains("vm1")),
        "{requests:#?}"
    );
}

// kubevirt-ipam#52
#[test]
fn claim_without_owner_causes_a_conflict() {
    let (stage, manager) = start();
    stage.both_networks();
    let strip = |claim: &mut Value| {
        claim["metadata"]["labels"] = json!({});
        claim["metadata"]["finalizers"] = json!([]);
    };
    let before = stage.existing_claim(SECONDARY, "vm1", strip);
    stage.running("vm1");
    stage.wait_until_held(PRIMARY, true);
    stage.wait_for_event(
        "Warning IPAMClaimConflict VirtualMachineInstance/vm1 x1: IPAMClaim \"vm1.random.net\"",
    );
    assert_eq!(stage.claim(SECONDARY), Some(before));
    let figures = kubevirt_ipam::state::lock(&manager.shared).figures();
    assert_eq!((figures.held, figures.in_the_way), (1, 1));
}

// kubevirt-ipam#53
#[test]
fn claim_of_the_machine_is_left_as_it_is() {
    let stage = Stage::start().granted();
    stage.both_networks();
    let vm = stage.machine("vm1");
    let before = stage.existing_claim(SECONDARY, "vm1", |claim| {
        claim["metadata"]["ownerReferences"] = json!([owner(&vm)]);
        claim["spec"]["network"] = json!("another");
    });
    let manager = Managing::start(&stage);
    stage.instance("vm1");
    settle(&stage, &manager, "later");
    stage.wait_until_held(PRIMARY, true);
    assert_eq!(stage.claim(SECONDARY), Some(before));
}

// kubevirt-ipam#54, kubevirt-ipam#87
#[test]
fn claim_of_an_earlier_machine_is_reported_and_awaited() {
    let (stage, _manager) = start();
    stage.both_networks();
    stage.existing_claim(SECONDARY, "vm1", |claim| {
        let earlier = json!({ "kind": "VirtualMachine", "metadata": { "name": "vm1", "uid": "earlier" } });
        claim["metadata"]["ownerReferences"] = json!([owner(&earlier)]);
    });
    let (vm, _) = stage.running("vm1");
    stage.wait_for_event(
        "Warning IPAMClaimConflict VirtualMachineInstance/vm1 x1: IPAMClaim \"vm1.random.net\"",
    );
    // The test acts as garbage collection, and the finalizer is removed.
    stage.delete(&format!("{}/{SECONDARY}", claims("ns1")));
    stage.wait_for_claim(SECONDARY, |claim| {
        (claim?["metadata"]["ownerReferences"] == json!([owner(&vm)])).then_some(())
    });
}

// kubevirt-ipam#56
#[test]
fn claims_of_others_are_not_touched() {
    let (stage, _manager, ..) = running();
    let other = stage.existing_claim("vm2.net", "vm2", |claim| {
        claim["metadata"]["finalizers"] = json!(["kubevirt.io/persistent-ipam", "other/finalizer"]);
    });
    // A claim of a missing virtual machine is released, and not changed otherwise.
    let after = stage.wait_until_held("vm2.net", false);
    assert_eq!(after["metadata"]["finalizers"], json!(["other/finalizer"]));
    assert_eq!(after["metadata"]["uid"], other["metadata"]["uid"]);
    stage.machine("vm3");
    let kept = stage.existing_claim("vm3.net", "vm3", |_| ());
    stage.delete(&format!("{}/vm1", instances("ns1")));
    stage.delete(&format!("{}/vm1", machines("ns1")));
    stage.wait_until_held(SECONDARY, false);
    assert_eq!(stage.claim("vm3.net"), Some(kept));
}

// kubevirt-ipam#57, kubevirt-ipam#58
#[test]
fn claims_that_change_or_go_meanwhile_hinder_no_others() {
    let (stage, manager) = start();
    stage.machine("vm1");
    for name in ["vm1.a", "vm1.b", "vm1.c"] {
        stage.existing_claim(name, "vm1", |_| ());
    }
    settle(&stage, &manager, "later");
    stage.delete(&format!("{}/vm1", machines("ns1")));
    // Another client deletes one claim and changes another one, before or during the release.
    stage.let_go(&claims("ns1"), "vm1.a");
    stage.delete(&format!("{}/vm1.a", claims("ns1")));
    let foreign = json!({ "metadata": { "annotations": { "changed": "meanwhile" } } });
    stage
        .patch(&format!("{}/vm1.b", claims("ns1")), &foreign)
        .accepted();
    for name in ["vm1.b", "vm1.c"] {
        stage.wait_until_held(name, false);
    }
    assert_eq!(
        stage.claim("vm1.b").expect("a claim")["metadata"]["annotations"]["changed"],
        "meanwhile"
    );
}

#[test]
fn machines_deleted_while_no_controller_ran_are_released() {
    let (stage, manager, ..) = running();
    drop(manager);
    stage.delete(&format!("{}/vm1", instances("ns1")));
    stage.delete(&format!("{}/vm1", machines("ns1")));
    let _manager = Managing::start(&stage);
    stage.wait_until_held(SECONDARY, false);
    stage.wait_until_held(PRIMARY, false);
}

#[test]
fn no_change_causes_no_request() {
    let (stage, manager, ..) = running();
    settle(&stage, &manager, "earlier");
    let mark = stage.mark();
    let news = json!({ "status": { "guestOSInfo": { "name": "linux" } } });
    stage
        .patch(&format!("{}/vm1", instances("ns1")), &news)
        .accepted();
    stage.network("another", "{}");
    let labels = json!({ "metadata": { "labels": { "a": "b" } } });
    stage
        .patch(&format!("{}/supadupanet", networks("ns1")), &labels)
        .accepted();
    settle(&stage, &manager, "later");
    let requests = stage.requests_since(mark);
    let of_marker = |request: &stage::Request| request.uri.contains("/later") || request.verb == "create";
    let others: Vec<_> = requests.iter().filter(|request| !of_marker(request)).collect();
    assert!(others.is_empty(), "{others:#?}");
    let writes = requests
        .iter()
        .filter(|request| request.verb == "create" && !request.uri.contains("/events"));
    assert_eq!(writes.count(), 1, "the claim of the marker alone: {requests:#?}");
}

// kubevirt-ipam#109
#[test]
fn claims_without_finalizer_are_held_when_a_controller_starts() {
    let (stage, manager, vm, _) = running();
    drop(manager);
    let free = json!({ "metadata": { "finalizers": null } });
    for name in [SECONDARY, PRIMARY] {
        stage
            .patch(&format!("{}/{name}", claims("ns1")), &free)
            .accepted();
    }
    let foreign = stage.existing_claim("vm1.foreign", "vm1", |claim| {
        claim["metadata"]["finalizers"] = json!([]);
    });
    // A claim for release, which would be first if claims were processed in order.
    stage.existing_claim("gone.random.net", "gone", |_| ());
    let mark = stage.mark();
    let manager = Managing::start(&stage);
    for name in [SECONDARY, PRIMARY] {
        let claim = stage.wait_until_held(name, true);
        assert_eq!(claim["metadata"]["ownerReferences"], json!([owner(&vm)]));
    }
    stage.wait_until_held("gone.random.net", false);
    manager.wait_until_idle();
    assert_eq!(stage.claim("vm1.foreign"), Some(foreign));
    let requests = stage.requests_since(mark);
    let writes = requests.iter().filter(|request| request.verb == "update");
    let written: Vec<_> = writes
        .filter_map(|request| request.uri.trim_end_matches('?').rsplit('/').next())
        .collect();
    assert_eq!(written.len(), 3, "{written:?}");
    assert_eq!(written.last(), Some(&"gone.random.net"), "{written:?}");
}

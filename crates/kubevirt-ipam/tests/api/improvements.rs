//! Improvements over the upstream controller (kubevirt-ipam §15).

use serde_json::{Value, json};
use stage::Hold;

use crate::manager::Managing;
use crate::stage::{Stage, claims, instance, instances, launcher, machines, owner, pods, until};

const CLAIM: &str = "vm1.random.net";

fn start() -> (Stage, Managing) {
    let stage = Stage::start().granted();
    let manager = Managing::start(&stage);
    stage.both_networks();
    (stage, manager)
}

// kubevirt-ipam#85
#[test]
fn claim_of_an_unplugged_network_is_released() {
    let (stage, _manager) = start();
    stage.running("vm1");
    let first = stage.wait_until_held(CLAIM, true);
    let path = format!("{}/vm1", instances("ns1"));
    let attached = json!({
        "spec": { "networks": [{ "name": "podnet", "pod": {} }] },
        "status": { "interfaces": [{ "name": "random_net" }] },
    });
    stage.patch(&path, &attached).accepted();
    let machine = format!("{}/vm1", machines("ns1"));
    let without =
        json!({ "spec": { "template": { "spec": { "networks": [{ "name": "podnet", "pod": {} }] } } } });
    stage.patch(&machine, &without).accepted();
    // The pod stays attached until the status changes. The later marker is processed, and the claim still exists.
    let mut marker = instance("later");
    marker["spec"]["networks"] = json!([{ "name": "podnet", "pod": {} }]);
    stage.create(&instances("ns1"), &marker);
    stage.wait_until_held("later.podnet", true);
    stage.wait_until_held(CLAIM, true);

    stage
        .patch(&path, &json!({ "status": { "interfaces": [] } }))
        .accepted();
    stage.wait_for_claim(CLAIM, |claim| claim.is_none().then_some(()));
    stage.wait_until_held("vm1.podnet", true);
    stage.wait_for_event(
        "Normal IPAMClaimReleased VirtualMachineInstance/vm1 x1: IPAMClaim \"vm1.random.net\"",
    );

    // The network is added again, and gets another claim.
    let networks = instance("vm1")["spec"]["networks"].clone();
    stage
        .patch(&path, &json!({ "spec": { "networks": networks } }))
        .accepted();
    let second = stage.wait_until_held(CLAIM, true);
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
}

// kubevirt-ipam#86
#[test]
fn orphaned_claim_is_adopted() {
    let (stage, _manager) = start();
    let (_, vmi) = stage.running("vm1");
    let before = stage.wait_until_held(CLAIM, true);
    // The test acts as `kubectl delete vm --cascade=orphan` and garbage collection.
    let path = format!("{}/vm1", machines("ns1"));
    stage
        .patch(&path, &json!({ "metadata": { "finalizers": ["orphan"] } }))
        .accepted();
    stage.delete(&path);
    let orphaned = json!({ "metadata": { "ownerReferences": null } });
    for claim in [CLAIM, "vm1.podnet"] {
        stage
            .patch(&format!("{}/{claim}", claims("ns1")), &orphaned)
            .accepted();
    }
    stage
        .patch(&format!("{}/vm1", instances("ns1")), &orphaned)
        .accepted();
    stage.let_go(&machines("ns1"), "vm1");
    let after = stage.wait_for_claim(CLAIM, |claim| {
        claim
            .filter(|claim| claim["metadata"]["ownerReferences"] == json!([owner(&vmi)]))
            .cloned()
    });
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert!(crate::stage::is_held(&after));
}

// kubevirt-ipam#92
#[test]
fn claim_that_an_earlier_machine_left_behind_is_released() {
    let (stage, manager) = start();
    let (..) = stage.running("vm1");
    stage.wait_until_held(CLAIM, true);
    // The virtual machine is deleted and created again while no controller runs; garbage collection deletes the
    // dependents of the first one.
    drop(manager);
    for path in [instances("ns1"), machines("ns1")] {
        stage.delete(&format!("{path}/vm1"));
    }
    for claim in [CLAIM, "vm1.podnet"] {
        stage.delete(&format!("{}/{claim}", claims("ns1")));
    }
    let (vm, _) = stage.running("vm1");
    let _manager = Managing::start(&stage);
    for claim in [CLAIM, "vm1.podnet"] {
        stage.wait_for_claim(claim, |claim| {
            (claim?["metadata"]["ownerReferences"] == json!([owner(&vm)])).then_some(())
        });
    }
}

// kubevirt-ipam#93
#[test]
fn late_watch_releases_nothing() {
    let stage = Stage::start().granted();
    stage.both_networks();
    let hold = Hold::watches_of("virtualmachineinstances");
    // The controller's list contains no instance, and its watch is silent.
    let _manager = Managing::behind(&stage, hold.clone());
    let vm = stage.create(&instances("ns1"), &instance("vm1"));
    stage.existing_claim(CLAIM, "vm1", |claim| {
        claim["metadata"]["ownerReferences"] = json!([owner(&vm)]);
    });
    // The cache contains neither virtual machine nor instance. The released claim must be of a deleted one.
    stage.existing_claim("gone.net", "gone", |_| ());
    stage.wait_until_held("gone.net", false);
    stage.wait_until_held(CLAIM, true);
    hold.release();
    stage.wait_until_held("vm1.podnet", true);
    stage.wait_until_held(CLAIM, true);
}

// kubevirt-ipam#14, kubevirt-ipam#89
#[test]
fn pod_whose_instance_the_watch_has_not_seen_is_admitted() {
    let stage = Stage::start().granted();
    stage.both_networks();
    let hold = Hold::watches_of("virtualmachineinstances");
    let manager = Managing::behind(&stage, hold.clone());
    stage.configure(manager.port);
    let pod = launcher("pod1", "vm1", "ns1/supadupanet");
    let path = format!("{}?dryRun=All", pods("ns1"));
    // The webhook refuses the pod at once, with advice, until the instance exists.
    let refused = until("the webhook to be called", || {
        let answer = stage.try_create(&path, &pod);
        if answer.status.is_success() {
            Err("not yet")
        } else {
            Ok(answer.refused())
        }
    });
    assert_eq!(
        refused,
        "admission webhook \"ipam-claims.k8s.cni.cncf.io\" denied the request: failed to access the VMI running in pod \
         \"ns1/pod1\": virtualmachineinstances.kubevirt.io \"vm1\" not found; the pod can be created once it exists: try \
         again"
    );
    stage.instance("vm1");
    let admitted: Value = stage.try_create(&pods("ns1"), &pod).accepted();
    let annotations = &admitted["metadata"]["annotations"];
    assert_eq!(annotations["k8s.ovn.org/primary-udn-ipamclaim"], "vm1.podnet");
    assert_eq!(
        annotations["k8s.v1.cni.cncf.io/networks"],
        r#"[{"name":"supadupanet","namespace":"ns1","ipam-claim-reference":"vm1.random.net"}]"#
    );
    drop(hold);
}

// kubevirt-ipam#114
#[test]
fn pod_of_a_recreated_instance_gets_what_the_present_one_asks_for() {
    let stage = Stage::start().granted();
    stage.both_networks();
    let mut without = instance("vm1");
    without["spec"]["networks"] = json!([]);
    stage.create(&instances("ns1"), &without);
    let hold = Hold::watches_of("virtualmachineinstances");
    let manager = Managing::behind(&stage, hold.clone());
    stage.configure(manager.port);
    let path = format!("{}?dryRun=All", pods("ns1"));
    let of = |vmi: &Value| {
        let mut pod = launcher("pod1", "vm1", "ns1/supadupanet");
        pod["metadata"]["ownerReferences"] = json!([owner(vmi)]);
        stage.try_create(&path, &pod)
    };
    stage.delete(&format!("{}/vm1", instances("ns1")));
    let second = stage.instance("vm1");
    until("the webhook to be called", || {
        let networks =
            of(&second).accepted()["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"].clone();
        if networks.to_string().contains("vm1.random.net") {
            Ok(())
        } else {
            Err(networks.to_string())
        }
    });
    stage.delete(&format!("{}/vm1", instances("ns1")));
    let third = stage.instance("vm1");
    let refused = of(&second).refused();
    assert!(
        refused.contains("virtualmachineinstances.kubevirt.io \"vm1\" not found"),
        "{refused}"
    );
    of(&third).accepted();
    drop(hold);
}

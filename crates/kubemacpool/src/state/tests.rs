use super::*;
use crate::pool::{Draft, Pending};
use cni::mac::Mac;
use serde_json::{Value, json};
use std::time::Instant;

const FIRST: &str = "02:00:00:00:00:01";
const SECOND: &str = "02:00:00:00:00:02";

fn mac(text: &str) -> Mac {
    Mac::parse(text).expect("an address")
}

fn state() -> State {
    let range = Range::new(mac("02:00:00:00:00:00"), mac("02:00:00:00:00:ff")).expect("a range");
    State::new(range, range, 0)
}

/// A state where labels opt pods in and virtual machines out.
fn managing(namespaces: &[&str]) -> State {
    let expression = |name, operator, value: &str| {
        json!({
            "name": name, "clientConfig": {}, "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "namespaceSelector": { "matchExpressions": [{ "key": name, "operator": operator, "values": [value] }] },
        })
    };
    let configuration = json!({ "metadata": {}, "webhooks": [
        expression(names::PODS_WEBHOOK, "In", "allocate"),
        expression(names::MACHINES_WEBHOOK, "NotIn", "ignore"),
    ] });
    let configuration = serde_json::from_value(configuration).expect("a configuration");
    let mut state = state();
    state.set_rules(Rules::read(Some(&configuration)));
    for namespace in namespaces {
        let label = (names::PODS_WEBHOOK.to_owned(), "allocate".to_owned());
        state.set_namespace(namespace, [label].into());
    }
    state
}

/// A pod with this address.
fn pod(namespace: &str, name: &str, mac: &str, change: impl FnOnce(&mut Value)) -> Pod {
    let networks = json!([{ "name": "net", "namespace": namespace, "mac": mac, "cni-args": null }]);
    let mut pod = json!({
        "metadata": {
            "name": name, "namespace": namespace, "uid": name,
            "annotations": { "k8s.v1.cni.cncf.io/networks": networks.to_string() },
        },
        "status": { "phase": "Running" },
    });
    change(&mut pod);
    serde_json::from_value(pod).expect("a pod")
}

fn of_instance(name: &str) -> impl FnOnce(&mut Value) {
    let owner = json!([{ "kind": "VirtualMachineInstance", "name": name }]);
    move |pod| pod["metadata"]["ownerReferences"] = owner
}

/// A virtual machine with these addresses on interfaces `a`, `b` and so on.
fn machine(namespace: &str, name: &str, macs: &[&str], change: impl FnOnce(&mut Value)) -> VirtualMachine {
    let named = |(index, mac): (usize, &&str)| {
        let name = ["a", "b", "c"][index];
        (
            json!({ "name": name, "macAddress": mac, "bridge": {} }),
            json!({ "name": name, "multus": {} }),
        )
    };
    let (interfaces, networks): (Vec<_>, Vec<_>) = macs.iter().enumerate().map(named).unzip();
    let spec = json!({ "domain": { "devices": { "interfaces": interfaces } }, "networks": networks });
    let mut machine = json!({
        "metadata": { "name": name, "namespace": namespace, "uid": name },
        "spec": { "template": { "spec": spec } },
    });
    change(&mut machine);
    serde_json::from_value(machine).expect("a virtual machine")
}

fn plain(_: &mut Value) {}

fn deleting(object: &mut Value) {
    object["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
}

/// Holders of an address.
fn holders(state: &State, text: &str) -> Vec<String> {
    let holders = state.pool.holders(mac(text)).into_iter();
    let named = holders.map(|holder| match holder.claimant {
        Claimant::Named(owner) => format!("{owner}:{}", holder.key),
        Claimant::Unnamed { request, .. } => request.to_string(),
    });
    named.collect()
}

// kubemacpool#56
#[test]
fn pod_holds_its_addresses_until_deleted() {
    let mut state = state();
    state.pod_stored(&pod("ns", "one", FIRST, plain));
    state.pod_stored(&pod("ns", "two", FIRST, plain));
    assert_eq!(holders(&state, FIRST), ["pod/ns/one:net", "pod/ns/two:net"]);
    let completed = |pod: &mut Value| pod["status"]["phase"] = json!("Succeeded");
    state.pod_stored(&pod("ns", "one", FIRST, completed));
    assert_eq!(holders(&state, FIRST), ["pod/ns/one:net", "pod/ns/two:net"]);
    state.pod_deleted("ns", "one");
    assert_eq!(holders(&state, FIRST), ["pod/ns/two:net"]);
}

// kubemacpool#14, kubemacpool#62
#[test]
fn address_used_anywhere_is_not_allocated() {
    let mut state = managing(&[]);
    state.pod_stored(&pod("unmanaged", "p", FIRST, plain));
    state.machine_stored(&machine("ns", "vm", &[SECOND], plain));
    let mut draft = Draft::new();
    let handed_out: Vec<_> = std::iter::from_fn(|| state.pool.allocate(&mut draft, "k").ok()).collect();
    assert!(handed_out.len() > 250, "{}", handed_out.len());
    assert!(!handed_out.contains(&mac(FIRST)) && !handed_out.contains(&mac(SECOND)));
}

// kubemacpool#55
#[test]
fn pod_of_virtual_machine_holds_nothing() {
    let mut state = state();
    state.machine_stored(&machine("ns", "vm", &[FIRST], plain));
    state.pod_stored(&pod("ns", "launcher", FIRST, of_instance("vm")));
    assert_eq!(holders(&state, FIRST), ["vm/ns/vm:a"]);
    state.pod_deleted("ns", "launcher");
    assert_eq!(holders(&state, FIRST), ["vm/ns/vm:a"]);
    // An instance without a virtual machine is served through its pod.
    state.pod_stored(&pod("ns", "alone", SECOND, of_instance("other")));
    assert_eq!(holders(&state, SECOND), ["pod/ns/alone:net"]);
    // The same name in another namespace is another object.
    state.pod_stored(&pod("elsewhere", "launcher", SECOND, of_instance("vm")));
    assert_eq!(
        holders(&state, SECOND),
        ["pod/ns/alone:net", "pod/elsewhere/launcher:net"]
    );
}

// kubemacpool#55
#[test]
fn pod_of_virtual_machine_may_arrive_first() {
    let mut state = state();
    state.pod_stored(&pod("ns", "launcher", FIRST, of_instance("vm")));
    state.pod_stored(&pod("ns", "ended", FIRST, of_instance("vm")));
    state.pod_deleted("ns", "ended");
    assert_eq!(holders(&state, FIRST), ["pod/ns/launcher:net"]);
    state.machine_stored(&machine("ns", "vm", &[FIRST], plain));
    assert_eq!(holders(&state, FIRST), ["vm/ns/vm:a"]);
}

// kubemacpool#47
#[test]
fn two_machines_hold_a_shared_address_each() {
    let mut state = state();
    for name in ["one", "two"] {
        state.machine_stored(&machine("ns", name, &[FIRST], plain));
    }
    // Its address is in use until it is deleted.
    state.machine_stored(&machine("ns", "one", &[FIRST], deleting));
    assert_eq!(holders(&state, FIRST), ["vm/ns/one:a", "vm/ns/two:a"]);
    state.machine_deleted("ns", "one");
    assert_eq!(holders(&state, FIRST), ["vm/ns/two:a"]);
    assert!(!state.has_machine(&Owner::machine("ns", "one")));
    state.machine_deleted("ns", "two");
    assert!(holders(&state, FIRST).is_empty());
}

// kubemacpool#48
#[test]
fn legacy_finalizer_is_removed_on_deletion() {
    let mut state = state();
    let bound = |machine: &mut Value| {
        machine["metadata"]["finalizers"] = json!(["other", "k8s.v1.cni.cncf.io/kubeMacPool"]);
    };
    assert_eq!(state.machine_stored(&machine("ns", "vm", &[FIRST], bound)), None);
    let vm = machine("ns", "vm", &[FIRST], |object| {
        bound(object);
        deleting(object);
    });
    assert_eq!(state.machine_stored(&vm), Some(Owner::machine("ns", "vm")));
    assert_eq!(state.machine_stored(&vm), None, "it is being removed");
    state.finalizer_removed(&Owner::machine("ns", "vm"));
    assert_eq!(state.machine_stored(&vm), Some(Owner::machine("ns", "vm")));
    assert_eq!(
        state.machine_stored(&machine("ns", "vm", &[FIRST], deleting)),
        None
    );
}

#[test]
fn launcher_without_annotation_is_forgotten() {
    let mut state = state();
    state.pod_stored(&pod("ns", "launcher", FIRST, of_instance("vm")));
    assert_eq!(state.launchers.len(), 1);
    let of_instance = of_instance("vm");
    state.pod_stored(&pod("ns", "launcher", FIRST, |pod| {
        of_instance(pod);
        pod["metadata"]["annotations"] = json!({});
    }));
    assert!(state.launchers.is_empty(), "{:?}", state.launchers);
    assert!(holders(&state, FIRST).is_empty());
}

// kubemacpool#41
#[test]
fn stored_machine_settles_its_admission() {
    let mut state = state();
    let admitted = Timestamp::parse("2026-01-02T03:04:05.000000002Z").expect("a time");
    let vm = Owner::machine("ns", "vm");
    let mut draft = Draft::new();
    draft.register(mac(SECOND), "a");
    let pending = Pending {
        claimant: Claimant::Named(vm),
        timestamp: admitted,
        uid: Some("vm".into()),
        admitted: Instant::now(),
        client: std::net::Ipv4Addr::LOCALHOST.into(),
    };
    state.pool.admit(draft, pending);
    let at = |timestamp: &str| {
        let annotations = json!({ "kubemacpool.io/transaction-timestamp": timestamp });
        move |machine: &mut Value| machine["metadata"]["annotations"] = annotations
    };
    state.machine_stored(&machine(
        "ns",
        "vm",
        &[FIRST],
        at("2026-01-02T03:04:05.000000001Z"),
    ));
    assert_eq!(holders(&state, SECOND), ["vm/ns/vm:a"]);
    state.machine_stored(&machine(
        "ns",
        "vm",
        &[FIRST],
        at("2026-01-02T03:04:05.000000002Z"),
    ));
    assert!(holders(&state, SECOND).is_empty());
    assert_eq!(holders(&state, FIRST), ["vm/ns/vm:a"]);
    // An invalid time settles nothing; the object's addresses count.
    state.machine_stored(&machine("ns", "vm", &[SECOND], at("yesterday")));
    assert_eq!(holders(&state, SECOND), ["vm/ns/vm:a"]);
}

// kubemacpool#63
#[test]
fn duplicate_addresses_are_counted_once_each() {
    let mut state = managing(&["ns"]);
    state.set_namespace(
        "ignored",
        [(names::MACHINES_WEBHOOK.to_owned(), "ignore".to_owned())].into(),
    );
    let owners = ["a", "b", "c"].map(|name| Owner::machine("ns", name));
    let mut all: Vec<_> = owners.to_vec();
    all.push(Owner::machine("ignored", "d"));
    let count = |state: &mut State| -> Vec<String> {
        state.listed(all.clone());
        let duplicates = state.count_duplicates().into_iter();
        duplicates.map(|duplicate| duplicate.to_string()).collect()
    };
    state.machine_stored(&machine("ns", "a", &[FIRST, "02-00-00-00-00-02"], plain));
    state.machine_stored(&machine("ignored", "d", &[FIRST], plain));
    assert!(
        count(&mut state).is_empty(),
        "those of ignored namespaces do not count"
    );
    state.machine_stored(&machine("ns", "b", &[FIRST], plain));
    state.machine_stored(&machine("ns", "c", &[FIRST], plain));
    let expected = [
        "mac address 02:00:00:00:00:01 already allocated to vm/ns/a:a, conflict with: vm/ns/b:a",
        "mac address 02:00:00:00:00:01 already allocated to vm/ns/a:a, vm/ns/b:a, conflict with: vm/ns/c:a",
    ];
    assert_eq!(count(&mut state), expected);
    state.machine_deleted("ns", "b");
    state.machine_deleted("ns", "c");
    assert!(count(&mut state).is_empty());
    // Pods come first.
    state.pod_stored(&pod("ns", "p", SECOND, plain));
    let expected =
        ["mac address 02:00:00:00:00:02 already allocated to pod/ns/p:net, conflict with: vm/ns/a:b"];
    assert_eq!(count(&mut state), expected);
    assert_eq!(state.snapshot().duplicates, 3, "each time that they are counted");
    assert!(state.count_duplicates().is_empty(), "they are reported once");
}

// kubemacpool#64
#[test]
fn ready_after_all_lists_and_valid_configuration() {
    let mut state = managing(&["ns"]);
    for part in [Part::Namespaces, Part::Rules, Part::Range, Part::Pods] {
        state.complete(part);
        assert_eq!(state.is_ready(), Ok(false), "{part:?}");
    }
    state.complete(Part::Machines);
    assert_eq!(state.is_ready(), Ok(true), "instances do not matter");
    state.set_kubevirt_installed();
    assert_eq!(state.is_ready(), Ok(true));
    state.set_rules(Rules::read(None));
    let error = state.is_ready().expect_err("nothing is known");
    assert_eq!(
        error.to_string(),
        "webhook mutatepods.kubemacpool.io was not found on mutatingWebhookConfig kubemacpool-mutator"
    );
}

#[test]
fn collisions_are_reported_after_sync_and_on_opt_in() {
    let mut state = managing(&["ns"]);
    let attached = |pod: &mut Value| {
        pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"] = json!("[]");
    };
    for (namespace, name) in [("ns", "one"), ("ns", "two"), ("late", "three")] {
        state.set_namespace("late", Labels::new());
        assert!(
            state
                .pod_stored(&pod(namespace, name, FIRST, attached))
                .is_empty(),
            "not yet"
        );
    }
    let parts = [
        Part::Namespaces,
        Part::Rules,
        Part::Range,
        Part::Pods,
        Part::Machines,
    ];
    assert!(
        parts.map(|part| state.complete(part)).concat().is_empty(),
        "not yet"
    );
    let parties = |notices: Vec<Notice>| -> Vec<Vec<String>> {
        let names = |notice: Notice| {
            notice
                .parties
                .iter()
                .map(|party| party.reference.to_string())
                .collect()
        };
        notices.into_iter().map(names).collect()
    };
    assert_eq!(
        parties(state.complete(Part::Instances)),
        [["pod/ns/one", "pod/ns/two"]]
    );
    let opted_in = [(names::PODS_WEBHOOK.to_owned(), "allocate".to_owned())];
    assert_eq!(
        parties(state.set_namespace("late", opted_in.into())),
        [["pod/late/three", "pod/ns/one", "pod/ns/two"]]
    );
    state.pod_deleted("ns", "two");
    state.pod_deleted("late", "three");
    assert_eq!(state.collisions.colliding().count(), 0);
}

//! Pods and virtual machines from admission to deletion (kubemacpool §9.4, §10.5, §10.7).

use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::Stage;
use crate::manager::Managing;
use crate::objects::{Kind, Nic, PODS_WEBHOOK, addresses, machine, pod, pod_addresses};

const FIRST: &str = "02:00:00:00:00:01";
const SECOND: &str = "02:00:00:00:00:02";
const THIRD: &str = "02:00:00:00:00:03";
/// Invalid, but rejected only after all webhooks.
const NO_NAME: &str = "Not_A_Name";

fn start(wait: Duration) -> (Stage, Managing) {
    let stage = Stage::start();
    stage.namespace("ns", &[(PODS_WEBHOOK, "allocate")]);
    let manager = Managing::ready_as(&stage, |settings| settings.wait_time = wait);
    let probe = machine("probe", &[Nic::masquerade("default")]);
    stage.wait_until_called(Kind::Machine, "ns", &probe, |answer| {
        answer.status.is_success() && addresses(&answer.object) != [""]
    });
    (stage, manager)
}

/// Longer than any test runs.
const FOR_EVER: Duration = Duration::from_hours(1);
const SOON: Duration = Duration::from_secs(1);

fn networks(mac: Option<&str>) -> String {
    let mut network = json!({ "name": "net" });
    if let Some(mac) = mac {
        network["mac"] = json!(mac);
    }
    json!([network]).to_string()
}

/// Creates an object that the API server rejects after all webhooks.
fn refused(stage: &Stage, kind: Kind, object: &Value) {
    let text = stage.refused(kind, "ns", object);
    assert!(text.contains("Invalid value"), "{text}");
}

/// A machine whose generated name would be invalid.
fn without_name(mac: &str) -> Value {
    let mut vm = machine("", &[Nic::multus("br1").with(mac)]);
    vm["metadata"] = json!({ "generateName": NO_NAME });
    vm
}

// kubemacpool#50, kubemacpool#54, kubemacpool#56
#[test]
fn pod_keeps_its_address_until_deleted() {
    let (stage, manager) = start(FOR_EVER);
    let created = stage.create(Kind::Pod, "ns", &pod("p", Some("[{ \"name\": \"ovs-conf\"}]")));
    let annotation = &created["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"];
    let mac = pod_addresses(&created).remove(0);
    let expected = format!(r#"[{{"name":"ovs-conf","namespace":"ns","mac":"{mac}","cni-args":null}}]"#);
    assert_eq!(annotation, &json!(expected));
    manager.wait_for_holders(&mac, &["pod/ns/p:ovs-conf"]);
    stage.create(Kind::Pod, "ns", &pod("other", Some(&networks(Some(&mac)))));
    manager.wait_for_holders(&mac, &["pod/ns/p:ovs-conf", "pod/ns/other:net"]);
    stage.report(Kind::Pod, "ns", "other", &json!({ "phase": "Succeeded" }));
    stage.delete(Kind::Pod, "ns", "p");
    manager.wait_for_holders(&mac, &["pod/ns/other:net"]);
    stage.delete(Kind::Pod, "ns", "other");
    manager.wait_for_holders(&mac, &[]);
}

// kubemacpool#49, kubemacpool#60
#[test]
fn generated_names_leave_no_admissions() {
    let (stage, manager) = start(FOR_EVER);
    let unnamed = |mut object: Value| {
        let metadata = object["metadata"].as_object_mut().expect("metadata");
        metadata.shift_remove("name");
        metadata.insert("generateName".to_owned(), json!("some-"));
        object
    };
    let vm = stage.create(
        Kind::Machine,
        "ns",
        &unnamed(machine("", &[Nic::masquerade("default")])),
    );
    let pod = stage.create(Kind::Pod, "ns", &unnamed(pod("", Some(&networks(None)))));
    for (kind, prefix, object, mac, key) in [
        (Kind::Machine, "vm", &vm, addresses(&vm).remove(0), "default"),
        (Kind::Pod, "pod", &pod, pod_addresses(&pod).remove(0), "net"),
    ] {
        let name = object["metadata"]["name"].as_str().expect("a name");
        manager.wait_for_holders(&mac, &[&format!("{prefix}/ns/{name}:{key}")]);
        stage.delete(kind, "ns", name);
        manager.wait_for_holders(&mac, &[]);
    }
    assert_eq!(manager.snapshot().range.pending, 0);
}

// kubemacpool#45, kubemacpool#46, kubemacpool#49, kubemacpool#60: while the wait lasts
#[test]
fn later_refusal_holds_addresses_during_the_wait() {
    let (stage, manager) = start(FOR_EVER);
    let held = |mac: &str, by: &str| assert_eq!(manager.holders(mac), [by], "{mac}");
    let vm = machine(NO_NAME, &[Nic::multus("br1").with(FIRST)]);
    refused(&stage, Kind::Machine, &vm);
    held(FIRST, &format!("vm/ns/{NO_NAME}:br1?"));
    refused(&stage, Kind::Pod, &pod(NO_NAME, Some(&networks(Some(SECOND)))));
    held(SECOND, &format!("pod/ns/{NO_NAME}:net?"));
    refused(&stage, Kind::Machine, &without_name(THIRD));
    held(THIRD, "(no name):br1?");

    let mut vm = stage.create(Kind::Machine, "ns", &machine("vm", &[Nic::masquerade("default")]));
    let before = addresses(&vm).remove(0);
    manager.wait_for_holders(&before, &["vm/ns/vm:default"]);
    let other = "02:00:00:00:00:04";
    vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"] = json!(other);
    vm["metadata"]["labels"] = json!({ "not a label": "" });
    let text = stage.replace(Kind::Machine, "ns", &vm).refused();
    assert!(text.contains("Invalid value"), "{text}");
    held(other, "vm/ns/vm:default?");
    held(&before, "vm/ns/vm:default");
}

// kubemacpool#45, kubemacpool#49, kubemacpool#60
#[test]
fn later_refusal_releases_addresses_after_the_wait() {
    let (stage, manager) = start(SOON);
    refused(&stage, Kind::Machine, &without_name(THIRD));
    refused(
        &stage,
        Kind::Machine,
        &machine(NO_NAME, &[Nic::multus("br1").with(FIRST)]),
    );
    refused(&stage, Kind::Pod, &pod(NO_NAME, Some(&networks(Some(SECOND)))));
    for mac in [FIRST, SECOND, THIRD] {
        manager.wait_for_holders(mac, &[]);
    }
    assert_eq!(manager.snapshot().range.pending, 0);
}

// kubemacpool#46
#[test]
fn later_refused_update_keeps_stored_addresses() {
    let (stage, manager) = start(SOON);
    stage.create(
        Kind::Machine,
        "ns",
        &machine("vm", &[Nic::multus("br1").with(FIRST)]),
    );
    manager.wait_for_holders(FIRST, &["vm/ns/vm:br1"]);
    let mut changed = stage.get(Kind::Machine, "ns", "vm").expect("it is there");
    changed["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"] = json!(SECOND);
    changed["metadata"]["labels"] = json!({ "not a label": "" });
    let text = stage.replace(Kind::Machine, "ns", &changed).refused();
    assert!(text.contains("Invalid value"), "{text}");
    manager.wait_for_holders(SECOND, &[]);
    assert_eq!(manager.holders(FIRST), ["vm/ns/vm:br1"]);

    // A stored object is confirmed by the watch.
    changed["metadata"]["labels"] = json!({});
    stage.replace(Kind::Machine, "ns", &changed).accepted();
    manager.wait_for_holders(SECOND, &["vm/ns/vm:br1"]);
    manager.wait_for_holders(FIRST, &[]);
}

// kubemacpool#47
#[test]
fn second_machine_keeps_a_shared_address() {
    let (stage, manager) = start(FOR_EVER);
    for name in ["one", "two"] {
        stage.create(
            Kind::Machine,
            "ns",
            &machine(name, &[Nic::multus("br1").with(FIRST)]),
        );
    }
    manager.wait_for_holders(FIRST, &["vm/ns/one:br1", "vm/ns/two:br1"]);
    stage.delete(Kind::Machine, "ns", "one");
    manager.wait_for_holders(FIRST, &["vm/ns/two:br1"]);
}

// kubemacpool#55
#[test]
fn pod_of_machine_gets_nothing_and_pod_of_lone_instance_does() {
    let (stage, manager) = start(FOR_EVER);
    stage.create(
        Kind::Machine,
        "ns",
        &machine("vm", &[Nic::multus("net").with(FIRST)]),
    );
    let launcher = |name: &str, of: &str, mac: Option<&str>| {
        let mut pod = pod(name, Some(&networks(mac)));
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": of, "uid": "u",
        }]);
        pod_addresses(&stage.create(Kind::Pod, "ns", &pod)).remove(0)
    };
    assert_eq!(launcher("asks", "vm", None), "");
    assert_eq!(launcher("brings", "vm", Some(FIRST)), FIRST);
    let alone = launcher("alone", "nobody", None);
    // Pods are observed in order: the others were observed before.
    manager.wait_for_holders(&alone, &["pod/ns/alone:net"]);
    manager.wait_for_holders(FIRST, &["vm/ns/vm:net"]);
    drop(manager);
    let manager = Managing::ready(&stage);
    assert_eq!(manager.holders(FIRST), ["vm/ns/vm:net"]);
    assert_eq!(manager.holders(&alone), ["pod/ns/alone:net"]);
}

// kubemacpool#48
#[test]
fn machine_with_legacy_finalizer_can_be_deleted() {
    let (stage, manager) = start(FOR_EVER);
    let mut vm = machine("vm", &[Nic::masquerade("default")]);
    vm["metadata"]["finalizers"] = json!(["k8s.v1.cni.cncf.io/kubeMacPool", "example.com/other"]);
    let mac = addresses(&stage.create(Kind::Machine, "ns", &vm)).remove(0);
    stage.delete(Kind::Machine, "ns", "vm");
    stage.wait_for("the finalizer to go", (Kind::Machine, "ns", "vm"), |vm| {
        (vm?["metadata"]["finalizers"] == json!(["example.com/other"])).then_some(())
    });
    // It is on the network until it is deleted.
    assert_eq!(manager.holders(&mac), ["vm/ns/vm:default"]);
    let free = json!({ "metadata": { "finalizers": null } });
    stage.patch(Kind::Machine, "ns", "vm", &free).accepted();
    stage.wait_for("the end", (Kind::Machine, "ns", "vm"), |vm| {
        vm.is_none().then_some(())
    });
    manager.wait_for_holders(&mac, &[]);
}

// kubemacpool#30
#[test]
fn recreated_machine_gets_an_address() {
    let (stage, manager) = start(FOR_EVER);
    let vm = machine("vm", &[Nic::masquerade("default")]);
    let first = addresses(&stage.create(Kind::Machine, "ns", &vm)).remove(0);
    let again = stage.refused(Kind::Machine, "ns", &vm);
    assert!(again.contains("already exists"), "{again}");
    for _ in 0..5 {
        stage.delete(Kind::Machine, "ns", "vm");
        assert_ne!(addresses(&stage.create(Kind::Machine, "ns", &vm)), [""]);
    }
    manager.wait_for_holders(&first, &[]);
    let now = stage.get(Kind::Machine, "ns", "vm").expect("it is there");
    manager.wait_for_holders(&addresses(&now)[0], &["vm/ns/vm:default"]);
}

#[test]
fn deleting_machine_does_not_block_its_successor() {
    let (stage, manager) = start(FOR_EVER);
    let mut going = machine("vm", &[Nic::multus("br1").with(FIRST)]);
    going["metadata"]["finalizers"] = json!(["example.org/stays"]);
    stage.create(Kind::Machine, "ns", &going);
    manager.wait_for_holders(FIRST, &["vm/ns/vm:br1"]);
    stage.delete(Kind::Machine, "ns", "vm");
    // It still exists; it could also have been deleted between our response and the end of the request.
    let text = stage.refused(
        Kind::Machine,
        "ns",
        &machine("vm", &[Nic::multus("br1").with(SECOND)]),
    );
    assert!(text.contains("already exists"), "{text}");
    assert_eq!(manager.holders(SECOND), ["vm/ns/vm:br1?"]);
}

#[test]
fn pod_churn_costs_no_api_requests() {
    let (stage, manager) = start(FOR_EVER);
    let mark = stage.mark();
    let created = |index: usize| {
        let name = format!("p{index}");
        let pod = stage.create(Kind::Pod, "ns", &pod(&name, Some(&networks(None))));
        stage.report(Kind::Pod, "ns", &name, &json!({ "phase": "Running" }));
        (name, pod_addresses(&pod).remove(0))
    };
    let pods: Vec<_> = (0..10).map(created).collect();
    for (name, mac) in &pods {
        stage.delete(Kind::Pod, "ns", name);
        manager.wait_for_holders(mac, &[]);
    }
    let asked = stage.requests_since(mark).into_iter();
    let asked: Vec<_> = asked
        .map(|request| format!("{} {}", request.verb, request.uri))
        .collect();
    assert_eq!(asked, Vec::<String>::new());
}

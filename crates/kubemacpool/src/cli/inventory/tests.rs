use super::*;
use crate::namespaces::Rules;
use crate::pool::Usage;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn read<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object")
}

fn mac(text: &str) -> Mac {
    Mac::parse(text).expect("an address")
}

fn machine(namespace: &str, name: &str, address: &str) -> VirtualMachine {
    read(json!({
        "metadata": { "namespace": namespace, "name": name },
        "spec": { "template": { "spec": {
            "domain": { "devices": { "interfaces": [
                { "name": "default", "masquerade": {}, "macAddress": address },
                { "name": "plain", "bridge": {}, "macAddress": "02:00:00:00:00:77" },
                { "name": "odd", "masquerade": {}, "macAddress": "odd" },
            ] } },
            "networks": [{ "name": "default", "pod": {} }, { "name": "plain", "pod": {} }],
        } } },
    }))
}

fn instance(namespace: &str, name: &str, address: &str) -> VirtualMachineInstance {
    read(json!({
        "metadata": { "namespace": namespace, "name": name },
        "status": { "phase": "Running", "interfaces": [{ "name": "default", "mac": address }] },
    }))
}

fn pod(namespace: &str, name: &str, address: &str, machine: Option<&str>) -> Pod {
    let networks = json!([{ "name": "blue", "mac": address }]).to_string();
    let mut pod = json!({ "metadata": {
        "namespace": namespace, "name": name, "annotations": { "k8s.v1.cni.cncf.io/networks": networks },
    } });
    if let Some(machine) = machine {
        pod["metadata"]["ownerReferences"] = json!([{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": machine, "uid": "u" }]);
    }
    read(pod)
}

/// Pods opt in, virtual machines opt out; namespace `lab` is opted in for pods.
fn managed() -> Managed {
    let webhook = |name: &str, operator: &str, value: &str| {
        json!({
            "name": name, "clientConfig": {}, "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "namespaceSelector": { "matchExpressions": [{ "key": name, "operator": operator, "values": [value] }] },
        })
    };
    let configuration = read(json!({ "metadata": {}, "webhooks": [
        webhook("mutatepods.kubemacpool.io", "In", "allocate"),
        webhook("mutatevirtualmachines.kubemacpool.io", "NotIn", "ignore"),
    ] }));
    let mut managed = Managed::new();
    managed.set_rules(Rules::read(Some(&configuration)));
    managed.set_namespace("shop", [].into());
    let label = ("mutatepods.kubemacpool.io".to_owned(), "allocate".to_owned());
    managed.set_namespace("lab", [label].into());
    managed
}

fn installed() -> Installed {
    let range = Range::new(mac("02:00:00:00:00:01"), mac("02:00:00:00:00:08"));
    Installed {
        namespace: "pool".to_owned(),
        range: range.expect("a range"),
    }
}

fn inventory() -> Inventory {
    let machines = [
        machine("shop", "one", "02-00-00-00-00-01"),
        machine("shop", "two", "0200.0000.0002"),
        machine("shop", "far", "06:00:00:00:00:00"),
    ];
    let instances = [instance("shop", "two", "02:00:00:00:00:02")];
    let pods = [
        pod("lab", "a", "02:00:00:00:00:02", None),
        pod("shop", "b", "02:00:00:00:00:03", None),
        pod("shop", "virt-launcher-one", "02:00:00:00:00:01", Some("one")),
        pod("lab", "virt-launcher-alone", "02:00:00:00:00:04", Some("alone")),
    ];
    Inventory::new(&pods, &machines, &instances, managed(), Ok(installed()))
}

fn rows(found: &[Found]) -> Vec<(&str, &str, Standing)> {
    found
        .iter()
        .map(|found| (found.object.as_str(), found.interface.as_str(), found.standing))
        .collect()
}

// kubemacpool#55
#[test]
fn who_lists_machines_pods_and_instances() {
    let inventory = inventory();
    let two = inventory.who(mac("02:00:00:00:00:02"));
    let expected = [
        ("vm/shop/two", "default", Standing::Managed),
        ("pod/lab/a", "blue", Standing::Managed),
        ("vmi/shop/two", "default", Standing::Runs),
    ];
    assert_eq!(rows(&two), expected);
    let one = inventory.who(mac("02:00:00:00:00:01"));
    assert_eq!(
        rows(&one),
        [("vm/shop/one", "default", Standing::Managed)],
        "its launcher has what it holds"
    );
    let alone = inventory.who(mac("02:00:00:00:00:04"));
    assert_eq!(
        rows(&alone),
        [("pod/lab/virt-launcher-alone", "blue", Standing::Managed)]
    );
    let reserved = inventory.who(mac("02:00:00:00:00:03"));
    assert_eq!(rows(&reserved), [("pod/shop/b", "blue", Standing::Reserved)]);
    assert_eq!(
        inventory.who(mac("02:00:00:00:00:77")),
        [],
        "the pool does not care for such interfaces"
    );
}

#[test]
fn usage_agrees_with_the_manager() {
    let report = inventory().report(&installed());
    assert_eq!(
        report.usage,
        Usage {
            size: 8,
            used: 3,
            pending: 0,
            reserved: 1,
        }
    );
    assert_eq!(report.outside, 1);
    assert_eq!(report.shared, [(mac("02:00:00:00:00:02"), 2)]);
    assert_eq!(
        report.namespaces,
        [("shop".to_owned(), 3, 1), ("lab".to_owned(), 0, 2)]
    );
    assert!(!report.is_nearly_full());
}

use super::*;
use serde_json::json;

#[test]
fn instance_keeps_the_needed_fields() {
    let wire: WireInstance = serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {
            "name": "vm1", "namespace": "ns1", "uid": "u", "labels": { "a": "b" },
            "annotations": { "network.kubevirt.io/addresses": "{}", "other": "x" },
            "managedFields": [{ "fieldsV1": { "f:x": {} } }],
            "ownerReferences": [
                { "apiVersion": "v1", "kind": "Other", "name": "o", "uid": "o", "controller": false },
                { "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm1", "uid": "vm", "controller": true },
            ],
        },
        "spec": {
            "networks": [
                { "name": "podnet", "pod": {} },
                { "name": "a", "multus": { "networkName": "blue" } },
                { "name": "b", "multus": { "networkName": "other/red", "default": false } },
                { "name": "c", "multus": { "networkName": "blue", "default": true } },
                { "name": "d" }, null,
            ],
            "domain": { "devices": { "interfaces": [{ "name": "podnet", "macAddress": "m" }, { "name": "a" }] } },
        },
        "status": { "activePods": { "uid": "node" }, "interfaces": [{ "name": "a", "mac": "x" }, { "mac": "y" }] },
    }))
    .unwrap();
    let instance = Instance::from(wire);
    let network = |name: &str, source| InstanceNetwork {
        name: name.to_owned(),
        source,
    };
    let interface = |name: &str, mac: &str| Interface {
        name: name.to_owned(),
        mac: mac.to_owned(),
    };
    let expected = Instance {
        uid: "u".into(),
        owner: "vm".into(),
        deleting: false,
        has_pods: true,
        addresses: Some("{}".into()),
        networks: [
            network("podnet", Source::Pod),
            network("a", Source::Multus(Name::new("ns1", "blue"))),
            network("b", Source::Multus(Name::new("other", "red"))),
            network("c", Source::Neither),
            network("d", Source::Neither),
        ]
        .into(),
        interfaces: [interface("podnet", "m"), interface("a", "")].into(),
        reported: ["a".to_owned()].into(),
    };
    assert_eq!(instance, expected);
}

#[test]
fn instance_without_anything_is_read() {
    let bare: WireInstance = serde_json::from_str("{}").unwrap();
    assert_eq!(Instance::from(bare), Instance::default());
    let empty: WireInstance = serde_json::from_value(json!({
        "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "networks": null, "domain": { "devices": {} } },
        "status": { "activePods": {} },
    }))
    .unwrap();
    let instance = Instance::from(empty);
    assert!(instance.deleting && !instance.has_pods);
}

#[test]
fn claim_keeps_the_needed_fields() {
    let wire: WireClaim = serde_json::from_value(json!({
        "metadata": {
            "name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "7", "labels": { "kubevirt.io/vm": "vm1", "x": "y" },
            "finalizers": ["other", "kubevirt.io/persistent-ipam"],
            "ownerReferences": [{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm1", "uid": "o" }],
        },
        "spec": { "network": "goodnet", "interface": "" },
        "status": { "ips": ["10.0.0.1/24"] },
    }))
    .unwrap();
    let expected = Claim {
        machine: "vm1".into(),
        held: true,
        deleting: false,
        owners: ["o".into()].into(),
        network: "goodnet".into(),
        ips: ["10.0.0.1/24".to_owned()].into(),
        version: 7,
    };
    assert_eq!(Claim::of(wire), expected);
}

use super::*;
use kube_kit::watch::DeserializeGuard;
use serde_json::{Value, json};

fn read<K: de::DeserializeOwned>(object: &Value) -> K {
    let DeserializeGuard(read) = serde_json::from_str(&object.to_string()).expect("an object");
    read.expect("of its kind")
}

#[test]
fn metadata_keeps_only_used_fields() {
    let pod: Pod = read(&json!({
        "metadata": {
            "name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7",
            "labels": { "app": "a", "kubevirt.io": "virt-launcher" },
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "a long text",
                "k8s.v1.cni.cncf.io/networks": "[]",
                "k8s.v1.cni.cncf.io/network-status": "a long text",
            },
            "managedFields": [{ "manager": "m", "fieldsV1": { "f:metadata": {} } }],
            "ownerReferences": [
                { "apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1" },
                { "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "vm", "uid": "2" },
            ],
        },
        "spec": { "containers": [] },
        "status": { "phase": "Running" },
    }));
    assert_eq!((pod.networks(), pod.is_attached()), (Some("[]"), true));
    assert_eq!(
        (pod.is_launcher(), pod.instance(), pod.phase()),
        (true, Some("vm"), "Running")
    );
    let metadata = &pod.metadata;
    assert_eq!(
        (
            metadata.name.as_deref(),
            metadata.namespace.as_deref(),
            metadata.uid.as_deref()
        ),
        (Some("p"), Some("ns"), Some("u"))
    );
    assert_eq!(metadata.resource_version.as_deref(), Some("7"));
    assert_eq!(metadata.labels.as_ref().map(BTreeMap::len), Some(1));
    assert_eq!(metadata.annotations.as_ref().map(BTreeMap::len), Some(2));
    assert!(metadata.managed_fields.is_none());
}

#[test]
fn missing_and_null_are_empty() {
    for pod in [
        json!({ "metadata": { "name": "p" } }),
        json!({ "metadata": { "name": "p", "annotations": null, "labels": null, "ownerReferences": null }, "status": null }),
    ] {
        let pod: Pod = read(&pod);
        assert_eq!(
            (pod.networks(), pod.is_attached(), pod.is_launcher()),
            (None, false, false)
        );
        assert_eq!((pod.instance(), pod.phase()), (None, ""));
    }
    for spec in [
        json!(null),
        json!({ "template": null }),
        json!({ "template": { "spec": { "domain": { "devices": { "interfaces": [null] } }, "networks": [null] } } }),
    ] {
        let machine: VirtualMachine = read(&json!({ "metadata": { "name": "vm" }, "spec": spec }));
        let holdings = machine.spec.map(|spec| spec.addresses().0).unwrap_or_default();
        assert!(holdings.is_empty(), "{spec}");
    }
    let instance: VirtualMachineInstance = read(&json!({ "metadata": { "name": "vm" }, "status": {} }));
    let status = instance.status.expect("a status");
    assert_eq!(
        (status.interfaces().count(), status.migrations()),
        (0, (None, None))
    );
}

#[test]
fn instance_addresses_and_migrations_are_read() {
    let instance: VirtualMachineInstance = read(&json!({
        "metadata": { "name": "vm" },
        "spec": {
            "domain": { "devices": { "interfaces": [
                { "name": "default", "masquerade": {} },
                { "name": "net", "bridge": {} },
                { "name": "own", "bridge": {} },
            ] } },
            "networks": [
                { "name": "default", "pod": {} },
                { "name": "net", "multus": { "networkName": "n" } },
                { "name": "own", "pod": {} },
            ],
        },
        "status": {
            "phase": "Running",
            "interfaces": [{ "name": "default", "mac": "02:00:00:00:00:01" }, null, { "mac": "02:00:00:00:00:02" }],
            "migrationState": { "sourceState": { "migrationUID": "1" }, "targetState": { "migrationUID": "2" } },
        },
    }));
    assert_eq!(instance.supported().collect::<Vec<_>>(), ["default", "net"]);
    let status = instance.status.expect("a status");
    assert_eq!(
        status.interfaces().collect::<Vec<_>>(),
        [("default", "02:00:00:00:00:01"), ("", "02:00:00:00:00:02")]
    );
    assert_eq!(status.migrations(), (Some("1"), Some("2")));
}

#[test]
fn malformed_object_keeps_its_name() {
    let malformed = json!({ "metadata": { "name": "vm" }, "spec": { "template": "text" } });
    let DeserializeGuard::<VirtualMachine>(read) =
        serde_json::from_str(&malformed.to_string()).expect("an object");
    let invalid = read.expect_err("malformed");
    assert_eq!(invalid.metadata.name.as_deref(), Some("vm"));
}

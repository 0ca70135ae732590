//! Networks, virtual machines, instances, claims and launcher pods of realistic size.

use anyhow::Context;
use review_bench::api::{definition, namespace, review};
use review_bench::load::Reviews;
use review_bench::template::Template;
use serde_json::{Value, json};

/// Namespace of all objects.
const NAMESPACE: &str = "bench";
/// Networks without pods.
const OTHER_NETWORKS: usize = 98;
/// Name of the network in instances.
const INTERFACE: &str = "blue";
/// KubeVirt's name of a pod's interface on the network: `pod` and a prefix of a SHA-256 digest.
const POD_INTERFACE: &str = "pod16477688c0e";

/// Kinds that must be served.
pub(crate) const SERVED: [&str; 4] = [
    "/apis/kubevirt.io/v1/virtualmachines",
    "/apis/kubevirt.io/v1/virtualmachineinstances",
    "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions",
    "/apis/k8s.cni.cncf.io/v1alpha1/ipamclaims",
];

/// The source of a network's addresses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Network {
    /// The network's plugin.
    Plugin,
    /// The controller.
    Pool,
}

impl Network {
    pub(crate) const ALL: [Self; 2] = [Self::Plugin, Self::Pool];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plugin => "plugin",
            Self::Pool => "pool",
        }
    }

    /// Returns the network of a virtual machine.
    pub(crate) fn of(number: u32) -> Self {
        Self::ALL[usize::from(number % 2 == 1)]
    }

    /// Returns the name of a virtual machine on the network, which is also the name of its instance and the prefix of
    /// its pod's name.
    pub(crate) fn machine(self, number: u32) -> String {
        format!("{}-{number:07}", self.name())
    }

    fn config(self) -> Value {
        let mut config = json!({
            "cniVersion": "1.0.0", "name": format!("{}-net", self.name()), "type": "bridge", "bridge": "br1",
            "allowPersistentIPs": true,
        });
        if self == Self::Pool {
            config["persistentIPRanges"] = json!([{ "subnet": "10.0.0.0/8" }]);
        }
        config
    }
}

/// Returns the pool's address for the claim of a virtual machine.
fn address(number: u32) -> String {
    // The first address of the subnet belongs to the gateway.
    format!("{}/8", std::net::Ipv4Addr::from(0x0a00_0002 + number))
}

/// Paths of objects in the namespace.
pub(crate) fn machines() -> String {
    format!("/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachines")
}

pub(crate) fn instances() -> String {
    format!("/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachineinstances")
}

pub(crate) fn claims() -> String {
    format!("/apis/k8s.cni.cncf.io/v1alpha1/namespaces/{NAMESPACE}/ipamclaims")
}

/// Returns the kinds that the controller watches, and the namespace.
pub(crate) fn kinds() -> anyhow::Result<Value> {
    let kind = |crd: Result<_, _>| serde_json::to_value(crd.context("no definition")?).context("no JSON");
    Ok(json!({ "apiVersion": "v1", "kind": "List", "items": [
        definition("VirtualMachine"),
        definition("VirtualMachineInstance"),
        kind(api::net_attach_def::crd())?,
        kind(api::ipam_claim::crd())?,
        namespace(NAMESPACE, &json!({})),
    ] }))
}

/// All networks.
pub(crate) fn networks() -> Value {
    let network = |name: String, config: &Value| {
        json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name, "namespace": NAMESPACE }, "spec": { "config": config.to_string() },
        })
    };
    let used = Network::ALL.map(|it| network(it.name().to_owned(), &it.config()));
    let others = (0..OTHER_NETWORKS).map(|number| {
        let config = json!({ "cniVersion": "1.0.0", "name": format!("other-{number}"), "type": "bridge" });
        network(format!("other-{number:03}"), &config)
    });
    let items: Vec<_> = used.into_iter().chain(others).collect();
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}

fn labels(name: &str) -> Value {
    json!({ "kubevirt.io/vm": name, "kubevirt.io/size": "small", "kubevirt.io/domain": name })
}

fn specification(network: Network) -> Value {
    json!({
        "architecture": "amd64",
        "domain": {
            "cpu": { "cores": 2, "sockets": 1, "threads": 1, "model": "host-model" },
            "devices": {
                "disks": [
                    { "name": "root", "disk": { "bus": "virtio" } },
                    { "name": "cloudinit", "disk": { "bus": "virtio" } },
                ],
                "interfaces": [
                    { "name": "default", "masquerade": {}, "model": "virtio" },
                    { "name": INTERFACE, "bridge": {}, "model": "virtio" },
                ],
                "rng": {},
            },
            "features": { "acpi": { "enabled": true }, "smm": { "enabled": true } },
            "firmware": { "bootloader": { "efi": { "secureBoot": true } } },
            "machine": { "type": "q35" },
            "memory": { "guest": "2Gi" },
            "resources": { "requests": { "memory": "2Gi" } },
        },
        "evictionStrategy": "LiveMigrate",
        "networks": [
            { "name": "default", "pod": {} },
            { "name": INTERFACE, "multus": { "networkName": format!("{NAMESPACE}/{}", network.name()) } },
        ],
        "terminationGracePeriodSeconds": 180,
        "volumes": [
            { "name": "root", "containerDisk": { "image": "registry.example/fedora:40" } },
            { "name": "cloudinit", "cloudInitNoCloud": { "userData": "#cloud-config\npassword: fedora\n" } },
        ],
    })
}

/// A virtual machine.
pub(crate) fn machine(network: Network, name: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "labels": { "kubevirt.io/vm": name },
            "annotations": { "kubevirt.io/latest-observed-api-version": "v1" },
        },
        "spec": {
            "runStrategy": "Always",
            "template": { "metadata": { "labels": labels(name) }, "spec": specification(network) },
        },
        "status": { "created": true, "ready": true, "printableStatus": "Running" },
    })
}

fn owner(name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "uid": uid,
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// The instance of the virtual machine with this UID.
pub(crate) fn instance(network: Network, name: &str, uid: &str) -> Value {
    let at = "2026-01-02T03:04:05Z";
    let conditions = [
        "Ready",
        "LiveMigratable",
        "AgentConnected",
        "StorageLiveMigratable",
    ];
    let conditions = conditions.map(
        |kind| json!({ "type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": at }),
    );
    let phases = ["Pending", "Scheduling", "Scheduled", "Running"];
    let phases = phases.map(|phase| json!({ "phase": phase, "phaseTransitionTimestamp": at }));
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "labels": labels(name), "ownerReferences": [owner(name, uid)],
            "finalizers": ["kubevirt.io/virtualMachineControllerFinalize", "foregroundDeleteVirtualMachine"],
            "annotations": {
                "kubevirt.io/latest-observed-api-version": "v1", "kubevirt.io/vm-generation": "1",
                "kubevirt.io/storage-observed-api-version": "v1", "vm.kubevirt.io/os": "fedora",
            },
        },
        "spec": specification(network),
        "status": {
            "activePods": { "0df28fbd-5f5f-11e8-bc74-000000000001": "node-1" },
            "conditions": conditions,
            "guestOSInfo": { "id": "fedora", "kernelRelease": "6.8.5-301.fc40.x86_64", "name": "Fedora Linux", "version": "40" },
            "interfaces": [
                { "name": "default", "ipAddress": "10.244.0.5", "ipAddresses": ["10.244.0.5"], "interfaceName": "eth0", "queueCount": 1 },
                { "name": INTERFACE, "infoSource": "domain, guest-agent, multus-status", "interfaceName": "eth1", "queueCount": 1 },
            ],
            "machine": { "type": "pc-q35-rhel9.4.0" },
            "nodeName": "node-1",
            "phase": "Running",
            "phaseTransitionTimestamps": phases,
            "qosClass": "Burstable",
            "volumeStatus": [{ "name": "root", "target": "vda" }, { "name": "cloudinit", "target": "vdb", "size": 1_048_576 }],
        },
    })
}

/// Returns the name of a virtual machine's claim.
pub(crate) fn claim_name(machine: &str) -> String {
    format!("{machine}.{INTERFACE}")
}

/// The claim of the virtual machine with this UID, as written by the controller.
pub(crate) fn claim(network: Network, machine: &str, uid: &str) -> Value {
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1alpha1",
        "kind": "IPAMClaim",
        "metadata": {
            "name": claim_name(machine), "namespace": NAMESPACE, "labels": { "kubevirt.io/vm": machine },
            "finalizers": ["kubevirt.io/persistent-ipam"], "ownerReferences": [owner(machine, uid)],
        },
        "spec": { "network": format!("{}-net", network.name()), "interface": "" },
    })
}

/// The addresses of a claim.
pub(crate) fn addresses(number: u32) -> Value {
    json!({ "status": { "ips": [address(number)] } })
}

/// Kinds of reviews: pods of virtual machines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Review {
    /// A pod on a network whose plugin assigns addresses: the review adds a reference to its claim.
    Plugin,
    /// A pod on a network with the controller's pool: the review also adds the addresses.
    Pool,
    /// A changed label of a pod that has its reference.
    Update,
}

impl Review {
    pub(crate) const ALL: [Self; 3] = [Self::Plugin, Self::Pool, Self::Update];

    /// Returns reviews of the pods of a number of virtual machines.
    pub(crate) fn reviews(self, machines: u32) -> Reviews {
        let (name, network) = match self {
            Self::Plugin => ("create, plugin", Network::Plugin),
            Self::Pool => ("create, pool", Network::Pool),
            Self::Update => ("update, plugin", Network::Plugin),
        };
        let machine = network.machine(0);
        let text = self.body(network, &machine).to_string();
        Reviews {
            name,
            path: "/mutate-v1-pod?timeout=10s",
            template: Template::new(text.into_bytes(), &machine, machines / 2),
            expected: match self {
                Self::Plugin | Self::Pool => &[r#""allowed":true"#, r#""patch":"#],
                Self::Update => &[r#""allowed":true"#, "mutation not needed"],
            },
        }
    }

    fn body(self, network: Network, machine: &str) -> Value {
        let mut element =
            json!({ "name": network.name(), "namespace": NAMESPACE, "interface": POD_INTERFACE });
        if self == Self::Update {
            element["ipam-claim-reference"] = claim_name(machine).into();
        }
        let pod = launcher(machine, &json!([element]));
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let uid = format!("0df28fbd-5f5f-11e8-bc74-{machine}");
        let mut object = pod.clone();
        let mut old = Value::Null;
        if self == Self::Update {
            object["metadata"]["labels"]["kubevirt.io/nodeName"] = "node-1".into();
            old = pod;
        }
        review(&uid, (NAMESPACE, &name), &object, &old)
    }
}

/// A pod of a virtual machine, as created by KubeVirt.
fn launcher(machine: &str, networks: &Value) -> Value {
    let directories = [
        ("private", "/var/run/kubevirt-private"),
        ("public", "/var/run/kubevirt"),
        ("ephemeral-disks", "/var/run/kubevirt-ephemeral-disks"),
        ("container-disks", "/var/run/kubevirt/container-disks"),
        ("libvirt-runtime", "/var/run/libvirt"),
        ("sockets", "/var/run/kubevirt/sockets"),
        ("hotplug-disks", "/var/run/kubevirt/hotplug-disks"),
    ];
    let volumes = directories.map(|(name, _)| json!({ "name": name, "emptyDir": {} }));
    let mounts = directories.map(|(name, path)| json!({ "name": name, "mountPath": path }));
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("virt-launcher-{machine}-x7k2p"),
            "generateName": format!("virt-launcher-{machine}-"),
            "namespace": NAMESPACE,
            "labels": {
                "kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "0df28fbd-5f5f-11e8-bc74-000000000002",
                "kubevirt.io/vm": machine, "vm.kubevirt.io/name": machine,
            },
            "annotations": {
                "kubevirt.io/domain": machine,
                "kubevirt.io/migrationTransportUnix": "true",
                "kubectl.kubernetes.io/default-container": "compute",
                "k8s.v1.cni.cncf.io/networks": networks.to_string(),
            },
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": machine,
                "uid": "0df28fbd-5f5f-11e8-bc74-000000000002", "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "compute",
                "image": "registry.example/virt-launcher:v1.6.0",
                "command": [
                    "/usr/bin/virt-launcher-monitor", "--qemu-timeout", "330s", "--name", machine, "--namespace", NAMESPACE,
                    "--uid", "0df28fbd-5f5f-11e8-bc74-000000000002", "--kubevirt-share-dir", "/var/run/kubevirt",
                    "--ephemeral-disk-dir", "/var/run/kubevirt-ephemeral-disks", "--container-disk-dir",
                    "/var/run/kubevirt/container-disks", "--grace-period-seconds", "195", "--hook-sidecars", "0", "--run-as-nonroot",
                ],
                "env": [
                    { "name": "XDG_CACHE_HOME", "value": "/var/run/kubevirt-private" },
                    { "name": "XDG_CONFIG_HOME", "value": "/var/run/kubevirt-private" },
                    { "name": "XDG_RUNTIME_DIR", "value": "/var/run" },
                    { "name": "VIRT_LAUNCHER_LOG_VERBOSITY", "value": "2" },
                    { "name": "POD_NAME", "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.name" } } },
                ],
                "resources": {
                    "limits": { "devices.kubevirt.io/kvm": "1", "devices.kubevirt.io/tun": "1", "devices.kubevirt.io/vhost-net": "1" },
                    "requests": {
                        "cpu": "200m", "memory": "2294Mi", "ephemeral-storage": "50M", "devices.kubevirt.io/kvm": "1",
                        "devices.kubevirt.io/tun": "1", "devices.kubevirt.io/vhost-net": "1",
                    },
                },
                "securityContext": {
                    "allowPrivilegeEscalation": false, "capabilities": { "add": ["NET_BIND_SERVICE"], "drop": ["ALL"] },
                    "privileged": false, "runAsGroup": 107, "runAsNonRoot": true, "runAsUser": 107,
                },
                "volumeMounts": mounts,
            }],
            "enableServiceLinks": false,
            "hostname": machine,
            "nodeSelector": { "kubernetes.io/arch": "amd64", "kubevirt.io/schedulable": "true", "machine-type.node.kubevirt.io/q35": "true" },
            "readinessGates": [{ "conditionType": "kubevirt.io/virtual-machine-unpaused" }],
            "restartPolicy": "Never",
            "schedulerName": "default-scheduler",
            "securityContext": { "fsGroup": 107, "runAsGroup": 107, "runAsNonRoot": true, "runAsUser": 107 },
            "terminationGracePeriodSeconds": 210,
            "tolerations": [
                { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
                { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
            ],
            "volumes": volumes,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn review_contains_one_virtual_machine_everywhere() {
        let machines = 2_000;
        for review in Review::ALL {
            let mut reviews = review.reviews(machines);
            reviews.template.fill();
            let body: Value = serde_json::from_slice(reviews.template.fill()).expect("JSON");
            let pod = &body["request"]["object"];
            let machine = pod["metadata"]["annotations"]["kubevirt.io/domain"]
                .as_str()
                .expect("a name");
            assert_eq!(pod["spec"]["hostname"], machine);
            let uid = body["request"]["uid"].as_str().expect("a UID");
            assert!(uid.ends_with(machine), "{uid}");
            let number: u32 = machine
                .split('-')
                .next_back()
                .and_then(|it| it.parse().ok())
                .expect("a number");
            assert!(number < machines / 2, "{machine}");
        }
    }
}

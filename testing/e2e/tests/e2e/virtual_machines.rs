//! Persistent addresses of virtual machines, and their names. The test writes KubeVirt's objects, and no guests run.

use serde_json::{Value, json};

use crate::components::Components;
use crate::pods::{TestNamespace, network, pod};
use crate::support::{NODES, OPERATOR_NAMESPACE, Stage};

const NAMESPACE: &str = "e2e-machines";
const MACHINE: &str = "web";
const DEPLOYMENTS: [&str; 2] = ["kubevirt-ipam-controller-manager", "secondary-dns"];
/// The first address of the network's range.
const ADDRESS: &str = "10.83.0.50";

/// The definitions of KubeVirt's kinds, until the drop.
pub struct Definitions<'a>(&'a Stage);

impl<'a> Definitions<'a> {
    pub fn create(stage: &'a Stage) -> Self {
        for kind in ["VirtualMachine", "VirtualMachineInstance"] {
            stage.kubectl.apply(&definition(kind).to_string()).unwrap();
            let name = format!("crd/{}", name_of(kind));
            let wait = [
                "wait",
                name.as_str(),
                "--for",
                "condition=Established",
                "--timeout",
                "1s",
            ];
            stage.wait(&format!("{name} is established"), || {
                stage.try_kubectl(&wait).ok().map(drop)
            });
        }
        Self(stage)
    }
}

impl Drop for Definitions<'_> {
    fn drop(&mut self) {
        for kind in ["VirtualMachine", "VirtualMachineInstance"] {
            // A failure would hide the test's own.
            let _ = self
                .0
                .try_kubectl(&["delete", "crd", &name_of(kind), "--timeout", "60s"]);
        }
    }
}

fn name_of(kind: &str) -> String {
    format!("{}s.kubevirt.io", kind.to_lowercase())
}

fn definition(kind: &str) -> Value {
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": name_of(kind) },
        "spec": {
            "group": "kubevirt.io", "scope": "Namespaced",
            "names": {
                "kind": kind, "plural": format!("{}s", kind.to_lowercase()), "singular": kind.to_lowercase(),
                "listKind": format!("{kind}List"),
            },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
        },
    })
}

/// A bridge network with a range of persistent addresses.
fn lan() -> Value {
    let config = json!({
        "cniVersion": "1.0.0", "name": "lan", "type": "cnv-bridge", "bridge": "br1",
        "capabilities": { "ips": true }, "ipam": { "type": "static" }, "allowPersistentIPs": true,
        "persistentIPRanges": [{ "subnet": "10.83.0.0/24", "rangeStart": ADDRESS }],
    });
    network("lan", &config.to_string())
}

fn machine() -> Value {
    json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": MACHINE }, "spec": {} })
}

/// The instance of the machine, with these addresses of its interface.
fn instance(owner: &str, addresses: &[&str]) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": { "name": MACHINE, "ownerReferences": [{
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": MACHINE, "uid": owner, "controller": true,
        }] },
        "spec": {
            "networks": [{ "name": "default", "pod": {} }, { "name": "lan", "multus": { "networkName": "lan" } }],
            "domain": { "devices": { "interfaces": [{ "name": "default" }, { "name": "lan" }] } },
        },
        "status": { "interfaces": [
            { "name": "default", "ipAddresses": ["10.244.1.9"] }, { "name": "lan", "ipAddresses": addresses },
        ] },
    })
}

/// A pod of the machine, as created by KubeVirt.
fn launcher(name: &str, node: &str) -> Value {
    let mut launcher = pod(
        name,
        Some(node),
        &json!([{ "name": "lan", "namespace": NAMESPACE }]),
    );
    launcher["metadata"]["labels"] = json!({ "kubevirt.io": "virt-launcher" });
    launcher["metadata"]["annotations"]["kubevirt.io/domain"] = json!(MACHINE);
    launcher
}

#[test]
fn machine_keeps_its_address_on_another_node_and_has_a_name_until_it_is_deleted() {
    let Some(stage) = Stage::enter() else { return };
    let _definitions = Definitions::create(&stage);
    let dns = json!({ "domain": "example.com", "service": {} });
    let spec = json!({ "kubevirtIpamController": {}, "kubeSecondaryDNS": dns });
    let components = Components::deploy(&stage, &spec, &[]);
    let _components = components.with_deployments(&DEPLOYMENTS);
    for component in ["KubevirtIpamController", "KubeSecondaryDNS"] {
        stage.wait(&format!("{component} is available"), || {
            let condition = stage.condition(&format!("{component}Available"))?;
            (condition["status"] == "True").then_some(())
        });
    }
    let ns = TestNamespace::create(&stage, NAMESPACE);
    ns.apply(&lan());
    ns.apply(&machine());
    let owner = ns.kubectl(&["get", "virtualmachine", MACHINE, "-o", "jsonpath={.metadata.uid}"]);
    ns.apply(&instance(&owner, &[]));
    let claim = ["get", "ipamclaim", "web.lan", "-o", "jsonpath={.status.ips[0]}"];
    stage.wait_equal("the claim's address", &Ok(format!("{ADDRESS}/24")), || {
        ns.try_kubectl(&claim)
    });

    let [here, there] = NODES;
    for (name, node) in [("launcher-here", here), ("launcher-there", there)] {
        ns.apply(&launcher(name, node));
        let attached = ns.ready(name).network_status("lan");
        assert_eq!(attached["ips"], json!([ADDRESS]), "{attached:#}");
        let addresses = ns.exec(name, &["ip", "-4", "addr", "show", "dev", "net1"]);
        assert!(addresses.contains(&format!("{ADDRESS}/24")), "{addresses}");
    }

    ns.apply(&instance(&owner, &[ADDRESS]));
    ns.apply(&pod("client", Some(there), &json!([])));
    ns.ready("client");
    let service = [
        "-n",
        OPERATOR_NAMESPACE,
        "get",
        "service",
        "secondary-dns",
        "-o",
        "jsonpath={.spec.clusterIP}",
    ];
    let server = stage.kubectl(&service);
    let name = format!("lan.{MACHINE}.{NAMESPACE}.vm.example.com");
    let look_up = || ns.try_kubectl(&["exec", "client", "--", "nslookup", &name, &server]);
    stage.wait_for("the name has the address", || {
        let answer = look_up()?;
        if answer.contains(ADDRESS) {
            Ok(())
        } else {
            Err(answer)
        }
    });

    ns.kubectl(&["delete", "virtualmachineinstance,virtualmachine", MACHINE]);
    stage.wait_for("the name is gone", || match look_up() {
        Err(answer) if answer.contains("NXDOMAIN") => Ok(()),
        answer => Err(format!("{answer:?}")),
    });
    stage.wait_for("the claim is gone", || match ns.try_kubectl(&claim) {
        Err(answer) if answer.contains("NotFound") => Ok(()),
        answer => Err(format!("{answer:?}")),
    });
}

//! IP addresses that virtual machines keep, and names for them.

use cluster::run;
use e2e::{NODES, OPERATOR_NAMESPACE};
use serde_json::{Value, json};

use crate::machine::Machine;
use crate::stage::Stage;

/// A network with a range of persistent addresses, and the first of them.
pub const NETWORK: &str = "lan";
const ADDRESS: &str = "10.84.0.50";

pub fn lan() -> Value {
    let config = json!({
        "cniVersion": "1.0.0", "name": NETWORK, "type": "cnv-bridge", "bridge": "br1",
        "capabilities": { "mac": true, "ips": true }, "ipam": { "type": "static" }, "allowPersistentIPs": true,
        "persistentIPRanges": [{ "subnet": "10.84.0.0/24", "rangeStart": ADDRESS }],
    });
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": NETWORK }, "spec": { "config": config.to_string() },
    })
}

/// The UID and the addresses of the claim of VM alpha, if it has one.
pub fn claim(stage: &Stage) -> Option<(String, Value)> {
    let claim = stage.get("ipamclaim", "alpha.lan")?;
    let uid = claim["metadata"]["uid"].as_str()?.to_owned();
    Some((uid, claim["status"]["ips"].clone()))
}

/// The VM's names without zone and namespace: of its interface, and of itself.
const NAMES: [&str; 2] = ["lan.alpha", "alpha"];

/// The answer of the secondary DNS to a node's query for a name.
fn looked_up(stage: &Stage, name: &str) -> Result<String, String> {
    let service = ["-n", OPERATOR_NAMESPACE, "service", "secondary-dns"];
    let service = stage.kubectl.get(service).map_err(|error| error.to_string())?;
    let server = service.unwrap_or_default()["spec"]["clusterIP"].clone();
    let name = format!("{name}.{}.vm", stage.namespace);
    let look_up = ["busybox", "nslookup", &name, server.as_str().unwrap_or_default()];
    let mut command = stage.cluster.node_command(NODES[0], look_up).unwrap();
    run::output(&mut command).map_err(|error| error.to_string())
}

fn has_its_address_and_name(stage: &Stage, machine: &Machine<'_>, when: &str) {
    let launcher = machine.launcher();
    assert_eq!(launcher.addresses(NETWORK), [ADDRESS], "{when}: {:#}", launcher.0);
    for name in NAMES {
        stage.wait_for(&format!("{name} has the address {when}"), || {
            let answer = looked_up(stage, name)?;
            if answer.contains(ADDRESS) {
                Ok(())
            } else {
                Err(answer)
            }
        });
    }
}

// kubevirt-ipam#102, secondary-dns#67
#[test]
fn vm_keeps_its_address_and_name_until_it_is_deleted() {
    let Some(stage) = Stage::enter("kv-address") else {
        return;
    };
    stage.apply(&lan());
    let machine = Machine::running(&stage, "alpha", &[NETWORK]);
    let first = claim(&stage).expect("a claim");
    assert_eq!(first.1, json!([format!("{ADDRESS}/24")]));
    has_its_address_and_name(&stage, &machine, "at first");

    let instance = machine.instance().unwrap();
    machine.restart();
    machine.wait_until_running(instance["metadata"]["uid"].as_str());
    has_its_address_and_name(&stage, &machine, "after a restart");

    let before = machine.launcher();
    machine.migrate();
    assert_ne!(machine.launcher().node(), before.node());
    has_its_address_and_name(&stage, &machine, "after a migration");
    assert_eq!(claim(&stage), Some(first));

    stage.run(&["delete", "vm", "alpha"]);
    for name in NAMES {
        stage.wait_for(&format!("claim and {name} are gone"), || {
            match (claim(&stage), looked_up(&stage, name)) {
                (None, Err(answer)) if answer.contains("NXDOMAIN") => Ok(()),
                remaining => Err(format!("{remaining:?}")),
            }
        });
    }
    let next = Machine::running(&stage, "beta", &[NETWORK]);
    assert_eq!(next.launcher().addresses(NETWORK), [ADDRESS]);
}

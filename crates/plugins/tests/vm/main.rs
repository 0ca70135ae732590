//! The plugins on a kernel with features that many machines' kernels lack: VLAN filtering, 802.1Q, ipvlan, VRFs and
//! dummies. Run by `cargo xtask test vm`, in a virtual machine.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

#[path = "../namespaces/contract.rs"]
#[allow(dead_code, reason = "it serves another program as well")]
mod contract;
#[path = "../namespaces/dice.rs"]
#[allow(dead_code, reason = "it serves another program as well")]
mod dice;
mod frames;
mod gateway;
#[path = "../namespaces/killer.rs"]
mod killer;
mod links;
mod ports;
#[path = "../namespaces/stage.rs"]
#[allow(dead_code, reason = "it serves another program as well")]
mod stage;

use std::process::Command;

use serde_json::{Value, json};

use stage::{Host, Pod, l2, with};

/// Runs `test` on a thread that is a host of its own, in the virtual machine; elsewhere it prints the reason and
/// returns.
fn in_the_vm(name: &str, test: impl FnOnce(&mut Host) + Send + 'static) {
    // Set by the first process of the machine.
    if std::env::var_os("WEFT_VM").is_none() {
        println!("skipped: {name} needs the virtual machine of `cargo xtask test vm`");
        return;
    }
    stage::on_a_host(name, test);
}

/// A layer 2 config for a port in this VLAN.
fn access(id: u16) -> Value {
    with(&l2("1.0.0"), "vlan", id.into())
}

/// A layer 2 config for a port with these items of `vlanTrunk`.
fn trunk(items: Value) -> Value {
    with(&l2("1.0.0"), "vlanTrunk", items)
}

/// The config with an address by `static`.
fn at(config: &Value, address: &str) -> Value {
    with(
        config,
        "ipam",
        json!({ "type": "static", "addresses": [{ "address": address }] }),
    )
}

/// The name of the host's end in a result.
fn outer(result: &Value) -> &str {
    result["interfaces"][1]["name"].as_str().unwrap()
}

/// The VLANs of a port, as `bridge vlan` would show them.
fn vlans(host: &mut Host, port: &str) -> Vec<String> {
    let link = host.link(port).unwrap();
    let vlans = host.socket.port_vlans(&link).unwrap();
    vlans
        .into_iter()
        .map(|vlan| {
            let pvid = if vlan.pvid { " PVID" } else { "" };
            let untagged = if vlan.untagged { " untagged" } else { "" };
            format!("{}{pvid}{untagged}", vlan.id)
        })
        .collect()
}

/// Attaches a container, and returns it with the VLANs of its port.
fn attach(host: &mut Host, config: &Value) -> (Pod, Vec<String>) {
    let pod = host.pod();
    let result = host.add(&pod, config);
    host.check(&pod, config, &result).success();
    let vlans = vlans(host, outer(&result));
    (pod, vlans)
}

/// Runs the `ip` tool in the container.
fn ip(pod: &Pod, arguments: &str) {
    let run = || Command::new("/bin/ip").args(arguments.split(' ')).output();
    let output = pod.ns.run(run).unwrap().unwrap();
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

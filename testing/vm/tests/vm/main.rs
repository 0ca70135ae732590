//! Properties of the virtual machine that other tests rely on.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use std::path::Path;
use std::process::Command;

/// Returns true in the virtual machine. Elsewhere, prints a reason: links of other machines must not be changed.
fn is_guest(name: &str) -> bool {
    let guest = std::env::var_os(vm::GUEST).is_some();
    if !guest {
        println!("skipped: {name} needs the virtual machine of `cargo xtask test vm`");
    }
    guest
}

fn ip(arguments: &str) {
    let output = Command::new("/bin/ip")
        .args(arguments.split(' '))
        .output()
        .unwrap();
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

#[test]
fn kernel_has_all_kinds_of_links() {
    if !is_guest("kinds of links") {
        return;
    }
    for kind in ["bridge", "bond", "dummy"] {
        ip(&format!("link add lower type {kind}"));
        ip("link delete lower");
    }
    ip("link add lower type dummy");
    for kind in ["vlan id 100", "macvlan mode bridge"] {
        ip(&format!("link add link lower name upper type {kind}"));
        ip("link delete upper");
    }
    ip("link delete lower");
    for module in ["ipvlan", "vrf", "nf_tables"] {
        assert!(Path::new("/sys/module").join(module).exists(), "{module}");
    }
}

#[test]
fn bridges_filter_vlans() {
    if !is_guest("VLAN filtering") {
        return;
    }
    ip("link add br0 type bridge");
    std::fs::write("/sys/class/net/br0/bridge/vlan_filtering", "1").unwrap();
    let default = std::fs::read_to_string("/sys/class/net/br0/bridge/default_pvid").unwrap();
    assert_eq!(default.trim(), "1");
    ip("link delete br0");
}

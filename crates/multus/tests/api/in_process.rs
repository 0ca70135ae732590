//! Plugins of ours as a part of the daemon.

use crate::node::Node;
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn plugin_of_this_build_needs_no_process() {
    // multus#100 (no process)
    let mut node = Node::new();
    // The mark alone: a program that fails.
    let place = node.path("bin/passthru");
    fs::write(&place, plugins::mark::MARK).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    node.start(&json!({"chrootDir": "/"}));
    node.nad(
        "quiet",
        &json!({"cniVersion": "1.0.0", "name": "quiet", "type": "passthru"}),
    );
    let uid = node.pod("web", &json!({"k8s.v1.cni.cncf.io/networks": "quiet"}));
    let sandbox = node.sandbox("c1", "web", Some(&uid));
    node.succeed("ADD", &sandbox);
    node.succeed("DEL", &sandbox);
    // All others are started.
    assert_eq!(node.calls_of("c1"), ["ADD a", "DEL a"]);

    // Of another build, and so like any foreign plugin.
    let mut other = plugins::mark::MARK.as_bytes().to_vec();
    let digit = other.len() - 2;
    other[digit] ^= 1;
    fs::write(&place, other).unwrap();
    let uid = node.pod("other", &json!({"k8s.v1.cni.cncf.io/networks": "quiet"}));
    let error = node.fail("ADD", &node.sandbox("c2", "other", Some(&uid)));
    let message = error["msg"].as_str().unwrap();
    let started = format!("failed to run plugin {}: Exec format error", place.display());
    assert!(message.contains(&started), "{message}");
    // The shim reports no failed DEL, and the DEL of the first network is not left out.
    node.succeed("DEL", &node.sandbox("c2", "other", Some(&uid)));
    assert!(node.calls_of("c2").contains(&"DEL a".to_owned()));
}

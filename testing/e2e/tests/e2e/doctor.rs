//! `weft doctor` on real nodes, as a kubectl plugin.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::pods::{TestNamespace, bridge_network, pod};
use crate::support::Stage;

const NODE: &str = "node01";

/// The program as a kubectl plugin, in a separate directory.
struct Plugin(PathBuf);

impl Plugin {
    fn install() -> Self {
        let binary = std::env::var(e2e::CNI_BINARY_VARIABLE).expect("path of weft-cni");
        let weft = PathBuf::from(binary).with_file_name("weft");
        let folder = std::env::temp_dir().join(format!("weft-doctor-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        symlink(weft, folder.join("kubectl-weft")).unwrap();
        Self(folder)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(self.0.join("kubectl-weft"));
        command.arg("doctor").args(arguments).output().unwrap()
    }

    fn report(&self, arguments: &[&str]) -> (i32, Value) {
        let output = self.run(&[arguments, &["-o", "json"]].concat());
        let report =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        (output.status.code().unwrap(), report)
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn about<'a>(report: &'a Value, key: &str, pod: &str) -> Vec<&'a Value> {
    let entries = report[key].as_array().unwrap().iter();
    entries.filter(|entry| entry["pod"] == pod).collect()
}

#[test]
fn node_with_a_port_off_its_bridge_is_reported_through_kubectl() {
    let Some(stage) = Stage::enter() else { return };
    let plugin = Plugin::install();
    let ns = TestNamespace::create(&stage, "e2e-doctor");
    ns.apply(&bridge_network("lan", "br1"));
    let before = stage.host_state(NODE);
    ns.apply(&pod(
        "p0",
        Some(NODE),
        &json!([{ "name": "lan", "ips": ["10.79.0.1/24"] }]),
    ));
    ns.ready("p0");

    // Earlier tests killed programs, so that other pods may have leftovers.
    let (_, healthy) = plugin.report(&[NODE]);
    assert!(
        about(&healthy, "findings", "e2e-doctor/p0").is_empty(),
        "{healthy:#}"
    );
    let rows = about(&healthy, "attachments", "e2e-doctor/p0");
    assert!(
        rows.iter()
            .any(|row| row["interface"] == "net1" && row["check"] == "ok"),
        "{healthy:#}"
    );
    let text = plugin.run(&[NODE]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.starts_with(&format!("Node {NODE}: ")), "{text}");

    // The port of net1 is the new veth on the bridge.
    let now = stage.host_state(NODE);
    let ports = stage.node(NODE, &["ip", "-o", "link", "show", "master", "br1"]);
    let port = now
        .veths
        .difference(&before.veths)
        .map(|veth| veth.split('@').next().unwrap())
        .find(|veth| ports.contains(*veth))
        .unwrap_or_else(|| panic!("no port: {ports}"));
    stage.node(NODE, &["ip", "link", "set", port, "nomaster"]);
    let (code, drifted) = plugin.report(&[NODE]);
    assert_eq!(code, 1, "{drifted:#}");
    let found = about(&drifted, "findings", "e2e-doctor/p0");
    assert_eq!(found.len(), 1, "{drifted:#}");
    assert_eq!(
        (&found[0]["kind"], &found[0]["interface"], &found[0]["plugin"]),
        (&json!("drifted"), &json!("net1"), &json!("cnv-bridge"))
    );
    stage.node(NODE, &["ip", "link", "set", port, "master", "br1"]);

    let (_, all) = plugin.report(&[]);
    assert_eq!(all.as_array().unwrap().len(), 2, "{all:#}");
    let unknown = plugin.run(&["node99"]);
    let error = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(error.contains("node node99 does not exist"), "{error}");
}

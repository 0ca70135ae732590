//! The OVS marker, on the real database server of Open vSwitch. There is no switch: the marker needs the database alone.

use super::node::{Node, Watched};
use cluster::OpenVswitch;
use markers::ovs::{self, Bridges, Settings};
use serde_json::json;
use std::path::Path;
use std::time::Duration;

const HOUR: Duration = Duration::from_hours(1);

fn new_node(name: &'static str) -> Node {
    Node::new(name, "ovs-cni.network.kubevirt.io/", "ovs-marker")
}

fn start_database(dir: &Path) -> OpenVswitch {
    let packages = OpenVswitch::packages().expect("Open vSwitch");
    OpenVswitch::start_database(&packages, dir).expect("a database")
}

/// Runs the marker of the node with the database of a directory while `test` runs.
fn mark(node: &Node, dir: &Path, reconcile: Duration, test: impl AsyncFnOnce(&Node, Watched)) {
    let settings = Settings {
        node: node.name.to_owned(),
        socket: dir
            .join("db.sock")
            .to_str()
            .expect("text")
            .parse()
            .expect("an address"),
        update_interval: Duration::from_secs(1),
        reconcile_interval: reconcile,
        health_interval: HOUR,
    };
    let bridges = Bridges::follow(&settings).expect("a thread");
    node.beside(async |client| ovs::mark(&settings, client, bridges).await, test);
}

/// Asserts the number of the marker's patches, once the audit log is complete.
async fn assert_patches(node: &Node, times: usize) {
    let is_patch = |(verb, _): &(String, u64)| verb == "patch";
    node.asked(times, is_patch).await;
    let requests = node.requests();
    let found = requests.iter().filter(|request| is_patch(request)).count();
    assert_eq!(found, times, "{requests:?}");
}

#[test]
fn capacity_follows_bridges() {
    // cni-plugins#65, cni-plugins#62 (bridges of Open vSwitch)
    let dir = tempfile::tempdir().expect("a directory");
    let database = start_database(dir.path());
    database.add_bridge("br1").expect("a bridge");
    let node = new_node("ovs-come-and-go");
    node.register();
    mark(&node, dir.path(), HOUR, async |node, mut seen| {
        node.advertises(&mut seen, &["br1"]).await;
        database.add_bridge("br-2").expect("a bridge");
        node.advertises(&mut seen, &["br-2", "br1"]).await;
        database.vsctl(["del-br", "br1"]).expect("deleted");
        node.advertises(&mut seen, &["br-2"]).await;
        // The marker reads only the name of a bridge.
        database
            .vsctl(["set", "bridge", "br-2", "external_ids:a=b"])
            .expect("set");
        database.vsctl(["add-port", "br-2", "p1"]).expect("a port");
        database.add_bridge("br3").expect("a bridge");
        node.advertises(&mut seen, &["br-2", "br3"]).await;
        assert_patches(node, 4).await;
    });
}

#[test]
fn absent_database_is_awaited() {
    // cni-plugins#65
    let dir = tempfile::tempdir().expect("a directory");
    let node = new_node("ovs-late");
    node.register();
    node.patch(&json!({"ovs-cni.network.kubevirt.io/old": "1k"}));
    mark(&node, dir.path(), HOUR, async |node, mut seen| {
        node.advertises(&mut seen, &["old"]).await;
        let database = start_database(dir.path());
        node.advertises(&mut seen, &[]).await;
        database.add_bridge("br1").expect("a bridge");
        node.advertises(&mut seen, &["br1"]).await;
    });
}

#[test]
fn restart_of_database_withdraws_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut database = start_database(dir.path());
    database.add_bridge("br1").expect("a bridge");
    let node = new_node("ovs-restarted");
    node.register();
    mark(&node, dir.path(), HOUR, async |node, mut seen| {
        node.advertises(&mut seen, &["br1"]).await;
        database.kill_database().expect("killed");
        database.start_database_again().expect("a database");
        database.add_bridge("br2").expect("a bridge");
        node.advertises(&mut seen, &["br1", "br2"]).await;
        // One patch per bridge: br1 was never withdrawn.
        assert_patches(node, 2).await;
    });
}

#[test]
fn unchanged_node_is_not_written_and_foreign_change_is_repaired() {
    // cni-plugins#63 (bridges of Open vSwitch)
    let dir = tempfile::tempdir().expect("a directory");
    let database = start_database(dir.path());
    database.add_bridge("br1").expect("a bridge");
    let node = new_node("ovs-repaired");
    node.register();
    node.patch(&json!({"ovs-cni.network.kubevirt.io/br1": "1k"}));
    mark(
        &node,
        dir.path(),
        Duration::from_secs(1),
        async |node, mut seen| {
            node.asked(2, |(verb, _)| verb == "get").await;
            let requests = node.requests();
            assert!(requests.iter().all(|(verb, _)| verb == "get"), "{requests:?}");
            node.patch(&json!({
                "ovs-cni.network.kubevirt.io/br1": null,
                "ovs-cni.network.kubevirt.io/gone": "1k",
            }));
            node.advertises(&mut seen, &["br1"]).await;
        },
    );
}

//! The documented recipes, each applied as the handler does it on a host with an uplink and spare cards: the targets of
//! the probes exist before, and must exist afterwards.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value, json};
use weft_nmstate::dry_run::outcome;
use weft_nmstate::engine::{Backend, Engine};
use weft_nmstate::render::{NodeFacts, render};

use crate::beyond::{Beyond, GATEWAY, Lease, apply};
use crate::host::{Host, interface, wait};
use crate::shared::{Place, RECIPES, spec};

/// A node with `eth0` for its uplink and `eth1` to spare, on a wire with a DHCP server.
struct Node {
    host: Host,
    engine: Engine,
    _directory: tempfile::TempDir,
    _lease: Lease,
    _beyond: Beyond,
}

impl Node {
    fn enter() -> Self {
        let host = Host::managing(&["eth0", "eth1"]);
        let beyond = Beyond::new();
        let there = beyond.path();
        host.script(&format!(
            "ip link add eth0 type veth peer name far netns {there}
             ip link set eth0 up
             ip link set wire netns {there}
             nsenter --net={there} sh -ec 'ip address add 203.0.113.1/24 dev far; ip link set far up'"
        ))
        .unwrap();
        beyond.serve();
        let directory = tempfile::tempdir().unwrap();
        let lease = beyond.lease(directory.path());
        let engine = Engine::start_in(Backend::NetworkManager, directory.path()).unwrap();
        let node = Self {
            host,
            engine,
            _directory: directory,
            _lease: lease,
            _beyond: beyond,
        };
        let uplink = json!({
            "interfaces": [
                {"name": "eth0", "type": "ethernet", "state": "up", "ipv6": {"enabled": false},
                 "ipv4": {"enabled": true, "dhcp": false, "address": [{"ip": "203.0.113.2", "prefix-length": 24}]}},
            ],
            "routes": {"config": [
                {"destination": "0.0.0.0/0", "next-hop-address": "203.0.113.1", "next-hop-interface": "eth0"}]},
            "dns-resolver": {"config": {"server": [GATEWAY]}},
        });
        // Nothing can be probed before it.
        let applied = wait(async {
            node.engine.apply(uplink).await?;
            node.engine.commit().await
        });
        applied.unwrap_or_else(|error| panic!("{error}\n{}", node.host.log()));
        node
    }

    fn apply(&self, desired: &Value) {
        let done = apply(&self.engine, Backend::NetworkManager, desired);
        let done = done.unwrap_or_else(|error| panic!("{error}\n{desired:#}\n{}", self.host.log()));
        assert_eq!(done, "successfully reconciled");
    }

    /// The policy of a recipe, rendered for this node.
    fn rendered(&self, recipe: &str) -> Value {
        let facts = NodeFacts {
            name: "node01".to_owned(),
            annotations: [("example.com/storage-address".to_owned(), "192.0.2.11".to_owned())].into(),
            ..NodeFacts::default()
        };
        let spec = spec(Place::Namespaces, recipe);
        let rendered = wait(render(&self.engine, &spec, &facts, Map::new()));
        rendered
            .unwrap_or_else(|error| panic!("{recipe}: {error}"))
            .desired
    }

    /// Applies a recipe; afterwards no difference remains.
    fn follow(&self, recipe: &str) {
        let desired = self.rendered(recipe);
        self.apply(&desired);
        let left = wait(outcome(&self.engine, &desired)).unwrap();
        assert_eq!(left.diff, json!({}), "{recipe}: {:#}", left.diff);
    }

    fn report(&self) -> Value {
        self.host.report(&self.engine)
    }

    fn eth1(&self) -> Value {
        interface(&self.report(), "eth1").cloned().unwrap()
    }

    /// Waits until the report satisfies a condition.
    fn wait_for(&self, what: &str, such: impl Fn(&Value) -> bool) -> Value {
        self.host.wait_for(&self.engine, what, such)
    }

    /// A bridge over the spare card, for recipes that change one.
    fn bridge(&self) {
        self.apply(&json!({"interfaces": [{
            "name": "br1", "type": "linux-bridge", "state": "up",
            // Without VLANs of its own, which not every kernel has.
            "bridge": {"options": {"stp": {"enabled": false}}, "port": [{"name": "eth1", "vlan": {}}]},
        }]}));
        assert_eq!(self.eth1()["controller"], "br1");
    }
}

/// Whether `eth1` has its address by DHCP.
fn is_leased(report: &Value) -> bool {
    let eth1 = interface(report, "eth1").cloned().unwrap_or_default();
    let address = eth1["ipv4"]["address"][0]["ip"].as_str().unwrap_or_default();
    eth1["ipv4"]["dhcp"] == true && address.starts_with("192.0.2.1")
}

fn servers(report: &Value) -> &Value {
    &report["dns-resolver"]["running"]["server"]
}

#[test]
fn each_recipe_has_a_test() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/nmstate");
    let files: BTreeSet<String> = std::fs::read_dir(directory)
        .unwrap()
        .filter_map(|entry| {
            Some(
                entry
                    .unwrap()
                    .file_name()
                    .to_str()?
                    .strip_suffix(".yaml")?
                    .to_owned(),
            )
        })
        .collect();
    let known = RECIPES.iter().map(|(_, name, _)| (*name).to_owned());
    assert_eq!(known.collect::<BTreeSet<_>>(), files);
}

#[test]
fn recipes_of_addresses_and_name_servers_are_applied() {
    let node = Node::enter();
    node.follow("ethernet-dhcp");
    node.wait_for("address", is_leased);

    node.follow("dns");
    let report = node.report();
    assert_eq!(servers(&report), &json!(["192.0.2.53"]), "{report:#}");
    assert_eq!(
        report["dns-resolver"]["running"]["search"],
        json!(["example.com"])
    );
    node.follow("dns-absent");
    node.wait_for("name server of the network", |report| {
        servers(report) == &json!(["192.0.2.1"])
    });

    // A static network provides no name server, and a node without one is rolled back.
    node.apply(&json!({"dns-resolver": {"config": {"server": [GATEWAY]}}}));
    node.follow("static-ip");
    let address = |ip: &str| json!([{"ip": ip, "prefix-length": 24}]);
    assert_eq!(node.eth1()["ipv4"]["address"], address("192.0.2.10"));
    node.follow("route");
    let report = node.report();
    let mut routes = report["routes"]["running"].as_array().unwrap().iter();
    assert!(
        routes.any(|route| route["destination"] == "198.51.100.0/24"
            && route["next-hop-address"] == "192.0.2.1"
            && route["metric"] == 150),
        "{report:#}"
    );
    node.follow("node-variables");
    assert_eq!(node.eth1()["ipv4"]["address"], address("192.0.2.11"));
    assert_eq!(node.eth1()["description"], "storage of node01");
}

#[test]
fn recipes_that_remove_a_bridge_are_applied() {
    let node = Node::enter();
    node.bridge();
    node.follow("linux-bridge-without-port");
    node.wait_for("address", is_leased);
    assert_eq!(
        interface(&node.report(), "br1").unwrap()["bridge"]["port"],
        json!([])
    );
    assert_eq!(node.eth1().get("controller"), None);

    node.bridge();
    node.follow("linux-bridge-absent");
    assert_eq!(interface(&node.report(), "br1"), None);
    assert_eq!(node.eth1().get("controller"), None);
    assert_eq!(node.eth1()["ipv4"]["enabled"], false);

    let before = node.report();
    let tried = wait(outcome(&node.engine, &node.rendered("dry-run"))).unwrap();
    assert!(
        tried
            .message
            .starts_with("dry run, nothing was applied; would change: interfaces br1"),
        "{}",
        tried.message
    );
    assert_eq!(node.report(), before);
}

#[test]
fn recipes_for_missing_features_fail_without_a_change() {
    let node = Node::enter();
    let up = json!({"interfaces": [{"name": "eth1", "type": "ethernet", "state": "up"}]});
    node.apply(&up);
    let refused = |recipe: &str, cause: &str| {
        let before = node.report();
        let failure = apply(&node.engine, Backend::NetworkManager, &node.rendered(recipe)).unwrap_err();
        assert!(failure.text.starts_with(cause), "{failure}");
        // It may be about to start, as after a restart of the node.
        assert!(failure.retry);
        node.wait_for("state as before", |report| report == &before);
    };
    for recipe in ["ovs-bridge", "ovs-bridge-interface"] {
        refused(
            recipe,
            "PluginFailure: Desired state contains OVS interfaces, but not able to connect OVS daemon at socket \
             /run/openvswitch/db.sock",
        );
    }
    // NetworkManager has it since 1.54; the tests' is older.
    let cause = "VerificationError: Verification failure: eth1.interface.ipv4.forwarding desire 'true', current 'false'";
    refused("ipv4-forwarding", cause);
}

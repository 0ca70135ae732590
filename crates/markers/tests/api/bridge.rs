//! The bridge marker, with a network namespace as its host.

use super::node::{Node, Watched};
use linux::link::{BridgeSpec, LinkChange};
use linux::netns::NetNs;
use linux::route::Socket;
use markers::bridge::{self, Bridges, Settings};
use serde_json::json;
use std::num::NonZeroU16;
use std::time::Duration;

/// A node and its bridges.
struct Host {
    node: Node,
    namespace: NetNs,
    links: Socket,
}

impl Host {
    /// `None`, with a printed reason, without the right to create network namespaces.
    fn new(name: &'static str) -> Option<Self> {
        let Ok(namespace) = NetNs::create_anonymous() else {
            println!("skipped: {name} needs root to make network namespaces");
            return None;
        };
        let links = namespace
            .run(Socket::open)
            .expect("the namespace")
            .expect("a socket");
        Some(Self {
            node: Node::new(name, "bridge.network.kubevirt.io/", "bridge-marker"),
            namespace,
            links,
        })
    }

    /// Runs the marker while `test` runs.
    fn marked(self, reconcile: Duration, test: impl AsyncFnOnce(&Node, Socket, Watched)) {
        let Self {
            node,
            namespace,
            links,
        } = self;
        let settings = Settings {
            node: node.name.to_owned(),
            update_interval: Duration::from_secs(1),
            reconcile_interval: reconcile,
            health_port: NonZeroU16::MIN,
        };
        let bridges = namespace.run(Bridges::open);
        let bridges = bridges.expect("the namespace").expect("the bridges");
        node.beside(
            async |client| bridge::mark(&settings, client, bridges).await,
            async |node, seen| test(node, links, seen).await,
        );
    }
}

fn add_bridge(links: &mut Socket, name: &str) {
    let bridge = BridgeSpec {
        name,
        mac: None,
        mtu: None,
        vlan_filtering: false,
    };
    links.create_bridge(&bridge).expect("a bridge");
}

#[test]
fn capacity_follows_bridges() {
    // cni-plugins#62
    let Some(mut host) = Host::new("come-and-go") else {
        return;
    };
    host.node.register();
    add_bridge(&mut host.links, "br1");
    host.marked(Duration::from_hours(1), async |node, mut links, mut seen| {
        node.advertises(&mut seen, &["br1"]).await;
        add_bridge(&mut links, "br-2");
        node.advertises(&mut seen, &["br-2", "br1"]).await;
        let renamed = LinkChange {
            name: Some("br3"),
            ..LinkChange::default()
        };
        let link = links.link_by_name("br-2").expect("the bridge");
        links
            .change_link(&link, "rename link", &renamed)
            .expect("a new name");
        node.advertises(&mut seen, &["br1", "br3"]).await;
        links.delete_link_by_name("br1").expect("deleted");
        node.advertises(&mut seen, &["br3"]).await;
    });
}

#[test]
fn invalid_resource_name_does_not_hide_others() {
    let Some(mut host) = Host::new("odd-names") else {
        return;
    };
    host.node.register();
    for name in ["br~1", "-br", "br1"] {
        add_bridge(&mut host.links, name);
    }
    host.marked(Duration::from_hours(1), async |node, _links, mut seen| {
        node.advertises(&mut seen, &["br1"]).await;
    });
}

#[test]
fn unchanged_node_is_not_written_and_foreign_change_is_repaired() {
    // cni-plugins#63
    let Some(mut host) = Host::new("repaired") else {
        return;
    };
    host.node.register();
    add_bridge(&mut host.links, "br1");
    host.node.patch(&json!({"bridge.network.kubevirt.io/br1": "1k"}));
    host.marked(Duration::from_secs(1), async |node, _links, mut seen| {
        node.asked(2, |(verb, _)| verb == "get").await;
        let requests = node.requests();
        assert!(requests.iter().all(|(verb, _)| verb == "get"), "{requests:?}");
        for change in [
            json!({"bridge.network.kubevirt.io/br1": null}),
            json!({"bridge.network.kubevirt.io/br1": "5"}),
        ] {
            node.patch(&change);
            node.advertises(&mut seen, &["br1"]).await;
        }
        node.patch(&json!({"bridge.network.kubevirt.io/gone": "1k"}));
        node.advertises(&mut seen, &["br1"]).await;
    });
}

#[test]
fn marker_survives_failing_api_server() {
    // cni-plugins#63
    let Some(mut host) = Host::new("late") else { return };
    add_bridge(&mut host.links, "br1");
    host.marked(Duration::from_hours(1), async |node, _links, mut seen| {
        node.asked(2, |(_, code)| *code == 404).await;
        node.register();
        node.advertises(&mut seen, &["br1"]).await;
    });
}

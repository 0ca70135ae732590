//! The daemon while Nodes change, the API server fails, and other programs change the host.

use std::{fs, time::Instant};

use linux::{address::Family, nft};
use pod_network::names::{TABLE, TUNNEL};
use serde_json::json;
use stage::until;

use crate::host::{ACCOUNT, NODES, Stage};

const A: (&[&str], &[&str]) = (&["10.1.0.0/24", "fd00:1::/64"], &["192.0.2.1", "2001:db8:1::1"]);
const B: (&[&str], &[&str]) = (
    &["10.1.1.0/24", "fd00:1:0:1::/64"],
    &["192.0.2.2", "2001:db8:1::2"],
);
const TO_B: [&str; 2] = ["10.1.1.0/24 via 192.0.2.2", "fd00:1:0:1::/64 via 2001:db8:1::2"];

// cluster-network#76
#[test]
fn routes_follow_nodes_that_register_move_and_leave() {
    let Some(mut stage) = Stage::take("routes follow nodes") else {
        return;
    };
    stage.register("a", A.0, A.1);
    stage.register("b", B.0, B.1);
    let _daemon = stage.daemon();
    stage.wait_until_ready(true);
    assert_eq!(stage.routes(), TO_B);
    let configuration = stage
        .configuration()
        .expect("the configuration precedes readiness");
    assert_eq!(configuration["plugins"][0]["mtu"], 1500);
    assert_eq!(
        configuration["plugins"][0]["ipam"]["ranges"],
        json!([[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]])
    );

    stage.register("c", &["10.1.2.0/24"], &["198.51.100.3"]);
    stage.wait_for_routes(&[TO_B[0], "10.1.2.0/24 via 10.1.2.0", TO_B[1]]);
    until("an MTU that fits the tunnel", || {
        let configuration = stage.configuration().expect("the configuration stays");
        let mtu = configuration["plugins"][0]["mtu"].clone();
        if mtu == 1450 {
            Ok(())
        } else {
            Err(format!("{mtu}"))
        }
    });
    // The node moves to this segment, and no node needs the tunnel any more.
    stage.report_addresses("c", &["192.0.2.3"]);
    stage.wait_for_routes(&[TO_B[0], "10.1.2.0/24 via 192.0.2.3", TO_B[1]]);
    until("the end of the tunnel", || {
        match stage.socket.find_link(TUNNEL).unwrap() {
            None => Ok(()),
            Some(link) => Err(format!("{link:?}")),
        }
    });
    stage.delete(&format!("{NODES}/b"));
    stage.wait_for_routes(&["10.1.2.0/24 via 192.0.2.3"]);
}

// cluster-network#79
#[test]
fn node_without_a_range_gets_an_event_and_waits() {
    let Some(mut stage) = Stage::take("a node without a range") else {
        return;
    };
    let _daemon = stage.daemon();
    stage.wait_for_event("Warning NoPodCIDR Node/a x1: node a is not registered: its pods get no network");
    stage.register("a", &[], A.1);
    stage.register("b", B.0, B.1);
    stage
        .wait_for_event("Warning NoPodCIDR Node/a x1: node a has no spec.podCIDRs: its pods get no network.");
    assert!(!stage.readiness.is_ready());
    assert_eq!((stage.routes(), stage.configuration()), (Vec::new(), None));
    let spec = json!({ "spec": { "podCIDR": A.0[0], "podCIDRs": A.0 } });
    stage.patch(&format!("{NODES}/a"), &spec).accepted();
    stage.wait_until_ready(true);
    assert_eq!(stage.routes(), TO_B);
}

// cluster-network#79
#[test]
fn node_without_an_address_keeps_its_routes_and_gets_an_event() {
    let Some(mut stage) = Stage::take("a node without an address") else {
        return;
    };
    stage.register("a", A.0, A.1);
    stage.register("b", B.0, B.1);
    stage.register("c", &["10.1.2.0/24"], &["198.51.100.3"]);
    let all = [TO_B[0], "10.1.2.0/24 via 10.1.2.0", TO_B[1]];
    let _daemon = stage.daemon();
    stage.wait_until_ready(true);
    assert_eq!(stage.routes(), all);
    stage.report_addresses("a", &[]);
    stage.wait_for_event("Warning NoInternalIP Node/a x1: node a has no InternalIP yet: ");
    assert!(!stage.readiness.is_ready());
    assert_eq!(stage.routes(), all);
    assert!(stage.socket.find_link(TUNNEL).unwrap().is_some() && stage.configuration().is_some());
    stage.report_addresses("a", A.1);
    stage.wait_until_ready(true);
}

// cluster-network#193
#[test]
fn node_with_an_address_that_the_kernel_refuses_hinders_no_other_node() {
    let Some(mut stage) = Stage::take("a refused address") else {
        return;
    };
    stage.register("a", A.0, A.1);
    stage.register("b", B.0, B.1);
    // The broadcast address of the segment.
    stage.register("c", &["10.1.2.0/24"], &["192.0.2.255"]);
    let _daemon = stage.daemon();
    stage.wait_until_ready(true);
    assert_eq!(stage.routes(), TO_B);
    assert!(stage.configuration().is_some());
    assert_eq!(stage.metric("weft_pod_network_problems"), 1);
    assert_eq!(stage.metric("weft_pod_network_routes"), 2);
    assert_eq!(stage.metric("weft_pod_network_errors_total"), 0);
    stage.wait_for_event(
        "Warning PodNetworkPeer Node/a x1: pods of node c in 10.1.2.0/24 are unreachable, the kernel refuses the \
         route: add route",
    );
    // A refused next hop keeps the route that it would replace.
    stage.report_addresses("b", &["192.0.2.255", B.1[1]]);
    stage.wait_for_event("Warning PodNetworkPeer Node/a x1: pods of node b in 10.1.1.0/24 are unreachable");
    assert_eq!(stage.routes(), TO_B);
    stage.report_addresses("c", &["192.0.2.3"]);
    stage.wait_for_routes(&[TO_B[0], "10.1.2.0/24 via 192.0.2.3", TO_B[1]]);
    assert!(stage.readiness.is_ready());
}

#[test]
fn configuration_that_cannot_be_written_is_retried_after_growing_delays() {
    let Some(mut stage) = Stage::take("a configuration that cannot be written") else {
        return;
    };
    stage.register("a", A.0, A.1);
    stage.register("b", B.0, B.1);
    fs::create_dir(stage.conflist()).unwrap();
    let start = Instant::now();
    let _daemon = stage.daemon();
    until("five attempts", || {
        match stage.metric("weft_pod_network_errors_total") {
            count if count >= 5 => Ok(()),
            count => Err(count),
        }
    });
    // The delays double from 0.1 s, so that their sum bounds the number of attempts.
    let attempts = stage.metric("weft_pod_network_errors_total");
    let elapsed = start.elapsed().as_millis();
    assert!(
        100 * ((1 << (attempts - 1)) - 1) <= elapsed,
        "{attempts} attempts in {elapsed} ms"
    );
    assert!(!stage.readiness.is_ready());
    assert_eq!(stage.routes(), TO_B);
    assert_eq!(stage.metric("weft_pod_network_routes"), 2);
    // A defect of another node is reported although the configuration is not written.
    stage.register("c", &["10.1.1.0/25"], &["192.0.2.3"]);
    stage.wait_for_event("Warning PodNetworkPeer Node/a x1: node c claims the pod range 10.1.1.0/25");
    assert!(!stage.readiness.is_ready());
    fs::remove_dir(stage.conflist()).unwrap();
    stage.wait_until_ready(true);
    assert!(stage.configuration().is_some());
}

// cluster-network#81
#[test]
fn uplink_that_comes_up_again_gets_its_direct_routes() {
    let Some(mut stage) = Stage::take("an uplink that comes up again") else {
        return;
    };
    stage.register("a", &A.0[..1], &A.1[..1]);
    stage.register("b", &B.0[..1], &B.1[..1]);
    let _daemon = stage.daemon();
    stage.wait_until_ready(true);
    assert_eq!(stage.routes(), TO_B[..1]);
    let eth0 = stage.eth0.clone();
    stage.socket.set_down(&eth0).unwrap();
    stage.wait_for_routes(&["10.1.1.0/24 via 10.1.1.0"]);
    stage.socket.set_up(&eth0).unwrap();
    stage.wait_for_routes(&TO_B[..1]);
}

// cluster-network#83
#[test]
fn outage_of_the_api_server_keeps_the_routes_and_then_updates_them() {
    let Some(mut stage) = Stage::take("an outage of the API server") else {
        return;
    };
    stage.register("a", A.0, A.1);
    stage.register("b", B.0, B.1);
    let daemon = stage.daemon();
    stage.wait_until_ready(true);
    stage.proxy.cut();
    // During the outage, the daemon is killed and restarted.
    daemon.kill();
    let configuration = stage.configuration();
    let daemon = stage.daemon();
    stage.delete(&format!("{NODES}/b"));
    stage.register("d", &["10.1.4.0/24"], &["192.0.2.4"]);
    assert_eq!(
        (stage.routes().as_slice(), stage.configuration()),
        (&TO_B.map(str::to_owned)[..], configuration)
    );
    assert!(!stage.readiness.is_ready(), "the Nodes are not listed yet");
    stage.proxy.open();
    stage.wait_for_routes(&["10.1.4.0/24 via 192.0.2.4"]);
    stage.wait_until_ready(true);
    // SIGTERM keeps the routes and the configuration.
    drop(daemon);
    assert_eq!(stage.routes(), ["10.1.4.0/24 via 192.0.2.4"]);
    assert!(stage.configuration().is_some());
}

// cluster-network#81
#[test]
fn drift_of_the_host_is_repaired_by_its_event() {
    let Some(mut stage) = Stage::take("repairs by events") else {
        return;
    };
    stage.register("a", A.0, A.1);
    stage.register("b", B.0, B.1);
    stage.register("c", &["10.1.2.0/24"], &["198.51.100.3"]);
    let _daemon = stage.daemon();
    stage.wait_until_ready(true);
    let all = [TO_B[0], "10.1.2.0/24 via 10.1.2.0", TO_B[1]];
    assert_eq!(stage.routes(), all);

    let mark = stage.mark();
    // The kernel removes the tunnel's IPv4 routes too, and reports the address alone.
    let tunnel = stage.socket.link_by_name(TUNNEL).unwrap();
    let address = "10.1.0.0/32".parse().unwrap();
    stage.socket.delete_address(&tunnel, address).unwrap();
    stage.wait_for_routes(&all);
    let routes = stage.socket.routes(Family::V4).unwrap();
    let ours = routes
        .iter()
        .find(|route| route.dst.to_string() == "10.1.1.0/24")
        .unwrap();
    stage.socket.delete_route(ours).unwrap();
    stage.wait_for_routes(&all);
    stage.socket.delete_link_by_name(TUNNEL).unwrap();
    stage.wait_for_routes(&all);
    let eth0 = stage.eth0.clone();
    stage.socket.set_down(&eth0).unwrap();
    stage.socket.set_up(&eth0).unwrap();
    // The kernel removes IPv6 addresses from a link that is set down.
    let _ = stage
        .socket
        .add_own_address(&eth0, "2001:db8:1::1/64".parse().unwrap());
    stage.wait_for_routes(&all);

    let mut rules = stage.namespace.run(nft::Socket::open).unwrap().unwrap();
    let mut flush = nft::Transaction::new();
    flush.delete_table(TABLE);
    rules.commit(&flush).unwrap();
    until("the packet rules", || match rules.chains(TABLE).unwrap().len() {
        2 => Ok(()),
        other => Err(format!("{other} chains")),
    });
    fs::remove_file(stage.conflist()).unwrap();
    until("the configuration", || stage.configuration().ok_or("missing"));
    fs::write(stage.conflist(), "{}").unwrap();
    until("the configuration", || match stage.configuration() {
        Some(found) if found["name"] == "weft" => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let requests = stage.requests_of(ACCOUNT, mark);
    assert!(requests.is_empty(), "{requests:#?}");
}

// cluster-network#81
#[test]
fn deleted_entry_of_the_tunnel_comes_back_by_its_event() {
    let Some(mut stage) = Stage::take("entries of the tunnel") else {
        return;
    };
    stage.register("a", &A.0[..1], &A.1[..1]);
    stage.register("c", &["10.1.2.0/24"], &["198.51.100.3"]);
    let _daemon = stage.daemon();
    stage.wait_until_ready(true);
    let tunnel = stage.socket.link_by_name(TUNNEL).unwrap();
    let gateway = "10.1.2.0".parse().unwrap();
    stage.socket.delete_neighbour(&tunnel, gateway).unwrap();
    until("the neighbour", || {
        let neighbours = stage.socket.neighbours(&tunnel, Family::V4).unwrap();
        let is_there = neighbours.iter().any(|it| it.ip == gateway && it.permanent);
        is_there.then_some(()).ok_or(format!("{neighbours:?}"))
    });
    let entry = stage.socket.forwardings(&tunnel).unwrap()[0];
    stage.socket.delete_forwarding(&tunnel, entry).unwrap();
    until("the forwarding entry", || {
        let entries = stage.socket.forwardings(&tunnel).unwrap();
        (entries == [entry]).then_some(()).ok_or(format!("{entries:?}"))
    });
}

// cluster-network#80
#[test]
fn other_network_on_the_node_is_reported_and_stays() {
    let Some(mut stage) = Stage::take("two networks") else {
        return;
    };
    stage.register("a", A.0, A.1);
    let other = stage.file("05-other.conflist");
    let text = r#"{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"bridge"}]}"#;
    fs::write(&other, text).unwrap();
    let _daemon = stage.daemon();
    stage.wait_for_event(&format!(
        "Warning OtherPodNetwork Node/a x1: pods on this node get the network of {}, which sorts before {}",
        other.display(),
        stage.conflist().display()
    ));
    assert!(!stage.readiness.is_ready());
    assert_eq!(fs::read_to_string(&other).unwrap(), text);
    fs::remove_file(&other).unwrap();
    stage.wait_until_ready(true);
    // Multus delegates to the next configuration.
    fs::write(
        stage.file("00-multus.conf"),
        r#"{"type":"multus-shim","name":"m"}"#,
    )
    .unwrap();
    stage.register("b", B.0, B.1);
    stage.wait_for_routes(&TO_B);
    assert!(stage.readiness.is_ready());
    fs::write(&other, text).unwrap();
    stage.wait_until_ready(false);
}

// cluster-network#86
#[test]
fn daemon_at_rest_sends_no_request_and_writes_nothing() {
    let Some(mut stage) = Stage::take("a daemon at rest") else {
        return;
    };
    stage.register("a", A.0, A.1);
    stage.register("b", B.0, B.1);
    let _daemon = stage.daemon();
    stage.wait_until_ready(true);
    let mark = stage.mark();
    let written = fs::metadata(stage.conflist()).unwrap().modified().unwrap();
    for _ in 0..20 {
        stage.heartbeat("a");
        stage.heartbeat("b");
    }
    // The route to this node proves that the daemon has processed the heartbeats.
    stage.register("d", &["10.1.4.0/24"], &["192.0.2.4"]);
    stage.wait_for_routes(&[TO_B[0], "10.1.4.0/24 via 192.0.2.4", TO_B[1]]);
    let requests = stage.requests_of(ACCOUNT, mark);
    assert!(requests.is_empty(), "{requests:#?}");
    assert_eq!(
        fs::metadata(stage.conflist()).unwrap().modified().unwrap(),
        written
    );
}

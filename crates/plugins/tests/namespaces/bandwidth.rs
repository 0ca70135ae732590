//! The bandwidth plugin, chained after bridge.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    time::{Duration, Instant},
};

use cni::{
    cache::Cache,
    chain::{Attachment, Chain},
    config::NetworkList,
    exec::Invoker,
};
use linux::{link::Link, netns::NetNs, traffic::TokenBucket};
use serde_json::{Value, json};

use crate::stage::{Host, PLUGINS, Pod, bind, l2, l3, on_a_host, with};

/// The bytes to send through the limits.
const PARCEL: usize = 20_000;
/// A transfer at 10 kB a second after a burst of 4 kB takes longer, with 0.4 s to spare.
const SLOW: Duration = Duration::from_millis(1200);

fn limits(rate: u32, burst: u32) -> Value {
    json!({ "ingressRate": rate, "ingressBurst": burst, "egressRate": rate, "egressBurst": burst })
}

fn bandwidth(result: &Value, settings: &Value) -> Value {
    let mut config =
        json!({ "cniVersion": "1.1.0", "name": "test-net", "type": "bandwidth", "prevResult": result });
    for (key, value) in settings.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

/// A container with an address, and the host with one beside it.
fn attached(host: &mut Host) -> (Pod, Value) {
    let pod = host.pod();
    let result = host.add(
        &pod,
        &with(&l3("1.1.0", &["10.1.2.3/24"]), "isGateway", true.into()),
    );
    (pod, result)
}

fn ifbs(host: &mut Host) -> Vec<Link> {
    let mut links = host.socket.links().unwrap();
    links.retain(|link| link.is_kind("ifb"));
    links
}

/// The host's end of the container's `net1`.
fn port(host: &mut Host, pod: &Pod) -> Link {
    host.socket.link_by_index(pod.net1().peer.unwrap()).unwrap()
}

fn bucket(host: &mut Host, link: &Link) -> Option<TokenBucket> {
    host.socket.bucket(link).unwrap()
}

/// How long a parcel takes from one namespace to an address of another.
fn carry(from: &NetNs, to: &NetNs, address: &str) -> Duration {
    let address: SocketAddr = address.parse().unwrap();
    let listener = bind(to, || TcpListener::bind(address));
    let mut sender = from.run(|| TcpStream::connect(address)).unwrap().unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    receiver.set_read_timeout(Some(Duration::from_mins(2))).unwrap();
    let begin = Instant::now();
    let sending = std::thread::spawn(move || sender.write_all(&vec![7; PARCEL]).unwrap());
    let mut received = Vec::new();
    receiver.read_to_end(&mut received).unwrap();
    sending.join().unwrap();
    assert_eq!(received.len(), PARCEL);
    begin.elapsed()
}

// cni-plugins#50
#[test]
fn limited_transfers_take_the_expected_time() {
    on_a_host("limited packets", |host| {
        let (pod, result) = attached(host);
        let here = NetNs::current().unwrap();
        let slow = limits(80_000, 32_000);
        let config = bandwidth(&result, &json!({ "runtimeConfig": { "bandwidth": slow } }));
        let limited = host.add(&pod, &config);
        assert_eq!(limited["interfaces"].as_array().unwrap().len(), 4);
        host.check(&pod, &config, &limited).success();
        let received = carry(&here, &pod.ns, "10.1.2.3:7000");
        assert!(received > SLOW, "{received:?}");
        let sent = carry(&pod.ns, &here, "10.1.2.1:7001");
        assert!(sent > SLOW, "{sent:?}");
    });
}

// cni-plugins#50
#[test]
fn either_direction_is_limited_alone() {
    on_a_host("directions", |host| {
        let expected = TokenBucket {
            rate: 1000,
            limit: 2025,
            buffer: 31_250_000,
        };
        for (settings, ingress, egress) in [
            (json!({ "ingressRate": 8000, "ingressBurst": 16000 }), true, false),
            (json!({ "egressRate": 8000, "egressBurst": 16000 }), false, true),
            (limits(8000, 16000), true, true),
            (json!({}), false, false),
        ] {
            let (pod, result) = attached(host);
            let config = bandwidth(&result, &settings);
            let limited = host.add(&pod, &config);
            let port = port(host, &pod);
            assert_eq!(bucket(host, &port), ingress.then_some(expected), "{settings}");
            let made = ifbs(host);
            assert_eq!(made.len(), usize::from(egress), "{settings}");
            let mut wanted = result.clone();
            if let [ifb] = made.as_slice() {
                assert_eq!(bucket(host, ifb), Some(expected));
                assert!(ifb.is_up() && ifb.mtu == port.mtu && ifb.name.starts_with("bwp"));
                assert_eq!(host.socket.redirected_to(&port).unwrap(), Some(ifb.index));
                let entry = json!({ "name": ifb.name, "mac": ifb.mac.unwrap().to_string() });
                wanted["interfaces"].as_array_mut().unwrap().push(entry);
            }
            assert_eq!(limited, wanted, "{settings}");
            host.check(&pod, &config, &limited).success();
            // A second ADD begins anew.
            assert_eq!(
                host.add(&pod, &config)["interfaces"].as_array().unwrap().len(),
                3 + made.len()
            );

            if ingress {
                host.socket.unshape(&port).unwrap();
                let missing = host.check(&pod, &config, &limited).message();
                assert_eq!(missing, "Failed to find qdisc");
            }
            let other = bandwidth(&result, &limits(8008, 16000));
            if ingress || egress {
                host.add(&pod, &config);
                let differs = host.check(&pod, &other, &limited).message();
                let text = if ingress {
                    "Rate doesn't match"
                } else {
                    "Failed to find qdisc"
                };
                assert_eq!(differs, text);
            }
            for _ in 0..2 {
                host.del(&pod, &config);
                assert!(ifbs(host).is_empty());
            }
            assert_eq!(host.records_of("bandwidth"), Vec::<String>::new());
        }
    });
}

// cni-plugins#50
#[test]
fn the_hosts_end_is_the_peer_among_others() {
    on_a_host("which end", |host| {
        let (pod, result) = attached(host);
        let (other, _) = attached(host);
        let other_port = port(host, &other);
        let own_port = port(host, &pod);
        let several = with(
            &result,
            "interfaces",
            json!([{ "name": other_port.name }, { "name": own_port.name }, { "name": "net1", "sandbox": pod.path }]),
        );
        host.add(&pod, &bandwidth(&several, &limits(8000, 16000)));
        assert!(bucket(host, &own_port).is_some() && bucket(host, &other_port).is_none());

        let settings = limits(8000, 16000);
        let refused = |host: &Host, interfaces: Value| {
            let result = with(&result, "interfaces", interfaces);
            host.call("ADD", &pod, &bandwidth(&result, &settings)).message()
        };
        assert_eq!(refused(host, json!([])), "no interfaces provided");
        assert_eq!(
            refused(host, json!([{ "name": other_port.name }])),
            "no veth peer of container interface found in host ns"
        );
        let missing = host
            .call_with("ADD", &pod, "net9", "", &bandwidth(&result, &settings))
            .message();
        assert!(
            missing.starts_with("container interface net9 has no veth peer: "),
            "{missing}"
        );
        let unchained = json!({ "cniVersion": "1.1.0", "name": "test-net", "type": "bandwidth" });
        assert_eq!(
            host.call("ADD", &pod, &unchained).message(),
            "must be called as chained plugin"
        );
        let large = bandwidth(
            &result,
            &json!({ "ingressRate": 8, "ingressBurst": 34_359_738_360_u64 }),
        );
        assert_eq!(
            host.call("ADD", &pod, &large).message(),
            "burst cannot be more than 4GB"
        );
    });
}

// cni-plugins#84
#[test]
fn gc_removes_links_without_del() {
    on_a_host("GC of bandwidth", |host| {
        let settings = limits(8000, 16000);
        let (pod, result) = attached(host);
        let config = bandwidth(&result, &settings);
        host.add(&pod, &config);
        // Another interface of the container, to the same network.
        let second = host.call_with("ADD", &pod, "net2", "", &l2("1.1.0")).success();
        let second = bandwidth(&second, &settings);
        host.call_with("ADD", &pod, "net2", "", &second).success();
        assert_eq!(ifbs(host).len(), 2);
        let valid = json!([{ "containerID": pod.id, "ifname": "net2" }]);
        host.gc(&with(&config, "cni.dev/valid-attachments", valid))
            .success();
        assert_eq!(ifbs(host).len(), 1);
        // Neither of an attachment that has a record already, nor of another owner.
        host.del(&pod, &config);
        assert_eq!(ifbs(host).len(), 1);
        host.gc(&with(&config, "cni.dev/valid-attachments", json!([])))
            .success();
        assert!(ifbs(host).is_empty());

        // The upstream plugin's, which has no record.
        host.add(&pod, &config);
        host.lose_records_of("bandwidth");
        let gone = host.pod_without_path(&pod);
        host.del(&gone, &config);
        assert!(ifbs(host).is_empty());

        // Links of a network's other containers stay.
        let noted = host.call(
            "ADD",
            &pod,
            &with(&config, "shapedSubnets", json!(["10.0.0.0/8"])),
        );
        assert!(noted.stderr.contains("shapedSubnets"), "{noted:?}");
        let (other, _) = attached(host);
        host.del(&other, &config);
        assert_eq!(ifbs(host).len(), 1);
    });
}

#[test]
fn a_failed_add_leaves_nothing() {
    on_a_host("bandwidth undone", |host| {
        let (pod, result) = attached(host);
        let config = bandwidth(&result, &limits(8000, 16000));
        // Frames that the end receives are redirected already, and stay so.
        let port = port(host, &pod);
        host.socket.create_ifb("foreign", 1500).unwrap();
        let foreign = host.link("foreign").unwrap();
        host.socket.redirect_received(&port, foreign.index).unwrap();
        let refused = host.call("ADD", &pod, &config).message();
        assert!(refused.starts_with("failed to redirect what veth"), "{refused}");
        assert_eq!(ifbs(host).len(), 1);
        assert_eq!(host.socket.redirected_to(&port).unwrap(), Some(foreign.index));
        assert_eq!(bucket(host, &port), None);
        assert_eq!(host.records_of("bandwidth"), Vec::<String>::new());
    });
}

// cni-plugins#51, bridge
#[test]
fn a_runtime_runs_the_chain() {
    on_a_host("bridge and bandwidth", |host| {
        for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            let pod = host.pod();
            let list = json!({
                "cniVersion": version, "name": "test-net",
                "plugins": [
                    { "type": "bridge", "bridge": "br0", "ipam": { "type": "static", "addresses": [{ "address": "10.1.2.3/24" }] } },
                    { "type": "bandwidth", "ingressRate": 8000, "ingressBurst": 16000, "egressRate": 8000, "egressBurst": 16000 },
                ],
            });
            let list = NetworkList::parse(list.to_string().as_bytes()).unwrap();
            let invoker = Invoker {
                dirs: vec![Path::new(PLUGINS).to_owned()],
                ..Invoker::default()
            };
            let cache = Cache::new(Path::new("/run/cache"));
            let chain = Chain {
                runner: &invoker,
                cache: &cache,
            };
            let attachment = Attachment {
                container_id: pod.id.clone(),
                netns: pod.path.clone(),
                ifname: "net1".into(),
                ..Attachment::default()
            };
            let result = chain.add(&list, &attachment).unwrap();
            assert_eq!(result.interfaces.len(), 4);
            if version >= "0.4.0" {
                chain.check(&list, &attachment).unwrap();
            }
            chain.del(&list, &attachment).unwrap();
            chain.del(&list, &attachment).unwrap();
            assert!(pod.link("net1").is_none() && ifbs(host).is_empty());
        }
    });
}

//! Kills of the daemon at any point, under traffic.

use std::{
    env,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use pod_network::{Kernel, Node, arrange};

use crate::network::{Host, choices, in_a_network, udp};

/// The variable turns this program into the daemon.
const VARIABLE: &str = "WEFT_TEST_POD_NETWORK_DAEMON";
/// Number of kills.
const KILLS: u64 = 60;

fn node(name: &str, range: &str, address: &str) -> Node {
    Node {
        name: name.to_owned(),
        ranges: vec![range.parse().unwrap()],
        addresses: vec![address.parse().unwrap()],
        ..Node::default()
    }
}

fn stable() -> [Node; 3] {
    [
        node("a", "10.1.0.0/24", "192.0.2.1"),
        node("b", "10.1.1.0/24", "192.0.2.2"),
        node("c", "10.1.2.0/24", "198.51.100.3"),
    ]
}

/// The nodes of a round: some register, move and leave, on this segment and on others.
fn nodes(round: u8) -> Vec<Node> {
    let mut nodes = stable().to_vec();
    for number in 10..20 {
        let address = match (round + number) % 3 {
            0 => continue,
            1 => format!("192.0.2.{number}"),
            _ => format!("198.51.100.{number}"),
        };
        nodes.push(node(
            &format!("n{number}"),
            &format!("10.1.{number}.0/24"),
            &address,
        ));
    }
    nodes
}

/// The daemon, if the variable is set: it applies a changing set of nodes to node `a` without end.
#[test]
fn daemon() {
    if env::var_os(VARIABLE).is_none() {
        return;
    }
    let mut kernel = Kernel::open().unwrap();
    let [own, ..] = stable();
    for round in (0..=u8::MAX - 20).cycle() {
        let arranged = arrange(&mut kernel, &own, &nodes(round), &choices()).unwrap();
        assert!(arranged.failures.is_empty(), "{arranged:#?}");
    }
}

fn start(host: &Host) -> Child {
    let start = || {
        Command::new(env::current_exe().unwrap())
            .args(["--exact", "kills::daemon", "--nocapture"])
            .env(VARIABLE, "1")
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    host.ns.run(start).unwrap()
}

/// Sends numbered packets one after the other, receives the answer of the other pod, and counts.
struct Stream {
    end: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: thread::JoinHandle<()>,
}

impl Stream {
    fn start(sender: std::net::UdpSocket, receiver: std::net::UdpSocket, name: &'static str) -> Self {
        let (end, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, counts) = (Arc::clone(&end), Arc::clone(&sent));
        let to = receiver.local_addr().unwrap();
        let thread = thread::spawn(move || {
            let mut bytes = [0; 8];
            while !ends.load(Ordering::Relaxed) {
                let number = counts.load(Ordering::Relaxed);
                sender.send_to(&number.to_be_bytes(), to).unwrap();
                let (_, from) = receiver
                    .recv_from(&mut bytes)
                    .unwrap_or_else(|error| panic!("{name}: packet {number} is lost: {error}"));
                assert_eq!(u64::from_be_bytes(bytes), number, "{name}");
                receiver.send_to(&bytes, from).unwrap();
                sender
                    .recv_from(&mut bytes)
                    .unwrap_or_else(|error| panic!("{name}: answer {number} is lost: {error}"));
                assert_eq!(u64::from_be_bytes(bytes), number, "{name}");
                counts.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { end, sent, thread }
    }

    fn end(self) -> u64 {
        self.end.store(true, Ordering::Relaxed);
        self.thread.join().expect("no packet was lost");
        self.sent.load(Ordering::Relaxed)
    }
}

// cluster-network#82
#[test]
fn daemon_killed_at_any_point_loses_no_packet() {
    in_a_network("kills under traffic", |network| {
        let near = network.segment("near", &["192.0.2.254/24"]);
        let far = network.segment("far", &["198.51.100.254/24"]);
        let mut hosts = [
            network.node(&near, "a", &["192.0.2.1/24"], &["10.1.0.0/24"]),
            network.node(&near, "b", &["192.0.2.2/24"], &["10.1.1.0/24"]),
            network.node(&far, "c", &["198.51.100.3/24"], &["10.1.2.0/24"]),
        ];
        for host in &mut hosts {
            host.arrange(&stable());
        }
        let pods: Vec<_> = hosts.iter_mut().map(|host| host.pod(7)).collect();
        let socket = |pod: usize, port| udp(&pods[pod].ns, pods[pod].address(true), port);
        let streams = [
            Stream::start(socket(0, 7000), socket(1, 7000), "on the segment"),
            Stream::start(socket(0, 7001), socket(2, 7001), "through the tunnel"),
        ];
        let mut chance = 7_u64;
        for _ in 0..KILLS {
            let mut daemon = start(&hosts[0]);
            // The start takes some milliseconds, and a round of changes about one.
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let life = Duration::from_micros(3000 + (chance >> 33) % 17_000);
            let end = Instant::now() + life;
            while Instant::now() < end {
                assert_eq!(daemon.try_wait().unwrap(), None, "the daemon ended by itself");
                thread::yield_now();
            }
            daemon.kill().unwrap();
            daemon.wait().unwrap();
        }
        let passed = streams.map(Stream::end);
        println!("{passed:?} packets passed");
        assert!(passed.iter().all(|passed| *passed > KILLS), "{passed:?}");

        // The next start removes the leftovers.
        hosts[0].arrange(&stable());
        let routes = hosts[0].routes();
        let ours = routes.iter().filter(|route| route.contains("proto 87"));
        assert_eq!(ours.count(), 2, "{routes:#?}");
        assert!(hosts[0].arrange(&stable()).changes.is_empty());
    });
}

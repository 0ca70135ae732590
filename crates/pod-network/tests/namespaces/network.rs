//! Network namespaces of nodes on several segments, with a router between the segments that has no routes to pods.

use std::{
    net::{IpAddr, UdpSocket},
    os::fd::AsFd as _,
    time::Duration,
};

use ipnet::IpNet;
use linux::{
    address::Family,
    link::{BridgeSpec, Link, VethSpec},
    netns::{NetNs, unshare_network},
    route::Socket,
    routes::Route,
    sysctl::Key,
};
use pod_network::{Arranged, Choices, Kernel, Node, arrange};

/// Deadline of a packet, for slow machines.
const DEADLINE: Duration = Duration::from_mins(1);

/// Runs `test` in a new network. Without root, prints the reason and returns.
pub(crate) fn in_a_network(name: &str, test: impl FnOnce(&mut Network) + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: {name} needs root to make network namespaces");
        return;
    }
    let thread = std::thread::spawn(|| {
        unshare_network().unwrap();
        test(&mut Network::new());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// The router between the segments: the namespace of this thread.
pub(crate) struct Network {
    pub(crate) socket: Socket,
    ports: u32,
}

/// A segment: the bridge, which is also the router's interface, and the router's addresses.
#[derive(Clone)]
pub(crate) struct Segment {
    bridge: Link,
    gateways: Vec<IpNet>,
}

impl Network {
    fn new() -> Self {
        let mut socket = Socket::open().unwrap();
        let lo = socket.link_by_name("lo").unwrap();
        socket.set_up(&lo).unwrap();
        forward();
        Self { socket, ports: 0 }
    }

    /// Creates a segment in which the router has these addresses.
    pub(crate) fn segment(&mut self, name: &str, gateways: &[&str]) -> Segment {
        let spec = BridgeSpec {
            name,
            mtu: None,
            mac: None,
            vlan_filtering: false,
        };
        self.socket.create_bridge(&spec).unwrap();
        let bridge = self.socket.link_by_name(name).unwrap();
        let gateways: Vec<IpNet> = gateways.iter().map(|net| net.parse().unwrap()).collect();
        for gateway in &gateways {
            self.socket.add_own_address(&bridge, *gateway).unwrap();
        }
        self.socket.set_up(&bridge).unwrap();
        Segment { bridge, gateways }
    }

    /// Creates a node in a segment, with these addresses.
    pub(crate) fn node(
        &mut self,
        segment: &Segment,
        name: &str,
        addresses: &[&str],
        ranges: &[&str],
    ) -> Host {
        self.ports += 1;
        let ns = NetNs::create_anonymous().unwrap();
        let port = format!("port{}", self.ports);
        let mut socket = ns.run(Socket::open).unwrap().unwrap();
        let (outer, eth0) = pair(&mut self.socket, &mut socket, &port);
        self.socket.set_master(&outer, segment.bridge.index).unwrap();
        self.socket.set_up(&outer).unwrap();
        ns.run(forward).unwrap();
        let lo = socket.link_by_name("lo").unwrap();
        socket.set_up(&lo).unwrap();
        let addresses: Vec<IpNet> = addresses.iter().map(|net| net.parse().unwrap()).collect();
        for net in &addresses {
            socket.add_own_address(&eth0, *net).unwrap();
        }
        socket.set_up(&eth0).unwrap();
        for gateway in &segment.gateways {
            let route = Route {
                gateway: Some(gateway.addr()),
                link: Some(eth0.index),
                ..Route::to(everything(gateway.addr().is_ipv4()))
            };
            if addresses
                .iter()
                .any(|net| net.addr().is_ipv4() == gateway.addr().is_ipv4())
            {
                socket.add_route(&route).unwrap();
            }
        }
        let kernel = ns.run(Kernel::open).unwrap().unwrap();
        Host {
            ns,
            socket,
            eth0,
            kernel,
            node: Node {
                name: name.to_owned(),
                ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
                addresses: addresses.iter().map(IpNet::addr).collect(),
                ..Node::default()
            },
        }
    }
}

fn everything(is_ipv4: bool) -> IpNet {
    if is_ipv4 { "0.0.0.0/0" } else { "::/0" }.parse().unwrap()
}

/// Enables forwarding in the namespace of the thread.
fn forward() {
    for steps in [
        &["net", "ipv4", "ip_forward"][..],
        &["net", "ipv6", "conf", "all", "forwarding"],
    ] {
        Key::new(steps).unwrap().write("1").unwrap();
    }
}

/// Creates a veth pair: `name` in this namespace, and `eth0` inside.
fn pair(here: &mut Socket, inside: &mut Socket, name: &str) -> (Link, Link) {
    let home = NetNs::current().unwrap();
    let spec = VethSpec {
        name: "eth0",
        mac: None,
        mtu: None,
        peer_name: name,
        peer_ns: Some(home.as_fd()),
    };
    inside.create_veth(&spec).unwrap();
    (
        here.link_by_name(name).unwrap(),
        inside.link_by_name("eth0").unwrap(),
    )
}

/// A node.
pub(crate) struct Host {
    pub(crate) ns: NetNs,
    pub(crate) socket: Socket,
    pub(crate) eth0: Link,
    pub(crate) kernel: Kernel,
    pub(crate) node: Node,
}

pub(crate) fn choices() -> Choices {
    Choices {
        vxlan_id: 7765,
        vxlan_port: 4789,
        cluster: Vec::new(),
        mtu: None,
    }
}

impl Host {
    /// Applies the state that these nodes need. All changes must succeed.
    pub(crate) fn arrange(&mut self, nodes: &[Node]) -> Arranged {
        let arranged = arrange(&mut self.kernel, &self.node, nodes, &choices()).unwrap();
        assert!(arranged.failures.is_empty(), "{}: {arranged:#?}", self.node.name);
        arranged
    }

    /// Creates a pod with the `number`th address of each range of the node, connected as by `ptp`.
    pub(crate) fn pod(&mut self, number: u8) -> Pod {
        let ns = NetNs::create_anonymous().unwrap();
        let mut inside = ns.run(Socket::open).unwrap().unwrap();
        let socket = &mut self.socket;
        let (outer, eth0) = self
            .ns
            .run(|| pair(socket, &mut inside, &format!("pod{number}")))
            .unwrap();
        let mut addresses = Vec::new();
        socket.set_up(&outer).unwrap();
        for range in &self.node.ranges {
            let at = |number: u8| IpNet::from(nth(range.addr(), number));
            let (gateway, address) = (at(1), at(number));
            socket.add_own_address(&outer, gateway).unwrap();
            inside.add_own_address(&eth0, address).unwrap();
            addresses.push(address.addr());
        }
        inside.set_up(&eth0).unwrap();
        let (on_host, in_pod) = (outer.index, eth0.index);
        for range in &self.node.ranges {
            let gateway = nth(range.addr(), 1);
            let to = |dst: IpNet, link| Route {
                link: Some(link),
                scope: Some(253),
                ..Route::to(dst)
            };
            inside.add_route(&to(IpNet::from(gateway), in_pod)).unwrap();
            let out = Route {
                gateway: Some(gateway),
                scope: None,
                ..to(everything(gateway.is_ipv4()), in_pod)
            };
            inside.add_route(&out).unwrap();
        }
        for address in &addresses {
            let route = Route {
                link: Some(on_host),
                scope: Some(253),
                ..Route::to(IpNet::from(*address))
            };
            socket.add_route(&route).unwrap();
        }
        Pod { ns, addresses }
    }

    /// The routes of the main table, except those of link-local addresses, as text.
    pub(crate) fn routes(&mut self) -> Vec<String> {
        let mut all = self.socket.routes(Family::V4).unwrap();
        all.extend(self.socket.routes(Family::V6).unwrap());
        let main = all.iter().filter(|route| route.table == Some(254));
        let mut shown: Vec<_> = main
            .map(|route| {
                format!(
                    "{route} dev {} proto {}",
                    route.link.unwrap_or_default(),
                    route.protocol.unwrap_or_default()
                )
            })
            .collect();
        // The kernel adds the routes of link-local addresses some time after a link is up.
        shown.retain(|route| !route.starts_with("fe80::/64 "));
        shown.sort();
        shown
    }

    /// The tunnel, if it exists.
    pub(crate) fn tunnel(&mut self) -> Option<Link> {
        self.socket.find_link(pod_network::names::TUNNEL).unwrap()
    }
}

fn nth(range: IpAddr, number: u8) -> IpAddr {
    match range {
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            IpAddr::from([a, b, c, number])
        }
        IpAddr::V6(address) => {
            let mut segments = address.segments();
            segments[7] = number.into();
            IpAddr::from(segments)
        }
    }
}

/// A pod.
pub(crate) struct Pod {
    pub(crate) ns: NetNs,
    pub(crate) addresses: Vec<IpAddr>,
}

impl Pod {
    pub(crate) fn address(&self, is_ipv4: bool) -> IpAddr {
        let mut addresses = self.addresses.iter().copied();
        addresses.find(|address| address.is_ipv4() == is_ipv4).unwrap()
    }
}

/// A UDP socket in a namespace.
pub(crate) fn udp(ns: &NetNs, address: IpAddr, port: u16) -> UdpSocket {
    let bind = || ns.run(|| UdpSocket::bind((address, port))).unwrap();
    let socket = cluster::wait::bind(bind).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

/// Sends a packet to `receiver` and receives the answer. Returns the address that the receiver saw.
#[track_caller]
pub(crate) fn exchange(sender: &UdpSocket, receiver: &UdpSocket) -> IpAddr {
    let mut text = [0; 32];
    sender.send_to(b"ping", receiver.local_addr().unwrap()).unwrap();
    let (length, from) = receiver.recv_from(&mut text).expect("the packet arrives");
    assert_eq!(&text[..length], b"ping");
    receiver.send_to(b"pong", from).unwrap();
    let (length, _) = sender.recv_from(&mut text).expect("the answer arrives");
    assert_eq!(&text[..length], b"pong");
    from.ip()
}

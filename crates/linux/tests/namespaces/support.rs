//! New network namespaces for tests.

use std::{
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use linux::{
    link::{BridgeSpec, Link, VethSpec},
    netns::{NetNs, unshare_network},
    route::Socket,
};

/// Runs `test` on a thread in a new network namespace. Without root, prints the reason and returns.
pub(crate) fn alone(name: &str, test: impl FnOnce() + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: {name} needs root to make network namespaces");
        return;
    }
    let thread = std::thread::spawn(|| {
        unshare_network().unwrap();
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// A deadline that only a defect exceeds.
pub(crate) fn far_deadline() -> Instant {
    Instant::now() + Duration::from_mins(1)
}

/// Creates a bridge, up.
pub(crate) fn bridge(socket: &mut Socket, name: &str) -> Link {
    socket
        .create_bridge(&BridgeSpec {
            name,
            mtu: None,
            mac: None,
            vlan_filtering: false,
        })
        .unwrap();
    let bridge = socket.link_by_name(name).unwrap();
    socket.set_up(&bridge).unwrap();
    socket.link_by_name(name).unwrap()
}

/// Another namespace with one end of a veth pair. The other end is in this namespace.
pub(crate) struct Neighbourhood {
    pub(crate) ns: NetNs,
    pub(crate) inside: Socket,
    pub(crate) outer: Link,
    pub(crate) inner: Link,
}

/// Creates a namespace with `eth0`, whose other end is `name` in this namespace.
pub(crate) fn neighbourhood(here: &mut Socket, name: &str) -> Neighbourhood {
    let home = NetNs::current().unwrap();
    let ns = NetNs::create_anonymous().unwrap();
    let mut inside = ns.run(Socket::open).unwrap().unwrap();
    let spec = VethSpec {
        name: "eth0",
        mac: None,
        mtu: None,
        peer_name: name,
        peer_ns: Some(home.as_fd()),
    };
    inside.create_veth(&spec).unwrap();
    let outer = here.link_by_name(name).unwrap();
    let inner = inside.link_by_name("eth0").unwrap();
    Neighbourhood {
        ns,
        inside,
        outer,
        inner,
    }
}

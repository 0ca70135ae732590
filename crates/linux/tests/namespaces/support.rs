//! Fresh namespaces.

use std::{
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use linux::{
    link::{BridgeSpec, Link, VethSpec},
    netns::{NetNs, unshare_network},
    route::Socket,
};

/// Runs `test` on a thread in a network namespace of its own. Without root it says so and does nothing.
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

/// A moment that a healthy machine never reaches.
pub(crate) fn far_deadline() -> Instant {
    Instant::now() + Duration::from_mins(1)
}

/// A bridge that is up.
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

/// Another namespace with one end of a veth pair in it; the other end is here.
pub(crate) struct Neighbourhood {
    pub(crate) ns: NetNs,
    pub(crate) inside: Socket,
    pub(crate) outer: Link,
    pub(crate) inner: Link,
}

/// Makes a namespace with `eth0` in it, whose other end is `name` here.
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

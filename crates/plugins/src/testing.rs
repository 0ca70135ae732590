//! For tests against the kernel: namespaces, and programs that read and write the ruleset independently of us.

use std::{
    fs,
    io::Write as _,
    net::UdpSocket,
    os::{fd::AsFd as _, unix::fs::PermissionsExt as _},
    process::{Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use cluster::{Home, Packages, Quiet};
use ipnet::IpNet;
use linux::{
    link::{BridgeSpec, Link, LinkChange, Mac, OperState, VethSpec},
    monitor::wait_operstate_up,
    netns::{NetNs, unshare_network},
    route::Socket,
};
use rustix::mount::{MountFlags, mount};

/// Runs `test` on a thread in a network namespace of its own. Without root it prints the reason and returns.
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

/// Programs of packages, brought in if need be.
pub(crate) fn packages() -> &'static Packages {
    static PACKAGES: OnceLock<Packages> = OnceLock::new();
    PACKAGES.get_or_init(|| Packages::ensure(&Home::from_env().unwrap(), &mut Quiet).unwrap())
}

/// Runs `nft` with `input` and returns its output.
pub(crate) fn nft(arguments: &[&str], input: &str) -> String {
    output(packages().command("usr/sbin/nft").args(arguments), input)
}

/// Loads rules as an administrator or another plugin would.
pub(crate) fn load(rules: &str) {
    nft(&["-f", "-"], rules);
}

/// The whole ruleset in nft's words.
pub(crate) fn ruleset() -> String {
    nft(&["list", "ruleset"], "")
}

/// Runs a program that must succeed.
pub(crate) fn output(command: &mut Command, input: &str) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{input}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Puts the programs of iptables where they are looked for first, on this thread alone.
pub(crate) fn install_iptables(variant: &str) {
    linux::process::unshare_mounts().unwrap();
    mount("tmpfs", "/usr/local", "tmpfs", MountFlags::empty(), None).unwrap();
    fs::create_dir_all("/usr/local/sbin").unwrap();
    for (name, program, applet) in [
        ("iptables", variant, "iptables"),
        ("ip6tables", variant, "ip6tables"),
        ("iptables-legacy", "legacy", "iptables"),
        ("iptables-legacy-restore", "legacy", "iptables-restore"),
        ("ip6tables-legacy", "legacy", "ip6tables"),
        ("ip6tables-legacy-restore", "legacy", "ip6tables-restore"),
    ] {
        let command = packages().command(&format!("usr/sbin/xtables-{program}-multi"));
        let variables: Vec<String> = command
            .get_envs()
            .filter_map(|(name, value)| Some(format!("{}={}", name.to_str()?, value?.to_str()?)))
            .collect();
        let script = format!(
            "#!/bin/sh\nXTABLES_LOCKFILE=/usr/local/lock exec env {} {} {applet} \"$@\"\n",
            variables.join(" "),
            command.get_program().display()
        );
        let path = format!("/usr/local/sbin/{name}");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// A bridge that is up.
pub(crate) fn bridge(here: &mut Socket, name: &str) -> Link {
    here.create_bridge(&BridgeSpec {
        name,
        mtu: None,
        mac: None,
        vlan_filtering: false,
    })
    .unwrap();
    let bridge = here.link_by_name(name).unwrap();
    here.set_up(&bridge).unwrap();
    bridge
}

/// Waits until a link passes packets: until then what is sent is thrown away. To be called in its namespace.
fn passes_packets(socket: &mut Socket, link: &Link) {
    let deadline = Instant::now() + Duration::from_mins(1);
    let link = wait_operstate_up(socket, link, deadline).unwrap();
    assert_eq!(link.operstate, OperState::Up, "{}", link.name);
}

/// A container with `eth0`, whose other end is here.
pub(crate) struct Container {
    pub(crate) ns: NetNs,
    pub(crate) socket: Socket,
    pub(crate) eth0: Link,
}

impl Container {
    /// A container on `bridge` by a port of this name.
    pub(crate) fn on(here: &mut Socket, bridge: &Link, port: &str, address: &str) -> Self {
        let container = Container::new(here, port, address);
        let outer = here.link_by_name(port).unwrap();
        here.set_master(&outer, bridge.index).unwrap();
        passes_packets(here, &outer);
        container
    }

    /// A container whose `eth0` has `port` as its other end.
    pub(crate) fn new(here: &mut Socket, port: &str, address: &str) -> Self {
        let home = NetNs::current().unwrap();
        let ns = NetNs::create_anonymous().unwrap();
        let mut socket = ns.run(Socket::open).unwrap().unwrap();
        let spec = VethSpec {
            name: "eth0",
            mac: None,
            mtu: None,
            peer_name: port,
            peer_ns: Some(home.as_fd()),
        };
        socket.create_veth(&spec).unwrap();
        let eth0 = socket.link_by_name("eth0").unwrap();
        socket
            .add_address(&eth0, address.parse::<IpNet>().unwrap())
            .unwrap();
        socket.set_up(&eth0).unwrap();
        let outer = here.link_by_name(port).unwrap();
        here.set_up(&outer).unwrap();
        passes_packets(here, &outer);
        ns.run(|| passes_packets(&mut socket, &eth0)).unwrap();
        Container { ns, socket, eth0 }
    }

    pub(crate) fn mac(&self) -> Mac {
        self.eth0.mac.unwrap()
    }

    /// Makes it send from another MAC.
    pub(crate) fn change_mac(&mut self, mac: Mac) {
        let change = LinkChange {
            mac: Some(mac),
            ..LinkChange::default()
        };
        self.socket.change_link(&self.eth0, "set MAC", &change).unwrap();
    }

    /// A UDP socket in it that may broadcast.
    pub(crate) fn udp(&self) -> UdpSocket {
        let socket = self.ns.run(|| UdpSocket::bind("0.0.0.0:7777")).unwrap().unwrap();
        socket.set_broadcast(true).unwrap();
        socket.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        socket
    }
}

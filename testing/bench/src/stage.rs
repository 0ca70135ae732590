//! Hosts and containers: namespaces and a directory that end with this process.

use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use cluster::wait;
use linux::link::{
    BridgeSpec, IpVlanMode, IpVlanSharing, Link, LinkChange, LinkKind, LinkRef, LinkSpec, Mac, MacVlanMode,
    VethSpec,
};
use linux::netns::{NetNs, unshare_network};
use linux::route::Socket;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};

use crate::case::{BRIDGE, Kind, PARENT, container_id};

/// Directory of the containers' namespaces.
const NAMESPACES: &str = "/run/netns";
/// Name of both ends of the veth pair whose removal proves the end of a namespace.
const SENTINEL: &str = "sentinel";
/// Timeout of the kernel's removal of namespaces, which has a low priority.
const GONE: Duration = Duration::from_mins(2);

/// A directory on a real file system that is removed at the end of this process, even after a kill.
pub(crate) struct Scratch {
    path: PathBuf,
    reaper: Child,
}

impl Scratch {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("cni-bench-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        // Standard input ends with this process, even after kill -9. A terminal's ctrl-C reaches the shell too.
        let reaper = Command::new("sh")
            .args(["-c", "trap '' INT TERM HUP; read -r line; rm -rf -- \"$1\"", "sh"])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .context("cannot run sh")?;
        Ok(Self { path, reaper })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.reaper.stdin.take());
        let _ = self.reaper.wait();
    }
}

/// The isolated environment of this process: no network, and an empty `/run`.
pub(crate) struct Stage {
    socket: Socket,
    containers: u32,
}

impl Stage {
    /// Moves this process permanently into the environment. Must be called while the process has only one thread.
    pub(crate) fn enter() -> anyhow::Result<Self> {
        unshare_network()?;
        linux::process::unshare_mounts()?;
        for dir in ["/run", "/var/lib/cni"] {
            // A missing directory must not be created, because it would be the machine's.
            if Path::new(dir).is_dir() {
                mount("tmpfs", dir, "tmpfs", MountFlags::empty(), None)
                    .with_context(|| format!("cannot mount a tmpfs on {dir}"))?;
            }
        }
        fs::create_dir(NAMESPACES).with_context(|| format!("cannot create {NAMESPACES}"))?;
        let socket = Socket::open()?;
        Ok(Self {
            socket,
            containers: 0,
        })
    }

    /// Creates a container.
    pub(crate) fn container(&mut self) -> anyhow::Result<Container> {
        self.containers += 1;
        let ns = NetNs::create_anonymous()?;
        let path = Path::new(NAMESPACES).join(self.containers.to_string());
        fs::write(&path, "").with_context(|| format!("cannot write {}", path.display()))?;
        mount_bind(format!("/proc/thread-self/fd/{}", ns.as_fd().as_raw_fd()), &path)
            .with_context(|| format!("cannot mount a network namespace on {}", path.display()))?;
        let socket = ns.run(Socket::open)??;
        Ok(Container {
            path,
            id: container_id(0, self.containers),
            ns,
            socket,
        })
    }

    /// Removes containers and hosts and waits for the kernel, whose work in the background would affect the next
    /// measurement.
    pub(crate) fn remove(&mut self, containers: Vec<Container>, hosts: Vec<Host>) -> anyhow::Result<()> {
        let one = containers
            .first()
            .map(|container| &container.ns)
            .or_else(|| hosts.first().map(|host| &host.ns));
        let Some(ns) = one else { return Ok(()) };
        self.socket.create_veth(&VethSpec {
            name: SENTINEL,
            mac: None,
            mtu: None,
            peer_name: SENTINEL,
            peer_ns: Some(ns.as_fd()),
        })?;
        drop((containers, hosts));
        wait::until("the removal of the namespaces", GONE, || {
            match self.socket.find_link(SENTINEL) {
                Ok(None) => Ok(()),
                Ok(Some(_)) => Err("the pair that leads there still is".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        })?;
        Ok(())
    }
}

/// A container: a network namespace with a path.
pub(crate) struct Container {
    pub(crate) path: PathBuf,
    pub(crate) id: String,
    pub(crate) ns: NetNs,
    pub(crate) socket: Socket,
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = unmount(&self.path, UnmountFlags::DETACH);
        let _ = fs::remove_file(&self.path);
    }
}

/// A host: a network namespace.
pub(crate) struct Host {
    pub(crate) ns: NetNs,
    socket: Socket,
    bridge: u32,
    parent: u32,
}

impl Host {
    /// Creates a host with a bridge, and a link that can be a parent.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let ns = NetNs::create_anonymous()?;
        let mut socket = ns.run(Socket::open)??;
        let lo = socket.link_by_name("lo")?;
        socket.set_up(&lo)?;
        socket.create_bridge(&BridgeSpec {
            name: BRIDGE,
            mtu: None,
            mac: Some(Mac::random()?),
            vlan_filtering: false,
        })?;
        let bridge = socket.link_by_name(BRIDGE)?;
        socket.set_up(&bridge)?;
        let peer = format!("{PARENT}-peer");
        socket.create_veth(&VethSpec {
            name: PARENT,
            mac: None,
            mtu: None,
            peer_name: &peer,
            peer_ns: None,
        })?;
        for name in [PARENT, &peer] {
            let link = socket.link_by_name(name)?;
            socket.set_up(&link)?;
        }
        let parent = socket.link_by_name(PARENT)?.index;
        Ok(Self {
            ns,
            socket,
            bridge: bridge.index,
            parent,
        })
    }

    /// Attaches a container to a bridge with minimal work: the veth pair, the port, both ends up. Returns the host's
    /// end.
    pub(crate) fn attach(
        &mut self,
        container: &mut Container,
        ifname: &str,
        name: &str,
    ) -> linux::Result<Link> {
        self.make_pair(container, ifname, name, Some(self.bridge))
    }

    /// Like [`Self::attach`], without the bridge.
    pub(crate) fn connect(
        &mut self,
        container: &mut Container,
        ifname: &str,
        name: &str,
    ) -> linux::Result<()> {
        self.make_pair(container, ifname, name, None).map(drop)
    }

    /// Creates a container's link with a parent by minimal work.
    pub(crate) fn make_child(
        &mut self,
        container: &mut Container,
        ifname: &str,
        kind: Kind,
    ) -> linux::Result<()> {
        let kind = match kind {
            Kind::MacVlan => LinkKind::MacVlan {
                mode: MacVlanMode::Bridge,
                broadcast_queue: None,
            },
            Kind::IpVlan => LinkKind::IpVlan {
                mode: IpVlanMode::L2,
                sharing: IpVlanSharing::Bridge,
            },
        };
        self.socket.create_link(&LinkSpec {
            parent: Some(self.parent),
            namespace: Some(container.ns.as_fd()),
            ..LinkSpec::new(ifname, kind)
        })?;
        let link = container.socket.link_by_name(ifname)?;
        container.socket.set_up(&link)
    }

    fn make_pair(
        &mut self,
        container: &mut Container,
        ifname: &str,
        name: &str,
        master: Option<u32>,
    ) -> linux::Result<Link> {
        container.socket.create_veth(&VethSpec {
            name: ifname,
            mac: None,
            mtu: None,
            peer_name: name,
            peer_ns: Some(self.ns.as_fd()),
        })?;
        let outer = self.socket.link_by_name(name)?;
        let change = LinkChange {
            master,
            up: Some(true),
            ..LinkChange::default()
        };
        self.socket.change_link(&outer, "connect link", &change)?;
        let inner = LinkRef {
            index: outer.peer.unwrap_or_default(),
            name: ifname,
        };
        container.socket.set_up(inner)?;
        Ok(outer)
    }
}

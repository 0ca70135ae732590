//! The virtual machine as a host with NetworkManager.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cluster::NetworkManager;
use linux::link::VethSpec;
use linux::route::Socket;
use rustix::mount::{MountFlags, mount, mount_bind, mount_remount};
use serde_json::{Map, Value, json};
use weft_nmstate::dry_run::outcome;
use weft_nmstate::engine::{Backend, Engine};
use weft_nmstate::render::{NodeFacts, PolicySpec, render};

const BUS: &str = "/run/dbus/system_bus_socket";
const LOG: &str = "/run/network-manager.log";
const TIMEOUT: Duration = Duration::from_mins(3);

/// A host in network and mount namespaces of the virtual machine, with the library on a thread of it. The calling
/// thread runs on it too.
pub(crate) struct Host {
    engine: Engine,
    programs: Vec<Child>,
}

impl Host {
    /// A host, in the virtual machine; elsewhere this prints the reason and returns `None`.
    pub(crate) fn enter(name: &str) -> Option<Self> {
        // Set by the first process of the machine.
        if std::env::var_os("WEFT_VM").is_none() {
            println!("skipped: {name} needs the virtual machine of `cargo xtask test vm`");
            return None;
        }
        linux::netns::unshare_network().unwrap();
        linux::process::unshare_mounts().unwrap();
        let programs = start();
        let engine = Engine::start(Backend::NetworkManager).unwrap();
        Some(Self { engine, programs })
    }

    /// Applies a document to the host, and commits it.
    pub(crate) fn apply(&self, desired: &Value) {
        let applied = wait(async {
            self.engine.apply(desired.clone()).await?;
            self.engine.commit().await
        });
        applied.unwrap_or_else(|error| panic!("{error}\n{desired:#}\n{}", log()));
    }

    /// The rendered document of a policy for the host.
    pub(crate) fn rendered(&self, spec: &PolicySpec) -> Value {
        let facts = NodeFacts::default();
        let rendered = wait(render(&self.engine, spec, &facts, Map::new()));
        rendered
            .unwrap_or_else(|error| panic!("{error}\n{spec:#?}"))
            .desired
    }

    /// The host's report.
    pub(crate) fn report(&self) -> Value {
        wait(self.engine.report()).unwrap_or_else(|error| panic!("{error}\n{}", log()))
    }

    /// The remaining difference for a document.
    pub(crate) fn left(&self, desired: &Value) -> Value {
        wait(outcome(&self.engine, desired)).unwrap().diff
    }

    /// Removes interfaces.
    pub(crate) fn remove(&self, interfaces: &[(&str, &str)]) {
        let absent = interfaces
            .iter()
            .map(|(name, kind)| json!({ "name": name, "type": kind, "state": "absent" }));
        self.apply(&json!({ "interfaces": absent.collect::<Vec<_>>() }));
        let report = self.report();
        for (name, _) in interfaces {
            assert_eq!(interface(&report, name), &Value::Null);
        }
    }
}

/// An interface of a report; null without such an interface.
pub(crate) fn interface<'a>(report: &'a Value, name: &str) -> &'a Value {
    let mut interfaces = report["interfaces"].as_array().unwrap().iter();
    let found = interfaces.find(|interface| interface["name"] == name);
    found.unwrap_or(&Value::Null)
}

impl Drop for Host {
    fn drop(&mut self) {
        for program in &mut self.programs {
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

/// Starts D-Bus and NetworkManager, and gives the host two NICs.
fn start() -> Vec<Child> {
    for folder in ["/run", "/etc", "/var"] {
        fs::create_dir_all(folder).unwrap();
        mount("weft", folder, "tmpfs", MountFlags::empty(), None).unwrap();
    }
    mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None).unwrap();
    // Read-only itself: then NetworkManager does not wait for udev. The files that configure links stay writable.
    for below in ["/sys/class", "/sys/devices"] {
        mount_bind(below, below).unwrap();
    }
    mount_remount("/sys", MountFlags::RDONLY | MountFlags::BIND, "").unwrap();
    for (path, text) in NetworkManager::files(&["*"]) {
        let path = Path::new("/").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let profiles = "/etc/NetworkManager/system-connections";
    for folder in [
        "/run/dbus",
        "/run/NetworkManager",
        "/var/lib/NetworkManager",
        profiles,
    ] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::set_permissions(profiles, fs::Permissions::from_mode(0o700)).unwrap();
    symlink("/run", "/var/run").unwrap();
    fs::write("/etc/passwd", "root:x:0:0:root:/:/bin/sh\n").unwrap();
    fs::write("/etc/group", "root:x:0:\n").unwrap();
    fs::write("/etc/machine-id", "00000000000000000000000000000001\n").unwrap();
    fs::write("/etc/resolv.conf", "").unwrap();
    let mut socket = Socket::open().unwrap();
    let up = |socket: &mut Socket, name: &str| {
        let link = socket.link_by_name(name).unwrap();
        socket.set_up(&link).unwrap();
    };
    up(&mut socket, "lo");
    for (name, peer_name) in [("eth1", "wire1"), ("eth2", "wire2")] {
        let veth = VethSpec {
            name,
            mac: None,
            mtu: None,
            peer_name,
            peer_ns: None,
        };
        socket.create_veth(&veth).unwrap();
        up(&mut socket, name);
        up(&mut socket, peer_name);
    }
    let log = fs::File::create(LOG).unwrap();
    let spawn = |program: &str, arguments: &[&str]| {
        Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log.try_clone().unwrap())
            .spawn()
            .unwrap()
    };
    let mut programs = vec![spawn(
        "/usr/bin/dbus-daemon",
        &[
            "--config-file=/etc/dbus-1/weft.conf",
            "--nofork",
            "--nopidfile",
            "--nosyslog",
        ],
    )];
    wait_until("the bus", || Path::new(BUS).exists());
    programs.push(spawn("/usr/sbin/NetworkManager", &["--debug"]));
    wait_until("NetworkManager", || self::log().contains("startup complete"));
    programs
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let outcome = cluster::wait::until(what, TIMEOUT, || if condition() { Ok(()) } else { Err(log()) });
    outcome.unwrap();
}

fn log() -> String {
    fs::read_to_string(LOG).unwrap_or_default()
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(future)
}

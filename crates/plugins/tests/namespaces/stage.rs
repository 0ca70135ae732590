//! A host, its containers, and calls of plugins.

#[path = "stage/call.rs"]
mod call;
#[path = "stage/state.rs"]
mod state;

use std::{
    cell::RefCell,
    fs, io,
    net::UdpSocket,
    os::{
        fd::AsFd as _,
        fd::AsRawFd as _,
        unix::fs::{PermissionsExt as _, symlink},
    },
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use linux::{
    address::Family,
    link::Link,
    netns::{NetNs, unshare_network},
    route::Socket,
    routes::Route,
};
use plugins::names::PREFIX;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use serde_json::{Value, json};

use self::{
    call::Prepared,
    state::{addresses, files, network},
};

pub(crate) use self::call::{Outcome, finish, start, variables};

/// All versions of the protocol.
pub(crate) const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// `CNI_PATH` of all calls.
pub(crate) const PLUGINS: &str = "/run/plugins";
/// Directory of the plugins' records of attachments, each in a folder of its name.
const RECORDS: &str = "/run/cni/weft";
/// Directory of the bridge plugin's records.
const BRIDGE_RECORDS: &str = "/run/cni/weft/bridge";
/// Files there that are no records.
const INDEX: &str = "/run/cni/weft/host-local/";
/// Directory of leases, in configs that set it.
pub(crate) const LEASES: &str = "/run/leases";

/// Runs `test` on a thread that is a host of its own. Without root it prints the reason and returns.
pub(crate) fn on_a_host(name: &str, test: impl FnOnce(&mut Host) + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: {name} needs root to make namespaces");
        return;
    }
    let thread = std::thread::spawn(|| test(&mut Host::new()));
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// The host: this thread's namespace.
pub(crate) struct Host {
    pub(crate) socket: Socket,
    pods: u32,
}

/// A container.
pub(crate) struct Pod {
    /// `CNI_NETNS`.
    pub(crate) path: String,
    /// `CNI_CONTAINERID`.
    pub(crate) id: String,
    pub(crate) ns: NetNs,
    /// A socket in it. Tests inspect pods by reference.
    pub(crate) socket: RefCell<Socket>,
}

#[allow(
    clippy::unused_self,
    reason = "a host stands for the namespaces that its thread is in"
)]
impl Host {
    fn new() -> Self {
        unshare_network().unwrap();
        linux::process::unshare_mounts().unwrap();
        for folder in ["/run", "/etc"] {
            mount("tmpfs", folder, "tmpfs", MountFlags::empty(), None).unwrap();
        }
        fs::create_dir_all("/run/netns").unwrap();
        fs::create_dir_all(PLUGINS).unwrap();
        for plugin in plugins::PLUGINS {
            for name in [plugin.name().to_owned(), format!("{PREFIX}{}", plugin.name())] {
                symlink(env!("CARGO_BIN_EXE_weft-cni"), Path::new(PLUGINS).join(name)).unwrap();
            }
        }
        let mut socket = Socket::open().unwrap();
        let lo = socket.link_by_name("lo").unwrap();
        socket.set_up(&lo).unwrap();
        Host { socket, pods: 0 }
    }

    /// A fresh container.
    pub(crate) fn pod(&mut self) -> Pod {
        self.pods += 1;
        let ns = NetNs::create_anonymous().unwrap();
        let path = format!("/run/netns/pod{}", self.pods);
        fs::write(&path, "").unwrap();
        mount_bind(format!("/proc/thread-self/fd/{}", ns.as_fd().as_raw_fd()), &path).unwrap();
        let socket = ns.run(Socket::open).unwrap().unwrap();
        Pod {
            path,
            id: format!("container-{}", self.pods),
            ns,
            socket: RefCell::new(socket),
        }
    }

    /// Another namespace of the same container, such as a restart of its sandbox would make.
    pub(crate) fn pod_like(&mut self, pod: &Pod) -> Pod {
        Pod {
            id: pod.id.clone(),
            ..self.pod()
        }
    }

    /// The same container, after the runtime has lost the path of its namespace.
    pub(crate) fn pod_without_path(&mut self, pod: &Pod) -> Pod {
        Pod {
            path: String::new(),
            ..self.pod_like(pod)
        }
    }

    /// Puts an executable script beside the plugins.
    pub(crate) fn script(&self, name: &str, body: &str) {
        let path = Path::new(PLUGINS).join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A fake IPAM plugin `fake` that prints `result` on ADD, succeeds at everything else, and records its calls
    /// for [`Host::fake_calls`].
    pub(crate) fn fake_ipam(&self, result: &Value) {
        fs::write("/run/fake.result", result.to_string()).unwrap();
        let record = r#"echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME" >> /run/fake.calls"#;
        self.script(
            "fake",
            &format!(
                "/bin/cat >/dev/null\n{record}\n[ $CNI_COMMAND = ADD ] && /bin/cat /run/fake.result\nexit 0"
            ),
        );
    }

    /// The verbs that the fake IPAM plugin was called with, and forgets them.
    pub(crate) fn fake_calls(&self) -> Vec<String> {
        let calls = fs::read_to_string("/run/fake.calls").unwrap_or_default();
        let _ = fs::remove_file("/run/fake.calls");
        calls
            .lines()
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect()
    }

    /// Runs a plugin with exactly these variables.
    pub(crate) fn run(&self, plugin: &str, variables: &[(&str, &str)], stdin: &str) -> Outcome {
        finish(start(plugin, variables, stdin))
    }

    /// Calls the plugin for `net1` of all these containers, `limit` calls at once.
    pub(crate) fn call_together<'a>(
        &self,
        limit: usize,
        verb: &str,
        calls: impl IntoIterator<Item = (&'a Pod, Value)>,
    ) -> Vec<Outcome> {
        let prepare = |(pod, config): (&Pod, Value)| Prepared::new(verb, pod, &config);
        let calls: Vec<_> = calls.into_iter().map(prepare).collect();
        let outcomes: Vec<_> = calls.iter().map(|_| Mutex::new(None)).collect();
        let next = AtomicUsize::new(0);
        // Threads are in the namespaces of the one that starts them.
        std::thread::scope(|scope| {
            for _ in 0..limit {
                scope.spawn(|| {
                    while let Some((index, call)) = {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        calls.get(index).map(|call| (index, call))
                    } {
                        *outcomes[index].lock().unwrap() = Some(finish(call.start()));
                    }
                });
            }
        });
        let outcome = |slot: Mutex<Option<Outcome>>| slot.into_inner().unwrap().unwrap();
        outcomes.into_iter().map(outcome).collect()
    }

    /// Calls the plugin and kills it `after` that time; whether it was killed before it ended.
    pub(crate) fn call_and_kill(&self, verb: &str, pod: &Pod, config: &Value, after: Duration) -> bool {
        let mut child = Prepared::new(verb, pod, config).start();
        let until = Instant::now() + after;
        // Finer than any sleep is.
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap().code().is_none()
    }

    /// Calls the plugin of `config`'s type for interface `net1` of a container.
    pub(crate) fn call(&self, verb: &str, pod: &Pod, config: &Value) -> Outcome {
        self.call_with(verb, pod, "net1", "", config)
    }

    /// [`Host::call`] for another interface and with `CNI_ARGS`.
    pub(crate) fn call_with(
        &self,
        verb: &str,
        pod: &Pod,
        ifname: &str,
        args: &str,
        config: &Value,
    ) -> Outcome {
        let plugin = config["type"].as_str().unwrap();
        self.run(plugin, &variables(verb, pod, ifname, args), &config.to_string())
    }

    /// ADD that must succeed.
    pub(crate) fn add(&self, pod: &Pod, config: &Value) -> Value {
        self.call("ADD", pod, config).success()
    }

    /// DEL that must succeed and print nothing.
    pub(crate) fn del(&self, pod: &Pod, config: &Value) {
        let outcome = self.call("DEL", pod, config);
        assert_eq!(outcome.success(), Value::Null);
        assert_eq!(outcome.stderr, "", "{outcome:?}");
    }

    /// GC, for which there is no container.
    pub(crate) fn gc(&self, config: &Value) -> Outcome {
        let plugin = config["type"].as_str().unwrap();
        let variables = [("CNI_COMMAND", "GC"), ("CNI_PATH", PLUGINS)];
        self.run(plugin, &variables, &config.to_string())
    }

    /// CHECK with the result of ADD.
    pub(crate) fn check(&self, pod: &Pod, config: &Value, result: &Value) -> Outcome {
        self.call("CHECK", pod, &with(config, "prevResult", result.clone()))
    }

    /// Everything that an attachment of `pod` could leave: links, addresses and routes of the host and of the
    /// container, and files. One line each.
    pub(crate) fn state(&mut self, pod: &Pod) -> String {
        let mut lines = network(&mut self.socket);
        lines.push("in the container:".to_owned());
        lines.extend(network(&mut pod.socket.borrow_mut()));
        lines.extend(self.records());
        lines.extend(files(Path::new(LEASES)));
        lines.join("\n")
    }

    /// The records of attachments.
    pub(crate) fn records(&self) -> Vec<String> {
        let mut records = files(Path::new(RECORDS));
        records.retain(|record| !record.starts_with(INDEX));
        records
    }

    /// The records of attachments that another plugin keeps.
    pub(crate) fn records_of(&self, plugin: &str) -> Vec<String> {
        files(&Path::new(RECORDS).join(plugin))
    }

    /// Replaces the record of `net1` of a container.
    pub(crate) fn write_record(&self, pod: &Pod, text: &str) {
        fs::write(format!("{BRIDGE_RECORDS}/test-net/{}:net1", pod.id), text).unwrap();
    }

    /// Deletes all records of bridge, because an upgrade from the upstream plugins begins without any.
    pub(crate) fn lose_records(&self) {
        self.lose_records_of("bridge");
    }

    /// Loses the records of one plugin.
    pub(crate) fn lose_records_of(&self, plugin: &str) {
        fs::remove_dir_all(Path::new(RECORDS).join(plugin)).unwrap();
    }

    /// A link of the host.
    pub(crate) fn link(&mut self, name: &str) -> Option<Link> {
        self.socket.find_link(name).unwrap()
    }

    /// The host's ends of pairs.
    pub(crate) fn veths(&mut self) -> Vec<Link> {
        let mut links = self.socket.links().unwrap();
        links.retain(|link| link.is_kind("veth"));
        links
    }

    /// Addresses of a host link, link-local ones left out.
    pub(crate) fn addresses(&mut self, name: &str) -> Vec<String> {
        addresses(&mut self.socket, name)
    }
}

impl Pod {
    /// A link of the container.
    pub(crate) fn link(&self, name: &str) -> Option<Link> {
        self.socket.borrow_mut().find_link(name).unwrap()
    }

    /// `net1`.
    pub(crate) fn net1(&self) -> Link {
        self.link("net1").expect("net1 in the container")
    }

    /// Addresses of `net1`, link-local ones left out.
    pub(crate) fn addresses(&self) -> Vec<String> {
        addresses(&mut self.socket.borrow_mut(), "net1")
    }

    /// Routes by way of a gateway.
    pub(crate) fn routes(&self, family: Family) -> Vec<Route> {
        let mut routes = self.socket.borrow_mut().routes(family).unwrap();
        routes.retain(|route| route.gateway.is_some());
        routes
    }

    /// Changes the container by its socket.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Socket) -> linux::Result<T>) -> T {
        change(&mut self.socket.borrow_mut()).unwrap()
    }

    /// The content of a file below `/proc/sys`, seen from inside.
    pub(crate) fn sysctl(&self, path: &str) -> String {
        let read = || fs::read_to_string(PathBuf::from("/proc/sys").join(path));
        self.ns.run(read).unwrap().unwrap().trim().to_owned()
    }

    /// Writes a file below `/proc/sys` from inside.
    pub(crate) fn set_sysctl(&self, path: &str, value: &str) {
        self.ns
            .run(|| fs::write(PathBuf::from("/proc/sys").join(path), value))
            .unwrap()
            .unwrap();
    }

    /// A UDP socket in the container, on port 7777, that may broadcast.
    pub(crate) fn udp(&self) -> UdpSocket {
        let socket = bind(&self.ns, || UdpSocket::bind("0.0.0.0:7777"));
        socket.set_broadcast(true).unwrap();
        socket.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        socket
    }

    /// Sends a word to the container's own port 7777, from inside.
    pub(crate) fn udp_loopback(&self, word: &str) {
        let socket = self.ns.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
        socket.send_to(word.as_bytes(), (self.address(), 7777)).unwrap();
    }

    /// The first address of `net1`, without its prefix.
    fn address(&self) -> std::net::IpAddr {
        let net: ipnet::IpNet = self.addresses()[0].parse().unwrap();
        net.addr()
    }

    /// Takes the namespace's path away, as the end of a sandbox does.
    pub(crate) fn lose_path(&self) {
        unmount(&self.path, UnmountFlags::DETACH).unwrap();
        fs::remove_file(&self.path).unwrap();
    }
}

/// Binds a socket in a namespace.
pub(crate) fn bind<T>(ns: &NetNs, mut socket: impl FnMut() -> io::Result<T>) -> T {
    cluster::wait::bind(|| ns.run(&mut socket).unwrap()).unwrap()
}

/// A layer 2 config of `bridge` for bridge `br0`.
pub(crate) fn l2(version: &str) -> Value {
    json!({ "cniVersion": version, "name": "test-net", "type": "bridge", "bridge": "br0" })
}

/// A layer 3 config with these addresses by `static`.
pub(crate) fn l3(version: &str, addresses: &[&str]) -> Value {
    let addresses: Vec<_> = addresses
        .iter()
        .map(|address| json!({ "address": address }))
        .collect();
    with(
        &l2(version),
        "ipam",
        json!({ "type": "static", "addresses": addresses }),
    )
}

/// A config with one more key.
pub(crate) fn with(config: &Value, key: &str, value: Value) -> Value {
    let mut config = config.clone();
    config[key] = value;
    config
}

//! A host with a bridge, a DHCP server on it, the daemon, and containers.

use std::{
    collections::BTreeMap,
    fs,
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use clap::Parser;
use cluster::{DNSMASQ_PROGRAM, Home, Packages, Quiet};
use cni::plugin::{Outcome, dispatch};
use linux::{
    address::Family,
    link::BridgeSpec,
    monitor::HostMonitor,
    netns::{NetNs, unshare_network},
    route::Socket,
    routes::Route,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use serde_json::{Value, json};

/// The daemon's socket and the directory of its leases.
pub(crate) const SOCKET: &str = "/run/cni/dhcp.sock";
pub(crate) const RECORDS: &str = "/run/cni/weft/dhcp";
/// The socket of a service manager.
pub(crate) const ACTIVATED: &str = "/run/activated.sock";
/// The server's leases and log.
const SERVER_LEASES: &str = "/run/dnsmasq.leases";
const SERVER_LOG: &str = "/run/dnsmasq.log";
/// A variable that makes this program a daemon instead of a test; its value is the daemon's flags.
const IS_DAEMON: &str = "WEFT_TEST_DHCP_DAEMON";
/// A deadline that a healthy machine never reaches.
const FAR: Duration = Duration::from_mins(2);

/// Runs `test` on a thread with a host of its own. Without root it prints the reason and returns.
pub(crate) fn on_a_host(name: &str, test: impl FnOnce(&mut Host) + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: {name} needs root to make namespaces");
        return;
    }
    let programs = Packages::ensure_dnsmasq(&Home::from_env().unwrap(), &mut Quiet).unwrap();
    let thread = std::thread::spawn(|| test(&mut Host::new(programs)));
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Waits until `probe` returns a value. After the deadline it prints the state of server and daemon.
pub(crate) fn wait_for<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    let found = cluster::wait::until_some(what, FAR, probe, || {
        format!(
            "\nleases of the server:\n{}\nrecords: {:?}\nlog of the server:\n{}",
            server_leases(),
            records(),
            server_log(),
        )
    });
    found.unwrap_or_else(|error| panic!("{error}"))
}

/// The host: this thread's namespaces.
pub(crate) struct Host {
    programs: Packages,
    pods: u32,
}

impl Host {
    fn new(programs: Packages) -> Self {
        unshare_network().unwrap();
        linux::process::unshare_mounts().unwrap();
        mount("tmpfs", "/run", "tmpfs", MountFlags::empty(), None).unwrap();
        fs::create_dir_all("/run/netns").unwrap();
        let mut socket = Socket::open().unwrap();
        let lo = socket.link_by_name("lo").unwrap();
        socket.set_up(&lo).unwrap();
        let spec = BridgeSpec {
            name: "br0",
            mtu: None,
            mac: None,
            vlan_filtering: false,
        };
        socket.create_bridge(&spec).unwrap();
        let bridge = socket.link_by_name("br0").unwrap();
        socket.set_up(&bridge).unwrap();
        socket
            .add_address(&bridge, "10.77.0.1/24".parse().unwrap())
            .unwrap();
        Host { programs, pods: 0 }
    }

    /// Starts a server that leases addresses of a range such as `10.77.0.10,10.77.0.19` for two minutes.
    pub(crate) fn server(&self, range: &str, options: &[&str]) -> Process {
        let mut command = self.programs.command(DNSMASQ_PROGRAM);
        command
            .args([
                "--keep-in-foreground",
                "--conf-file=/dev/null",
                "--port=0",
                "--user=root",
            ])
            .args([
                "--interface=br0",
                "--bind-interfaces",
                "--no-ping",
                "--dhcp-authoritative",
            ])
            .args(["--log-dhcp", "--pid-file="])
            .arg(format!("--log-facility={SERVER_LOG}"))
            .arg(format!("--dhcp-leasefile={SERVER_LEASES}"))
            .arg(format!("--dhcp-range={range},255.255.255.0,2m"))
            .args(options);
        let server = Process(command.spawn().unwrap());
        wait_for("the start of the server", || {
            server_log().contains("DHCP, IP range").then_some(())
        });
        server
    }

    /// Starts a daemon and waits until it answers.
    #[allow(
        clippy::unused_self,
        reason = "a host stands for the namespaces that its thread is in"
    )]
    pub(crate) fn daemon(&self, flags: &[&str]) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["stage::a_daemon_runs_in_this_program", "--exact", "--nocapture"])
            .env(IS_DAEMON, flags.join(" "))
            .stdout(Stdio::null());
        let daemon = Process(command.spawn().unwrap());
        wait_for("the start of the daemon", || UnixStream::connect(SOCKET).ok());
        daemon
    }

    /// Starts a daemon with the socket [`ACTIVATED`], as a service manager does.
    #[allow(
        clippy::unused_self,
        reason = "a host stands for the namespaces that its thread is in"
    )]
    pub(crate) fn activated_daemon(&self) -> Process {
        let listener = UnixListener::bind(ACTIVATED).unwrap();
        // The shell keeps its process id, and passes the socket as the first descriptor after the standard ones.
        let script = "export LISTEN_PID=$$ LISTEN_FDS=1; \
                      exec \"$0\" stage::a_daemon_runs_in_this_program --exact 3<&0 0</dev/null";
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", script])
            .arg(std::env::current_exe().unwrap())
            .env(IS_DAEMON, "")
            .stdin(OwnedFd::from(listener))
            .stdout(Stdio::null());
        // The socket queues connections until the daemon answers.
        Process(command.spawn().unwrap())
    }

    /// A new container.
    pub(crate) fn pod(&mut self) -> Pod {
        self.pods += 1;
        let path = PathBuf::from(format!("/run/netns/pod-{}", self.pods));
        let ns = NetNs::create_anonymous().unwrap();
        fs::write(&path, "").unwrap();
        mount_bind(format!("/proc/thread-self/fd/{}", ns.as_fd().as_raw_fd()), &path).unwrap();
        Pod {
            id: format!("container-{}", self.pods),
            path,
            ns: Some(ns),
        }
    }
}

/// A running program. It ends when it is dropped.
pub(crate) struct Process(Child);

impl Process {
    /// Kills the program with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Ends the program with SIGTERM. Returns whether it succeeded.
    pub(crate) fn terminate(mut self) -> bool {
        let id = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        self.0.wait().unwrap().success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The program may already have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[derive(Parser)]
struct DaemonCommand {
    #[command(flatten)]
    args: dhcp::Args,
}

/// Not a test: the daemon, in a process that tests can kill.
#[test]
fn a_daemon_runs_in_this_program() {
    let Ok(flags) = std::env::var(IS_DAEMON) else {
        return;
    };
    program::logging::start(program::logging::Format::Text, program::logging::DEFAULT);
    let argv = ["dhcp-daemon"].into_iter().chain(flags.split_whitespace());
    let args = DaemonCommand::parse_from(argv).args;
    kube_kit::process::run(dhcp::run(args)).unwrap().unwrap();
}

/// A container.
pub(crate) struct Pod {
    id: String,
    path: PathBuf,
    ns: Option<NetNs>,
}

impl Pod {
    /// Calls the plugin of the configuration for an interface.
    pub(crate) fn call(&self, verb: &str, ifname: &str, config: &Value) -> Outcome {
        let variables = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", &self.id),
            ("CNI_NETNS", self.path.to_str().unwrap()),
            ("CNI_IFNAME", ifname),
            ("CNI_PATH", "/nowhere"),
            ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=pod-name"),
        ];
        run(&variables, config)
    }

    /// Runs an ADD for `net1`, which must succeed.
    pub(crate) fn add(&self, config: &Value) -> Value {
        success(&self.call("ADD", "net1", config))
    }

    /// Runs a DEL for `net1`, which must succeed.
    pub(crate) fn del(&self, config: &Value) {
        assert_eq!(self.call("DEL", "net1", config).code, 0);
    }

    /// The entry of this container in a list of valid attachments.
    pub(crate) fn valid(&self) -> Value {
        json!({ "containerID": self.id, "ifname": "net1" })
    }

    fn socket(&self) -> Socket {
        self.ns.as_ref().unwrap().run(Socket::open).unwrap().unwrap()
    }

    pub(crate) fn has_link(&self, name: &str) -> bool {
        self.socket().find_link(name).unwrap().is_some()
    }

    /// IPv4 addresses of `net1`.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let mut socket = self.socket();
        let link = socket.link_by_name("net1").unwrap();
        let addresses = socket.addresses(&link, Some(Family::V4)).unwrap();
        addresses.iter().map(|address| address.net.to_string()).collect()
    }

    /// Adds an address to `net1`.
    pub(crate) fn add_address(&self, net: &str) {
        let mut socket = self.socket();
        let link = socket.link_by_name("net1").unwrap();
        socket.add_address(&link, net.parse().unwrap()).unwrap();
    }

    /// Adds a route over `net1`.
    pub(crate) fn add_route(&self, to: &str, gateway: &str) {
        let mut socket = self.socket();
        let link = socket.link_by_name("net1").unwrap();
        let route = Route {
            gateway: Some(gateway.parse().unwrap()),
            link: Some(link.index),
            ..Route::to(to.parse().unwrap())
        };
        socket.add_route(&route).unwrap();
    }

    /// IPv4 routes through a gateway, sorted.
    pub(crate) fn routes(&self) -> Vec<String> {
        let routes = self.socket().routes(Family::V4).unwrap();
        let by_gateway = routes.iter().filter(|route| route.gateway.is_some());
        let mut routes: Vec<_> = by_gateway.map(ToString::to_string).collect();
        routes.sort();
        routes
    }

    /// Changes of links, addresses and routes from now on.
    pub(crate) fn events(&self) -> HostMonitor {
        self.ns.as_ref().unwrap().run(HostMonitor::open).unwrap().unwrap()
    }

    /// Ends the container without a DEL.
    pub(crate) fn end(&mut self) {
        self.ns = None;
        unmount(&self.path, UnmountFlags::DETACH).unwrap();
        fs::remove_file(&self.path).unwrap();
    }
}

/// Calls the plugin of the configuration with exactly these variables.
pub(crate) fn run(variables: &[(&str, &str)], config: &Value) -> Outcome {
    let variables: BTreeMap<_, _> = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let plugin = plugins::plugin_by_name(config["type"].as_str().unwrap()).unwrap();
    dispatch(plugin, &variables, || Ok(config.to_string().into_bytes()))
}

/// The output of a successful call.
pub(crate) fn success(outcome: &Outcome) -> Value {
    assert_eq!(
        outcome.code,
        0,
        "{outcome:?}\nlog of the server:\n{}",
        server_log()
    );
    serde_json::from_str(&outcome.stdout).unwrap_or(Value::Null)
}

/// The error text of a failed call.
pub(crate) fn message(outcome: &Outcome) -> String {
    assert_eq!(outcome.code, 1, "{outcome:?}");
    let error: Value = serde_json::from_str(&outcome.stdout).unwrap();
    error["msg"].as_str().unwrap().to_owned()
}

/// A configuration of `bridge` with addresses from `dhcp`.
pub(crate) fn config(ipam: &Value) -> Value {
    let mut ipam = ipam.clone();
    ipam["type"] = "dhcp".into();
    json!({ "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br0", "ipam": ipam })
}

/// The server's leases, one line each.
pub(crate) fn server_leases() -> String {
    fs::read_to_string(SERVER_LEASES).unwrap_or_default()
}

/// Removes the server's leases, so that the next server has none.
pub(crate) fn forget_server_leases() {
    for file in [SERVER_LEASES, SERVER_LOG] {
        fs::remove_file(file).unwrap();
    }
}

/// The server's log.
pub(crate) fn server_log() -> String {
    fs::read_to_string(SERVER_LOG).unwrap_or_default()
}

/// The files of the daemon's leases.
pub(crate) fn records() -> Vec<PathBuf> {
    let entries = fs::read_dir(Path::new(RECORDS)).into_iter().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    // A file that is being written has another name.
    paths.retain(|path| path.extension().is_some_and(|it| it == "json"));
    paths
}

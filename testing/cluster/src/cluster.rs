//! The lifecycle of a cluster, and its use.

mod assembly;
mod beside;
mod kube_proxy;
mod owner;

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use self::assembly::{Assembly, Heartbeat};
use self::owner::Ownership;

pub use self::beside::Certificate;

use crate::cgroup::Groups;
use crate::debian::Packages;
use crate::error::{At, Error, Result};
use crate::home::Home;
use crate::image;
use crate::kubectl::Kubectl;
use crate::kubernetes::{Program, Programs};
use crate::network::Families;
use crate::network_manager;
use crate::node;
use crate::process::Process;
use crate::progress::Progress;
use crate::run;
use crate::space::Space;
use crate::wait;

/// Default name of a cluster.
const DEFAULT_NAME: &str = "weft";

/// Directory of the clusters in a home.
const CLUSTERS: &str = "clusters";

/// Field of a cluster's record: see [`Cluster::has_pod_network`].
const POD_NETWORK: &str = "podNetwork";

/// Field of a cluster's record: see [`Cluster::has_dual_stack`].
const DUAL_STACK: &str = "dualStack";

/// Options of a cluster.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a choice of its own, which tests name"
)]
pub struct Options {
    /// Directory of caches and of the cluster's files.
    pub home: Home,
    /// Distinguishes clusters of one home. Part of paths.
    pub name: String,
    /// Number of nodes, at least 1. Their names are `node01`, `node02` and so on.
    pub nodes: usize,
    /// If true, NetworkManager runs on the nodes. It manages `eth1`, and interfaces that a test makes it configure.
    pub network_manager: bool,
    /// If true, pods of a new cluster have a network of Debian's plugins and static routes. Otherwise nodes stay
    /// `NotReady` until a network is installed. The first start of a cluster decides.
    pub pod_network: bool,
    /// If true, kube-proxy is a program of the nodes. Otherwise Services do not work until kube-proxy is installed. The
    /// first start of a cluster decides.
    pub kube_proxy: bool,
    /// If true, nodes, pods and Services of a new cluster have IPv6 addresses beside those of IPv4, which stay the primary
    /// ones. An existing cluster keeps its address families.
    pub dual_stack: bool,
}

impl Options {
    /// Returns options for two nodes with NetworkManager, a pod network, kube-proxy and IPv4 alone, in the home of
    /// [`Home::from_env`], with the name in `WEFT_CLUSTER`, by default `weft`.
    pub fn from_env() -> Result<Self> {
        let name = std::env::var("WEFT_CLUSTER").ok().filter(|name| !name.is_empty());
        let name = name.unwrap_or_else(|| DEFAULT_NAME.to_owned());
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(Error::Missing(format!(
                "WEFT_CLUSTER={name}: use letters, digits and dashes only"
            )));
        }
        Ok(Self {
            home: Home::from_env()?,
            name,
            nodes: 2,
            network_manager: true,
            pod_network: true,
            kube_proxy: true,
            dual_stack: false,
        })
    }
}

/// A Kubernetes cluster on this machine, which may or may not exist.
#[derive(Debug)]
pub struct Cluster {
    options: Options,
    dir: PathBuf,
    /// The name of all parts of this cluster that the host sees: the groups and the end of the link.
    tag: String,
    groups: Groups,
    control: Space,
    nodes: Vec<Space>,
    ownership: Ownership,
}

/// A program of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component {
    /// `control`, or the name of a node.
    pub space: String,
    /// Name of the program.
    pub program: String,
    /// True if the program runs.
    pub runs: bool,
    /// File with the output.
    pub log: PathBuf,
}

impl Cluster {
    /// Returns the cluster of `options`, without changing it.
    pub fn new(options: Options) -> Result<Self> {
        let clusters = options.home.path().join(CLUSTERS);
        let dir = clusters.join(&options.name);
        let ownership = Ownership::of(&clusters, &options.name);
        let tag = format!("weft-{:08x}", fnv(&dir.to_string_lossy()));
        let groups = Groups::new(&tag)?;
        let control = Space::new(&dir, "control", &groups);
        let nodes = (1..=options.nodes)
            .map(|index| Space::new(&dir, &format!("node{index:02}"), &groups))
            .collect();
        Ok(Self {
            options,
            dir,
            tag,
            groups,
            control,
            nodes,
            ownership,
        })
    }

    /// Returns the clusters of a home whose owner has ended. The owner is the process that [claimed](Self::claim) the
    /// cluster.
    pub fn abandoned(home: &Home) -> Result<Vec<Self>> {
        let names = owner::abandoned(&home.path().join(CLUSTERS));
        let cluster = |name| {
            Self::new(Options {
                home: home.clone(),
                name,
                nodes: 1,
                network_manager: false,
                pod_network: true,
                kube_proxy: true,
                dual_stack: false,
            })
        };
        names.into_iter().map(cluster).collect()
    }

    /// Returns the cluster of [`Options::from_env`].
    pub fn from_env() -> Result<Self> {
        Self::new(Options::from_env()?)
    }

    /// Returns the name, which distinguishes the clusters of a home.
    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// Returns the names of the nodes.
    pub fn nodes(&self) -> Vec<&str> {
        self.nodes.iter().map(Space::name).collect()
    }

    /// Returns the kubeconfig of an administrator, for use on the host.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// Returns the audit log of the API server with all requests, one JSON object per line.
    pub fn audit_log(&self) -> PathBuf {
        self.dir.join("logs/audit.log")
    }

    /// Returns a client of this cluster.
    pub fn kubectl(&self) -> Kubectl {
        let program = self.record()["kubectl"]
            .as_str()
            .map_or_else(|| PathBuf::from("kubectl"), PathBuf::from);
        Kubectl::new(&program, &self.kubeconfig())
    }

    /// Returns true if the API server answers, all programs of Kubernetes run, and all nodes are ready, as far as
    /// possible without a pod network.
    pub fn is_up(&self) -> bool {
        self.components_of_kubernetes()
            .iter()
            .all(|component| component.runs)
            && self.kubectl().run(["get", "--raw", "/readyz"]).is_ok()
            && assembly::heartbeats(self).is_ok_and(|beats| beats.iter().all(|beat| self.accepts(beat)))
    }

    /// Returns true if a node is as ready as it can be.
    fn accepts(&self, beat: &Heartbeat) -> bool {
        beat.is_ready() || !self.has_pod_network() && beat.lacks_network()
    }

    /// Returns true if pods have the network of Debian's plugins and static routes: by the options if the cluster is new,
    /// and by its creation otherwise.
    pub fn has_pod_network(&self) -> bool {
        let of_nodes = || self.nodes.iter().any(node::has_pod_network);
        keeps_pod_network(&self.record(), self.options.pod_network, of_nodes)
    }

    /// Returns true if nodes, pods and Services also have IPv6 addresses: by the options if the cluster is new, and by its
    /// creation otherwise.
    pub fn has_dual_stack(&self) -> bool {
        keeps_dual_stack(&self.record(), self.options.dual_stack)
    }

    fn families(&self) -> Families {
        if self.has_dual_stack() {
            Families::Dual
        } else {
            Families::Single
        }
    }

    /// Returns all programs, running or not.
    pub fn components(&self) -> Vec<Component> {
        let mut all = self.components_of_kubernetes();
        let beside = self.beside();
        all.extend(beside.iter().map(|program| component(&self.control, program)));
        all
    }

    fn components_of_kubernetes(&self) -> Vec<Component> {
        let control = [
            "etcd",
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
        ];
        let mut all: Vec<Component> = control
            .iter()
            .map(|program| component(&self.control, program))
            .collect();
        let mut programs = vec!["containerd", "kubelet"];
        if self.has_kube_proxy() {
            programs.push(Program::Proxy.name());
        }
        if self.options.network_manager {
            programs.extend([network_manager::BUS_PROGRAM, network_manager::PROGRAM]);
        }
        for node in &self.nodes {
            all.extend(programs.iter().map(|program| component(node, program)));
        }
        all
    }

    /// Downloads packages and builds programs. Takes minutes the first time, and almost no time afterwards.
    pub fn prepare(&self, progress: &mut dyn Progress) -> Result<()> {
        must_be_root()?;
        Packages::ensure(&self.options.home, progress)?;
        if self.options.network_manager {
            Packages::ensure_network_manager(&self.options.home, progress)?;
        }
        Programs::ensure(&self.options.home, &Program::ALL, progress).map(drop)
    }

    /// Starts the cluster, or its missing parts. Can be repeated, and is fast if nothing is missing. An
    /// [abandoned](Self::abandoned) cluster loses its owner, so that it persists.
    pub fn up(&self, progress: &mut dyn Progress) -> Result<()> {
        must_be_root()?;
        let _lock = self.lock(progress)?;
        if self.ownership.is_abandoned() {
            self.ownership.remove()?;
        }
        if self.is_up() {
            return Ok(());
        }
        Assembly::prepare(self, progress)?.run(progress)
    }

    /// Makes this process the owner of the cluster, before the start. When this process ends, the cluster is
    /// [abandoned](Self::abandoned).
    ///
    /// # Errors
    /// If another running process is the owner.
    pub fn claim(&self, progress: &mut dyn Progress) -> Result<()> {
        let own = Process::current()?;
        let _lock = self.lock(progress)?;
        match self.ownership.other_than(own) {
            None => self.ownership.write(own),
            Some(other) => Err(Error::Missing(format!(
                "cluster {} is in use by process {}, which removes it when it ends: wait for that, or set WEFT_HOME to \
                 another directory",
                self.options.name,
                other.number()
            ))),
        }
    }

    /// Ends the ownership of this process: the cluster persists until [`Self::down`].
    pub fn keep(&self, progress: &mut dyn Progress) -> Result<()> {
        let own = Process::current()?;
        let _lock = self.lock(progress)?;
        match self.ownership.other_than(own) {
            None => self.ownership.remove(),
            Some(_) => Ok(()),
        }
    }

    /// Removes the cluster with all its parts. Caches are kept.
    pub fn down(&self, progress: &mut dyn Progress) -> Result<()> {
        must_be_root()?;
        let _lock = self.lock(progress)?;
        self.remove(progress)
    }

    /// Removes the cluster like [`Self::down`], if its owner has ended. Returns true if it was removed.
    pub fn down_if_abandoned(&self, progress: &mut dyn Progress) -> Result<bool> {
        must_be_root()?;
        let _lock = self.lock(progress)?;
        let abandoned = self.ownership.is_abandoned();
        if abandoned {
            self.remove(progress)?;
        }
        Ok(abandoned)
    }

    /// Removes the cluster. The caller holds the lock.
    fn remove(&self, progress: &mut dyn Progress) -> Result<()> {
        progress.step(&format!("ending the processes of cluster {}", self.options.name));
        self.groups.remove(None, Duration::from_mins(2))?;
        self.unplug()?;
        progress.step(&format!("removing {}", self.dir.display()));
        wait::until(
            "the cluster's files to be removed",
            Duration::from_mins(1),
            || match fs::remove_dir_all(&self.dir) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        )?;
        // The last step, so that another run repeats an interrupted removal.
        self.ownership.remove()
    }

    /// Removes the link to the host, which may outlive the control plane while the kernel cleans up.
    fn unplug(&self) -> Result<()> {
        let host_end = Path::new("/sys/class/net").join(&self.tag);
        let packages = Packages::present(&self.options.home);
        wait::until(
            "the link to the host to be removed",
            Duration::from_mins(1),
            || {
                if !host_end.exists() {
                    return Ok(());
                }
                let removed = run::output(packages.command("usr/bin/ip").args(["link", "delete", &self.tag]));
                removed.map(drop).map_err(|error| error.to_string())
            },
        )
    }

    /// Describes the leftovers of the cluster on this machine. Empty after [`Self::down`].
    pub fn remains(&self) -> Vec<String> {
        let mut found: Vec<String> = self
            .groups
            .processes(None)
            .iter()
            .map(|pid| format!("process {pid}"))
            .collect();
        found.extend(
            self.groups
                .existing()
                .iter()
                .map(|dir| format!("control group {}", dir.display())),
        );
        let host_end = Path::new("/sys/class/net").join(&self.tag);
        let paths = [self.dir.clone(), host_end];
        found.extend(
            paths
                .iter()
                .filter(|path| path.exists())
                .map(|path| path.display().to_string()),
        );
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = self.dir.display().to_string();
        found.extend(
            mounts
                .lines()
                .filter(|line| line.contains(&own))
                .map(|line| format!("mount {line}")),
        );
        found
    }

    /// Imports the images of a docker archive into every node that lacks them, and returns their names.
    pub fn load(&self, archive: &Path) -> Result<Vec<String>> {
        let references = image::references(archive)?;
        std::thread::scope(|scope| {
            let imports: Vec<_> = self
                .nodes
                .iter()
                .map(|node| {
                    let references = &references;
                    scope.spawn(move || import(node, archive, references))
                })
                .collect();
            for import in imports {
                import
                    .join()
                    .unwrap_or_else(|_| Err(Error::Missing("an import panicked".to_owned())))?;
            }
            Ok(())
        })?;
        Ok(references)
    }

    /// Returns a command that runs `argv` on the node, in all its namespaces.
    pub fn node_command<S: AsRef<std::ffi::OsStr>>(
        &self,
        node: &str,
        argv: impl IntoIterator<Item = S>,
    ) -> Result<Command> {
        self.space(node)?.command(argv)
    }

    /// Returns a command that runs `argv` in the network of a node, with the files of this machine.
    pub fn network_command<S: AsRef<std::ffi::OsStr>>(
        &self,
        node: &str,
        argv: impl IntoIterator<Item = S>,
    ) -> Result<Command> {
        self.space(node)?.command_in(&["--net"], argv)
    }

    /// Kills NetworkManager of a node, and starts it again, like an init system.
    ///
    /// # Errors
    /// If it did not run on that node, or does not start.
    pub fn crash_network_manager(&self, node: &str) -> Result<()> {
        let space = self.space(node)?;
        network_manager::kill_on(space)?;
        network_manager::start_on(space)
    }

    /// Kills a long-running program of a node, or of `control`. [`Self::up`] starts it again.
    ///
    /// # Errors
    /// If the node is missing, or the program does not run.
    pub fn crash(&self, node: &str, program: &str) -> Result<()> {
        self.space(node)?.kill(program)
    }

    /// Ends a node like a power cut: only its disk persists. [`Self::up`] starts it again.
    ///
    /// # Errors
    /// If the node is missing, or does not end.
    pub fn cut_power(&self, node: &str) -> Result<()> {
        self.space(node)?.end()
    }

    /// Returns a socket in the network of a node, or of `control`, for use by any thread.
    pub(crate) fn udp_socket(&self, node: &str, address: SocketAddr) -> Result<UdpSocket> {
        let network = self.space(node)?.network()?;
        on_network(&network, || UdpSocket::bind(address)).map_err(|source| Error::Io {
            what: format!("cannot listen on {address} of {node}"),
            source,
        })
    }

    /// Calls `work` in the network namespace of a process, such as that of a pod. Sockets that it makes stay there.
    ///
    /// # Errors
    /// When there is no such process, or `work` fails.
    pub fn on_network_of<T: Send>(pid: i32, work: impl FnOnce() -> io::Result<T> + Send) -> Result<T> {
        let path = PathBuf::from(format!("/proc/{pid}/ns/net"));
        let network = fs::File::open(&path).at("open", &path)?;
        on_network(&network, work).at("use the network of", &path)
    }

    /// Starts a long-running program of a node, apart from this process: it ends with the cluster. A running program is
    /// left alone. The program is a path on the node; its output is among the [logs](Self::logs).
    ///
    /// # Errors
    /// When there is no such node, or the program ends at once.
    pub fn start_on(&self, node: &str, name: &str, argv: &[String]) -> Result<bool> {
        self.space(node)?.start(name, argv)
    }

    /// Returns the host's process numbers of all processes of a node, or of `control`.
    pub fn processes(&self, node: &str) -> Vec<i32> {
        self.groups.processes(Some(node))
    }

    /// Returns the host's process number of the node's first process.
    pub fn node_pid(&self, node: &str) -> Result<u32> {
        self.space(node)?
            .pid()
            .ok_or_else(|| Error::Missing(format!("{node} is not running")))
    }

    /// Returns the host's path of a file of the node in `/etc`, `/opt` or `/var`.
    pub fn node_file(&self, node: &str, path: &str) -> Result<PathBuf> {
        Ok(self.space(node)?.file(path.trim_start_matches('/')))
    }

    /// Returns the log files of the cluster's programs.
    pub fn logs(&self) -> Vec<PathBuf> {
        let dir = self.dir.join("logs");
        let mut files: Vec<PathBuf> = fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        files.sort();
        files
    }

    fn space(&self, name: &str) -> Result<&Space> {
        std::iter::once(&self.control)
            .chain(&self.nodes)
            .find(|space| space.name() == name)
            .ok_or_else(|| {
                Error::Missing(format!(
                    "there is no node {name}; there are control, {}",
                    self.nodes().join(", ")
                ))
            })
    }

    fn lock(&self, progress: &mut dyn Progress) -> Result<fs::File> {
        self.options
            .home
            .lock(&format!("cluster-{}", self.options.name), progress)
    }

    fn record(&self) -> Value {
        let text = fs::read_to_string(self.dir.join("cluster.json")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }
}

/// Returns the recorded choice, or the one for a cluster that is new. If a record lacks it, the nodes show it.
fn keeps_pod_network(record: &Value, chosen: bool, of_nodes: impl FnOnce() -> bool) -> bool {
    match record {
        Value::Null => chosen,
        record => record[POD_NETWORK].as_bool().unwrap_or_else(of_nodes),
    }
}

/// Returns the recorded choice, or that of the options for a cluster without a record. Clusters of older versions, whose
/// records lack it, have IPv4 alone.
fn keeps_dual_stack(record: &Value, wanted: bool) -> bool {
    match record {
        Value::Null => wanted,
        record => record[DUAL_STACK].as_bool().unwrap_or(false),
    }
}

fn component(space: &Space, program: &str) -> Component {
    Component {
        space: space.name().to_owned(),
        program: program.to_owned(),
        runs: space.runs(program),
        log: space.log(program),
    }
}

fn import(node: &Space, archive: &Path, references: &[String]) -> Result<()> {
    let present =
        run::output(&mut node.command(["ctr", "--namespace", "k8s.io", "images", "list", "--quiet"])?)?;
    if references
        .iter()
        .all(|reference| present.lines().any(|line| line == reference))
    {
        return Ok(());
    }
    let file = fs::File::open(archive).at("open", archive)?;
    let mut import = node.command(["ctr", "--namespace", "k8s.io", "images", "import", "-"])?;
    run::output_keeping_input(import.stdin(Stdio::from(file))).map(drop)
}

/// Calls `work` in a network namespace, on a thread that goes there and does not come back.
fn on_network<T: Send>(network: &fs::File, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let enter = || {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        work()
    };
    std::thread::scope(|scope| scope.spawn(enter).join()).unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

fn must_be_root() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Error::Missing(
        "a cluster needs namespaces and control groups: run this as root".to_owned(),
    ))
}

/// FNV-1a. Different names should not collide; nothing else matters.
fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// Returns true if a process listens on a loopback port of the host.
pub(crate) fn answers(port: u16) -> bool {
    TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), Duration::from_secs(1)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cluster_with_a_record_keeps_its_network() {
        for recorded in [true, false] {
            let record = json!({ POD_NETWORK: recorded });
            assert_eq!(keeps_pod_network(&record, !recorded, || !recorded), recorded);
            assert_eq!(keeps_pod_network(&Value::Null, recorded, || !recorded), recorded);
            let older = json!({ "host": "169.254.1.1" });
            assert_eq!(keeps_pod_network(&older, !recorded, || recorded), recorded);
        }
    }

    #[test]
    fn cluster_with_a_record_keeps_its_address_families() {
        for wanted in [true, false] {
            assert_eq!(keeps_dual_stack(&Value::Null, wanted), wanted);
            assert!(keeps_dual_stack(&json!({ DUAL_STACK: true }), wanted));
            assert!(!keeps_dual_stack(&json!({ DUAL_STACK: false }), wanted));
            assert!(!keeps_dual_stack(&json!({ "host": "169.254.1.1" }), wanted));
        }
    }
}

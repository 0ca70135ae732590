//! Open vSwitch in a directory and in the network namespace of the starting thread, or on a node of a cluster.
//!
//! ```text
//! test ──> db.sock ── ovsdb-server ── conf.db
//!                          └── ovs-vswitchd   taps and veths of the namespace, packets in user space
//! ```
//!
//! It needs only the kernel module `tun`: bridges of type `netdev` forward packets in user space.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::cluster::Cluster;
use crate::debian::Packages;
use crate::error::{At, Error, Result};
use crate::home::Home;
use crate::progress::Quiet;
use crate::run;
use crate::wait;

/// Timeout of a start or a command. Machines differ by a factor of ten.
const TIMEOUT: Duration = Duration::from_mins(2);

const SERVER: &str = "usr/sbin/ovsdb-server";
const SWITCH: &str = "usr/lib/openvswitch-switch/ovs-vswitchd";
const TOOL: &str = "usr/bin/ovsdb-tool";
const CONTROL: &str = "usr/bin/ovs-vsctl";
const SCHEMA: &str = "usr/share/openvswitch/vswitch.ovsschema";

/// Names of files in the directory.
const DATABASE: &str = "conf.db";
const SOCKET: &str = "db.sock";
/// Directory in which plugins expect the socket.
const USUAL_DIRECTORY: &str = "run/openvswitch";

/// Variables with the directories of the programs.
const DIRECTORIES: [&str; 4] = ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"];

/// A running Open vSwitch. A drop, or the end of the starting thread, kills its daemons.
#[derive(Debug)]
pub struct OpenVswitch {
    packages: Packages,
    dir: PathBuf,
    /// File of the network namespace, unless it is the thread's.
    network: Option<PathBuf>,
    server: Option<Child>,
    switch: Option<Child>,
}

impl OpenVswitch {
    /// Returns its packages, which may have to be downloaded: call this before the thread enters a namespace.
    ///
    /// # Errors
    /// If the packages cannot be downloaded.
    pub fn packages() -> Result<Packages> {
        Packages::ensure_open_vswitch(&Home::from_env()?, &mut Quiet)
    }

    /// Starts both daemons with an empty database in `dir`, which will contain unix sockets and therefore needs a short
    /// path. Interfaces of bridges must be in the calling thread's network namespace.
    ///
    /// # Errors
    /// If a daemon does not start; the error contains its log.
    pub fn start(packages: &Packages, dir: &Path) -> Result<Self> {
        let mut switch = Self::start_database(packages, dir)?;
        switch.start_switch()?;
        Ok(switch)
    }

    /// Starts both daemons on a node, with the database where the node's plugins expect it.
    ///
    /// # Errors
    /// If the node does not run, or a daemon does not start; the error contains its log.
    pub fn start_on(cluster: &Cluster, node: &str) -> Result<Self> {
        let packages = Self::packages()?;
        let process = PathBuf::from(format!("/proc/{}", cluster.node_pid(node)?));
        let dir = process.join("root").join(USUAL_DIRECTORY);
        fs::create_dir_all(&dir).at("create", &dir)?;
        let mut switch = Self::new(&packages, &dir);
        switch.network = Some(process.join("ns/net"));
        switch.create_database()?;
        switch.start_switch()?;
        Ok(switch)
    }

    /// Starts the database server alone with an empty database in `dir`: configuration is stored without an effect.
    ///
    /// # Errors
    /// If it does not start; the error contains its log.
    pub fn start_database(packages: &Packages, dir: &Path) -> Result<Self> {
        let mut switch = Self::new(packages, dir);
        switch.create_database()?;
        Ok(switch)
    }

    fn new(packages: &Packages, dir: &Path) -> Self {
        Self {
            packages: packages.clone(),
            dir: dir.to_owned(),
            network: None,
            server: None,
            switch: None,
        }
    }

    fn create_database(&mut self) -> Result<()> {
        let (database, schema) = (self.dir.join(DATABASE), self.packages.file(SCHEMA));
        // An interrupted run may have left a database.
        let _ = fs::remove_file(&database);
        run::output(self.command(TOOL).arg("create").args([&database, &schema]))?;
        self.start_database_again()?;
        run::output(self.control().args(["--no-wait", "init"])).map(drop)
    }

    fn start_switch(&mut self) -> Result<()> {
        let socket = format!("unix:{}", self.socket().display());
        self.switch = Some(self.spawn(SWITCH, &["--disable-system", &socket])?);
        Ok(())
    }

    /// Kills `ovs-vswitchd`, and starts it again. The next changing [`Self::vsctl`] waits until the switch is
    /// configured.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn crash_switch(&mut self) -> Result<()> {
        end(self.switch.take());
        self.start_switch()
    }

    /// Kills the database server. The socket is removed, and the database persists.
    ///
    /// # Errors
    /// If the socket cannot be removed.
    pub fn kill_database(&mut self) -> Result<()> {
        end(self.server.take());
        let socket = self.socket();
        fs::remove_file(&socket).at("remove", &socket)
    }

    /// Starts the database server after [`Self::kill_database`], and waits until it listens.
    ///
    /// # Errors
    /// If it ends at once; the error contains its log.
    pub fn start_database_again(&mut self) -> Result<()> {
        let remote = format!("--remote=punix:{}", self.socket().display());
        let database = self.dir.join(DATABASE).display().to_string();
        let mut server = self.spawn(SERVER, &[&database, &remote])?;
        let started = wait::until("ovsdb-server to listen", TIMEOUT, || {
            if UnixStream::connect(self.socket()).is_ok() {
                return Ok(Ok(()));
            }
            match server.try_wait() {
                Ok(Some(status)) => Ok(Err(Error::Missing(format!(
                    "ovsdb-server ended ({status}){}",
                    run::tail(&self.log())
                )))),
                _ => Err(run::tail(&self.log())),
            }
        });
        self.server = Some(server);
        started?
    }

    /// The unix socket of the database server.
    pub fn socket(&self) -> PathBuf {
        self.dir.join(SOCKET)
    }

    /// Adds a bridge that forwards packets in user space.
    ///
    /// # Errors
    /// If `ovs-vsctl` fails; the error contains its output and the log.
    pub fn add_bridge(&self, name: &str) -> Result<()> {
        let arguments = [
            "add-br",
            name,
            "--",
            "set",
            "bridge",
            name,
            "datapath_type=netdev",
        ];
        self.vsctl(arguments).map(drop)
    }

    /// Runs `ovs-vsctl` and returns its output. If `ovs-vswitchd` runs, the change is in effect afterwards.
    ///
    /// # Errors
    /// If it fails; the error contains its output and the log.
    pub fn vsctl<S: AsRef<std::ffi::OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<String> {
        let mut control = self.control();
        if self.switch.is_none() {
            control.arg("--no-wait");
        }
        run::output(control.args(arguments)).inspect_err(|_| eprintln!("{}", self.log()))
    }

    /// Returns the logs of both daemons.
    pub fn log(&self) -> String {
        [SERVER, SWITCH]
            .map(|program| fs::read_to_string(self.log_of(program)).unwrap_or_default())
            .concat()
    }

    fn control(&self) -> Command {
        let mut command = self.command(CONTROL);
        command
            .arg(format!("--db=unix:{}", self.socket().display()))
            .arg(format!("--timeout={}", TIMEOUT.as_secs()));
        command
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.packages.command(program);
        command.envs(DIRECTORIES.map(|name| (name, &self.dir)));
        command
    }

    fn spawn(&self, program: &str, arguments: &[&str]) -> Result<Child> {
        let log = self.log_of(program);
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .at("open", &log)?;
        let copy = file.try_clone().at("write", &log)?;
        let daemon = self.command(program);
        let variables = daemon.get_envs();
        let variables = variables.filter_map(|(name, value)| Some((name, value?)));
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if let Some(network) = &self.network {
            command.arg("nsenter").arg(format!("--net={}", network.display()));
        }
        command
            .arg(daemon.get_program())
            .arg("--no-chdir")
            .arg(format!(
                "--unixctl={}.ctl",
                self.dir.join(name(program)).display()
            ))
            .args(arguments)
            .envs(variables)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(copy)
            .spawn()
            .at("start", Path::new(program))
    }

    fn log_of(&self, program: &str) -> PathBuf {
        self.dir.join(format!("{}.log", name(program)))
    }
}

impl Drop for OpenVswitch {
    fn drop(&mut self) {
        end(self.switch.take());
        end(self.server.take());
    }
}

fn end(child: Option<Child>) {
    if let Some(mut child) = child {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Returns the name of a program without its directory.
fn name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

//! A machine made of namespaces: the control plane, or a node.
//!
//! Its first process holds all its namespaces. When that process is killed, the kernel ends all processes in the pid
//! namespace, and then removes mounts, interfaces and names. Nothing else has to be cleaned up.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::cgroup::Groups;
use crate::error::{At, Error, Result};
use crate::process::Process;
use crate::run;
use crate::wait;

/// Search path in a space. `/kubernetes` contains the bind-mounted programs.
const PATH: &str = "/kubernetes:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A space, which may or may not exist.
#[derive(Debug, Clone)]
pub(crate) struct Space {
    name: String,
    dir: PathBuf,
    logs: PathBuf,
    groups: Groups,
}

/// The configuration of a new space.
#[derive(Debug)]
pub(crate) struct Blueprint<'a> {
    /// Directories of unpacked packages to overlay on `/usr`, the first on top.
    pub(crate) layers: Vec<String>,
    /// Files and directories of the host (first), and their paths in the space (second).
    pub(crate) binds: Vec<(PathBuf, String)>,
    /// The space whose end also ends this one.
    pub(crate) parent: Option<&'a Space>,
}

impl Space {
    /// Returns the space `name` of the cluster in directory `cluster`.
    pub(crate) fn new(cluster: &Path, name: &str, groups: &Groups) -> Self {
        Self {
            name: name.to_owned(),
            dir: cluster.join(name),
            logs: cluster.join("logs"),
            groups: groups.clone(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns a file of the host that is in `etc`, `var` or `opt` of the space.
    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.dir.join(path)
    }

    /// Returns the host's process number of the first process, if the space exists and is complete.
    pub(crate) fn pid(&self) -> Option<u32> {
        let first = Process::parse(&fs::read_to_string(self.dir.join("pid")).ok()?)?;
        let pid = first.number();
        let ready = first.lives() && Path::new(&format!("/proc/{pid}/root/run/weft/ready")).exists();
        ready.then_some(pid)
    }

    fn existing(&self) -> Result<u32> {
        self.pid().ok_or_else(|| {
            Error::Missing(format!(
                "{} is not running: bring the cluster up with `cargo xtask cluster up`",
                self.name
            ))
        })
    }

    /// Creates the space, after the end of a leftover one.
    pub(crate) fn create(&self, blueprint: &Blueprint<'_>) -> Result<()> {
        self.end()?;
        for name in ["etc", "var/lib", "var/log", "var/tmp", "opt", "root"] {
            let dir = self.dir.join(name);
            fs::create_dir_all(&dir).at("create", &dir)?;
        }
        let run_link = self.dir.join("var/run");
        if !run_link.is_symlink() {
            std::os::unix::fs::symlink("/run", &run_link).at("create", &run_link)?;
        }
        let script = self.dir.join("space.sh");
        fs::write(&script, include_str!("space.sh")).at("write", &script)?;
        let binds = self.dir.join("binds");
        let lines = blueprint
            .binds
            .iter()
            .map(|(from, to)| format!("{} {to}\n", from.display()));
        fs::write(&binds, lines.collect::<String>()).at("write", &binds)?;

        let entries = self.groups.create(&self.name)?;
        let mut command = Command::new("setsid");
        command.arg("--fork");
        if let Some(parent) = blueprint.parent {
            command.args([
                "nsenter",
                &format!("--target={}", parent.existing()?),
                "--pid",
                "--",
            ]);
        }
        // The shell enters the groups first, so that all later parts can be found through them.
        command.args(["sh", "-c", "script=$1; shift; for entry; do echo 0 >\"$entry\" || exit 1; done; exec unshare --mount --net --pid --uts --ipc --cgroup --fork --propagation=private sh \"$script\"", "sh"]);
        command.arg(&script).args(entries);
        command
            .env_clear()
            .env("PATH", PATH)
            .env("SPACE", &self.dir)
            .env("NAME", &self.name);
        command
            .env("LAYERS", blueprint.layers.join(":"))
            .env("CGROUPS", self.groups.mounts());
        let log = self.log_file("space")?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().at("write", &self.log("space"))?)
            .stderr(log);
        let shown = run::shown(&command);
        let status = command.status().at("run", Path::new("setsid"))?;
        if !status.success() {
            return Err(run::failure(
                &command,
                status,
                &fs::read_to_string(self.log("space")).unwrap_or_default(),
            ));
        }
        let what = format!("the namespaces of {}", self.name);
        let evidence = || {
            let log = fs::read_to_string(self.log("space")).unwrap_or_default();
            format!("\n    started by: {shown}{}", run::tail(&log))
        };
        wait::until_some(&what, Duration::from_secs(30), || self.pid(), evidence)?;
        self.groups.settle(&self.name)
    }

    /// Ends the space with all its processes, if it exists.
    pub(crate) fn end(&self) -> Result<()> {
        self.groups.remove(Some(&self.name), Duration::from_mins(1))?;
        let _ = fs::remove_file(self.dir.join("pid"));
        Ok(())
    }

    /// Returns a command that runs `argv` inside the space, as root.
    pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(
        &self,
        argv: impl IntoIterator<Item = S>,
    ) -> Result<Command> {
        self.command_in(&["--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup"], argv)
    }

    /// Returns a command that runs `argv` in some namespaces of the space (options of `nsenter`).
    pub(crate) fn command_in<S: AsRef<std::ffi::OsStr>>(
        &self,
        namespaces: &[&str],
        argv: impl IntoIterator<Item = S>,
    ) -> Result<Command> {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--target={}", self.existing()?))
            .args(namespaces)
            .arg("--")
            .args(argv);
        command
            .env(
                "PATH",
                format!("{PATH}:{}", std::env::var("PATH").unwrap_or_default()),
            )
            .env_remove("LD_LIBRARY_PATH");
        Ok(command)
    }

    /// Runs a shell script in the space, with `input` as its standard input.
    pub(crate) fn script(&self, script: &str, input: Stdio) -> Result<String> {
        run::output_keeping_input(self.command(["sh", "-euc", script])?.stdin(input))
    }

    /// Returns the network namespace, for a program.
    pub(crate) fn network(&self) -> Result<File> {
        let path = PathBuf::from(format!("/proc/{}/ns/net", self.existing()?));
        File::open(&path).at("open", &path)
    }

    /// Returns the log file of a program.
    pub(crate) fn log(&self, program: &str) -> PathBuf {
        self.logs.join(format!("{}-{program}.log", self.name))
    }

    fn log_file(&self, program: &str) -> Result<File> {
        fs::create_dir_all(&self.logs).at("create", &self.logs)?;
        let path = self.log(program);
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .at("open", &path)
    }

    /// Returns true if the long-running `program` runs.
    pub(crate) fn runs(&self, program: &str) -> bool {
        let Some(first) = self.pid() else { return false };
        let Ok(pid) = fs::read_to_string(format!("/proc/{first}/root/run/weft/{program}.pid")) else {
            return false;
        };
        let stat =
            fs::read_to_string(format!("/proc/{first}/root/proc/{}/stat", pid.trim())).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| !rest.starts_with('Z'))
    }

    /// Starts the long-running `program` unless it runs, independent of this process and its terminal. Returns true if
    /// it was started.
    pub(crate) fn start(&self, program: &str, argv: &[String]) -> Result<bool> {
        if self.runs(program) {
            return Ok(false);
        }
        let log = self.log_file(program)?;
        let launch = "for p in /sys/fs/cgroup/system/cgroup.procs /sys/fs/cgroup/*/system/cgroup.procs; do \
             [ -e \"$p\" ] && echo $$ >\"$p\"; done; echo $$ >\"$0\"; exec \"$@\"";
        let pid_file = format!("/run/weft/{program}.pid");
        let mut words = vec!["setsid", "--fork", "sh", "-c", launch, &pid_file];
        words.extend(argv.iter().map(String::as_str));
        let mut command = self.command(&words)?;
        command.env_clear().env("PATH", PATH);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().at("write", &self.log(program))?)
            .stderr(log);
        let status = command.status().at("run", Path::new("nsenter"))?;
        if !status.success() {
            return Err(run::failure(
                &command,
                status,
                &fs::read_to_string(self.log(program)).unwrap_or_default(),
            ));
        }
        wait::until_some(
            &format!("the start of {program} on {}", self.name),
            Duration::from_secs(30),
            || self.runs(program).then_some(()),
            || self.evidence(program),
        )?;
        Ok(true)
    }

    /// Kills the long-running `program`, and waits for its end, because [`Self::start`] would otherwise find it
    /// running.
    pub(crate) fn kill(&self, program: &str) -> Result<()> {
        let kill = format!("kill -KILL \"$(cat /run/weft/{program}.pid)\"");
        self.script(&kill, Stdio::null())?;
        wait::until_some(
            &format!("the end of {program} on {}", self.name),
            Duration::from_mins(1),
            || (!self.runs(program)).then_some(()),
            || self.evidence(program),
        )
    }

    /// Waits until `program` listens on a TCP port of the space.
    pub(crate) fn wait_listening(&self, program: &str, port: u16, deadline: Duration) -> Result<()> {
        let first = self.existing()?;
        let listening = |name: &str| {
            let table = fs::read_to_string(format!("/proc/{first}/net/{name}")).unwrap_or_default();
            table.lines().any(|line| {
                let mut fields = line.split_whitespace().skip(1);
                let local = fields.next().unwrap_or_default();
                local.ends_with(&format!(":{port:04X}")) && fields.nth(1) == Some("0A")
            })
        };
        wait::until_some(
            &format!("{program} to listen on port {port}"),
            deadline,
            || (listening("tcp") || listening("tcp6")).then_some(()),
            || self.evidence(program),
        )
    }

    /// Returns the end of a program's output, for errors.
    pub(crate) fn evidence(&self, program: &str) -> String {
        let path = self.log(program);
        let alive = if self.runs(program) { "runs" } else { "has ended" };
        let log = fs::read_to_string(&path).unwrap_or_default();
        format!(
            "\n    {program} on {} {alive}; the end of {}:{}",
            self.name,
            path.display(),
            run::tail(&log)
        )
    }
}

//! NetworkManager in namespaces, with a separate D-Bus: on the nodes of a cluster, or on a host that consists of a
//! network namespace and a mount namespace.
//!
//! ```text
//! test ──stdin── sh (namespaces) ──┬── dbus-daemon      /run/dbus/system_bus_socket
//!   └── enters ──────^             └── NetworkManager   /etc/NetworkManager, /var/lib/NetworkManager
//! ```
//!
//! It is never started in the machine's namespaces. Without udev, NetworkManager needs a read-only `/sys`.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::MemfdFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};

use crate::debian::Packages;
use crate::error::{At, Error, Result};
use crate::home::Home;
use crate::progress::Progress;
use crate::run;
use crate::space::Space;
use crate::wait;

/// Search path on a host with [`NetworkManager`].
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Timeout of a start. Machines differ by a factor of ten.
const TIMEOUT: Duration = Duration::from_mins(2);

/// Configuration of the D-Bus daemon: all users have all permissions.
const BUS: &str = r#"<busconfig>
  <type>system</type>
  <listen>unix:path=/run/dbus/system_bus_socket</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
  </policy>
</busconfig>
"#;

/// Returns the configuration of a NetworkManager that touches only `interfaces`, and interfaces that a test makes it
/// configure. `unmanaged-devices` would prevent the latter.
fn config(interfaces: &[&str]) -> String {
    let managed: String = interfaces
        .iter()
        .map(|name| format!(",except:interface-name:{name}"))
        .collect();
    format!(
        "[main]\n\
         plugins=keyfile\n\
         no-auto-default=*\n\
         auth-polkit=false\n\
         dhcp=internal\n\
         dns=default\n\
         rc-manager=file\n\
         hostname-mode=none\n\
         [device-others]\n\
         match-device=*{managed}\n\
         managed=0\n\
         [connectivity]\n\
         enabled=false\n\
         [logging]\n\
         level=INFO\n"
    )
}

/// Names of the programs on a node.
pub(crate) const BUS_PROGRAM: &str = "dbus-daemon";
pub(crate) const PROGRAM: &str = "NetworkManager";

/// The spare NIC of a node.
const SPARE: &str = "eth1";

/// Returns true if the node was created with NetworkManager.
pub(crate) fn is_installed(node: &Space) -> bool {
    let program = |pid| Path::new("/proc").join(format!("{pid}/root/usr/sbin/NetworkManager"));
    node.pid().is_some_and(|pid| program(pid).exists())
}

/// Starts it on a node, for its spare NIC. Containers with the node's `/run` find its bus there.
pub(crate) fn start_on(node: &Space) -> Result<()> {
    for (path, text) in NetworkManager::files(&[SPARE]) {
        let file = node.file(path);
        if let Some(dir) = file.parent() {
            fs::create_dir_all(dir).at("create", dir)?;
        }
        fs::write(&file, text).at("write", &file)?;
    }
    node.script("mkdir -p /run/dbus", Stdio::null())?;
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let bus = words(&[
        BUS_PROGRAM,
        "--config-file=/etc/dbus-1/weft.conf",
        "--nofork",
        "--nopidfile",
        "--nosyslog",
    ]);
    let socket = "until [ -S /run/dbus/system_bus_socket ]; do sleep 0.05; done";
    if node.start(BUS_PROGRAM, &bus)? {
        run::output(&mut node.command(["timeout", "60", "sh", "-c", socket])?)?;
    }
    // NetworkManager does not wait for udev if `/sys` is read-only. The directories that configure links stay writable.
    // Unmounts on the node must propagate.
    let start = "for below in class devices; do mount --bind /sys/$below /sys/$below; done
        mount -o remount,bind,ro /sys
        exec NetworkManager --debug";
    let manager = words(&["unshare", "--mount", "--propagation=slave", "sh", "-ec", start]);
    node.start(PROGRAM, &manager).map(drop)
}

/// True if the bus name is free: `nmcli` exits with this status.
const IS_GONE: &str = "status=0; nmcli general >/dev/null 2>&1 || status=$?; [ $status = 8 ]";

/// Kills it on a node. The bus may hold the name a moment longer, and another NetworkManager would exit then.
pub(crate) fn kill_on(node: &Space) -> Result<()> {
    node.kill(PROGRAM)?;
    wait::until_some(
        &format!("the end of {PROGRAM} on {}", node.name()),
        TIMEOUT,
        || {
            let is_gone = !node.runs(PROGRAM) && node.script(IS_GONE, Stdio::null()).is_ok();
            is_gone.then_some(())
        },
        || node.evidence(PROGRAM),
    )
}

/// A host with NetworkManager. It ends when this is dropped, or with the process.
///
/// It has a separate network with only `lo`, and separate `/run`, `/etc` and `/var/lib`. It shares processes, programs
/// and all other files with the machine.
#[derive(Debug)]
pub struct NetworkManager {
    shell: Child,
    /// The output of its programs, in memory.
    output: File,
    starts: u32,
}

impl NetworkManager {
    /// Starts a host, and waits until it is ready. It manages `interfaces` by name, even if they do not exist yet, and
    /// interfaces that a test makes it configure. It ignores all others.
    ///
    /// # Errors
    /// Without root, if the packages cannot be downloaded, or if it does not start; the error contains its log.
    pub fn start(home: &Home, interfaces: &[&str], progress: &mut dyn Progress) -> Result<Self> {
        let packages = Packages::ensure_network_manager(home, progress)?;
        let tools = Packages::ensure(home, progress)?;
        let layers = [&packages, &tools].map(Packages::layer);
        let layers: Vec<String> = layers.into_iter().flatten().collect();

        let failed = |source: std::io::Error| Error::Io {
            what: "cannot start a host with NetworkManager".to_owned(),
            source,
        };
        let output = rustix::fs::memfd_create("network-manager", MemfdFlags::CLOEXEC);
        let output = File::from(output.map_err(|errno| failed(errno.into()))?);
        let shell = Command::new("unshare")
            .args(["--mount", "--net", "--propagation=private"])
            .args(["sh", "-c", include_str!("network_manager.sh"), "network-manager"])
            .env_clear()
            .env("PATH", PATH)
            .env("LAYERS", layers.join(":"))
            .env("BUS", BUS)
            .env("CONFIG", config(interfaces))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(output.try_clone().map_err(failed)?)
            .stderr(output.try_clone().map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        let mut host = Self {
            shell,
            output,
            starts: 1,
        };
        host.wait_started()?;
        Ok(host)
    }

    /// Returns the configuration files of D-Bus daemon and NetworkManager for these interfaces, by their path below
    /// `/`.
    pub fn files(interfaces: &[&str]) -> [(&'static str, String); 2] {
        [
            ("etc/dbus-1/weft.conf", BUS.to_owned()),
            ("etc/NetworkManager/NetworkManager.conf", config(interfaces)),
        ]
    }

    /// Returns a command that runs `argv` on the host.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, argv: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--target={}", self.pid()))
            .args(["--mount", "--net", "--"])
            .args(argv)
            .env("PATH", PATH)
            .env_remove("LD_LIBRARY_PATH");
        command
    }

    /// Runs a shell script on the host and returns its output.
    ///
    /// # Errors
    /// If it fails; the error contains the output.
    pub fn script(&self, script: &str) -> Result<String> {
        run::output(&mut self.command(["sh", "-euc", script]))
    }

    /// Moves the calling thread permanently onto the host. Threads that it starts run there too.
    ///
    /// # Errors
    /// If the thread shares the root of its file system with others, which is the default. A thread in a separate mount
    /// namespace does not.
    pub fn enter(&self) -> Result<()> {
        let shell = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let shell = shell.ok_or_else(|| Error::Missing("the host has no process".to_owned()))?;
        let namespaces = ThreadNameSpaceType::NETWORK | ThreadNameSpaceType::MOUNT;
        pidfd_open(shell, PidfdFlags::empty())
            .and_then(|shell| move_into_thread_name_spaces(std::os::fd::AsFd::as_fd(&shell), namespaces))
            .map_err(|errno| Error::Io {
                what: "cannot enter the host's namespaces".to_owned(),
                source: errno.into(),
            })
    }

    /// Returns the number of a process on the host: `/proc/NUMBER/ns` contains its namespaces.
    pub fn pid(&self) -> u32 {
        self.shell.id()
    }

    /// Kills NetworkManager.
    ///
    /// # Errors
    /// If the host has ended.
    pub fn kill(&mut self) -> Result<()> {
        self.send("kill")
    }

    /// Starts NetworkManager after [`Self::kill`], and waits until it is ready.
    ///
    /// # Errors
    /// If it does not start; the error contains its log.
    pub fn start_again(&mut self) -> Result<()> {
        self.send("start")?;
        self.starts += 1;
        self.wait_started()
    }

    /// Returns the output of D-Bus daemon and NetworkManager.
    pub fn log(&self) -> String {
        let length = self.output.metadata().map_or(0, |meta| meta.len());
        let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
        let read = self.output.read_at(&mut bytes, 0).unwrap_or_default();
        bytes.truncate(read);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn send(&mut self, command: &str) -> Result<()> {
        let sent = match &mut self.shell.stdin {
            Some(stdin) => writeln!(stdin, "{command}"),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        sent.map_err(|source| Error::Io {
            what: format!("cannot {command} NetworkManager on the host"),
            source,
        })
    }

    fn wait_started(&mut self) -> Result<()> {
        let line = format!("weft: started {}", self.starts);
        let started = wait::until("NetworkManager to start", TIMEOUT, || {
            let log = self.log();
            if log.lines().any(|printed| printed == line) {
                return Ok(Ok(()));
            }
            match self.shell.try_wait() {
                Ok(Some(status)) => Ok(Err(Error::Missing(format!(
                    "the host with NetworkManager ended ({status}){}",
                    run::tail(&log)
                )))),
                _ => Err(run::tail(&log)),
            }
        });
        started?
    }
}

impl Drop for NetworkManager {
    fn drop(&mut self) {
        // The kernel kills the host's programs when the shell ends.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_manages_only_named_interfaces() {
        let line = |interfaces: &[&str]| {
            let config = config(interfaces);
            let line = config.lines().find(|line| line.starts_with("match-device"));
            line.unwrap().to_owned()
        };
        assert_eq!(line(&[]), "match-device=*");
        assert_eq!(
            line(&["eth1", "eth2"]),
            "match-device=*,except:interface-name:eth1,except:interface-name:eth2"
        );
    }
}

//! NetworkManager inside namespaces, with a D-Bus of its own: on the nodes of a cluster, and on a host of its own that
//! is a network namespace and a mount namespace and nothing else.
//!
//! ```text
//! test ──stdin── sh (namespaces) ──┬── dbus-daemon      /run/dbus/system_bus_socket
//!   └── enters ──────^             └── NetworkManager   /etc/NetworkManager, /var/lib/NetworkManager
//! ```
//!
//! Neither is ever started in the machine's own namespaces. NetworkManager works without udev where `/sys` itself
//! is read-only.

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

/// Search path on the host of a [`NetworkManager`].
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How long a start may take; machines differ by a factor of ten.
const PATIENCE: Duration = Duration::from_mins(2);

/// What the D-Bus daemon reads: everybody on it may do everything.
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

/// What NetworkManager reads when it may touch nothing but `interfaces` unless it is asked to: what `unmanaged-devices`
/// names it would not touch when asked, either.
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

/// Whether the node was made with it.
pub(crate) fn is_installed(node: &Space) -> bool {
    let program = |pid| Path::new("/proc").join(format!("{pid}/root/usr/sbin/NetworkManager"));
    node.pid().is_some_and(|pid| program(pid).exists())
}

/// Starts it on a node, for its spare NIC alone. Whatever is mounted from the node's `/run` finds its bus there.
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
    // Read-only itself: then it does not wait for udev. What it configures links by stays writable. And what is
    // unmounted on the node is not to be kept by it.
    let start = "for below in class devices; do mount --bind /sys/$below /sys/$below; done
        mount -o remount,bind,ro /sys
        exec NetworkManager --debug";
    let manager = words(&["unshare", "--mount", "--propagation=slave", "sh", "-ec", start]);
    node.start(PROGRAM, &manager).map(drop)
}

/// Whether nobody has its name on the bus: `nmcli` says so by this status.
const IS_GONE: &str = "status=0; nmcli general >/dev/null 2>&1 || status=$?; [ $status = 8 ]";

/// Ends it on a node as a crash does. The bus may hold its name a moment longer, and a successor would give up then.
pub(crate) fn kill_on(node: &Space) -> Result<()> {
    node.kill(PROGRAM)?;
    wait::until_some(
        &format!("the end of {PROGRAM} on {}", node.name()),
        PATIENCE,
        || {
            let is_gone = !node.runs(PROGRAM) && node.script(IS_GONE, Stdio::null()).is_ok();
            is_gone.then_some(())
        },
        || node.evidence(PROGRAM),
    )
}

/// A host with NetworkManager, which ends with this value, or with the process that holds it.
///
/// It has a network of its own with nothing but `lo` in it, `/run`, `/etc` and `/var/lib` of its own, and shares
/// processes, programs and all other files with the machine.
#[derive(Debug)]
pub struct NetworkManager {
    shell: Child,
    /// What its programs print, in memory.
    output: File,
    starts: u32,
}

impl NetworkManager {
    /// Starts one, and waits until it is ready. It manages `interfaces`, by name, whether they are there or not, and
    /// those that it is asked to configure; it leaves all others alone.
    ///
    /// # Errors
    /// Without root, when the packages can't be brought in, and when it does not start; the error shows its log.
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

    /// What D-Bus daemon and NetworkManager read, by its place below `/`, when it is to manage these interfaces.
    pub fn files(interfaces: &[&str]) -> [(&'static str, String); 2] {
        [
            ("etc/dbus-1/weft.conf", BUS.to_owned()),
            ("etc/NetworkManager/NetworkManager.conf", config(interfaces)),
        ]
    }

    /// A command that runs `argv` on the host.
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

    /// Runs a shell script on the host and returns what it prints.
    ///
    /// # Errors
    /// When it fails; the error carries what it printed.
    pub fn script(&self, script: &str) -> Result<String> {
        run::output(&mut self.command(["sh", "-euc", script]))
    }

    /// Puts the calling thread, for good, onto the host; threads that it starts are there as well.
    ///
    /// # Errors
    /// When the thread shares its file system's root with others, as threads do; one in a mount namespace of its own
    /// does not.
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

    /// Number of a process on the host: `/proc/NUMBER/ns` has its namespaces.
    pub fn pid(&self) -> u32 {
        self.shell.id()
    }

    /// Ends NetworkManager as a crash would.
    ///
    /// # Errors
    /// When the host is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.tell("kill")
    }

    /// Starts NetworkManager after [`Self::kill`], and waits until it is ready.
    ///
    /// # Errors
    /// When it does not start; the error shows its log.
    pub fn start_again(&mut self) -> Result<()> {
        self.tell("start")?;
        self.starts += 1;
        self.wait_started()
    }

    /// What D-Bus daemon and NetworkManager printed until now.
    pub fn log(&self) -> String {
        let length = self.output.metadata().map_or(0, |meta| meta.len());
        let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
        let read = self.output.read_at(&mut bytes, 0).unwrap_or_default();
        bytes.truncate(read);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn tell(&mut self, word: &str) -> Result<()> {
        let told = match &mut self.shell.stdin {
            Some(stdin) => writeln!(stdin, "{word}"),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        told.map_err(|source| Error::Io {
            what: format!("cannot tell the host to {word} NetworkManager"),
            source,
        })
    }

    fn wait_started(&mut self) -> Result<()> {
        let line = format!("weft: started {}", self.starts);
        let started = wait::until("NetworkManager to start", PATIENCE, || {
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
        // Its programs ask the kernel to be killed when the shell dies.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_managed_but_what_is_named() {
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

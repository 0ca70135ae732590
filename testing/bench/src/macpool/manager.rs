//! The program that is measured: started, asked whether it is ready, and looked at from outside.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rcgen::{CertificateParams, KeyPair};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::http::{Connection, Server};
use crate::objects::{MANAGER_NAMESPACE, RANGE};

/// Where the webhooks are served.
const PORT: u16 = 8000;
/// Where the program finds its certificate.
const CERTIFICATES: &str = "/tmp/k8s-webhook-server/serving-certs";
/// What of that path may be missing on this machine.
const MOUNTED: &str = "/tmp/k8s-webhook-server";
/// Longest start: the established program took minutes once.
const PATIENCE: Duration = Duration::from_mins(10);
/// Between two questions whether it is ready.
const PAUSE: Duration = Duration::from_millis(1);

/// A certificate where managers look for it. Only this process and its children see it.
pub(crate) struct Certificate {
    /// Whether this machine had no such directory.
    created: bool,
}

impl Certificate {
    /// Makes one.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let created = !Path::new(MOUNTED).exists();
        fs::create_dir_all(MOUNTED).with_context(|| format!("cannot create {MOUNTED}"))?;
        mount("tmpfs", MOUNTED, "tmpfs", MountFlags::empty(), None)
            .with_context(|| format!("cannot mount a tmpfs on {MOUNTED}"))?;
        let mounted = Self { created };
        fs::create_dir_all(CERTIFICATES).with_context(|| format!("cannot create {CERTIFICATES}"))?;
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(vec!["localhost".to_owned()])?.self_signed(&key)?;
        let write = |name: &str, text: String| {
            let path = Path::new(CERTIFICATES).join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        write("tls.crt", certificate.pem())?;
        write("tls.key", key.serialize_pem())?;
        Ok(mounted)
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        // The mount ends with this process anyway; the directory below it is the machine's.
        if unmount(MOUNTED, UnmountFlags::DETACH).is_ok() && self.created {
            let _ = fs::remove_dir(MOUNTED);
        }
    }
}

/// How a manager is started.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) kubeconfig: PathBuf,
    /// Where its log goes.
    pub(crate) log: PathBuf,
}

/// A running manager. Dropping it kills it.
pub(crate) struct Manager {
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts it, and does not wait.
    pub(crate) fn spawn(&self) -> anyhow::Result<Manager> {
        let log =
            fs::File::create(&self.log).with_context(|| format!("cannot create {}", self.log.display()))?;
        let mut command = Command::new(&self.path);
        command
            .args([
                "kubemacpool",
                "--v=production",
                "--metrics-addr=127.0.0.1:8443",
                "--kubeconfig",
            ])
            .arg(&self.kubeconfig)
            .env("POD_NAMESPACE", MANAGER_NAMESPACE)
            .env("POD_NAME", "kubemacpool-mac-controller-manager-0")
            .env("RANGE_START", RANGE.0)
            .env("RANGE_END", RANGE.1)
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot share the log")?)
            .stderr(log);
        let child = command
            .spawn()
            .with_context(|| format!("cannot run {}", self.path.display()))?;
        Ok(Manager {
            child,
            log: self.log.clone(),
        })
    }

    /// Starts it, and waits until it is ready: the time that this took.
    pub(crate) fn start(&self) -> anyhow::Result<(Manager, Duration)> {
        let began = Instant::now();
        let mut manager = self.spawn()?;
        manager.wait_until_ready(began)?;
        Ok((manager, began.elapsed()))
    }
}

impl Manager {
    /// Where it serves.
    pub(crate) fn server() -> anyhow::Result<Server> {
        Server::new(PORT, None)
    }

    fn wait_until_ready(&mut self, began: Instant) -> anyhow::Result<()> {
        let server = Self::server()?;
        let mut connection: Option<Connection> = None;
        loop {
            let answer = match connection.take().map_or_else(|| server.connect(), Ok) {
                Ok(mut open) => {
                    let answer = open.ask("GET", "/readyz", "text/plain", b"");
                    if answer.is_ok() {
                        connection = Some(open);
                    }
                    answer
                }
                Err(error) => Err(error),
            };
            let seen = match answer {
                Ok(answer) if answer.status == 200 => return Ok(()),
                Ok(answer) => String::from_utf8_lossy(&answer.body).into_owned(),
                Err(error) => format!("{error:#}"),
            };
            let ended = self.child.try_wait().context("cannot look at the manager")?;
            if ended.is_some() || began.elapsed() > PATIENCE {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                bail!("the manager is not ready: {seen}; it {ended:?}\n{log}");
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Time on processors so far, in user and kernel mode.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let stat = self.proc("stat")?;
        // The second field, a name, may hold spaces; the others can't.
        let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let mut times = fields
            .split(' ')
            .skip(11)
            .take(2)
            .filter_map(|time| time.parse::<u64>().ok());
        let (Some(user), Some(system)) = (times.next(), times.next()) else {
            bail!("the kernel does not tell the time of the manager: {stat}");
        };
        let tick = rustix::param::clock_ticks_per_second();
        Ok(Duration::from_micros((user + system) * 1_000_000 / tick))
    }

    /// Kibibytes of memory: proportional, and anonymous.
    pub(crate) fn memory(&self) -> anyhow::Result<(u64, u64)> {
        let rollup = self.proc("smaps_rollup")?;
        let field = |name: &str| {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok())
                .unwrap_or_default()
        };
        Ok((field("Pss:"), field("Anonymous:")))
    }

    fn proc(&self, file: &str) -> anyhow::Result<String> {
        let path = format!("/proc/{}/{file}", self.child.id());
        fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
    }

    /// Kills it at once.
    pub(crate) fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().context("cannot kill the manager")?;
        self.child.wait().context("cannot wait for the manager")?;
        Ok(())
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

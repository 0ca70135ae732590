//! The measured program: its start, readiness, and resource usage.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rcgen::{CertificateParams, KeyPair};

use crate::http::{self, Answer, Connection, Server};

/// Timeout of a start. Upstream's program once took minutes.
const TIMEOUT: Duration = Duration::from_mins(10);
/// Interval between readiness probes.
const PAUSE: Duration = Duration::from_millis(1);
/// Path of readiness probes.
const READY: &str = "/readyz";

/// Writes a certificate of the webhook into a directory.
pub fn write_certificate(directory: &Path) -> anyhow::Result<()> {
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec!["localhost".to_owned()])?.self_signed(&key)?;
    let write = |name: &str, text: String| {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    write("tls.crt", certificate.pem())?;
    write("tls.key", key.serialize_pem())
}

/// Settings of a manager's start.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program.
    pub path: PathBuf,
    /// Arguments of the program.
    pub arguments: Vec<OsString>,
    /// Environment variables.
    pub environment: Vec<(&'static str, &'static str)>,
    /// Address of the webhooks.
    pub port: u16,
    /// Address of readiness probes without TLS. `None` if the address of the webhooks serves them.
    pub probes: Option<u16>,
    /// File of the log.
    pub log: PathBuf,
}

/// A running manager. A drop kills it.
#[derive(Debug)]
pub struct Manager {
    child: Child,
    server: Server,
    probes: Option<u16>,
    log: PathBuf,
}

impl Program {
    /// Address of the webhooks.
    pub fn server(&self) -> anyhow::Result<Server> {
        Server::new(self.port, None)
    }

    fn spawn(&self) -> anyhow::Result<Manager> {
        let log =
            fs::File::create(&self.log).with_context(|| format!("cannot create {}", self.log.display()))?;
        let child = Command::new(&self.path)
            .args(&self.arguments)
            .envs(self.environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot share the log")?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {}", self.path.display()))?;
        Ok(Manager {
            child,
            server: self.server()?,
            probes: self.probes,
            log: self.log.clone(),
        })
    }

    /// Starts it, waits until it is ready, and returns the duration.
    pub fn start(&self) -> anyhow::Result<(Manager, Duration)> {
        let began = Instant::now();
        let mut manager = self.spawn()?;
        manager.wait_until_ready(began)?;
        Ok((manager, began.elapsed()))
    }
}

impl Manager {
    /// Returns the address of the webhooks.
    pub fn server(&self) -> &Server {
        &self.server
    }

    fn wait_until_ready(&mut self, began: Instant) -> anyhow::Result<()> {
        let mut connection: Option<Connection> = None;
        loop {
            let answer = match self.probes {
                Some(port) => http::plain(port, READY),
                None => ask(&self.server, &mut connection),
            };
            let seen = match answer {
                Ok(answer) if answer.status == 200 => return Ok(()),
                Ok(answer) => String::from_utf8_lossy(&answer.body).into_owned(),
                Err(error) => format!("{error:#}"),
            };
            let ended = self.child.try_wait().context("cannot wait for the manager")?;
            if ended.is_some() || began.elapsed() > TIMEOUT {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                bail!("the manager is not ready: {seen}; it {ended:?}\n{log}");
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the processor time so far, in user and kernel mode.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        let stat = self.proc("stat")?;
        // The second field, a name, may contain spaces. The others cannot.
        let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let mut times = fields
            .split(' ')
            .skip(11)
            .take(2)
            .filter_map(|time| time.parse::<u64>().ok());
        let (Some(user), Some(system)) = (times.next(), times.next()) else {
            bail!("the kernel does not report the processor time of the manager: {stat}");
        };
        let tick = rustix::param::clock_ticks_per_second();
        Ok(Duration::from_micros((user + system) * 1_000_000 / tick))
    }

    /// Returns the memory in kibibytes: proportional, and anonymous.
    pub fn memory(&self) -> anyhow::Result<(u64, u64)> {
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
    pub fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().context("cannot kill the manager")?;
        self.child.wait().context("cannot wait for the manager")?;
        Ok(())
    }
}

/// Sends readiness probes, on a connection that is kept while it is answered.
fn ask(server: &Server, connection: &mut Option<Connection>) -> anyhow::Result<Answer> {
    let mut open = connection.take().map_or_else(|| server.connect(), Ok)?;
    let answer = open.ask("GET", READY, "text/plain", b"")?;
    *connection = Some(open);
    Ok(answer)
}

impl Drop for Manager {
    fn drop(&mut self) {
        // The process may already be dead.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

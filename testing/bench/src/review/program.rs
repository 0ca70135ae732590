//! The program that is measured: started, asked whether it is ready, and looked at from outside.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rcgen::{CertificateParams, KeyPair};

use crate::http::{self, Answer, Connection, Server};

/// Longest start: the established program took minutes once.
const PATIENCE: Duration = Duration::from_mins(10);
/// Between two questions whether it is ready.
const PAUSE: Duration = Duration::from_millis(1);
/// Where managers tell whether they are ready.
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

/// How a manager is started.
#[derive(Clone, Debug)]
pub struct Program {
    /// The file.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables of its environment.
    pub environment: Vec<(&'static str, &'static str)>,
    /// Where it answers reviews.
    pub port: u16,
    /// Where it says without TLS whether it is ready; `None` where it says so beside its reviews.
    pub probes: Option<u16>,
    /// Where its log goes.
    pub log: PathBuf,
}

/// A running manager. Dropping it kills it.
#[derive(Debug)]
pub struct Manager {
    child: Child,
    server: Server,
    probes: Option<u16>,
    log: PathBuf,
}

impl Program {
    /// Where it answers reviews.
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

    /// Starts it, and waits until it is ready: the time that this took.
    pub fn start(&self) -> anyhow::Result<(Manager, Duration)> {
        let began = Instant::now();
        let mut manager = self.spawn()?;
        manager.wait_until_ready(began)?;
        Ok((manager, began.elapsed()))
    }
}

impl Manager {
    /// Where it answers reviews.
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
            let ended = self.child.try_wait().context("cannot look at the manager")?;
            if ended.is_some() || began.elapsed() > PATIENCE {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                bail!("the manager is not ready: {seen}; it {ended:?}\n{log}");
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Time on processors so far, in user and kernel mode.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
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

/// Asks whether it is ready, by a connection that is kept as long as it is answered.
fn ask(server: &Server, connection: &mut Option<Connection>) -> anyhow::Result<Answer> {
    let mut open = connection.take().map_or_else(|| server.connect(), Ok)?;
    let answer = open.ask("GET", READY, "text/plain", b"")?;
    *connection = Some(open);
    Ok(answer)
}

impl Drop for Manager {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

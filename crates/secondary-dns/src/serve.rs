//! The server of zone files: runs a Corefile, and follows its changes (secondary-dns §7).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use kube_kit::lock;
use kube_kit::serve::{Bind, NoServer, Readiness, Server as HttpServer};
use kube_kit::shutdown::Shutdown;
use tokio::task::JoinSet;

use crate::answer::{Block, SharedZones, Site};
use crate::auto;
use crate::corefile::{self, Corefile, Directory};
use crate::http::{self, Purpose};
use crate::metrics::Metrics;
use crate::query_log::QueryLog;
use crate::server::{Desk, Limits, Server};

/// A server without any zone file becomes ready after this time. The upstream monitor writes no file before the first
/// instance has an address, and a cluster may never have one.
const EMPTY: Duration = Duration::from_secs(30);

/// Serves the zones of a Corefile until the shutdown.
///
/// # Errors
/// If the Corefile cannot be read, or a port is taken.
pub async fn run(path: &Path, shutdown: &Shutdown) -> anyhow::Result<()> {
    let text = read(path)?;
    let corefile = corefile::read(&text)?;
    let mut running = Running::new()?;
    running.apply(corefile).await?;
    let loaded = running.loaded.clone();
    let empty = async move {
        tokio::time::sleep(EMPTY).await;
        if !loaded.is_ready() {
            tracing::warn!(
                "there is no zone file yet; queries are answered with SERVFAIL until there is one"
            );
            loaded.set(true);
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = shutdown.wait() => {}
        () = reload(path.to_owned(), text, &mut running) => {}
        () = empty => {}
    }
    running.stop().await;
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read the Corefile {}", path.display()))
}

/// Follows the Corefile forever.
async fn reload(path: PathBuf, mut text: String, running: &mut Running) {
    loop {
        let Some((interval, jitter)) = running.reload else {
            return std::future::pending().await;
        };
        tokio::time::sleep(interval + some_of(jitter)).await;
        let now = match read(&path) {
            Ok(now) => now,
            Err(error) => {
                tracing::error!("plugin/reload: {error:#}");
                continue;
            }
        };
        if now == text {
            continue;
        }
        // The same error is logged once.
        text = now;
        let applied = match corefile::read(&text) {
            Ok(corefile) => running.apply(corefile).await,
            Err(error) => Err(error.into()),
        };
        match applied {
            Ok(()) => tracing::info!(
                "plugin/reload: Running configuration is that of {}",
                path.display()
            ),
            Err(error) => {
                tracing::error!("plugin/reload: Corefile changed but the former one stays: {error:#}");
            }
        }
    }
}

/// A random part of an interval, so that the servers of several pods do not read at the same time.
fn some_of(jitter: Duration) -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    jitter.mul_f64(f64::from(since.subsec_nanos() % 1000) / 1000.0)
}

/// Zones of the directories of one block.
#[derive(Debug)]
struct Part {
    directories: Vec<Directory>,
    zones: SharedZones,
    /// Tasks that follow the directories and end with the part.
    _tasks: JoinSet<()>,
}

/// The server of one port.
#[derive(Debug)]
struct Port {
    server: Server,
    site: Arc<Mutex<Site>>,
}

/// All running parts.
#[derive(Debug)]
struct Running {
    parts: Vec<Part>,
    ports: BTreeMap<u16, Port>,
    http: Vec<(Purpose, Bind, HttpServer)>,
    reload: Option<(Duration, Duration)>,
    loaded: Readiness,
    metrics: Metrics,
    log: QueryLog,
}

impl Running {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            parts: Vec::new(),
            ports: BTreeMap::new(),
            http: Vec::new(),
            reload: None,
            loaded: Readiness::new(),
            metrics: Metrics::default(),
            log: QueryLog::to_stdout().context("cannot start the query log")?,
        })
    }

    /// Starts the new parts of a configuration, and stops the removed ones. Zones of a directory in both configurations
    /// stay.
    ///
    /// # Errors
    /// If a port is taken. Then nothing changed.
    async fn apply(&mut self, corefile: Corefile) -> anyhow::Result<()> {
        let Corefile {
            ports,
            reload,
            health,
            ready,
            prometheus,
        } = corefile;
        let mut sites = BTreeMap::new();
        let mut parts = Vec::new();
        let mut kept = Vec::new();
        for (port, blocks) in ports {
            let mut site = Site(Vec::new());
            for block in blocks {
                let zones = if let Some((at, zones)) = self.part(&block.directories, &kept) {
                    kept.push(at);
                    zones
                } else {
                    let part = self.follow(block.directories);
                    let zones = Arc::clone(&part.zones);
                    parts.push(part);
                    zones
                };
                site.0.extend(block.below.into_iter().map(|below| Block {
                    below,
                    zones: Arc::clone(&zones),
                    log: block.log,
                }));
            }
            sites.insert(port, site);
        }
        let mut started = BTreeMap::new();
        for (port, site) in &sites {
            if !self.ports.contains_key(port) {
                started.insert(*port, self.listen(*port, site.clone())?);
            }
        }
        let wanted = [
            (Purpose::Health, health),
            (Purpose::Ready, ready),
            (Purpose::Metrics, prometheus),
        ];
        let wanted: Vec<(Purpose, Bind)> = wanted
            .into_iter()
            .flat_map(|(purpose, binds)| binds.into_iter().map(move |bind| (purpose, bind)))
            .collect();
        let mut http = Vec::new();
        for (purpose, bind) in &wanted {
            let is = |(other, at, _): &(Purpose, Bind, HttpServer)| other == purpose && at == bind;
            let is_new = !self.http.iter().any(is) && !http.iter().any(is);
            if is_new {
                let router = http::router(*purpose, &self.loaded, &self.metrics);
                let server = HttpServer::at(bind, router).await?.ok_or(NoServer::Nowhere)?;
                http.push((*purpose, bind.clone(), server));
            }
        }
        // No later step can fail.
        let mut at = 0;
        self.parts.retain(|_| {
            at += 1;
            kept.contains(&(at - 1))
        });
        self.parts.append(&mut parts);
        let zones = self.parts.iter().map(|part| Arc::clone(&part.zones));
        self.metrics.describe(zones.collect());
        self.http
            .retain(|(purpose, bind, _)| wanted.contains(&(*purpose, bind.clone())));
        self.http.append(&mut http);
        self.ports.retain(|port, _| sites.contains_key(port));
        for (port, site) in sites {
            if let Some(port) = self.ports.get(&port) {
                *lock(&port.site) = site;
            }
        }
        self.ports.append(&mut started);
        self.reload = reload;
        Ok(())
    }

    /// Zones of these directories, if they are followed already.
    fn part(&self, directories: &[Directory], but: &[usize]) -> Option<(usize, SharedZones)> {
        let mut parts = self.parts.iter().enumerate();
        let (at, part) = parts.find(|(at, part)| part.directories == directories && !but.contains(at))?;
        Some((at, Arc::clone(&part.zones)))
    }

    fn follow(&self, directories: Vec<Directory>) -> Part {
        let zones = SharedZones::default();
        let mut tasks = JoinSet::new();
        for directory in &directories {
            tasks.spawn(auto::follow(
                directory.clone(),
                Arc::clone(&zones),
                self.loaded.clone(),
            ));
        }
        Part {
            directories,
            zones,
            _tasks: tasks,
        }
    }

    fn listen(&self, port: u16, site: Site) -> anyhow::Result<Port> {
        let site = Arc::new(Mutex::new(site));
        let desk = Desk {
            site: Arc::clone(&site),
            metrics: self.metrics.clone(),
            log: self.log.clone(),
        };
        let server = Server::start(port, &desk, Limits::default())?;
        Ok(Port { server, site })
    }

    /// Finishes the running answers, and ends.
    async fn stop(self) {
        let mut stopping = JoinSet::new();
        for (_, port) in self.ports {
            stopping.spawn(port.server.stop());
        }
        stopping.join_all().await;
    }
}

#[cfg(test)]
mod tests;

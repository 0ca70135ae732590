//! Whether a host can still be reached and can still reach what it needs (nmstate §5.6).
//!
//! ```text
//!   select ──> ping, dns that pass before the change          after ──> the selected ones, api-server, node-readiness
//! ```
//!
//! Nothing is demanded after a change that did not work before it.

mod dns;
mod ping;
mod ways;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{BoxFuture, Shared, join, join_all};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{Api, Client};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use crate::apply::Settings;
use crate::engine::{Backend, Engine};
use crate::routes;

/// How long the API server may take to answer once.
const API_PATIENCE: Duration = Duration::from_secs(10);
/// Namespace that every cluster has, and every handler may read.
const NAMESPACE: &str = "default";
/// Name servers that are asked, the first of the host's.
const MOST_SERVERS: usize = 16;
/// Condition of a node that takes pods.
const READY: &str = "Ready";
/// How many looks in a row the probes that go by the host's report have to pass. What the host says of itself right after a
/// change may be what was before it: NetworkManager takes over name servers a moment after it has answered.
pub(crate) const LOOKS: u32 = 2;
/// How long a probe that was in vain is not tried again, as long as the host reports the same ones to ask.
const IN_VAIN: Duration = Duration::from_secs(30);
/// Looks that begin within this part of the pause between two of them are one look at the host.
const SAME_LOOK: u32 = 4;

/// One thing that a host is asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Probe {
    /// Whether the default gateway answers.
    Ping,
    /// Whether a name server answers.
    Dns,
    /// Whether the API server answers a client that has never asked before.
    ApiServer,
    /// Whether the API server holds the node for ready.
    NodeReadiness,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ping => "ping",
            Self::Dns => "dns",
            Self::ApiServer => "api-server",
            Self::NodeReadiness => "node-readiness",
        })
    }
}

/// A probe that did not pass in time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failed {
    /// Which.
    pub probe: Probe,
    /// What was wrong the last time.
    pub cause: String,
    /// Whether the API server did not answer, whichever probe is the one that counts.
    pub lost_api_server: bool,
}

/// How a host is asked after a change.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Chosen {
    /// What it has to pass: all that it passes now.
    pub(crate) probes: Vec<Probe>,
    /// How many looks in a row it has to pass those that go by its report.
    pub(crate) looks: u32,
}

/// Asks a host.
pub(crate) struct Prober {
    engine: Engine,
    client: Client,
    node: String,
    settings: Settings,
    /// How ping and DNS were chosen from the last time.
    choices: [Mutex<Choice>; 2],
}

/// The probes that are chosen from, in the order of their places in [`Prober::choices`].
const OPTIONAL: [Probe; 2] = [Probe::Ping, Probe::Dns];

/// What is remembered of a probe that is chosen from.
#[derive(Debug, Default)]
struct Choice {
    /// Whether it did not pass the last time: what did not work is not waited for again.
    failed: bool,
    in_vain: Option<InVain>,
}

/// A look that did not find what it should.
#[derive(Debug)]
struct InVain {
    /// The gateway and its interface, or the name servers.
    asked: Vec<String>,
    at: Instant,
    cause: String,
}

impl Choice {
    /// Why it need not be asked now: the same ones were asked in vain a moment ago, and each attempt takes seconds.
    fn known_cause(&self, asked: &[String], now: Instant) -> Option<String> {
        let before = self.in_vain.as_ref().filter(|_| self.failed)?;
        let is_same = before.asked == asked && now.duration_since(before.at) < IN_VAIN;
        is_same.then(|| before.cause.clone())
    }
}

impl Prober {
    pub(crate) fn new(engine: Engine, client: Client, node: String, settings: Settings) -> Self {
        Self {
            engine,
            client,
            node,
            settings,
            choices: [Mutex::default(), Mutex::default()],
        }
    }

    /// How the host is asked after a change that makes it what `desired` says.
    pub(crate) async fn select(&self, desired: &Value) -> Chosen {
        if !self.settings.probes {
            return Chosen {
                probes: Vec::new(),
                looks: LOOKS,
            };
        }
        let reports = self.reports();
        let (ping, dns) = join(self.works(0, &reports), self.works(1, &reports)).await;
        let optional = OPTIONAL.into_iter().zip([ping, dns]);
        let optional = optional.filter_map(|(probe, works)| works.then_some(probe));
        let probes = optional.chain([Probe::ApiServer, Probe::NodeReadiness]).collect();
        let keeps_ways = |report: &Value| {
            // The kernel alone gives interfaces addresses that no document says.
            self.settings.backend == Backend::NetworkManager && !ways::may_change(desired, report)
        };
        let looks = if reports.latest().as_deref().is_some_and(keeps_ways) {
            1
        } else {
            LOOKS
        };
        Chosen { probes, looks }
    }

    async fn works(&self, place: usize, reports: &Reports<'_>) -> bool {
        let (Some(choice), Some(probe)) = (self.choices.get(place), OPTIONAL.get(place)) else {
            return false;
        };
        let look = async || self.try_out(*probe, choice, reports).await;
        let is_waited_for = !kube_kit::lock(choice).failed;
        let outcome = if is_waited_for {
            until(1, self.settings.selection, self.settings.pause, look).await
        } else {
            look().await
        };
        if let Err(cause) = &outcome {
            tracing::warn!(%cause, "WARNING not selecting {probe} probe");
        }
        kube_kit::lock(choice).failed = outcome.is_err();
        outcome.is_ok()
    }

    /// One look of a probe that is chosen from, unless it is known to be in vain.
    async fn try_out(
        &self,
        probe: Probe,
        choice: &Mutex<Choice>,
        reports: &Reports<'_>,
    ) -> Result<(), String> {
        let report = reports.recent().await?;
        let asked = asked(probe, &report);
        if let Some(cause) = kube_kit::lock(choice).known_cause(&asked, Instant::now()) {
            return Err(cause);
        }
        let outcome = self.by_report(probe, &report).await;
        kube_kit::lock(choice).in_vain = outcome.as_ref().err().map(|cause| InVain {
            asked,
            at: Instant::now(),
            cause: cause.clone(),
        });
        outcome
    }

    /// Waits until the host passes all of these. They are asked at the same time, so that all of it takes no longer
    /// than one may take; the first in order that did not pass is the one that counts. Those that go by the host's report
    /// have to pass on so many looks in a row.
    pub(crate) async fn pass(&self, probes: &[Probe], looks: u32) -> Result<(), Failed> {
        if looks == LOOKS {
            // Whoever did not answer before this change may answer now.
            for choice in &self.choices {
                kube_kit::lock(choice).in_vain = None;
            }
        }
        let reports = &self.reports();
        let all = probes.iter().map(|probe| async move {
            tracing::info!("Running '{probe}' probe");
            let looks = if OPTIONAL.contains(probe) { looks } else { 1 };
            let look = async || self.once(*probe, reports).await;
            let outcome = until(looks, self.settings.patience, self.settings.pause, look).await;
            outcome.map_err(|cause| Failed {
                probe: *probe,
                cause,
                lost_api_server: false,
            })
        });
        let all = join_all(all).await;
        let failed =
            |outcome: &Result<(), Failed>| matches!(outcome, Err(failed) if failed.probe == Probe::ApiServer);
        let lost_api_server = all.iter().any(failed);
        let first: Result<(), Failed> = all.into_iter().collect();
        first.map_err(|first| Failed {
            lost_api_server,
            ..first
        })
    }

    /// Reports for one choice, or one pass, of probes. None of them is older than that.
    fn reports(&self) -> Reports<'_> {
        Reports {
            engine: &self.engine,
            same: self.settings.pause / SAME_LOOK,
            latest: Mutex::default(),
        }
    }

    async fn once(&self, probe: Probe, reports: &Reports<'_>) -> Result<(), String> {
        match probe {
            Probe::Ping | Probe::Dns => {
                let report = reports.recent().await?;
                self.by_report(probe, &report).await
            }
            Probe::ApiServer => {
                let asked = Api::<Namespace>::all(self.fresh()?);
                answered(asked.get(NAMESPACE)).await.map(drop)
            }
            Probe::NodeReadiness => {
                let asked = Api::<Node>::all(self.fresh()?);
                let node = answered(asked.get(&self.node)).await?;
                if is_ready(&node) {
                    Ok(())
                } else {
                    Err(format!("node {} is not Ready", self.node))
                }
            }
        }
    }

    /// A client without connections: one that was open before a change may outlive what new ones need.
    fn fresh(&self) -> Result<Client, String> {
        match &self.settings.cluster {
            Some(config) => Client::try_from(config.clone()).map_err(|error| kube_kit::client::chain(&error)),
            None => Ok(self.client.clone()),
        }
    }

    /// Asks those that the host reports: its name servers, or its gateway.
    async fn by_report(&self, probe: Probe, report: &Value) -> Result<(), String> {
        if probe == Probe::Dns {
            self.dns(report).await
        } else {
            ping_gateway(report).await
        }
    }

    async fn dns(&self, report: &Value) -> Result<(), String> {
        let host = &self.settings.dns_host;
        match any(servers(report), |server| dns::look_up(server, host)).await {
            Ok(()) => Ok(()),
            Err(causes) if causes.is_empty() => Err("no name servers".to_owned()),
            Err(causes) => Err(format!("{host} from {}", causes.join(", "))),
        }
    }
}

async fn ping_gateway(report: &Value) -> Result<(), String> {
    let Some((gateway, interface)) = gateway(report) else {
        tracing::info!("default gw missing");
        return Err("default gw missing".to_owned());
    };
    ping::ping(gateway, &interface)
        .await
        .map_err(|error| format!("default gateway {gateway} on {interface}: {error}"))
}

/// What the host reports, to probes that look at the same time: it is read once for all of them.
struct Reports<'a> {
    engine: &'a Engine,
    /// Looks that begin so soon after another one go by its report. It is far less than the pause between two looks of
    /// a probe, so that no probe goes by the same report twice.
    same: Duration,
    latest: Mutex<Option<(Instant, Reading<'a>)>>,
}

/// A report that several wait for.
type Reading<'a> = Shared<BoxFuture<'a, Result<Arc<Value>, String>>>;

impl<'a> Reports<'a> {
    /// The report for a look that begins now.
    fn recent(&self) -> Reading<'a> {
        let now = Instant::now();
        let mut latest = kube_kit::lock(&self.latest);
        if let Some((began, reading)) = &*latest
            && now.duration_since(*began) < self.same
        {
            return reading.clone();
        }
        let engine = self.engine;
        let reading = async move {
            let report = engine.report().await;
            report.map(Arc::new).map_err(|error| error.text)
        };
        let reading = reading.boxed().shared();
        *latest = Some((now, reading.clone()));
        reading
    }

    /// The last report that there was, if it could be had.
    fn latest(&self) -> Option<Arc<Value>> {
        let latest = kube_kit::lock(&self.latest);
        let (_, reading) = latest.as_ref()?;
        reading.peek()?.as_ref().ok().cloned()
    }
}

/// Asks all servers at the same time, and ends with the first one that answers; why none does, server by server. One
/// after the other, a few dead ones would use up the time in which a probe is chosen.
async fn any<'a, Answer: Future<Output = io::Result<()>>>(
    servers: impl Iterator<Item = &'a str>,
    ask: impl Fn(&'a str) -> Answer,
) -> Result<(), Vec<String>> {
    let asked = servers.take(MOST_SERVERS).enumerate().map(|(place, server)| {
        let answer = ask(server);
        async move { (place, server, answer.await) }
    });
    let mut answers: FuturesUnordered<_> = asked.collect();
    let mut causes = Vec::new();
    while let Some((place, server, answer)) = answers.next().await {
        match answer {
            Ok(()) => return Ok(()),
            Err(error) => causes.push((place, format!("{server}: {error}"))),
        }
    }
    causes.sort();
    Err(causes.into_iter().map(|(_, cause)| cause).collect())
}

/// Looks, with a pause between, until so many looks in a row find nothing wrong; gives up after `patience`, with what the
/// last look found that did.
async fn until(
    looks: u32,
    patience: Duration,
    pause: Duration,
    look: impl AsyncFn() -> Result<(), String>,
) -> Result<(), String> {
    let mut cause = "no answer yet".to_owned();
    let passing = async {
        let mut passed = 0;
        while passed < looks {
            match look().await {
                Ok(()) => passed += 1,
                Err(wrong) => {
                    passed = 0;
                    cause = wrong;
                }
            }
            if passed < looks {
                sleep(pause).await;
            }
        }
    };
    let passed = timeout(patience, passing).await.is_ok();
    if passed {
        return Ok(());
    }
    Err(format!("{cause} (for {} s)", patience.as_secs()))
}

async fn answered<T>(question: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    match timeout(API_PATIENCE, question).await {
        Ok(answer) => answer.map_err(|error| format!("API server: {}", kube_kit::client::message(&error))),
        Err(_) => Err("API server: no answer".to_owned()),
    }
}

/// Whether the API server holds a node for ready.
pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == READY && condition.status == "True")
}

/// The first default gateway of the main table, and the interface that it is reached by.
fn gateway(report: &Value) -> Option<(IpAddr, String)> {
    let running = report.pointer("/routes/running")?.as_array()?;
    running.iter().find_map(|route| {
        if !routes::is_default(route) || route["table-id"] != routes::MAIN_TABLE {
            return None;
        }
        let gateway: IpAddr = route["next-hop-address"].as_str()?.parse().ok()?;
        let interface = route["next-hop-interface"].as_str()?;
        // What is reached without a gateway has this one.
        (!gateway.is_unspecified()).then(|| (gateway, interface.to_owned()))
    })
}

/// Whom a probe asks on a host that reports this.
fn asked(probe: Probe, report: &Value) -> Vec<String> {
    if probe == Probe::Dns {
        return servers(report).map(str::to_owned).collect();
    }
    let gateway = gateway(report).map(|(gateway, interface)| [gateway.to_string(), interface]);
    gateway.into_iter().flatten().collect()
}

/// The name servers that are asked now.
fn servers(report: &Value) -> impl Iterator<Item = &str> {
    let servers = report.pointer("/dns-resolver/running/server");
    let servers = servers.and_then(Value::as_array);
    servers.into_iter().flatten().filter_map(Value::as_str)
}

#[cfg(test)]
mod tests;

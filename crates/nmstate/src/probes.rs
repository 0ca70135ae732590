//! Probes whether a host can be reached, and can reach what it needs (nmstate §5.6).
//!
//! ```text
//!   select ──> ping, dns that pass before the change          after ──> the selected ones, api-server, node-readiness
//! ```
//!
//! A change need not repair a probe that failed before it.

mod dns;
mod ping;
mod settings;
mod targets;

pub use settings::Settings;

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
use kube_kit::client;
use kube_kit::document::list;
use kube_kit::metrics::Requests;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use crate::engine::{Backend, Engine};
use crate::routes;

/// Timeout of a request to the API server.
const API_TIMEOUT: Duration = Duration::from_secs(10);
/// A namespace that every cluster has, and every handler may read.
const NAMESPACE: &str = "default";
/// Maximum number of name servers that are probed.
const MAX_SERVERS: usize = 16;
/// Condition type of a node that accepts pods.
const READY: &str = "Ready";
/// Number of successive checks that ping and DNS have to pass. Right after a change the host may still report the
/// earlier state: NetworkManager updates name servers a moment after its answer.
pub(crate) const CHECKS: u32 = 2;
/// How long a failed probe is not repeated while the host reports the same targets.
const FAILURE_TTL: Duration = Duration::from_secs(30);
/// Checks that begin within this part of the interval share one report.
const REPORT_REUSE: u32 = 4;

/// A probe of a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Probe {
    /// The default gateway answers a ping.
    Ping,
    /// A name server answers.
    Dns,
    /// The API server answers over a new connection.
    ApiServer,
    /// The API server reports the node as Ready.
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
pub(crate) struct Failed {
    /// The probe.
    pub probe: Probe,
    /// Cause of the last failure.
    pub cause: String,
    /// Whether the API server probe failed, even if another probe is reported.
    pub lost_api_server: bool,
}

/// The probes of a change.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Selection {
    /// Probes that pass before the change, and have to pass after it.
    pub(crate) probes: Vec<Probe>,
    /// Number of successive checks that ping and DNS have to pass.
    pub(crate) checks: u32,
}

/// Probes a host.
pub(crate) struct Prober {
    engine: Engine,
    client: Client,
    node: String,
    settings: Settings,
    /// History of ping and DNS.
    histories: [Mutex<History>; 2],
}

/// The optional probes, in the order of [`Prober::histories`].
const OPTIONAL: [Probe; 2] = [Probe::Ping, Probe::Dns];

/// History of an optional probe.
#[derive(Debug, Default)]
struct History {
    /// Whether the last selection failed: then the next one does not wait for the probe.
    failed: bool,
    failed_check: Option<FailedCheck>,
}

/// A failed check.
#[derive(Debug)]
struct FailedCheck {
    /// The gateway and its interface, or the name servers.
    targets: Vec<String>,
    at: Instant,
    cause: String,
}

impl History {
    /// The cause of a recent failure with the same targets: each attempt takes seconds, so it is not repeated.
    fn recent_cause(&self, targets: &[String], now: Instant) -> Option<String> {
        let before = self.failed_check.as_ref().filter(|_| self.failed)?;
        let is_same = before.targets == targets && now.duration_since(before.at) < FAILURE_TTL;
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
            histories: [Mutex::default(), Mutex::default()],
        }
    }

    /// Selects the probes of a change to `desired`.
    pub(crate) async fn select(&self, desired: &Value) -> Selection {
        if !self.settings.probes {
            return Selection {
                probes: Vec::new(),
                checks: CHECKS,
            };
        }
        let reports = self.reports();
        let (ping, dns) = join(self.passes(0, &reports), self.passes(1, &reports)).await;
        let optional = OPTIONAL.into_iter().zip([ping, dns]);
        let optional = optional.filter_map(|(probe, works)| works.then_some(probe));
        let probes = optional.chain([Probe::ApiServer, Probe::NodeReadiness]).collect();
        let keeps_targets = |report: &Value| {
            // The kernel adds addresses that no document contains.
            self.settings.backend == Backend::NetworkManager && !targets::may_change(desired, report)
        };
        let checks = if reports.latest().as_deref().is_some_and(keeps_targets) {
            1
        } else {
            CHECKS
        };
        Selection { probes, checks }
    }

    async fn passes(&self, place: usize, reports: &Reports<'_>) -> bool {
        let (Some(history), Some(probe)) = (self.histories.get(place), OPTIONAL.get(place)) else {
            return false;
        };
        let check = async || self.check_optional(*probe, history, reports).await;
        let is_waited_for = !kube_kit::lock(history).failed;
        let outcome = if is_waited_for {
            until(1, self.settings.selection_timeout, self.settings.pause, check).await
        } else {
            check().await
        };
        if let Err(cause) = &outcome {
            tracing::warn!(%cause, "WARNING not selecting {probe} probe");
        }
        kube_kit::lock(history).failed = outcome.is_err();
        outcome.is_ok()
    }

    /// Checks an optional probe once, unless it recently failed with the same targets.
    async fn check_optional(
        &self,
        probe: Probe,
        history: &Mutex<History>,
        reports: &Reports<'_>,
    ) -> Result<(), String> {
        let report = reports.recent().await?;
        let targets = targets_of(probe, &report);
        if let Some(cause) = kube_kit::lock(history).recent_cause(&targets, Instant::now()) {
            return Err(cause);
        }
        let outcome = self.check_reported(probe, &report).await;
        kube_kit::lock(history).failed_check = outcome.as_ref().err().map(|cause| FailedCheck {
            targets,
            at: Instant::now(),
            cause: cause.clone(),
        });
        outcome
    }

    /// Waits until the host passes these probes, which run concurrently; the first failure in their order is returned.
    /// Optional probes have to pass `checks` successive checks.
    pub(crate) async fn pass(&self, probes: &[Probe], checks: u32) -> Result<(), Failed> {
        if checks == CHECKS {
            // A target that did not answer before this change may answer now.
            for history in &self.histories {
                kube_kit::lock(history).failed_check = None;
            }
        }
        let reports = &self.reports();
        let all = probes.iter().map(|probe| async move {
            tracing::info!("Running '{probe}' probe");
            let checks = if OPTIONAL.contains(probe) { checks } else { 1 };
            let check = async || self.check(*probe, reports).await;
            let outcome = until(checks, self.settings.timeout, self.settings.pause, check).await;
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

    /// A cache of reports for one selection or one pass of probes.
    fn reports(&self) -> Reports<'_> {
        Reports {
            engine: &self.engine,
            same: self.settings.pause / REPORT_REUSE,
            latest: Mutex::default(),
        }
    }

    async fn check(&self, probe: Probe, reports: &Reports<'_>) -> Result<(), String> {
        match probe {
            Probe::Ping | Probe::Dns => {
                let report = reports.recent().await?;
                self.check_reported(probe, &report).await
            }
            Probe::ApiServer => {
                let api = Api::<Namespace>::all(self.fresh()?);
                within_api_timeout(api.get(NAMESPACE)).await.map(drop)
            }
            Probe::NodeReadiness => {
                let api = Api::<Node>::all(self.fresh()?);
                let node = within_api_timeout(api.get(&self.node)).await?;
                if is_ready(&node) {
                    Ok(())
                } else {
                    Err(format!("node {} is not Ready", self.node))
                }
            }
        }
    }

    /// A client without connections: an open connection may survive a change that prevents new ones.
    fn fresh(&self) -> Result<Client, String> {
        match &self.settings.cluster {
            Some(config) => {
                client::counted(config.clone(), &Requests::default()).map_err(|error| client::chain(&error))
            }
            None => Ok(self.client.clone()),
        }
    }

    /// Probes the reported name servers or gateway.
    async fn check_reported(&self, probe: Probe, report: &Value) -> Result<(), String> {
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

/// Reports that concurrent checks share.
struct Reports<'a> {
    engine: &'a Engine,
    /// Checks that begin within this time of a read share its report. It is far shorter than the interval of a probe,
    /// so that no probe uses a report twice.
    same: Duration,
    latest: Mutex<Option<(Instant, Reading<'a>)>>,
}

/// A report that several checks wait for.
type Reading<'a> = Shared<BoxFuture<'a, Result<Arc<Value>, String>>>;

impl<'a> Reports<'a> {
    /// The report for a check that begins now.
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

    /// The last report, if it could be read.
    fn latest(&self) -> Option<Arc<Value>> {
        let latest = kube_kit::lock(&self.latest);
        let (_, reading) = latest.as_ref()?;
        reading.peek()?.as_ref().ok().cloned()
    }
}

/// Queries all servers concurrently, and returns at the first answer, or with the cause of each server. One after the
/// other, a few dead servers would exceed the time for the selection of a probe.
async fn any<'a, Answer: Future<Output = io::Result<()>>>(
    servers: impl Iterator<Item = &'a str>,
    ask: impl Fn(&'a str) -> Answer,
) -> Result<(), Vec<String>> {
    let queries = servers.take(MAX_SERVERS).enumerate().map(|(place, server)| {
        let answer = ask(server);
        async move { (place, server, answer.await) }
    });
    let mut answers: FuturesUnordered<_> = queries.collect();
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

/// Repeats a check at an interval until it passes `checks` times in a row; fails after `limit` with the cause of the
/// last failure.
async fn until(
    checks: u32,
    limit: Duration,
    pause: Duration,
    check: impl AsyncFn() -> Result<(), String>,
) -> Result<(), String> {
    let mut cause = "no answer yet".to_owned();
    let passing = async {
        let mut passed = 0;
        while passed < checks {
            match check().await {
                Ok(()) => passed += 1,
                Err(wrong) => {
                    passed = 0;
                    cause = wrong;
                }
            }
            if passed < checks {
                sleep(pause).await;
            }
        }
    };
    let passed = timeout(limit, passing).await.is_ok();
    if passed {
        return Ok(());
    }
    Err(format!("{cause} (for {} s)", limit.as_secs()))
}

async fn within_api_timeout<T>(question: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    match timeout(API_TIMEOUT, question).await {
        Ok(answer) => answer.map_err(|error| format!("API server: {}", client::message(&error))),
        Err(_) => Err("API server: no answer".to_owned()),
    }
}

/// Whether the API server reports the node as Ready.
pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == READY && condition.status == "True")
}

/// The first default gateway of the main table, and its interface.
fn gateway(report: &Value) -> Option<(IpAddr, String)> {
    let running = report.pointer("/routes/running")?.as_array()?;
    running.iter().find_map(|route| {
        if !routes::is_default(route) || route["table-id"] != routes::MAIN_TABLE {
            return None;
        }
        let gateway: IpAddr = route["next-hop-address"].as_str()?.parse().ok()?;
        let interface = route["next-hop-interface"].as_str()?;
        // A route without a gateway has the unspecified address.
        (!gateway.is_unspecified()).then(|| (gateway, interface.to_owned()))
    })
}

/// The targets of an optional probe on a host with this report.
fn targets_of(probe: Probe, report: &Value) -> Vec<String> {
    if probe == Probe::Dns {
        return servers(report).map(str::to_owned).collect();
    }
    let gateway = gateway(report).map(|(gateway, interface)| [gateway.to_string(), interface]);
    gateway.into_iter().flatten().collect()
}

/// The name servers in use.
fn servers(report: &Value) -> impl Iterator<Item = &str> {
    list(report, "/dns-resolver/running/server").filter_map(Value::as_str)
}

#[cfg(test)]
mod tests;

//! The API server's audit log: requests with their clients and times.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use cluster::Cluster;
use serde_json::Value;

const DAY: Duration = Duration::from_hours(24);

/// The verb of watches, and verbs that read.
const WATCH: &str = "watch";
const READS: [&str; 2] = ["get", "list"];
/// The resource by which an operator stays the leader.
const LEASES: &str = "leases";

/// The log of a cluster.
pub(super) struct Log(PathBuf);

/// A position in the log.
pub(super) struct Mark(usize);

impl Mark {
    /// The start of the log.
    pub(super) const BEGIN: Self = Self(0);
}

/// A request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// Name of the client.
    pub(super) user: String,
    pub(super) verb: String,
    /// The resource with its subresource: `daemonsets`, `networkaddonsconfigs/status`. The path of a request without a
    /// resource.
    pub(super) resource: String,
    /// Empty for creations.
    pub(super) name: String,
    /// True for the request itself. A watch has a second entry when it ends.
    pub(super) starts: bool,
    /// Time of the answer since midnight.
    pub(super) at: Duration,
}

impl Event {
    /// True for a request that a program at rest should not send: neither a watch nor the renewal of a Lease.
    pub(super) fn disturbs_rest(&self) -> bool {
        self.verb != WATCH && self.resource != LEASES
    }
}

/// Requests of one client.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Requests {
    pub(super) writes: usize,
    pub(super) reads: usize,
    /// Reads and writes of Leases, which are not among the others.
    pub(super) renewals: usize,
    /// Watches that started.
    pub(super) watches: usize,
    /// The number of each read and write: `list pods`.
    pub(super) each: BTreeMap<String, usize>,
}

impl Requests {
    /// Counts the requests of a client.
    pub(super) fn of(events: &[Event], user: &str) -> Self {
        let mut all = Self::default();
        for event in events.iter().filter(|event| event.user == user && event.starts) {
            if event.verb == WATCH {
                all.watches += 1;
            } else if event.resource == LEASES {
                all.renewals += 1;
            } else {
                if READS.contains(&event.verb.as_str()) {
                    all.reads += 1;
                } else {
                    all.writes += 1;
                }
                let kind = format!("{} {}", event.verb, event.resource);
                *all.each.entry(kind).or_default() += 1;
            }
        }
        all
    }
}

/// Returns the number of a client's watches that started and did not end in these events.
pub(super) fn open_watches(events: &[Event], user: &str) -> usize {
    let watches = events
        .iter()
        .filter(|event| event.user == user && event.verb == WATCH);
    watches.fold(0_usize, |open, event| {
        if event.starts {
            open + 1
        } else {
            open.saturating_sub(1)
        }
    })
}

/// Returns the name of a service account as a client.
pub(super) fn account(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// Selects one of several events.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    First,
    Last,
}

impl Log {
    /// Returns the log of a cluster.
    pub(super) fn of(cluster: &Cluster) -> Self {
        Self(cluster.audit_log())
    }

    /// Returns the current end of the log.
    pub(super) fn mark(&self) -> anyhow::Result<Mark> {
        Ok(Mark(self.read()?.len()))
    }

    /// Returns the requests since a mark.
    pub(super) fn since(&self, mark: &Mark) -> anyhow::Result<Vec<Event>> {
        let text = self.read()?;
        let lines = text.get(mark.0..).unwrap_or_default().lines();
        Ok(lines.filter_map(event).collect())
    }

    /// Returns the time from the first event since the mark that satisfies `begins` to an event that satisfies `ends`.
    pub(super) fn between(
        &self,
        mark: &Mark,
        begins: impl Fn(&Event) -> bool,
        ends: impl Fn(&Event) -> bool,
        which: Which,
    ) -> anyhow::Result<Duration> {
        between(&self.since(mark)?, begins, ends, which)
            .with_context(|| format!("{} does not contain it", self.0.display()))
    }

    fn read(&self) -> anyhow::Result<String> {
        fs::read_to_string(&self.0).with_context(|| format!("cannot read {}", self.0.display()))
    }
}

/// The time of day, in the log's form.
pub(super) fn now() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_nanos(u64::try_from(since.as_nanos() % DAY.as_nanos()).unwrap_or_default())
}

/// Returns the duration between two times of day. Midnight may lie between them.
pub(super) fn from_to(began: Duration, ended: Duration) -> Duration {
    ended
        .checked_sub(began)
        .unwrap_or((ended + DAY).saturating_sub(began))
}

fn between(
    events: &[Event],
    begins: impl Fn(&Event) -> bool,
    ends: impl Fn(&Event) -> bool,
    which: Which,
) -> anyhow::Result<Duration> {
    let Some(first) = events.iter().position(begins) else {
        bail!("the start is missing");
    };
    let mut found = events[first..].iter().filter(|event| ends(event));
    let last = match which {
        Which::First => found.next(),
        Which::Last => found.next_back(),
    };
    let last = last.context("the end is missing")?;
    Ok(from_to(events[first].at, last.at))
}

/// Parses a line of the log. An incomplete line is ignored.
fn event(line: &str) -> Option<Event> {
    let event: Value = serde_json::from_str(line).ok()?;
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let resource = match (text("/objectRef/resource"), text("/objectRef/subresource")) {
        ("", _) => text("/requestURI")
            .split('?')
            .next()
            .unwrap_or_default()
            .to_owned(),
        (resource, "") => resource.to_owned(),
        (resource, part) => format!("{resource}/{part}"),
    };
    Some(Event {
        user: text("/user/username").to_owned(),
        verb: text("/verb").to_owned(),
        resource,
        name: text("/objectRef/name").to_owned(),
        starts: text("/verb") != WATCH || text("/stage") == "ResponseStarted",
        at: time_of_day(text("/stageTimestamp"))?,
    })
}

/// Returns the time of day of `2026-01-31T23:59:59.123456Z`.
fn time_of_day(timestamp: &str) -> Option<Duration> {
    let (_, time) = timestamp.trim_end_matches('Z').split_once('T')?;
    let mut parts = time.split(':');
    let mut whole = || parts.next()?.parse::<u64>().ok();
    let (hours, minutes) = (whole()?, whole()?);
    let seconds: f64 = parts.next()?.parse().ok()?;
    let seconds = Duration::try_from_secs_f64(seconds).ok()?;
    Some(Duration::from_secs(hours * 3600 + minutes * 60) + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(user: &str, verb: &str, stage: &str, time: &str) -> String {
        serde_json::json!({
            "user": { "username": user }, "verb": verb, "stage": stage,
            "objectRef": { "resource": "daemonsets", "subresource": "status", "name": "one" },
            "stageTimestamp": format!("2026-01-31T{time}Z"),
        })
        .to_string()
    }

    #[test]
    fn watch_starts_once() {
        let event = |verb, stage| event(&line("us", verb, stage, "00:00:01.5")).unwrap();
        let started = event("watch", "ResponseStarted");
        assert!(started.starts);
        assert_eq!(started.user, "us");
        assert_eq!(
            (started.resource.as_str(), started.name.as_str()),
            ("daemonsets/status", "one")
        );
        assert_eq!(started.at, Duration::from_millis(1500));
        assert!(!event("watch", "ResponseComplete").starts);
        assert!(event("get", "ResponseComplete").starts);
        assert_eq!(super::event("{\"verb\":"), None);
    }

    #[test]
    fn request_without_a_resource_has_its_path() {
        let line = serde_json::json!({
            "verb": "get", "requestURI": "/version?timeout=32s", "stageTimestamp": "2026-01-31T00:00:00Z",
        });
        assert_eq!(event(&line.to_string()).unwrap().resource, "/version");
    }

    #[test]
    fn requests_of_a_client_are_counted_without_watches_and_leases() {
        let request = |user: &str, verb: &str, resource: &str, stage: &str| {
            let line = serde_json::json!({
                "user": { "username": user }, "verb": verb, "stage": stage,
                "objectRef": { "resource": resource }, "stageTimestamp": "2026-01-31T00:00:00Z",
            });
            event(&line.to_string()).unwrap()
        };
        let (begin, end) = ("ResponseStarted", "ResponseComplete");
        let events = [
            request("us", "watch", "pods", begin),
            request("us", "watch", "nodes", begin),
            request("us", "list", "pods", end),
            request("us", "list", "pods", end),
            request("us", "patch", "pods", end),
            request("us", "get", "leases", end),
            request("us", "update", "leases", end),
            request("them", "watch", "pods", begin),
            request("them", "delete", "pods", end),
            request("us", "watch", "pods", end),
        ];
        let each = [("list pods".to_owned(), 2), ("patch pods".to_owned(), 1)];
        let expected = Requests {
            writes: 1,
            reads: 2,
            renewals: 2,
            watches: 2,
            each: each.into(),
        };
        assert_eq!(Requests::of(&events, "us"), expected);
        assert_eq!(open_watches(&events, "us"), 1);
        let disturbing = events.iter().filter(|event| event.disturbs_rest());
        assert_eq!(disturbing.count(), 4);
    }

    #[test]
    fn duration_spans_midnight() {
        let events: Vec<_> = [
            ("23:59:59.9", "delete"),
            ("00:00:00.2", "create"),
            ("00:00:01.2", "create"),
        ]
        .map(|(time, verb)| event(&line("us", verb, "ResponseComplete", time)).unwrap())
        .into();
        let time = |which| {
            between(
                &events,
                |event| event.verb == "delete",
                |event| event.verb == "create",
                which,
            )
            .unwrap()
        };
        assert_eq!(time(Which::First), Duration::from_millis(300));
        assert_eq!(time(Which::Last), Duration::from_millis(1300));
        assert!(between(&events, |event| event.verb == "get", |_| true, Which::First).is_err());
    }
}

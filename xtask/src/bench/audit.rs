//! The API server's audit log: requests with their clients and times.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use cluster::Cluster;
use serde_json::Value;

const DAY: Duration = Duration::from_hours(24);

/// The log of a cluster, and the operator's account.
pub(super) struct Log {
    path: PathBuf,
    operator: String,
}

/// A position in the log.
pub(super) struct Mark(usize);

/// A request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) by_operator: bool,
    pub(super) verb: String,
    /// The resource with its subresource: `daemonsets`, `networkaddonsconfigs/status`.
    pub(super) resource: String,
    /// Empty for creations.
    pub(super) name: String,
    /// True for the request itself. A watch has a second entry when it ends.
    pub(super) starts: bool,
    /// Time of the answer since midnight.
    pub(super) at: Duration,
}

/// Selects one of several events.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    First,
    Last,
}

impl Log {
    /// Returns the log of a cluster whose operator runs in `namespace`.
    pub(super) fn of(cluster: &Cluster, namespace: &str) -> Self {
        Self {
            path: cluster.audit_log(),
            operator: format!("system:serviceaccount:{namespace}:cluster-network-addons-operator"),
        }
    }

    /// Returns the current end of the log.
    pub(super) fn mark(&self) -> anyhow::Result<Mark> {
        Ok(Mark(self.read()?.len()))
    }

    /// Returns the requests since a mark.
    pub(super) fn since(&self, mark: &Mark) -> anyhow::Result<Vec<Event>> {
        let text = self.read()?;
        let lines = text.get(mark.0..).unwrap_or_default().lines();
        Ok(lines.filter_map(|line| event(line, &self.operator)).collect())
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
            .with_context(|| format!("{} does not contain it", self.path.display()))
    }

    fn read(&self) -> anyhow::Result<String> {
        fs::read_to_string(&self.path).with_context(|| format!("cannot read {}", self.path.display()))
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
fn event(line: &str, operator: &str) -> Option<Event> {
    let event: Value = serde_json::from_str(line).ok()?;
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let resource = match text("/objectRef/subresource") {
        "" => text("/objectRef/resource").to_owned(),
        part => format!("{}/{part}", text("/objectRef/resource")),
    };
    Some(Event {
        by_operator: text("/user/username") == operator,
        verb: text("/verb").to_owned(),
        resource,
        name: text("/objectRef/name").to_owned(),
        starts: text("/verb") != "watch" || text("/stage") == "ResponseStarted",
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
        let event = |verb, stage| event(&line("us", verb, stage, "00:00:01.5"), "us").unwrap();
        let started = event("watch", "ResponseStarted");
        assert!(started.starts && started.by_operator);
        assert_eq!(
            (started.resource.as_str(), started.name.as_str()),
            ("daemonsets/status", "one")
        );
        assert_eq!(started.at, Duration::from_millis(1500));
        assert!(!event("watch", "ResponseComplete").starts);
        assert!(event("get", "ResponseComplete").starts);
        assert_eq!(super::event("{\"verb\":", "us"), None);
    }

    #[test]
    fn duration_spans_midnight() {
        let events: Vec<_> = [
            ("23:59:59.9", "delete"),
            ("00:00:00.2", "create"),
            ("00:00:01.2", "create"),
        ]
        .map(|(time, verb)| event(&line("us", verb, "ResponseComplete", time), "us").unwrap())
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

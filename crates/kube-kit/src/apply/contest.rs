//! Back-off for objects that another client keeps reverting.
//!
//! Without it both clients write as fast as the API server answers, for ever. The same rendering is written a few times
//! without delay, then with growing pauses, until it stays.

use linux::backoff::Backoff;
use serde_json::{Map, Value};
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

use crate::client::PRODUCT;

/// Writes of the same rendering without a pause, within [`WINDOW`].
const BUDGET: usize = 5;
const WINDOW: Duration = Duration::from_mins(1);
/// The pauses after that.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(15), Duration::from_mins(5));

/// Recent writes of the same rendering of one object.
#[derive(Debug, Default)]
pub struct Contest {
    /// The hash of the rendering.
    fingerprint: u64,
    writes: VecDeque<Instant>,
    /// Number of pauses with the current one; zero while the budget lasts.
    pauses: u32,
    /// A sentence about the other client, after a search for it.
    opponent: Option<String>,
}

/// Whether an object may be written.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Now.
    Write,
    /// Not now; with the sentence about the other client, if it is known.
    Wait(Option<String>),
}

impl Contest {
    /// Decides whether this rendering may be written now.
    pub fn ask(&mut self, fingerprint: u64, now: Instant) -> Verdict {
        if self.fingerprint != fingerprint || self.is_over(now) {
            *self = Self {
                fingerprint,
                ..Self::default()
            };
        }
        let Some(last) = self.writes.back().copied() else {
            return Verdict::Write;
        };
        if self.pauses == 0 {
            self.writes.retain(|at| now.duration_since(*at) < WINDOW);
            if self.writes.len() < BUDGET {
                return Verdict::Write;
            }
            self.pauses = 1;
        }
        if now.duration_since(last) < BACKOFF.after(self.pauses) {
            return Verdict::Wait(self.opponent.clone());
        }
        Verdict::Write
    }

    /// Records a write of this rendering.
    pub fn wrote(&mut self, now: Instant) {
        self.writes.push_back(now);
        if self.writes.len() > BUDGET {
            self.writes.pop_front();
        }
        if self.pauses > 0 {
            self.pauses = self.pauses.saturating_add(1);
            self.opponent = None;
        }
    }

    /// The rest of the current pause.
    pub fn left(&self, now: Instant) -> Duration {
        let last = self.writes.back().copied().unwrap_or(now);
        BACKOFF
            .after(self.pauses)
            .saturating_sub(now.duration_since(last))
    }

    /// Sets the sentence about the other client.
    pub fn name(&mut self, opponent: String) {
        self.opponent = Some(opponent);
    }

    /// Whether the last write has lasted for the quiet time, which resets the back-off. A failed reconcile retries up
    /// to a minute after the end of a pause, so the quiet time must be longer than that.
    pub fn is_over(&self, now: Instant) -> bool {
        let calm = (WINDOW + BACKOFF.after(self.pauses)) * 2;
        self.writes
            .back()
            .is_none_or(|last| now.duration_since(*last) >= calm)
    }
}

/// A sentence about the client that changed the live object at `path`: the field manager that owns the field, else the
/// last writer.
pub(super) fn opponent(live: Option<&Value>, path: &str) -> String {
    let Some(live) = live else {
        return "another client keeps deleting it".to_owned();
    };
    match manager(live, path) {
        Some(manager) => format!("field manager \"{manager}\" keeps changing {path}"),
        None => format!("another client keeps changing {path}"),
    }
}

/// Whether this product changed the live object at `path`.
pub(super) fn is_ours(live: Option<&Value>, path: &str) -> bool {
    live.and_then(|live| manager(live, path)) == Some(PRODUCT)
}

fn manager<'a>(live: &'a Value, path: &str) -> Option<&'a str> {
    let entries = live.pointer("/metadata/managedFields")?.as_array()?;
    let entries = entries
        .iter()
        .filter(|entry| text(entry, "subresource").is_empty());
    let last = entries.max_by_key(|entry| {
        let owned = entry
            .get("fieldsV1")
            .and_then(|fields| uncovered(fields, live, path));
        // Times have a resolution of one second. Within the same second, prefer the other client.
        let is_other = text(entry, "manager") != PRODUCT;
        (owned.map(Reverse), text(entry, "time"), is_other)
    })?;
    Some(text(last, "manager")).filter(|manager| !manager.is_empty())
}

fn text<'a>(entry: &'a Value, key: &str) -> &'a str {
    entry.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The number of bytes of this path that the closest field of `fieldsV1` does not cover: 0 for the field itself, more
/// for an owner of a parent. `None` if there is no such field. Keys and indices are joined by full stops, and keys may
/// contain full stops themselves.
///
/// A manager that owns an object as a whole and one that owns nothing but its existence look alike: `"f:data": {}`.
fn uncovered(fields: &Value, live: &Value, path: &str) -> Option<usize> {
    let below = |fields: &Value, inner: &Value, rest: &str| {
        // A field that is owned as a whole has no children.
        if rest.is_empty() || fields.as_object().is_none_or(Map::is_empty) {
            return Some(rest.len());
        }
        uncovered(fields, inner, rest)
    };
    let fields = fields.as_object()?.iter();
    let covering = fields.filter_map(|(field, children)| {
        if let Some(key) = field.strip_prefix("f:") {
            let rest = path.strip_prefix(key)?;
            let rest = if rest.is_empty() {
                rest
            } else {
                rest.strip_prefix('.')?
            };
            return below(children, live.get(key).unwrap_or(&Value::Null), rest);
        }
        let (index, rest) = path.split_once('.').unwrap_or((path, ""));
        let element = live.get(index.parse::<usize>().ok()?)?;
        let keys: Value = serde_json::from_str(field.strip_prefix("k:")?).unwrap_or_default();
        let mut keys = keys.as_object()?.iter();
        if !keys.all(|(key, value)| element.get(key) == Some(value)) {
            return None;
        }
        below(children, element, rest)
    });
    covering.min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Counts the writes of a reconcile that runs ten times a second and finds its object reverted each time.
    fn writes_within(contest: &mut Contest, begin: Instant, time: Duration) -> usize {
        let (step, mut now, mut writes) = (Duration::from_millis(100), begin, 0);
        while now < begin + time {
            if contest.ask(1, now) == Verdict::Write {
                contest.wrote(now);
                writes += 1;
            }
            now += step;
        }
        writes
    }

    #[test]
    fn contest_over_reverted_object_grows_its_pauses() {
        let (mut contest, begin) = (Contest::default(), Instant::now());
        assert_eq!(
            writes_within(&mut contest, begin, Duration::from_secs(10)),
            BUDGET
        );
        assert_eq!(
            contest.ask(1, begin + Duration::from_secs(10)),
            Verdict::Wait(None)
        );
        contest.name("them".to_owned());
        let waits = contest.ask(1, begin + Duration::from_secs(11));
        assert_eq!(waits, Verdict::Wait(Some("them".to_owned())));
        // Pauses of 15, 30, 60, 120, 240, then of 300 seconds.
        let hour = writes_within(&mut contest, begin, Duration::from_hours(1));
        assert!((10..20).contains(&hour), "{hour}");
    }

    #[test]
    fn contest_after_other_rendering_or_quiet_time_is_reset() {
        let (mut contest, begin) = (Contest::default(), Instant::now());
        writes_within(&mut contest, begin, Duration::from_secs(1));
        let now = begin + Duration::from_secs(1);
        assert_eq!(contest.ask(1, now), Verdict::Wait(None));
        assert_eq!(contest.ask(2, now), Verdict::Write);

        let mut contest = Contest::default();
        writes_within(&mut contest, begin, Duration::from_secs(1));
        let later = now + Duration::from_mins(10);
        assert_eq!(
            writes_within(&mut contest, later, Duration::from_secs(10)),
            BUDGET
        );
    }

    #[test]
    fn contest_with_rare_repairs_never_waits() {
        let (mut contest, begin) = (Contest::default(), Instant::now());
        for number in 0..20 {
            let now = begin + Duration::from_secs(20) * number;
            assert_eq!(contest.ask(1, now), Verdict::Write, "{number}");
            contest.wrote(now);
        }
    }

    #[test]
    fn opponent_is_owner_of_changed_field() {
        let live = json!({
            "metadata": { "managedFields": [
                { "manager": "weft", "time": "2026-01-01T00:00:02Z", "fieldsV1": {
                    "f:metadata": { "f:labels": { "f:app.kubernetes.io/name": {} } },
                    "f:spec": { "f:containers": { "k:{\"name\":\"a\"}": { "f:image": {} } } },
                    // The map exists because of this manager, which owns none of its keys.
                    "f:data": {},
                } },
                { "manager": "argocd", "time": "2026-01-01T00:00:01Z", "fieldsV1": {
                    "f:spec": { "f:containers": { "k:{\"name\":\"b\"}": { "f:image": {} } } },
                    "f:data": { "f:daemon-config.json": {} },
                } },
                { "manager": "kube-controller-manager", "time": "2026-01-01T00:00:09Z", "subresource": "status",
                    "fieldsV1": { "f:status": {} } },
            ] },
            "spec": { "containers": [{ "name": "a", "image": "1" }, { "name": "b", "image": "2" }] },
            "data": { "daemon-config.json": "" },
        });
        for (path, expected) in [
            ("data.daemon-config.json", "argocd"),
            ("spec.containers.1.image", "argocd"),
            ("spec.containers.0.image", "weft"),
            ("metadata.labels.app.kubernetes.io/name", "weft"),
            // A removed field has no owner: the last writer counts.
            ("data.gone", "weft"),
        ] {
            assert_eq!(manager(&live, path), Some(expected), "{path}");
        }
        assert_eq!(
            opponent(Some(&live), "data.daemon-config.json"),
            "field manager \"argocd\" keeps changing data.daemon-config.json"
        );
        let ownerless = json!({ "metadata": {} });
        assert_eq!(
            opponent(Some(&ownerless), "data.a"),
            "another client keeps changing data.a"
        );
        assert_eq!(opponent(None, "data.a"), "another client keeps deleting it");
    }
}

//! How many nodes may apply a policy at a time (nmstate §5.5-9).
//!
//! The upstream counter, `status.unavailableNodeCountMap`, has the number of taken slots, not their holders. A handler
//! that is killed between its writes of the counter and of its enactment leaks a slot, and so does a removed node.
//! Waiting nodes compare the counter with the enactments: a slot that no enactment holds for a while is leaked, and may
//! be taken.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::objects::{Counts, Enactment, Policy};
use crate::requests::TIMEOUT;

/// Default of `maxUnavailable`, in percent.
pub(super) const DEFAULT_PERCENT: i64 = 50;
/// Minimum time for which a slot has no holder before it counts as leaked: a handler takes the slot before it writes
/// its enactment. Until then the answers to several of its requests may be lost.
pub(crate) const GRACE: Duration = TIMEOUT.saturating_mul(4);
/// Minimum number of observations before a slot counts as leaked.
const MIN_OBSERVATIONS: u32 = 3;
/// Interval at which a waiting node checks for leaked slots. A write of the policy wakes it earlier.
const CHECK: Duration = Duration::from_secs(30);
/// The same once it has observed one, so that it observes it often enough.
const CHECK_SUSPECT: Duration = Duration::from_secs(10);
/// Maximum age of an enactment that is being applied. Its handler writes it every [`HEARTBEAT`].
const HEARTBEAT_TIMEOUT: Duration = Duration::from_mins(15);
/// Interval at which a handler writes the enactment that it is applying.
pub(crate) const HEARTBEAT: Duration = Duration::from_mins(4);

/// How many nodes may be configured at a time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Limit {
    /// At least one.
    pub nodes: i64,
    /// Why `maxUnavailable` is invalid; the default applies then.
    pub mistake: Option<String>,
}

/// Why `spec.maxUnavailable` is invalid, if it is.
pub(crate) fn mistake(max_unavailable: Option<&Value>) -> Option<String> {
    let value = max_unavailable.filter(|value| !value.is_null())?;
    let mistake = || format!("maxUnavailable is neither a number nor a percentage: {value}");
    parsed(value).is_none().then(mistake)
}

/// The limit of `spec.maxUnavailable` for a policy with this number of enactments.
pub(crate) fn limit(max_unavailable: Option<&Value>, enactments: usize) -> Limit {
    let all = i64::try_from(enactments).unwrap_or(i64::MAX);
    let percent = |percent: i64| {
        let hundredfold = i128::from(all) * i128::from(percent);
        // Rounded up, at least one node.
        i64::try_from((hundredfold + 99).div_euclid(100)).unwrap_or(i64::MAX)
    };
    let nodes = match max_unavailable.and_then(parsed) {
        Some(MaxUnavailable::Nodes(nodes)) => nodes,
        Some(MaxUnavailable::Percent(share)) => percent(share),
        None => percent(DEFAULT_PERCENT),
    };
    Limit {
        nodes: nodes.max(1),
        mistake: mistake(max_unavailable),
    }
}

enum MaxUnavailable {
    Nodes(i64),
    Percent(i64),
}

fn parsed(value: &Value) -> Option<MaxUnavailable> {
    match value {
        Value::Number(number) => number.as_i64().map(MaxUnavailable::Nodes),
        Value::String(text) => text.strip_suffix('%')?.parse().ok().map(MaxUnavailable::Percent),
        _ => None,
    }
}

/// Takes a slot of a generation if one is free. Returns the counts to write, without those of older generations.
/// `leaked` counted slots have no holder.
pub(crate) fn take(counts: &Counts, generation: i64, limit: i64, leaked: i64) -> Option<Counts> {
    let counted = counts.get(&generation.to_string()).copied().unwrap_or_default();
    let taken = counted.saturating_sub(leaked).max(0);
    if taken >= limit {
        return None;
    }
    let newer = |key: &str| key.parse::<i64>().is_ok_and(|other| other > generation);
    let mut counts: Counts = counts
        .iter()
        .filter(|(key, _)| newer(key))
        .map(|(key, count)| (key.clone(), *count))
        .collect();
    counts.insert(generation.to_string(), taken + 1);
    Some(counts)
}

/// Whether a waiting node need not read the API server: the counter equals the limit that it observed. A higher counter
/// means that other nodes observed a higher limit, unless this node's observation `is_fresh`.
pub(crate) fn is_full(counted: i64, limit: i64, is_fresh: bool) -> bool {
    counted == limit || (counted > limit && is_fresh)
}

/// A slot that this node holds.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Held {
    /// UID of the policy.
    pub uid: String,
    /// Its generation.
    pub generation: i64,
}

impl Held {
    /// A slot of the policy's current generation.
    pub(crate) fn of(policy: &Policy) -> Self {
        Self {
            uid: policy.uid(),
            generation: policy.generation(),
        }
    }
}

/// Releases a slot of a generation. Returns whether one was taken.
pub(crate) fn release(counts: &mut Counts, generation: i64) -> bool {
    match counts.get_mut(&generation.to_string()) {
        Some(count) if *count > 0 => {
            *count -= 1;
            true
        }
        _ => false,
    }
}

/// Enactments that hold slots of a generation: the policy is being applied, or failed then.
pub(crate) fn holders(enactments: &[Enactment], generation: i64) -> impl Iterator<Item = &Enactment> {
    enactments
        .iter()
        .filter(move |enactment| enactment.generation == generation && enactment.holds_slot())
}

/// Number of enactments that failed for good in a generation and keep their slots. At the limit, no further node
/// applies the policy. A failure to render holds no slot: often the host was only away for a moment.
pub(crate) fn failures(enactments: &[Enactment], generation: i64) -> i64 {
    let failed = holders(enactments, generation).filter(|enactment| enactment.is_failed());
    i64::try_from(failed.count()).unwrap_or(i64::MAX)
}

/// A waiting node's observations of slots without a holder.
#[derive(Debug, Default)]
pub(crate) struct LeakDetector {
    generation: i64,
    /// First observation, number of observations, and the lowest number of slots without a holder.
    surplus: Option<(Instant, u32, i64)>,
    /// `resourceVersion` of enactments that are being applied, and when it was first observed.
    versions: BTreeMap<String, (String, Instant)>,
    /// Nodes that are applying the policy and wrote nothing for longer than [`HEARTBEAT_TIMEOUT`].
    silent: BTreeSet<String>,
}

impl LeakDetector {
    /// Compares the counter with the enactments. Returns the number of slots that are certainly leaked: they had no
    /// holder for the time `grace`.
    pub(crate) fn observe(
        &mut self,
        generation: i64,
        counted: i64,
        enactments: &[Enactment],
        grace: Duration,
        now: Instant,
    ) -> i64 {
        if self.generation != generation {
            *self = Self {
                generation,
                ..Self::default()
            };
        }
        let mut held = 0_i64;
        let mut versions = BTreeMap::new();
        self.silent.clear();
        for enactment in holders(enactments, generation) {
            let known = self.versions.remove(&enactment.name);
            let since = match known {
                Some((version, since)) if version == enactment.version => since,
                _ => now,
            };
            versions.insert(enactment.name.clone(), (enactment.version.clone(), since));
            // A final failure keeps the slot: that keeps a bad policy from the other nodes.
            if enactment.is_failed() || now - since < HEARTBEAT_TIMEOUT {
                held += 1;
            } else {
                self.silent.insert(enactment.node.clone());
            }
        }
        self.versions = versions;
        let surplus = counted - held;
        if surplus <= 0 {
            self.surplus = None;
            return 0;
        }
        let (since, seen, least) = match self.surplus {
            Some((since, seen, least)) => (since, seen.saturating_add(1), least.min(surplus)),
            None => (now, 1, surplus),
        };
        self.surplus = Some((since, seen, least));
        if seen >= MIN_OBSERVATIONS && now - since >= grace {
            least
        } else {
            0
        }
    }

    /// Interval until the next observation.
    pub(crate) fn interval(&self) -> Duration {
        if self.surplus.is_some() {
            CHECK_SUSPECT
        } else {
            CHECK
        }
    }

    /// Nodes whose slots the last observation counted as leaked although they have an enactment. The caller checks
    /// whether they are ready: the policy may have cut one off.
    pub(crate) fn silent_nodes(&self) -> &BTreeSet<String> {
        &self.silent
    }
}

#[cfg(test)]
mod tests;

//! How many nodes a policy may be applied on at a time, and whose turn it is (nmstate §5.5-9).
//!
//! The established counter, `status.unavailableNodeCountMap`, says how many nodes hold a slot, not which. Whoever is
//! killed between a write of the counter and one of its enactment leaves a slot behind that nobody holds, and so does a
//! node that is removed. Those who wait compare the counter with the enactments: what no enactment stands for over a
//! while is nobody's, and the next may have it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::objects::Enactment;

/// Part of the nodes that may be configured at a time where a policy does not say it, in percent.
pub(super) const DEFAULT_PERCENT: i64 = 50;
/// How long a slot must be nobody's before another node may have it: a slot is taken a moment before its enactment says
/// so.
const GRACE: Duration = Duration::from_secs(20);
/// How often it must have been seen so.
const SIGHTINGS: u32 = 3;
/// How often a node that waits looks for such slots. What is written of the policy wakes it in any case.
const PATROL: Duration = Duration::from_secs(30);
/// How often it looks once it saw one: so that it has seen it often enough when it may be taken.
const SUSPICION: Duration = Duration::from_secs(10);
/// How long an enactment may stay as it is while it is being applied. Its handler writes it every [`HEARTBEAT`].
const LEASE: Duration = Duration::from_mins(15);
/// How often the handler says that it is still at work.
pub const HEARTBEAT: Duration = Duration::from_mins(4);

/// Taken slots by generation of the policy, written in decimal.
pub type Counts = BTreeMap<String, i64>;

/// How many nodes may be configured at a time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limit {
    /// At least one.
    pub nodes: i64,
    /// What is wrong with what the policy says; then the default holds.
    pub mistake: Option<String>,
}

/// What is wrong with `spec.maxUnavailable`, if anything is.
pub fn mistake(max_unavailable: Option<&Value>) -> Option<String> {
    let value = max_unavailable.filter(|value| !value.is_null())?;
    let mistake = || format!("maxUnavailable is neither a number nor a percentage: {value}");
    understood(value).is_none().then(mistake)
}

/// What `spec.maxUnavailable` means for a policy with so many enactments.
pub fn limit(max_unavailable: Option<&Value>, enactments: usize) -> Limit {
    let all = i64::try_from(enactments).unwrap_or(i64::MAX);
    let percent = |percent: i64| {
        let hundredfold = i128::from(all) * i128::from(percent);
        // Rounded up, and never less than one node.
        i64::try_from((hundredfold + 99).div_euclid(100)).unwrap_or(i64::MAX)
    };
    let nodes = match max_unavailable.and_then(understood) {
        Some(Wanted::Nodes(nodes)) => nodes,
        Some(Wanted::Percent(share)) => percent(share),
        None => percent(DEFAULT_PERCENT),
    };
    Limit {
        nodes: nodes.max(1),
        mistake: mistake(max_unavailable),
    }
}

enum Wanted {
    Nodes(i64),
    Percent(i64),
}

fn understood(value: &Value) -> Option<Wanted> {
    match value {
        Value::Number(number) => number.as_i64().map(Wanted::Nodes),
        Value::String(text) => text.strip_suffix('%')?.parse().ok().map(Wanted::Percent),
        _ => None,
    }
}

/// Takes a slot of a generation, if one is left: gives the counts to write, without those of older generations. `unheld`
/// of the counted slots are nobody's.
pub fn take(counts: &Counts, generation: i64, limit: i64, unheld: i64) -> Option<Counts> {
    let counted = counts.get(&generation.to_string()).copied().unwrap_or_default();
    let taken = counted.saturating_sub(unheld).max(0);
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

/// Whether a node that waits need not ask again, because as many slots are counted as it saw there are. Where more are
/// counted, others saw that there are more by now, and only one that `is_fresh` knows better.
pub fn is_full(counted: i64, limit: i64, is_fresh: bool) -> bool {
    counted == limit || (counted > limit && is_fresh)
}

/// Gives a slot of a generation back; whether there was one to give back.
pub fn release(counts: &mut Counts, generation: i64) -> bool {
    match counts.get_mut(&generation.to_string()) {
        Some(count) if *count > 0 => {
            *count -= 1;
            true
        }
        _ => false,
    }
}

/// Enactments that stand for slots of a generation: they are being applied, or failed after they were.
pub fn holders(enactments: &[Enactment], generation: i64) -> impl Iterator<Item = &Enactment> {
    enactments
        .iter()
        .filter(move |enactment| enactment.generation == generation && enactment.holds_slot())
}

/// Enactments that failed for good in a generation, and keep their slots for that. As many as the limit, and nobody else
/// is to be tried. Where the document could not even be made there is no slot, and often only a host that was away for a
/// moment.
pub fn failures(enactments: &[Enactment], generation: i64) -> i64 {
    let failed = holders(enactments, generation).filter(|enactment| enactment.is_failed());
    i64::try_from(failed.count()).unwrap_or(i64::MAX)
}

/// What was seen of slots that nobody holds, by one that waits for a slot.
#[derive(Debug, Default)]
pub struct Sightings {
    generation: i64,
    /// Since when, how often, and the least that was seen.
    unheld: Option<(Instant, u32, i64)>,
    /// Versions of enactments that are being applied, and since when they are the same.
    versions: BTreeMap<String, (String, Instant)>,
    /// Nodes whose enactments are being applied, and that have written nothing for longer than [`LEASE`].
    silent: BTreeSet<String>,
}

impl Sightings {
    /// So many slots are counted, and so the enactments are: gives how many of the slots are nobody's for sure.
    pub fn observe(&mut self, generation: i64, counted: i64, enactments: &[Enactment], now: Instant) -> i64 {
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
            // Who failed for good keeps the slot: that is what keeps a bad policy from the other nodes.
            if enactment.is_failed() || now - since < LEASE {
                held += 1;
            } else {
                self.silent.insert(enactment.node.clone());
            }
        }
        self.versions = versions;
        let surplus = counted - held;
        if surplus <= 0 {
            self.unheld = None;
            return 0;
        }
        let (since, seen, least) = match self.unheld {
            Some((since, seen, least)) => (since, seen.saturating_add(1), least.min(surplus)),
            None => (now, 1, surplus),
        };
        self.unheld = Some((since, seen, least));
        if seen >= SIGHTINGS && now - since >= GRACE {
            least
        } else {
            0
        }
    }

    /// How long a node that waits may go without another look.
    pub fn pause(&self) -> Duration {
        if self.unheld.is_some() { SUSPICION } else { PATROL }
    }

    /// Nodes that lost their slots by silence, as of the last look. The caller asks whether they are ready: the policy may
    /// have cut one off.
    pub fn silent(&self) -> &BTreeSet<String> {
        &self.silent
    }
}

#[cfg(test)]
mod tests;

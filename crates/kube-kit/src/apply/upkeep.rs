//! Back-off for groups of objects that get different content with each write: certificates.
//!
//! [`Contest`] counts writes of one rendering, and here each write is different. So every repair counts, which is a
//! write at a time when nothing is due. First writes and renewals are not repairs: they do not count, and a pause does
//! not delay them.

use super::contest::{self, Contest, Verdict};
use super::{Applier, Cause, fingerprint, requests};
use crate::lock;
use crate::object::ObjectId;
use kube::core::params;
use serde_json::Value;
use std::hash::Hash;
use std::time::SystemTime;
use tokio::time::Instant;

/// Recent repairs of a group of objects.
#[derive(Debug, Default)]
pub struct Upkeep {
    /// The hash of the group's purpose.
    purpose: u64,
    /// The time at which the next write is due without a change by other clients; `None` before the first complete
    /// write.
    due: Option<SystemTime>,
    repairs: Contest,
}

/// A pause of repairs, because another client reverts each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// The end of the pause.
    pub until: SystemTime,
    /// A sentence about the other client, after a search for it.
    pub opponent: Option<String>,
}

impl Upkeep {
    /// Whether a write has to wait.
    pub fn pause(&mut self, now: SystemTime) -> Option<Pause> {
        let due = self.due.filter(|due| now < *due)?;
        let instant = Instant::now();
        match self.repairs.ask(self.purpose, instant) {
            Verdict::Write => None,
            Verdict::Wait(opponent) => Some(Pause {
                until: due.min(now + self.repairs.left(instant)),
                opponent,
            }),
        }
    }

    /// Records a write at this time, after a call of [`Self::pause`] for the same time.
    pub fn wrote(&mut self, now: SystemTime) {
        if self.due.is_some_and(|due| now < due) {
            self.repairs.wrote(Instant::now());
        }
    }

    /// Records that all objects are in order until `due`, unless another client writes.
    pub fn in_order(&mut self, due: SystemTime) {
        self.due = Some(due);
    }

    /// Sets the sentence about the other client.
    pub fn name(&mut self, opponent: String) {
        self.repairs.name(opponent);
    }
}

impl Applier {
    /// The back-off of a group of objects, stored under one of them. A change of the purpose resets it.
    pub fn upkeep<T>(&self, id: &ObjectId, purpose: &impl Hash, with: impl FnOnce(&mut Upkeep) -> T) -> T {
        let purpose = fingerprint(purpose);
        let mut upkeeps = lock(&self.upkeeps);
        let upkeep = upkeeps.entry(id.clone()).or_default();
        if upkeep.purpose != purpose {
            *upkeep = Upkeep {
                purpose,
                ..Upkeep::default()
            };
        }
        with(upkeep)
    }

    /// A sentence about the client that reverts repairs. Each suspect is an object and the field that the client may
    /// have changed; the first one with another last writer counts.
    pub async fn blame(&self, suspects: &[(ObjectId, String)]) -> String {
        let mut ours = None;
        for (id, path) in suspects {
            let live = self.listed(id).await.unwrap_or_else(|cause| {
                tracing::debug!(object = %id, %cause, "cannot determine the client that changes it");
                Some(Value::Null)
            });
            let sentence = format!("{id}: {}", contest::opponent(live.as_ref(), path));
            if !contest::is_ours(live.as_ref(), path) {
                return sentence;
            }
            ours.get_or_insert(sentence);
        }
        // This product wrote all of them last: another process of it reverts them.
        ours.unwrap_or_default()
    }

    /// The live object with its `managedFields`, which the cache drops. Upstream's roles may list Secrets and not get
    /// them (kubemacpool.md §17).
    async fn listed(&self, id: &ObjectId) -> Result<Option<Value>, Cause> {
        let kind = id.known_kind().ok_or_else(|| Cause::unknown_kind(id))?;
        let named = params::ListParams::default().fields(&format!("metadata.name={}", id.name));
        let mut list = self.send(id, requests(kind, id).list(&named)).await?;
        Ok(list.pointer_mut("/items/0").map(Value::take))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const HOUR: Duration = Duration::from_hours(1);

    /// Objects that another client reverts at once, and the clock.
    struct World {
        upkeep: Upkeep,
        begin: SystemTime,
        now: SystemTime,
    }

    impl World {
        fn new() -> Self {
            let begin = SystemTime::UNIX_EPOCH + HOUR;
            Self {
                upkeep: Upkeep::default(),
                begin,
                now: begin,
            }
        }

        async fn pass(&mut self, time: Duration) {
            tokio::time::advance(time).await;
            self.now += time;
        }

        /// Rewrites everything if that is allowed now.
        fn write(&mut self, due: SystemTime) -> Option<Pause> {
            let pause = self.upkeep.pause(self.now);
            if pause.is_none() {
                self.upkeep.wrote(self.now);
                self.upkeep.in_order(due);
            }
            pause
        }

        /// Repairs at once until a pause begins.
        fn exhaust(&mut self) -> Pause {
            let due = self.now + HOUR;
            (0..10)
                .find_map(|_| self.write(due))
                .expect("a pause after a few repairs")
        }

        fn seconds(&self) -> u64 {
            self.now.duration_since(self.begin).expect("later").as_secs()
        }
    }

    // operator#95, the pauses
    #[tokio::test(start_paused = true)]
    async fn upkeep_of_reverted_objects_grows_its_pauses_and_returns_their_end() {
        let mut world = World::new();
        let due = world.now + 24 * HOUR;
        let mut writes = Vec::new();
        while world.seconds() < 1200 {
            match world.write(due) {
                None => {
                    writes.push(world.seconds());
                    world.pass(Duration::from_millis(100)).await;
                }
                Some(Pause { until, opponent }) => {
                    assert_eq!(opponent, None, "not looked for since the last write");
                    world.upkeep.name("them".to_owned());
                    let again = world.upkeep.pause(world.now).expect("it lasts");
                    assert_eq!((again.until, again.opponent), (until, Some("them".to_owned())));
                    let left = until.duration_since(world.now).expect("later");
                    assert!(!left.is_zero());
                    world.pass(left).await;
                }
            }
        }
        // The first write and five repairs, then pauses of 15, 30, 60, 120, 240 and 300 seconds.
        assert_eq!(writes, [0, 0, 0, 0, 0, 0, 15, 45, 105, 225, 465, 765, 1065]);
    }

    // operator#95, renewals
    #[tokio::test(start_paused = true)]
    async fn due_upkeep_is_written_during_pause_and_keeps_it() {
        let mut world = World::new();
        let end = world.exhaust().until;
        let due = world.now + Duration::from_secs(5);
        world.upkeep.in_order(due);
        assert_eq!(world.upkeep.pause(world.now).expect("a pause").until, due);
        world.pass(Duration::from_secs(5)).await;
        assert_eq!(world.write(world.now + HOUR), None);
        let pause = world.upkeep.pause(world.now).expect("it lasts");
        assert_eq!(pause.until, end);
    }

    #[tokio::test(start_paused = true)]
    async fn upkeep_before_first_order_or_always_due_never_waits() {
        let mut upkeep = Upkeep::default();
        let now = SystemTime::UNIX_EPOCH + HOUR;
        for number in 0..20 {
            assert_eq!(upkeep.pause(now), None, "{number}");
            upkeep.wrote(now);
        }
        let mut world = World::new();
        for number in 0..20 {
            let due = world.now + Duration::from_secs(1);
            assert_eq!(world.write(due), None, "{number}");
            world.pass(Duration::from_secs(1)).await;
        }
    }
}

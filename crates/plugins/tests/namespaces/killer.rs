//! ADD and DEL of one attachment, killed at random moments.

use std::{
    fmt::{self, Display, Formatter},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    dice::Dice,
    stage::{Host, Pod},
};

/// Limit of calls for one kill: a call that ends before its kill does not count.
const CALLS_FOR_A_KILL: u32 = 20;
const MEASURED_CALLS: u32 = 3;

/// Kills one call a round, until it has killed enough of them before they ended.
pub(crate) struct Killer {
    dice: Dice,
    /// Durations of ADD and of DEL, the shortest of several.
    whole: [(&'static str, Duration); 2],
    wanted: u32,
    killed: u32,
    rounds: u32,
}

/// A call that was killed, or had ended before.
pub(crate) struct Round {
    /// Even for ADD, odd for DEL.
    pub(crate) number: u32,
    verb: &'static str,
    after: Duration,
    seed: u64,
}

impl Display for Round {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Round {
            number,
            verb,
            after,
            seed,
        } = self;
        write!(f, "round {number}: {verb} killed after {after:?}, seed {seed}")
    }
}

impl Killer {
    /// Measures whole calls; the pod is detached before and after.
    pub(crate) fn new(host: &Host, pod: &Pod, config: &Value, wanted: u32) -> Self {
        let mut whole = ["ADD", "DEL"].map(|verb| (verb, Duration::MAX));
        for _ in 0..MEASURED_CALLS {
            for (verb, shortest) in &mut whole {
                let begun = Instant::now();
                host.call(verb, pod, config).success();
                *shortest = begun.elapsed().min(*shortest);
            }
        }
        Self {
            dice: Dice::new(),
            whole,
            wanted,
            killed: 0,
            rounds: 0,
        }
    }

    /// Calls ADD, or DEL after a whole ADD, and kills that call. `None` when enough calls were killed.
    pub(crate) fn kill(&mut self, host: &Host, pod: &Pod, config: &Value) -> Option<Round> {
        let Self {
            wanted,
            killed,
            rounds,
            ..
        } = *self;
        if killed == wanted {
            println!("measured: {killed} of {rounds} calls were killed before they ended");
            return None;
        }
        assert!(
            rounds < wanted * CALLS_FOR_A_KILL,
            "only {killed} of {rounds} calls were killed in time"
        );
        let (verb, whole) = self.whole[usize::try_from(rounds % 2).unwrap()];
        if verb == "DEL" {
            host.add(pod, config);
        }
        let after = self.dice.part_of(whole);
        self.killed += u32::from(host.call_and_kill(verb, pod, config, after));
        self.rounds += 1;
        Some(Round {
            number: rounds,
            verb,
            after,
            seed: self.dice.seed,
        })
    }
}

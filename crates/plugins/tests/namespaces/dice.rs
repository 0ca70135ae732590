//! Numbers that look random and are the same for the same seed.

use std::time::Duration;

/// Repeats a run that failed.
const SEED: &str = "WEFT_TEST_SEED";

/// A generator (xorshift64).
pub(crate) struct Dice {
    /// The first number.
    pub(crate) seed: u64,
    state: u64,
}

impl Dice {
    /// Seeded by the environment, or at random; the seed is printed.
    pub(crate) fn new() -> Self {
        let seed = match std::env::var(SEED) {
            Ok(seed) => seed.parse().unwrap_or_else(|error| panic!("{SEED}: {error}")),
            Err(_) => u64::from_ne_bytes(linux::random::bytes().unwrap()),
        };
        println!("measured: {SEED}={seed}");
        Dice {
            seed,
            state: seed | 1,
        }
    }

    fn roll(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    /// A number from 0 to below `limit`.
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        u32::try_from(self.roll() % u64::from(limit)).unwrap()
    }

    /// A part of `whole`, any part being as likely as any other.
    pub(crate) fn part_of(&mut self, whole: Duration) -> Duration {
        let micros = u64::try_from(whole.as_micros()).unwrap().max(1);
        Duration::from_micros(self.roll() % micros)
    }
}

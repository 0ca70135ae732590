//! Keeps a network in trouble from flooding the API server with events (cluster-network §13.4).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// So many events are too many within so long.
const LIMITS: [(usize, Duration); 2] = [(30, Duration::from_secs(30)), (600, Duration::from_mins(10))];
/// How long events are withheld then.
pub const WITHHELD: Duration = Duration::from_mins(30);

/// Which events were published lately, and how many were withheld.
#[derive(Debug, Default)]
pub struct Flood {
    /// Times of the latest events, as many as the highest limit.
    published: VecDeque<Instant>,
    /// Until when events are withheld, and how many of each reason were.
    withheld: Option<(Instant, BTreeMap<&'static str, u64>)>,
}

impl Flood {
    /// Whether an event of this reason may be published now.
    pub fn allows(&mut self, reason: &'static str, now: Instant) -> bool {
        if self.withheld.is_none() && self.is_too_many(now) {
            self.withheld = Some((now + WITHHELD, BTreeMap::new()));
        }
        if let Some((_, counts)) = &mut self.withheld {
            *counts.entry(reason).or_default() += 1;
            return false;
        }
        self.published.push_back(now);
        let most = LIMITS.iter().map(|(count, _)| *count).max().unwrap_or_default();
        while self.published.len() > most {
            self.published.pop_front();
        }
        true
    }

    /// Whether one more event now exceeds a limit.
    fn is_too_many(&self, now: Instant) -> bool {
        LIMITS.iter().any(|(count, within)| {
            let lately = self.published.iter().rev().take(*count);
            lately.filter(|at| now.duration_since(**at) <= *within).count() == *count
        })
    }

    /// How many events of each reason were withheld, once that is over.
    pub fn summary(&mut self, now: Instant) -> BTreeMap<&'static str, u64> {
        match &self.withheld {
            Some((until, _)) if *until <= now => {
                self.published.clear();
                self.withheld.take().map(|(_, counts)| counts).unwrap_or_default()
            }
            _ => BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn more_than_thirty_in_half_a_minute_are_withheld_and_counted() {
        let mut flood = Flood::default();
        for _ in 0..30 {
            assert!(flood.allows("A", Instant::now()));
        }
        tokio::time::advance(Duration::from_secs(29)).await;
        for reason in ["A", "B", "A"] {
            assert!(!flood.allows(reason, Instant::now()), "{reason}");
        }
        tokio::time::advance(Duration::from_secs(29 * 60)).await;
        assert!(!flood.allows("B", Instant::now()));
        assert!(flood.summary(Instant::now()).is_empty(), "not over yet");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(
            flood.summary(Instant::now()),
            BTreeMap::from([("A", 2), ("B", 2)])
        );
        assert!(flood.summary(Instant::now()).is_empty(), "told once");
        assert!(flood.allows("A", Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn more_than_six_hundred_in_ten_minutes_are_withheld() {
        let mut flood = Flood::default();
        // Thirty in half a minute are not too many.
        for _ in 0..20 {
            for _ in 0..30 {
                assert!(flood.allows("A", Instant::now()));
            }
            tokio::time::advance(Duration::from_millis(30_001)).await;
        }
        // The first thirty are older than ten minutes now: there is room for as many.
        for _ in 0..30 {
            assert!(flood.allows("A", Instant::now()));
        }
        assert!(!flood.allows("A", Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_steady_trickle_passes() {
        let mut flood = Flood::default();
        for _ in 0..2000 {
            assert!(flood.allows("A", Instant::now()));
            tokio::time::advance(Duration::from_millis(1100)).await;
        }
    }
}

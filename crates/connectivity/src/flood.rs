//! Limits the events of a failing network, to protect the API server (cluster-network §13.4).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// Limits: maximum numbers of events within a period.
const LIMITS: [(usize, Duration); 2] = [(30, Duration::from_secs(30)), (600, Duration::from_mins(10))];
/// The time for which events are withheld after a limit was exceeded.
pub(crate) const WITHHELD: Duration = Duration::from_mins(30);

/// Times of recently published events, and counts of withheld events.
#[derive(Debug, Default)]
pub(crate) struct Flood {
    /// Times of the latest events, up to the highest limit.
    published: VecDeque<Instant>,
    /// End of the withholding, and counts of withheld events by reason.
    withheld: Option<(Instant, BTreeMap<&'static str, u64>)>,
}

impl Flood {
    /// True if an event of this reason may be published now.
    pub(crate) fn allows(&mut self, reason: &'static str, now: Instant) -> bool {
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

    /// True if one more event now exceeds a limit.
    fn is_too_many(&self, now: Instant) -> bool {
        LIMITS.iter().any(|(count, within)| {
            let lately = self.published.iter().rev().take(*count);
            lately.filter(|at| now.duration_since(**at) <= *within).count() == *count
        })
    }

    /// The counts of withheld events by reason, once after the withholding ends.
    pub(crate) fn summary(&mut self, now: Instant) -> BTreeMap<&'static str, u64> {
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
    async fn events_above_thirty_in_half_a_minute_are_withheld_and_counted() {
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
        assert!(flood.summary(Instant::now()).is_empty(), "withholding continues");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(
            flood.summary(Instant::now()),
            BTreeMap::from([("A", 2), ("B", 2)])
        );
        assert!(flood.summary(Instant::now()).is_empty(), "summary returned once");
        assert!(flood.allows("A", Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn events_above_six_hundred_in_ten_minutes_are_withheld() {
        let mut flood = Flood::default();
        // Thirty events in half a minute are within the limits.
        for _ in 0..20 {
            for _ in 0..30 {
                assert!(flood.allows("A", Instant::now()));
            }
            tokio::time::advance(Duration::from_millis(30_001)).await;
        }
        // The first thirty events are now older than ten minutes, so thirty more are within the limits.
        for _ in 0..30 {
            assert!(flood.allows("A", Instant::now()));
        }
        assert!(!flood.allows("A", Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn events_below_the_limits_are_published() {
        let mut flood = Flood::default();
        for _ in 0..2000 {
            assert!(flood.allows("A", Instant::now()));
            tokio::time::advance(Duration::from_millis(1100)).await;
        }
    }
}

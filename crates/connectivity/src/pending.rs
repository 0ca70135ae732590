//! Results of a check that are not in its status yet, because the API server is slow or away.

use std::collections::VecDeque;

use crate::outage::Outcome;

/// Results that are kept: 48 minutes of them, and far more outages than that, for results inside of an outage, or between
/// two of them, go first.
pub const LIMIT: usize = 48;

/// Results in the order of their time.
#[derive(Clone, Debug, Default)]
pub struct Pending(VecDeque<Outcome>);

impl Pending {
    /// Adds a result at its place. Where there are too many, one is dropped that tells the least: the oldest one whose
    /// neighbours ended alike. If there is none, it is the oldest one of all.
    pub fn push(&mut self, outcome: Outcome) {
        let place = self.0.partition_point(|known| known.order(&outcome).is_le());
        self.0.insert(place, outcome);
        if self.0.len() > LIMIT {
            self.0.remove(self.least());
        }
    }

    fn least(&self) -> usize {
        let success = |at: usize| self.0.get(at).map(Outcome::success);
        (1..self.0.len().saturating_sub(1))
            .find(|&at| success(at - 1) == success(at) && success(at) == success(at + 1))
            .unwrap_or_default()
    }

    /// All of them, for a status; they stay here until they are [done](Self::done).
    pub fn all(&self) -> Vec<Outcome> {
        self.0.iter().cloned().collect()
    }

    /// These results are in the status now.
    pub fn done(&mut self, written: &[Outcome]) {
        self.0.retain(|outcome| !written.contains(outcome));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outage::tests::{failure, success};

    fn times(pending: &Pending) -> Vec<i64> {
        pending
            .all()
            .iter()
            .map(|outcome| outcome.at().as_second())
            .collect()
    }

    #[test]
    fn results_come_in_the_order_of_their_time() {
        // cluster-network#70
        let mut pending = Pending::default();
        for second in [3, 1, 2] {
            pending.push(success(second));
        }
        assert_eq!(times(&pending), [1, 2, 3]);
    }

    #[test]
    fn edges_of_outages_are_kept_longest() {
        let mut pending = Pending::default();
        let limit = i64::try_from(LIMIT).expect("a number");
        for second in 0..limit * 4 {
            // One outage early on, two results long.
            pending.push(if (3..5).contains(&second) {
                failure(second)
            } else {
                success(second)
            });
        }
        assert_eq!(pending.len(), LIMIT);
        let all = pending.all();
        assert_eq!(all.iter().filter(|outcome| !outcome.success()).count(), 2);
        assert_eq!(all.last().map(|last| last.at().as_second()), Some(limit * 4 - 1));
        assert_eq!(times(&pending)[0], 0, "since when it was reachable");
    }

    #[test]
    fn without_anything_alike_the_oldest_goes() {
        let mut pending = Pending::default();
        let limit = i64::try_from(LIMIT).expect("a number");
        for second in 0..=limit {
            pending.push(if second % 2 == 0 {
                failure(second)
            } else {
                success(second)
            });
        }
        assert_eq!(times(&pending), (1..=limit).collect::<Vec<_>>());
    }

    #[test]
    fn what_came_while_others_were_written_stays() {
        let mut pending = Pending::default();
        pending.push(success(1));
        let written = pending.all();
        pending.push(success(2));
        pending.done(&written);
        assert_eq!(times(&pending), [2]);
        assert!(!pending.is_empty());
    }
}

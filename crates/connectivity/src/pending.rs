//! Results of a check that are not written yet, because the API server is slow or unreachable.

use std::collections::VecDeque;

use crate::outage::Outcome;

/// Maximum number of stored results: 48 minutes. The first results to be dropped are those inside of an outage or
/// between two outages, so that far more than 48 minutes of outages fit.
pub(crate) const LIMIT: usize = 48;

/// Results in the order of their time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending(VecDeque<Outcome>);

impl Pending {
    /// Inserts a result in the order of time. If there are too many results, drops the oldest result that has
    /// neighbours of the same kind, or else the oldest result.
    pub(crate) fn push(&mut self, outcome: Outcome) {
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

    /// All results. They stay stored until [`done`](Self::done).
    pub(crate) fn all(&self) -> Vec<Outcome> {
        self.0.iter().cloned().collect()
    }

    /// Removes results that were written.
    pub(crate) fn done(&mut self, written: &[Outcome]) {
        self.0.retain(|outcome| !written.contains(outcome));
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
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
    fn results_are_ordered_by_time() {
        // cluster-network#70
        let mut pending = Pending::default();
        for second in [3, 1, 2] {
            pending.push(success(second));
        }
        assert_eq!(times(&pending), [1, 2, 3]);
    }

    #[test]
    fn starts_and_ends_of_outages_are_dropped_last() {
        let mut pending = Pending::default();
        let limit = i64::try_from(LIMIT).expect("a number");
        for second in 0..limit * 4 {
            // One early outage of two results.
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
        assert_eq!(times(&pending)[0], 0, "the start of reachability");
    }

    #[test]
    fn oldest_result_is_dropped_if_all_neighbours_differ() {
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
    fn result_added_during_a_write_stays() {
        let mut pending = Pending::default();
        pending.push(success(1));
        let written = pending.all();
        pending.push(success(2));
        pending.done(&written);
        assert_eq!(times(&pending), [2]);
        assert!(!pending.is_empty());
    }
}

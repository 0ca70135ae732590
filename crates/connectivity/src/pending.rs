//! Results of a check that are not written yet, because the API server is slow or unreachable.

use std::collections::VecDeque;

use crate::outage::{Edges, Outcome};

/// Maximum number of stored results: 48 minutes. The first results to be dropped are those inside of an outage or
/// between two outages, so that far more than 48 minutes of outages fit.
pub(crate) const LIMIT: usize = 48;

/// Results in the order of their time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    results: VecDeque<Outcome>,
    /// What has to be published for results that may be stored although the answer to their write was lost.
    edges: Edges,
}

impl Pending {
    /// Inserts a result in the order of time. If there are too many results, drops the oldest result that has
    /// neighbours of the same kind, or else the oldest result.
    pub(crate) fn push(&mut self, outcome: Outcome) {
        let place = self
            .results
            .partition_point(|known| known.order(&outcome).is_le());
        self.results.insert(place, outcome);
        if self.results.len() > LIMIT {
            self.results.remove(self.least());
        }
    }

    fn least(&self) -> usize {
        let success = |at: usize| self.results.get(at).map(Outcome::success);
        (1..self.results.len().saturating_sub(1))
            .find(|&at| success(at - 1) == success(at) && success(at) == success(at + 1))
            .unwrap_or_default()
    }

    /// All results. They stay stored until [`done`](Self::done).
    pub(crate) fn all(&self) -> Vec<Outcome> {
        self.results.iter().cloned().collect()
    }

    /// Removes results that were written.
    pub(crate) fn done(&mut self, written: &[Outcome]) {
        self.results.retain(|outcome| !written.contains(outcome));
        self.edges.retain(|(outcome, _)| !written.contains(outcome));
    }

    /// The edges of the last attempt to write the results.
    pub(crate) fn edges(&self) -> Edges {
        self.edges.clone()
    }

    /// Stores the edges of an attempt, before its write.
    pub(crate) fn attempt(&mut self, edges: Edges) {
        self.edges = edges;
    }

    pub(crate) fn len(&self) -> usize {
        self.results.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.results.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outage::Edge;
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
    fn edges_of_an_attempt_stay_until_its_results_are_written() {
        let mut pending = Pending::default();
        for second in [1, 2] {
            pending.push(failure(second));
        }
        let edge = Edge::Started {
            failure: "refused".to_owned(),
        };
        pending.attempt(vec![(failure(1), edge.clone())]);
        pending.done(&[failure(2)]);
        assert_eq!(pending.edges(), [(failure(1), edge)]);
        pending.done(&[failure(1)]);
        assert!(pending.edges().is_empty());
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

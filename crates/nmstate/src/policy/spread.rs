//! Chance, so that what many nodes want to write at the same moment comes one after the other.
//!
//! All handlers write the same policy, and each write needs the version that the one before left. Two that write at once
//! cost a conflict and another attempt, so everybody waits for a moment of his own, in a span that grows with the number
//! of nodes and with the time that a write takes.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// No span is longer, however many nodes there are.
const LONGEST: Duration = Duration::from_secs(30);
/// What a write takes at least.
const QUICKEST: Duration = Duration::from_millis(10);

/// How many nodes there are, and how long a write takes, as far as is known. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Spread(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    nodes: AtomicU32,
    /// Time from the reading of a version to the answer to its writing, in microseconds.
    round: AtomicU32,
}

impl Spread {
    /// So many nodes are known of now.
    pub fn learn(&self, nodes: usize) {
        self.0
            .nodes
            .store(u32::try_from(nodes).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// At least so many nodes are known of now.
    pub fn learn_at_least(&self, nodes: usize) {
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        self.0.nodes.fetch_max(nodes, Ordering::Relaxed);
    }

    /// So long it took to read a version and to write the next one.
    pub fn took(&self, round: Duration) {
        let before = self.0.round.load(Ordering::Relaxed);
        let now = u32::try_from(round.as_micros()).unwrap_or(u32::MAX);
        // The last ones count most.
        let mean = if before == 0 {
            now
        } else {
            before / 4 * 3 + now / 4
        };
        self.0.round.store(mean, Ordering::Relaxed);
    }

    /// A moment of one's own, in a span of so many percent of the time in which all nodes would write one after the
    /// other; at once for one that is alone.
    pub fn moment(&self, percent: u32) -> Duration {
        within(self.span(percent))
    }

    /// The span of [`Spread::moment`].
    pub fn span(&self, percent: u32) -> Duration {
        let nodes = self.0.nodes.load(Ordering::Relaxed);
        if nodes < 2 {
            return Duration::ZERO;
        }
        let round = Duration::from_micros(self.0.round.load(Ordering::Relaxed).into());
        let all = round.max(QUICKEST).saturating_mul(nodes);
        (all.saturating_mul(percent) / 100).min(LONGEST)
    }
}

/// A moment in a span, each as likely as any other.
pub fn within(span: Duration) -> Duration {
    // A hasher is keyed by chance, and 32 bits of it are enough.
    let random = u32::try_from(RandomState::new().build_hasher().finish() >> 32).unwrap_or_default();
    span.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(spread: &Spread, span: Duration) {
        let moments: Vec<Duration> = (0..200).map(|_| spread.moment(200)).collect();
        assert!(moments.iter().all(|moment| *moment <= span), "{moments:?}");
        let late = moments.iter().filter(|moment| **moment > span / 2).count();
        assert!((50..150).contains(&late), "{late} of 200 in the second half");
    }

    #[test]
    fn a_moment_lies_in_a_span_that_grows_with_the_nodes_and_with_what_a_write_takes() {
        let spread = Spread::default();
        assert_eq!(spread.moment(200), Duration::ZERO);
        spread.learn(1);
        assert_eq!(spread.moment(200), Duration::ZERO, "nobody else writes");
        for (nodes, span) in [
            (2, Duration::from_millis(40)),
            (200, Duration::from_secs(4)),
            (1_000_000, LONGEST),
        ] {
            spread.learn(nodes);
            spans(&spread, span);
        }
        spread.learn(20);
        spread.learn_at_least(10);
        for _ in 0..50 {
            spread.took(Duration::from_millis(50));
        }
        spans(&spread, Duration::from_millis(2000));
        for _ in 0..50 {
            spread.took(Duration::from_millis(1));
        }
        spans(&spread, Duration::from_millis(400));
    }
}

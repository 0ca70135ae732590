//! What is said about many measurements of one thing.

use std::time::Duration;

/// What one call cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Time that the caller waited.
    pub(crate) wall: Duration,
    /// Time on processors, in user and kernel mode.
    pub(crate) cpu: Duration,
}

/// What many calls cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Shortest wait.
    pub(crate) min: Duration,
    /// Half of the waits were shorter.
    pub(crate) median: Duration,
    /// Nineteen of twenty waits were shorter.
    pub(crate) p95: Duration,
    /// Median of the time on processors.
    pub(crate) cpu: Duration,
}

/// Sums up; all zero for no samples.
pub(crate) fn summary(samples: &[Sample]) -> Summary {
    let sorted = |time: fn(&Sample) -> Duration| {
        let mut times: Vec<Duration> = samples.iter().map(time).collect();
        times.sort_unstable();
        times
    };
    let wall = sorted(|sample| sample.wall);
    Summary {
        min: wall.first().copied().unwrap_or_default(),
        median: percentile(&wall, 50),
        p95: percentile(&wall, 95),
        cpu: percentile(&sorted(|sample| sample.cpu), 50),
    }
}

/// The smallest of `sorted` that at least `percent` of them do not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(milliseconds: impl IntoIterator<Item = u64>) -> Vec<Sample> {
        let sample = |wall| Sample {
            wall: Duration::from_millis(wall),
            cpu: Duration::from_millis(2 * wall),
        };
        milliseconds.into_iter().map(sample).collect()
    }

    #[test]
    fn order_does_not_matter_and_ranks_are_exact() {
        let summary = summary(&samples((1..=100).rev()));
        assert_eq!(summary.min, Duration::from_millis(1));
        assert_eq!(summary.median, Duration::from_millis(50));
        assert_eq!(summary.p95, Duration::from_millis(95));
        assert_eq!(summary.cpu, Duration::from_millis(100));
    }

    #[test]
    fn few_samples_and_none_are_summed_up_too() {
        let one = summary(&samples([7]));
        assert_eq!((one.min, one.median, one.p95), (one.min, one.min, one.min));
        assert_eq!(summary(&samples([3, 1, 2])).median, Duration::from_millis(2));
        assert_eq!(summary(&[]), Summary::default());
    }
}

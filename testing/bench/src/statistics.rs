//! Statistics of many measurements.

use std::time::Duration;

/// The cost of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Duration for the caller.
    pub(crate) wall: Duration,
    /// Processor time, in user and kernel mode.
    pub(crate) cpu: Duration,
}

/// The cost of many calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Minimum duration.
    pub(crate) min: Duration,
    /// Median of the durations.
    pub(crate) median: Duration,
    /// 95th percentile of the durations.
    pub(crate) p95: Duration,
    /// Median of the processor times.
    pub(crate) cpu: Duration,
}

/// Returns the statistics of samples. All zero without samples.
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

/// Returns the smallest of `sorted` that at least `percent` of them do not exceed.
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
    fn percentiles_are_exact_in_any_order() {
        let summary = summary(&samples((1..=100).rev()));
        assert_eq!(summary.min, Duration::from_millis(1));
        assert_eq!(summary.median, Duration::from_millis(50));
        assert_eq!(summary.p95, Duration::from_millis(95));
        assert_eq!(summary.cpu, Duration::from_millis(100));
    }

    #[test]
    fn statistics_of_few_and_of_no_samples_are_defined() {
        let one = summary(&samples([7]));
        assert_eq!((one.min, one.median, one.p95), (one.min, one.min, one.min));
        assert_eq!(summary(&samples([3, 1, 2])).median, Duration::from_millis(2));
        assert_eq!(summary(&[]), Summary::default());
    }
}

//! Back-off: the delays between attempts that fail one after the other.

use std::time::Duration;

/// Delays that double from the first one up to the longest one.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// A back-off before its first failure.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            failures: 0,
        }
    }

    /// Counts a failure, and returns the delay before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.after(self.failures)
    }

    /// Starts again from the first delay, after a success.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }

    /// The delay after this many failures in a row, for callers that count failures; zero after none.
    pub fn after(self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures).map_or(u32::MAX, |power| power / 2);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));

    #[test]
    fn delay_doubles_up_to_the_longest_and_again_after_reset() {
        let mut backoff = BACKOFF;
        let delays = [(); 6].map(|()| backoff.next_delay().as_secs());
        assert_eq!(delays, [1, 2, 4, 8, 10, 10]);
        backoff.reset();
        assert_eq!(backoff.next_delay().as_secs(), 1);
    }

    #[test]
    fn delay_after_any_number_of_failures_is_bounded() {
        let delays = [0, 1, 2, 5, u32::MAX].map(|failures| BACKOFF.after(failures).as_secs());
        assert_eq!(delays, [0, 1, 2, 10, 10]);
        let short = Backoff::new(Duration::from_secs(5), Duration::from_secs(3));
        assert_eq!(short.after(1).as_secs(), 3);
        let long = Backoff::new(Duration::MAX, Duration::MAX);
        assert_eq!(long.after(2), Duration::MAX);
    }
}

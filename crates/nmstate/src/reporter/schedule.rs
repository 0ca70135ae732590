//! Schedules reads of the host: soon after a change, at once on request, and at intervals.

use std::time::Duration;

use linux::backoff::Backoff;
use tokio::time::Instant;

/// Quiet time before a read: changes come in bursts.
const QUIET: Duration = Duration::from_millis(100);
/// Maximum delay of a read during a burst.
const MAX_BURST: Duration = Duration::from_millis(500);
/// Minimum time between two reads without a request.
const SPACING: Duration = Duration::from_secs(1);
/// Pause after a read, as a multiple of its duration, while the host changes all the time; and the longest pause.
const REST_FACTOR: u32 = 10;
const MAX_REST: Duration = Duration::from_secs(30);
/// Back-off after failures.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Decides when the host is read next.
#[derive(Debug)]
pub(crate) struct Schedule {
    resync: Duration,
    /// Time of the first request since the last read.
    requested: Option<Instant>,
    /// The first and the last change since the last read.
    burst: Option<(Instant, Instant)>,
    /// When the host is read without an event.
    timer: Option<Instant>,
    /// The earliest read because of a change.
    not_before: Instant,
    backoff: Backoff,
}

impl Schedule {
    /// No read is due. `resync` is the longest time without a read.
    pub(crate) fn new(resync: Duration, now: Instant) -> Self {
        Self {
            resync,
            requested: None,
            burst: None,
            timer: None,
            not_before: now,
            backoff: BACKOFF,
        }
    }

    /// When to read the host; `None` if no read is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        let settled = self
            .burst
            .map(|(first, last)| (last + QUIET).min(first + MAX_BURST).max(self.not_before));
        [self.requested, settled, self.timer].into_iter().flatten().min()
    }

    /// Requests a read at once.
    pub(crate) fn request(&mut self, now: Instant) {
        self.requested.get_or_insert(now);
    }

    /// Ends the pause after failures, because their cause may be gone: requests a read, and resets the back-off.
    pub(crate) fn retry(&mut self, now: Instant) {
        self.backoff.reset();
        self.request(now);
    }

    /// Records a possible change.
    pub(crate) fn change(&mut self, now: Instant) {
        let first = self.burst.map_or(now, |(first, _)| first);
        self.burst = Some((first, now));
    }

    /// Records the start of a read: later events need another read.
    pub(crate) fn begin(&mut self) {
        self.stop();
    }

    /// Records a successful read that started at `began`. `later` is added to the interval, so that not all hosts are
    /// read at the same time.
    pub(crate) fn done(&mut self, began: Instant, now: Instant, later: Duration) {
        self.backoff.reset();
        let rest = (now.duration_since(began) * REST_FACTOR).clamp(SPACING, MAX_REST);
        self.not_before = began + rest;
        self.timer = Some(now + self.resync + later);
    }

    /// Records a failed read or write, and schedules a retry with back-off.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.not_before = now + self.backoff.next_delay();
        self.timer = Some(self.not_before);
    }

    /// Cancels all reads.
    pub(crate) fn stop(&mut self) {
        (self.requested, self.burst, self.timer) = (None, None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// A schedule whose last reading took so long and is over for long.
    fn not_before(cost: Duration) -> (Schedule, Instant) {
        let start = Instant::now();
        let mut schedule = Schedule::new(Duration::from_secs(100), start);
        schedule.begin();
        schedule.done(start, start + cost, Duration::from_secs(5));
        (schedule, start + Duration::from_secs(40))
    }

    #[test]
    fn unchanged_host_is_read_at_the_interval() {
        let (schedule, _) = not_before(ms(0));
        let start = schedule.not_before - SPACING;
        assert_eq!(schedule.due(), Some(start + Duration::from_secs(105)));
    }

    #[test]
    fn burst_of_changes_delays_the_read_up_to_a_limit() {
        let (mut schedule, now) = not_before(ms(10));
        schedule.change(now);
        assert_eq!(schedule.due(), Some(now + ms(100)));
        schedule.change(now + ms(80));
        assert_eq!(schedule.due(), Some(now + ms(180)));
        for after in (100..=490).step_by(30) {
            schedule.change(now + ms(after));
        }
        assert_eq!(schedule.due(), Some(now + ms(500)));
    }

    #[test]
    fn changes_during_a_read_cause_a_later_read() {
        let (mut schedule, now) = not_before(ms(10));
        schedule.request(now);
        schedule.begin();
        schedule.change(now + ms(150));
        schedule.done(now, now + ms(200), Duration::ZERO);
        // The host is busy for a tenth of the time at most.
        assert_eq!(schedule.due(), Some(now + ms(2000)));
        schedule.request(now + ms(250));
        assert_eq!(schedule.due(), Some(now + ms(250)));
    }

    #[test]
    fn request_is_not_delayed_by_changes() {
        let (mut schedule, now) = not_before(ms(10));
        schedule.request(now);
        schedule.change(now + ms(1));
        assert_eq!(schedule.due(), Some(now));
        schedule.begin();
        schedule.change(now);
        schedule.request(now + ms(5));
        schedule.request(now + ms(9));
        schedule.change(now + ms(10));
        assert_eq!(schedule.due(), Some(now + ms(5)));
    }

    #[test]
    fn failed_read_is_retried_with_back_off() {
        let (mut schedule, mut now) = not_before(ms(10));
        let mut pauses = Vec::new();
        for _ in 0..7 {
            schedule.begin();
            schedule.failed(now);
            let due = schedule.due().expect("another attempt");
            pauses.push(due.duration_since(now).as_secs());
            now = due;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        schedule.begin();
        schedule.done(now, now, Duration::ZERO);
        schedule.begin();
        schedule.failed(now);
        assert_eq!(schedule.due(), Some(now + Duration::from_secs(1)));
        schedule.stop();
        assert_eq!(schedule.due(), None);
    }

    // nmstate#112
    #[test]
    fn retry_reads_at_once_and_resets_the_back_off() {
        let (mut schedule, now) = not_before(ms(10));
        for _ in 0..7 {
            schedule.begin();
            schedule.failed(now);
        }
        schedule.change(now + ms(1));
        assert_eq!(schedule.due(), Some(now + Duration::from_secs(30)));
        schedule.retry(now + ms(2));
        assert_eq!(schedule.due(), Some(now + ms(2)));
        // It may need a moment more.
        schedule.begin();
        schedule.failed(now + ms(3));
        assert_eq!(schedule.due(), Some(now + ms(1003)));
    }
}

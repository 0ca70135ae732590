//! When the host is read: soon after a change, at once when somebody asks, and every now and then in any case.

use std::time::Duration;

use tokio::time::Instant;

/// How long nothing may change until the host is read: changes come in bursts.
const QUIET: Duration = Duration::from_millis(100);
/// How long a burst is waited for.
const LONGEST: Duration = Duration::from_millis(500);
/// The shortest time between two readings that nobody asked for.
const SPACING: Duration = Duration::from_secs(1);
/// How many times longer than a reading takes there is none, where the host changes all the time; and the longest pause.
const RESTS: u32 = 10;
const LONGEST_REST: Duration = Duration::from_secs(30);
/// Pauses after failures.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// When the host is read next.
#[derive(Debug)]
pub(crate) struct Schedule {
    resync: Duration,
    /// Since when somebody wants to know.
    asked: Option<Instant>,
    /// The first and the last change that no reading has seen.
    burst: Option<(Instant, Instant)>,
    /// When it is read though nothing happens.
    timer: Option<Instant>,
    /// When changes lead to a reading at the soonest.
    rested: Instant,
    pause: Duration,
}

impl Schedule {
    /// Nothing is due. `resync` is the longest time without a reading.
    pub(crate) fn new(resync: Duration, now: Instant) -> Self {
        Self {
            resync,
            asked: None,
            burst: None,
            timer: None,
            rested: now,
            pause: PAUSES.0,
        }
    }

    /// When the host is to be read; not at all where nothing is said.
    pub(crate) fn due(&self) -> Option<Instant> {
        let settled = self
            .burst
            .map(|(first, last)| (last + QUIET).min(first + LONGEST).max(self.rested));
        [self.asked, settled, self.timer].into_iter().flatten().min()
    }

    /// Somebody wants to know now.
    pub(crate) fn ask(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
    }

    /// Ends the pause after failures, because their cause may be gone: the host is read now, and the back-off starts over.
    pub(crate) fn retry(&mut self, now: Instant) {
        self.pause = PAUSES.0;
        self.ask(now);
    }

    /// Something may have changed.
    pub(crate) fn change(&mut self, now: Instant) {
        let first = self.burst.map_or(now, |(first, _)| first);
        self.burst = Some((first, now));
    }

    /// The host is being read: whatever happens from now on needs another reading.
    pub(crate) fn begin(&mut self) {
        self.stop();
    }

    /// The host was read, since `began`. Where nothing happens, it is read so much `later` than it has to be: not all
    /// hosts at the same time.
    pub(crate) fn done(&mut self, began: Instant, now: Instant, later: Duration) {
        self.pause = PAUSES.0;
        let rest = (now.duration_since(began) * RESTS).clamp(SPACING, LONGEST_REST);
        self.rested = began + rest;
        self.timer = Some(now + self.resync + later);
    }

    /// The host could not be read, or it could not be told: again, ever later.
    pub(crate) fn failed(&mut self, now: Instant) {
        let (_, longest) = PAUSES;
        self.rested = now + self.pause;
        self.timer = Some(self.rested);
        self.pause = (self.pause * 2).min(longest);
    }

    /// Nothing is due any more.
    pub(crate) fn stop(&mut self) {
        (self.asked, self.burst, self.timer) = (None, None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// A schedule whose last reading took so long and is over for long.
    fn rested(cost: Duration) -> (Schedule, Instant) {
        let start = Instant::now();
        let mut schedule = Schedule::new(Duration::from_secs(100), start);
        schedule.begin();
        schedule.done(start, start + cost, Duration::from_secs(5));
        (schedule, start + Duration::from_secs(40))
    }

    #[test]
    fn a_host_that_does_not_change_is_read_every_now_and_then() {
        let (schedule, _) = rested(ms(0));
        let start = schedule.rested - SPACING;
        assert_eq!(schedule.due(), Some(start + Duration::from_secs(105)));
    }

    #[test]
    fn a_burst_of_changes_is_waited_for_but_not_for_ever() {
        let (mut schedule, now) = rested(ms(10));
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
    fn changes_during_a_reading_lead_to_another_one_a_while_later() {
        let (mut schedule, now) = rested(ms(10));
        schedule.ask(now);
        schedule.begin();
        schedule.change(now + ms(150));
        schedule.done(now, now + ms(200), Duration::ZERO);
        // The host is busy for a tenth of the time at most.
        assert_eq!(schedule.due(), Some(now + ms(2000)));
        schedule.ask(now + ms(250));
        assert_eq!(schedule.due(), Some(now + ms(250)));
    }

    #[test]
    fn who_asks_is_not_put_off_by_changes() {
        let (mut schedule, now) = rested(ms(10));
        schedule.ask(now);
        schedule.change(now + ms(1));
        assert_eq!(schedule.due(), Some(now));
        schedule.begin();
        schedule.change(now);
        schedule.ask(now + ms(5));
        schedule.ask(now + ms(9));
        schedule.change(now + ms(10));
        assert_eq!(schedule.due(), Some(now + ms(5)));
    }

    #[test]
    fn failures_are_tried_again_ever_later() {
        let (mut schedule, mut now) = rested(ms(10));
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
    fn a_host_that_may_be_readable_again_is_read_at_once_and_soon_again() {
        let (mut schedule, now) = rested(ms(10));
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

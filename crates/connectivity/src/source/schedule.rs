//! Decides when a check runs: once in an interval, and soon after a request.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::names::PAUSE;

/// The runs of a check. The first one is due at once.
pub(super) struct Schedule {
    due: Interval,
    requests: Arc<Notify>,
    /// True if a run is requested.
    requested: bool,
    /// Time of the latest run.
    last: Option<Instant>,
    /// True if a request superseded the result of the latest run.
    superseded: bool,
}

impl Schedule {
    pub(super) fn new(interval: Duration, requests: Arc<Notify>) -> Self {
        let mut due = tokio::time::interval(interval);
        due.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Self {
            due,
            requests,
            requested: false,
            last: None,
            superseded: false,
        }
    }

    /// Waits for the next run. One run serves all requests before it. A requested run follows the latest run after
    /// [`PAUSE`] or later, and does not shift the interval.
    pub(super) async fn next(&mut self) {
        let earliest = self.last.map_or_else(Instant::now, |last| last + PAUSE);
        loop {
            tokio::select! {
                // The request comes first: a run that is due serves it.
                biased;
                () = self.requests.notified() => self.requested = true,
                _ = self.due.tick() => break,
                () = tokio::time::sleep_until(earliest), if self.requested => break,
            }
        }
        self.requested = false;
        self.last = Some(Instant::now());
    }

    /// Begins the probe of a run. It serves all requests before it.
    pub(super) fn begin(&mut self) {
        self.note_request();
        self.requested = false;
    }

    /// True if a run was requested while the latest one probed: its result is no answer to the request. Never true
    /// twice in a row, so that repeated requests do not hide an outage.
    pub(super) fn is_superseded(&mut self) -> bool {
        self.note_request();
        self.superseded = self.requested && !self.superseded;
        self.superseded
    }

    /// Notes a request without waiting for one.
    fn note_request(&mut self) {
        let mut request = pin!(self.requests.notified());
        self.requested |= request.as_mut().enable();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use kube_kit::lock;
    use tokio::task::JoinSet;

    use super::*;

    const INTERVAL: Duration = Duration::from_mins(1);

    /// The seconds after the start in which a check runs, of 130 seconds. Runs are requested in these seconds.
    async fn runs(requested: &[u64]) -> Vec<u64> {
        let (requests, runs) = (Arc::new(Notify::new()), Arc::new(Mutex::new(Vec::new())));
        let start = Instant::now();
        let mut task = JoinSet::new();
        let mut schedule = Schedule::new(INTERVAL, Arc::clone(&requests));
        let seen = Arc::clone(&runs);
        task.spawn(async move {
            loop {
                schedule.next().await;
                lock(&seen).push(start.elapsed().as_secs());
            }
        });
        for second in requested {
            tokio::time::sleep_until(start + Duration::from_secs(*second)).await;
            requests.notify_one();
        }
        tokio::time::sleep_until(start + Duration::from_secs(130)).await;
        lock(&runs).clone()
    }

    #[tokio::test(start_paused = true)]
    async fn check_runs_once_in_an_interval_and_soon_after_a_request() {
        // cluster-network#206
        let cases: [(&[u64], &[u64]); 6] = [
            (&[], &[0, 60, 120]),
            (&[30], &[0, 30, 60, 120]),
            // Soon after a run.
            (&[1], &[0, 5, 60, 120]),
            (&[30, 31], &[0, 30, 35, 60, 120]),
            // Many requests, one run.
            (&[30, 31, 32, 34], &[0, 30, 35, 60, 120]),
            // The run of the interval serves the request.
            (&[58, 59], &[0, 58, 60, 120]),
        ];
        for (requested, expected) in cases {
            assert_eq!(runs(requested).await, expected, "{requested:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn overdue_run_serves_a_request_and_does_not_shift_the_interval() {
        // cluster-network#206
        // Without an order of the two, a part of the rounds would fail.
        for _ in 0..20 {
            let requests = Arc::new(Notify::new());
            let start = Instant::now();
            let mut schedule = Schedule::new(INTERVAL, Arc::clone(&requests));
            schedule.next().await;
            // A slow probe.
            tokio::time::sleep(INTERVAL + Duration::from_secs(10)).await;
            requests.notify_one();
            schedule.next().await;
            assert_eq!(start.elapsed().as_secs(), 70);
            schedule.next().await;
            assert_eq!(start.elapsed().as_secs(), 120);
        }
    }

    #[tokio::test]
    async fn result_is_dropped_after_a_request_but_not_twice_in_a_row() {
        // cluster-network#206
        let requests = Arc::new(Notify::new());
        let mut schedule = Schedule::new(INTERVAL, Arc::clone(&requests));
        // The probe is later than the request.
        requests.notify_one();
        schedule.begin();
        assert!(!schedule.is_superseded());
        let dropped = [true, true, true, false, true].map(|requested| {
            schedule.begin();
            if requested {
                requests.notify_one();
            }
            schedule.is_superseded()
        });
        assert_eq!(dropped, [true, false, true, false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn many_requests_run_a_check_once_in_a_pause() {
        // cluster-network#206
        let requested: Vec<u64> = (1..130).collect();
        let runs = runs(&requested).await;
        // The interval adds a run at 60 and at 120 seconds, at most.
        assert!(runs.len() <= 1 + 130 / 5 + 2, "{runs:?}");
        assert!(runs.is_sorted_by(|one, two| two - one <= 6), "{runs:?}");
    }
}

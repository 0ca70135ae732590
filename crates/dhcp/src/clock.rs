//! Time that counts while the machine is suspended.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Time since the boot of the machine, including suspends.
pub(crate) type Time = Duration;

pub(crate) fn now() -> Time {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// Timers that end in time after a suspend of the machine. The clock of the runtime stands still meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    woken: Notify,
}

impl Timers {
    /// Waits until a time of the clock.
    pub(crate) async fn reach(&self, until: Time, now: impl Fn() -> Time) {
        loop {
            let woken = self.woken.notified();
            let left = until.saturating_sub(now());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = sleep(left) => {}
                () = woken => {}
            }
        }
    }

    /// Compares all timers with the clock after each suspend of the machine. Returns only with an error.
    pub(crate) async fn watch(&self) -> io::Result<()> {
        // The kernel cancels such a timer when the wall clock jumps, as it does after a suspend.
        let timer = timerfd_create(
            TimerfdClockId::Realtime,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        let [never, once] = [i64::MAX, 0].map(|tv_sec| Timespec { tv_sec, tv_nsec: 0 });
        timerfd_settime(
            &timer,
            TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET,
            &Itimerspec {
                it_interval: once,
                it_value: never,
            },
        )?;
        #[allow(
            deprecated,
            reason = "its successor needs unsafe code, whose condition holds here: the timer is never replaced"
        )]
        let timer = AsyncFd::new(timer)?;
        loop {
            let mut ready = timer.readable().await?;
            match rustix::io::read(timer.get_ref(), &mut [0; 8]) {
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::CANCELED) | Ok(_) => self.woken.notify_waiters(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn timer_ends_after_a_suspend_of_the_machine() {
        let (timers, clock, start) = (Timers::default(), AtomicU64::new(0), Instant::now());
        let now = || Time::from_secs(clock.load(Ordering::Relaxed)) + start.elapsed();
        let wake = async {
            sleep(Duration::from_mins(10)).await;
            clock.store(5 * 60 * 60, Ordering::Relaxed);
            timers.woken.notify_waiters();
        };
        tokio::join!(timers.reach(Time::from_mins(30), now), wake);
        assert_eq!(start.elapsed(), Duration::from_mins(10));
    }

    #[tokio::test(start_paused = true)]
    async fn jump_of_the_wall_clock_alone_ends_no_timer() {
        let (timers, start) = (Timers::default(), Instant::now());
        let wake = async {
            sleep(Duration::from_mins(10)).await;
            timers.woken.notify_waiters();
        };
        tokio::join!(timers.reach(Time::from_mins(30), || start.elapsed()), wake);
        assert_eq!(start.elapsed(), Duration::from_mins(30));
    }
}

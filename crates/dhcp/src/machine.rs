//! The client's state machine (RFC 2131 section 4.4, cni-plugins §8). It has neither clock nor socket.
//!
//! ```text
//! Selecting ──offer──> Requesting ──ack──> Bound ──T1──> Renewing ──ack──> Bound
//!     ^  └──── no answer ──┴─> Pausing        ^              │ no answer ──> Pausing ──> Renewing
//!     └──────────────────────────┘            └──ack── Selecting, Requesting <── T2 ──┘
//! ```

use std::net::Ipv4Addr;
use std::time::Duration;

use linux::backoff::Backoff;

use crate::clock::Time;
use crate::lease::{Lease, Unusable};
use crate::message::{Offer, Reply};

/// Pause after each of the first failed attempts, and their number.
const FAST_PAUSE: Duration = Duration::from_secs(2);
const FAST_PAUSES: u32 = 4;
/// First pause after the fast ones, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(4);
/// Maximum deviation of a pause.
pub(crate) const JITTER: Duration = Duration::from_secs(1);
/// Delays of a resent message until the attempt ends. The first message often meets a link that is not ready yet.
const RESEND: Backoff = Backoff::new(Duration::from_millis(500), Duration::MAX);

/// Timing of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timing {
    /// Timeout of one attempt.
    pub(crate) attempt: Duration,
    /// Maximum pause between attempts.
    pub(crate) resend_max: Duration,
    /// Deadline for a new lease.
    pub(crate) total: Duration,
}

/// Input of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// [`Machine::until`] is reached.
    Timer,
    /// A server answered.
    Reply(Reply),
}

/// Output of the machine: the caller's next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Wait for the next event.
    Wait,
    /// Search servers in a new exchange.
    Discover(Option<Ipv4Addr>),
    /// Accept an offer in the same exchange.
    Request(Offer),
    /// Renew the lease at its server, in a new exchange.
    Renew,
    /// Resend the last message.
    Again,
    /// End the exchange.
    Pause,
    /// Record the lease: it is new or has new times.
    Keep(Lease),
    /// Report that the lease was not acquired.
    Fail(Failure),
    /// Remove the expired lease.
    Expire,
}

/// The reason for a missing lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// No server answered in time.
    #[error("no more tries")]
    NoMoreTries,
    /// The server's lease cannot be used.
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    Acquire,
    Renew,
    Rebind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Selecting,
    Requesting,
    Renewing,
    Pausing,
    Bound,
    Over,
}

/// A lease and its start time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) lease: Lease,
    pub(crate) since: Time,
}

/// The machine of one attachment.
#[derive(Debug)]
pub(crate) struct Machine {
    timing: Timing,
    /// Returns at most twice [`JITTER`].
    jitter: fn() -> Duration,
    goal: Goal,
    step: Step,
    held: Option<Held>,
    /// Time of the next timer event.
    until: Option<Time>,
    /// End of the attempt, and deadline of the goal.
    attempt_end: Time,
    goal_end: Time,
    resend: Backoff,
    failed: u32,
}

impl Machine {
    /// A machine that begins to acquire a lease.
    pub(crate) fn acquire(timing: Timing, jitter: fn() -> Duration, now: Time) -> (Self, Action) {
        let mut machine = Self::new(timing, jitter, Goal::Acquire);
        machine.goal_end = now + timing.total;
        let action = machine.attempt(now);
        (machine, action)
    }

    /// A machine that continues a lease. An expired lease gets one more attempt.
    pub(crate) fn adopt(held: Held, timing: Timing, jitter: fn() -> Duration, now: Time) -> Self {
        let mut machine = Self::new(timing, jitter, Goal::Renew);
        machine.bind(held, now + timing.attempt);
        machine
    }

    fn new(timing: Timing, jitter: fn() -> Duration, goal: Goal) -> Self {
        Self {
            timing,
            jitter,
            goal,
            step: Step::Over,
            held: None,
            until: None,
            attempt_end: Time::ZERO,
            goal_end: Time::ZERO,
            resend: RESEND,
            failed: 0,
        }
    }

    /// Time of the next [`Event::Timer`]; `None` for never.
    pub(crate) fn until(&self) -> Option<Time> {
        self.until
    }

    /// Processes an event.
    pub(crate) fn step(&mut self, event: Event, now: Time) -> Action {
        let is_asking = matches!(self.step, Step::Requesting | Step::Renewing);
        match event {
            Event::Timer => self.timer(now),
            Event::Reply(Reply::Offer(offer)) if self.step == Step::Selecting => {
                self.step = Step::Requesting;
                self.resend.reset();
                self.schedule(now);
                Action::Request(offer)
            }
            Event::Reply(Reply::Ack(Ok(lease))) if is_asking => {
                self.bind(
                    Held {
                        lease: lease.clone(),
                        since: now,
                    },
                    now,
                );
                Action::Keep(lease)
            }
            Event::Reply(Reply::Ack(Err(unusable))) if is_asking => {
                if self.goal == Goal::Acquire {
                    return self.fail(unusable.into());
                }
                self.pause(now)
            }
            // The server revoked the lease.
            Event::Reply(Reply::Nak) if self.step == Step::Renewing => {
                self.goal_end = self.goal_end.min(now + self.timing.total);
                self.rebind(now)
            }
            Event::Reply(Reply::Nak) if self.step == Step::Requesting => self.pause(now),
            Event::Reply(_) => Action::Wait,
        }
    }

    fn timer(&mut self, now: Time) -> Action {
        match self.step {
            Step::Selecting | Step::Requesting | Step::Renewing if now < self.attempt_end => {
                self.schedule(now);
                Action::Again
            }
            Step::Selecting | Step::Requesting | Step::Renewing => self.pause(now),
            Step::Pausing => self.attempt(now),
            Step::Bound => {
                self.goal = Goal::Renew;
                self.attempt(now)
            }
            Step::Over => Action::Wait,
        }
    }

    fn attempt(&mut self, now: Time) -> Action {
        if self.goal == Goal::Renew && self.rebind_at().is_some_and(|rebind| now >= rebind) {
            return self.rebind(now);
        }
        if self.goal == Goal::Rebind && now >= self.goal_end {
            self.end();
            return Action::Expire;
        }
        let goal_end = match self.goal {
            Goal::Renew => self.rebind_at().unwrap_or(Time::MAX),
            Goal::Acquire | Goal::Rebind => self.goal_end,
        };
        self.attempt_end = (now + self.timing.attempt).min(goal_end);
        self.resend.reset();
        self.schedule(now);
        match self.goal {
            Goal::Renew => {
                self.step = Step::Renewing;
                Action::Renew
            }
            Goal::Acquire | Goal::Rebind => {
                self.step = Step::Selecting;
                Action::Discover(self.held.as_ref().map(|held| held.lease.address.addr()))
            }
        }
    }

    fn rebind(&mut self, now: Time) -> Action {
        self.goal = Goal::Rebind;
        self.failed = 0;
        self.attempt(now)
    }

    fn pause(&mut self, now: Time) -> Action {
        let pause = if self.failed < FAST_PAUSES {
            FAST_PAUSE
        } else {
            Backoff::new(FIRST_PAUSE, self.timing.resend_max).after(self.failed - FAST_PAUSES + 1)
        };
        self.failed = self.failed.saturating_add(1);
        let mut wake = now + pause.saturating_sub(JITTER) + (self.jitter)();
        match self.goal {
            Goal::Acquire if wake >= self.goal_end => return self.fail(Failure::NoMoreTries),
            Goal::Acquire => {}
            Goal::Renew => wake = self.rebind_at().map_or(wake, |rebind| wake.min(rebind)),
            Goal::Rebind => wake = wake.min(self.goal_end),
        }
        self.step = Step::Pausing;
        self.until = Some(wake);
        Action::Pause
    }

    fn bind(&mut self, held: Held, earliest_end: Time) {
        self.step = Step::Bound;
        self.failed = 0;
        let times = held.lease.times;
        self.until = times.map(|times| held.since + times.renew);
        self.goal_end = times.map_or(Time::MAX, |times| (held.since + times.end).max(earliest_end));
        self.held = Some(held);
    }

    fn rebind_at(&self) -> Option<Time> {
        let held = self.held.as_ref()?;
        held.lease.times.map(|times| held.since + times.rebind)
    }

    fn schedule(&mut self, now: Time) {
        self.until = Some((now + self.resend.next_delay()).min(self.attempt_end));
    }

    fn fail(&mut self, failure: Failure) -> Action {
        self.end();
        Action::Fail(failure)
    }

    fn end(&mut self) {
        self.step = Step::Over;
        self.until = None;
    }
}

#[cfg(test)]
mod tests;

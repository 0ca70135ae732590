//! Clients that send reviews, and their results.

use std::time::{Duration, Instant};

use anyhow::bail;

use crate::http::Server;
use crate::program::Manager;
use crate::template::Template;

/// Reviews of one kind.
#[derive(Clone, Debug)]
pub struct Reviews {
    /// Name in tables.
    pub name: &'static str,
    /// Path of the webhook.
    pub path: &'static str,
    /// The templates.
    pub template: Template,
    /// Expected part of each answer.
    pub expected: &'static [&'static str],
}

/// Results of many reviews.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Answered reviews per second.
    pub per_second: f64,
    /// Median of the answer times.
    pub p50: Duration,
    /// 99th percentile of the answer times.
    pub p99: Duration,
    /// Processor time of the server per review.
    pub cpu: Duration,
}

/// Pace of the clients.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// Each client sends the next review after its answer.
    Full,
    /// Reviews per second, of all clients together.
    PerSecond(u32),
}

/// Sends reviews for some time by a number of clients.
pub fn measure(
    manager: &Manager,
    reviews: &Reviews,
    clients: u32,
    pace: Pace,
    time: Duration,
) -> anyhow::Result<Figures> {
    let server = manager.server();
    let before = manager.cpu()?;
    let began = Instant::now();
    let waits = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..clients)
            .map(|client| {
                let turns = Turns::of(client, clients, pace, began);
                scope.spawn(move || ask(server, reviews.clone(), turns, began + time))
            })
            .collect();
        let answers = clients.into_iter().map(|client| match client.join() {
            Ok(waits) => waits,
            Err(_) => bail!("a client panicked"),
        });
        answers.collect::<anyhow::Result<Vec<_>>>()
    })?;
    let took = began.elapsed();
    let cpu = manager.cpu()?.saturating_sub(before);
    Ok(figures(waits.concat(), took, cpu))
}

/// Pace of one client.
struct Turns {
    next: Instant,
    /// Interval between reviews, or 0 without a pace.
    between: Duration,
}

impl Turns {
    fn of(client: u32, clients: u32, pace: Pace, began: Instant) -> Self {
        let (first, between) = match pace {
            Pace::Full => (Duration::ZERO, Duration::ZERO),
            Pace::PerSecond(rate) => {
                let one = Duration::from_secs(1) / rate.max(1);
                (one * client, one * clients)
            }
        };
        Self {
            next: began + first,
            between,
        }
    }

    /// Waits for the next review's time, and returns the start of its answer time. A late answer delays the next
    /// review, which counts as the server's time. The client's own delay does not count.
    fn wait(&mut self) -> Instant {
        if self.between.is_zero() {
            return Instant::now();
        }
        let turn = self.next;
        self.next += self.between;
        let early = turn.saturating_duration_since(Instant::now());
        if early.is_zero() {
            return turn;
        }
        std::thread::sleep(early);
        Instant::now()
    }
}

/// The client parses one of this number of answers: parsing takes processor time from the server.
const SAMPLE: usize = 50;

fn ask(
    server: &Server,
    mut reviews: Reviews,
    mut turns: Turns,
    end: Instant,
) -> anyhow::Result<Vec<Duration>> {
    let mut connection = server.connect()?;
    let mut waits = Vec::new();
    while Instant::now() < end {
        let body = reviews.template.fill();
        let asked = turns.wait();
        let answer = connection.ask("POST", reviews.path, "application/json", body)?;
        waits.push(asked.elapsed());
        // A refusal would be fast and worthless.
        if waits.len() % SAMPLE == 1 {
            let answer = String::from_utf8_lossy(&answer.body);
            if !reviews.expected.iter().all(|text| answer.contains(text)) {
                bail!("{}: {answer}", reviews.name);
            }
        }
    }
    Ok(waits)
}

fn figures(mut waits: Vec<Duration>, took: Duration, cpu: Duration) -> Figures {
    waits.sort_unstable();
    let Ok(count) = u32::try_from(waits.len()) else {
        return Figures::default();
    };
    Figures {
        per_second: f64::from(count) / took.as_secs_f64().max(f64::MIN_POSITIVE),
        p50: percentile(&waits, 50),
        p99: percentile(&waits, 99),
        cpu: cpu.checked_div(count).unwrap_or_default(),
    }
}

/// Returns the smallest of `sorted` that at least `percent` of them do not exceed.
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_exact_and_an_empty_list_has_none() {
        let waits = (1..=200).rev().map(Duration::from_millis).collect();
        let figures = super::figures(waits, Duration::from_secs(4), Duration::from_secs(1));
        assert_eq!(figures.p50, Duration::from_millis(100));
        assert_eq!(figures.p99, Duration::from_millis(198));
        assert_eq!(figures.cpu, Duration::from_millis(5));
        assert!((figures.per_second - 50.0).abs() < f64::EPSILON);
        let none = super::figures(Vec::new(), Duration::from_secs(1), Duration::ZERO);
        assert_eq!(none, Figures::default());
    }
}

//! Clients that ask as fast as they are answered, and what came of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::http::Server;
use crate::manager::Manager;
use crate::objects::Review;

/// What is told about many reviews.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    pub(crate) per_second: f64,
    /// Half of the answers came sooner.
    pub(crate) p50: Duration,
    /// All but one of a hundred came sooner.
    pub(crate) p99: Duration,
    /// Time of the server on processors for each.
    pub(crate) cpu: Duration,
}

/// Asks for some time by so many clients.
pub(crate) fn measure(
    manager: &Manager,
    review: Review,
    clients: usize,
    time: Duration,
) -> anyhow::Result<Figures> {
    let server = Manager::server()?;
    let before = manager.cpu()?;
    let began = Instant::now();
    let waits = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..clients)
            .map(|_| scope.spawn(|| client(&server, review, began + time)))
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

/// One answer in so many is read: reading takes processor time from the server.
const SAMPLE: usize = 50;

fn client(server: &Server, review: Review, end: Instant) -> anyhow::Result<Vec<Duration>> {
    let mut connection = server.connect()?;
    let mut template = review.template();
    let mut waits = Vec::new();
    while Instant::now() < end {
        let body = template.next();
        let asked = Instant::now();
        let answer = connection.ask("POST", review.path(), "application/json", body)?;
        waits.push(asked.elapsed());
        // One that is not admitted would be fast, and worth nothing.
        if waits.len() % SAMPLE == 1 {
            let answer = String::from_utf8_lossy(&answer.body);
            if !answer.contains(r#""allowed":true"#) || !answer.contains(r#""patch":"#) {
                bail!("{}: {answer}", review.name());
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
    let percentile = |percent: usize| {
        let rank = (waits.len() * percent).div_ceil(100).max(1);
        waits.get(rank - 1).copied().unwrap_or_default()
    };
    Figures {
        per_second: f64::from(count) / took.as_secs_f64().max(f64::MIN_POSITIVE),
        p50: percentile(50),
        p99: percentile(99),
        cpu: cpu.checked_div(count).unwrap_or_default(),
    }
}

/// How long nobody was answered, from before `interrupt` until after it: a client asks all the time, and anew when it
/// fails.
pub(crate) fn outage<T>(interrupt: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, Duration)> {
    let server = Manager::server()?;
    let (interrupted, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut template = Review::PodCreate.template();
            let mut connection = None;
            let mut last = Instant::now();
            let mut longest = Duration::ZERO;
            while !stop.load(Ordering::Relaxed) {
                let Ok(mut open) = connection.take().map_or_else(|| server.connect(), Ok) else {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                let asked = open.ask(
                    "POST",
                    Review::PodCreate.path(),
                    "application/json",
                    template.next(),
                );
                if asked.is_ok() {
                    if interrupted.load(Ordering::Relaxed) {
                        longest = longest.max(last.elapsed());
                    }
                    last = Instant::now();
                    connection = Some(open);
                }
            }
            longest.max(last.elapsed())
        });
        interrupted.store(true, Ordering::Relaxed);
        let outcome = interrupt();
        // What is served again is asked once more at least.
        std::thread::sleep(Duration::from_millis(100));
        stop.store(true, Ordering::Relaxed);
        let longest = watcher.join().ok().context("a client panicked")?;
        Ok((outcome?, longest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_exact_and_nothing_is_no_figure() {
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

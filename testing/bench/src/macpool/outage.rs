//! The outage of a killed manager, as its clients observe it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use review_bench::http::Server;

use crate::objects::Review;

/// Returns the duration without an answer, around `interrupt`. A client sends requests continuously, and retries after
/// failures.
pub(crate) fn outage<T>(
    server: &Server,
    interrupt: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(T, Duration)> {
    let (interrupted, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut reviews = Review::PodCreate.reviews();
            let mut connection = None;
            let mut last = Instant::now();
            let mut longest = Duration::ZERO;
            while !stop.load(Ordering::Relaxed) {
                let Ok(mut open) = connection.take().map_or_else(|| server.connect(), Ok) else {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                let asked = open.ask("POST", reviews.path, "application/json", reviews.template.fill());
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
        // The new server must answer at least once.
        std::thread::sleep(Duration::from_millis(100));
        stop.store(true, Ordering::Relaxed);
        let longest = watcher.join().ok().context("a client panicked")?;
        Ok((outcome?, longest))
    })
}

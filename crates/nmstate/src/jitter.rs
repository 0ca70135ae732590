//! Random delays, so that many nodes do not write at the same delay.
//!
//! All handlers write the same policies, and each write needs the `resourceVersion` of the one before. Concurrent
//! writes cost a conflict and a retry, so each node delays its write at random within a window that grows with the
//! number of nodes and with the duration of a write.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Longest window, whatever the number of nodes.
const MAX_WINDOW: Duration = Duration::from_secs(30);
/// Minimum duration of a write.
const MIN_WRITE: Duration = Duration::from_millis(10);

/// Observed number of nodes and duration of a write. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Jitter(Arc<Load>);

#[derive(Debug, Default)]
struct Load {
    nodes: AtomicU32,
    /// Mean time from a read to the answer to the write, in microseconds.
    write_time: AtomicU32,
}

impl Jitter {
    /// Sets the number of nodes.
    pub(crate) fn set_nodes(&self, nodes: usize) {
        self.0
            .nodes
            .store(u32::try_from(nodes).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Raises the number of nodes to this one.
    pub(crate) fn raise_nodes(&self, nodes: usize) {
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        self.0.nodes.fetch_max(nodes, Ordering::Relaxed);
    }

    /// Records the duration of a read and write.
    pub(crate) fn record_write(&self, write_time: Duration) {
        let before = self.0.write_time.load(Ordering::Relaxed);
        let now = u32::try_from(write_time.as_micros()).unwrap_or(u32::MAX);
        // A moving average.
        let mean = if before == 0 {
            now
        } else {
            before / 4 * 3 + now / 4
        };
        self.0.write_time.store(mean, Ordering::Relaxed);
    }

    /// A random delay, within this percentage of the time that the writes of all nodes take one after the other. Zero
    /// with a single node.
    pub(crate) fn delay(&self, percent: u32) -> Duration {
        up_to(self.window(percent))
    }

    /// The window of [`Jitter::delay`].
    pub(crate) fn window(&self, percent: u32) -> Duration {
        let nodes = self.0.nodes.load(Ordering::Relaxed);
        if nodes < 2 {
            return Duration::ZERO;
        }
        let write_time = Duration::from_micros(self.0.write_time.load(Ordering::Relaxed).into());
        let all = write_time.max(MIN_WRITE).saturating_mul(nodes);
        (all.saturating_mul(percent) / 100).min(MAX_WINDOW)
    }
}

/// A uniformly distributed random time up to `window`.
pub(crate) fn up_to(window: Duration) -> Duration {
    // The keys of a hasher are random, and 32 bits of them suffice.
    let random = u32::try_from(RandomState::new().build_hasher().finish() >> 32).unwrap_or_default();
    window.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_window(jitter: &Jitter, window: Duration) {
        let delays: Vec<Duration> = (0..200).map(|_| jitter.delay(200)).collect();
        assert!(delays.iter().all(|delay| *delay <= window), "{delays:?}");
        let late = delays.iter().filter(|delay| **delay > window / 2).count();
        assert!((50..150).contains(&late), "{late} of 200 in the second half");
    }

    #[test]
    fn delay_lies_in_a_window_that_grows_with_nodes_and_write_time() {
        let jitter = Jitter::default();
        assert_eq!(jitter.delay(200), Duration::ZERO);
        jitter.set_nodes(1);
        assert_eq!(jitter.delay(200), Duration::ZERO, "a single node");
        for (nodes, window) in [
            (2, Duration::from_millis(40)),
            (200, Duration::from_secs(4)),
            (1_000_000, MAX_WINDOW),
        ] {
            jitter.set_nodes(nodes);
            check_window(&jitter, window);
        }
        jitter.set_nodes(20);
        jitter.raise_nodes(10);
        for _ in 0..50 {
            jitter.record_write(Duration::from_millis(50));
        }
        check_window(&jitter, Duration::from_millis(2000));
        for _ in 0..50 {
            jitter.record_write(Duration::from_millis(1));
        }
        check_window(&jitter, Duration::from_millis(400));
    }
}

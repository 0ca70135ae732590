//! Progress of concurrent operations: a line for each step, and periodically the latest detail of each operation.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cluster::Progress;

/// Intervals of the latest details, on a terminal and elsewhere.
const REDRAW: Duration = Duration::from_millis(200);
const REMINDER: Duration = Duration::from_secs(20);
/// Maximum width of a line of details, columns.
const WIDTH: usize = 100;

/// The board of all lanes.
#[derive(Debug, Clone)]
pub(crate) struct Board(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    began: Instant,
    terminal: bool,
    /// Time of the last line of details.
    shown: Instant,
    /// True if the terminal shows a line of details.
    drawn: bool,
    /// The latest detail of each active lane.
    details: BTreeMap<&'static str, String>,
}

impl Board {
    /// Returns a board whose clock starts now.
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self(Arc::new(Mutex::new(State {
            began: now,
            terminal: std::io::stderr().is_terminal(),
            shown: now,
            drawn: false,
            details: BTreeMap::new(),
        })))
    }

    /// A lane of the board.
    pub(crate) fn lane(&self, name: &'static str) -> Lane {
        Lane {
            board: self.clone(),
            name,
        }
    }

    /// Prints results as a block, even if several lanes print.
    pub(crate) fn print(&self, text: &str) {
        let mut state = self.state();
        state.clear();
        // A closed standard output does not stop the tests.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }

    /// Returns the time since the start of the clock.
    pub(crate) fn elapsed(&self) -> Duration {
        self.state().began.elapsed()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn clear(&mut self) {
        if self.drawn {
            eprint!("\r\x1b[K");
            self.drawn = false;
        }
    }

    fn line(&mut self, text: &str) {
        self.clear();
        eprintln!("[{:>6.1}s] {text}", self.began.elapsed().as_secs_f64());
    }

    fn show_details(&mut self) {
        let pause = if self.terminal { REDRAW } else { REMINDER };
        if self.details.is_empty() || self.shown.elapsed() < pause {
            return;
        }
        self.shown = Instant::now();
        let details = details(&self.details);
        if self.terminal {
            let seconds = self.began.elapsed().as_secs_f64();
            eprint!("\r\x1b[K[{seconds:>6.1}s]   … {details}");
            let _ = std::io::stderr().flush();
            self.drawn = true;
        } else {
            self.line(&format!("  … {details}"));
        }
    }
}

/// Returns all details in one line.
fn details(lanes: &BTreeMap<&'static str, String>) -> String {
    let room = WIDTH / lanes.len().max(1);
    let shown: Vec<String> = lanes
        .iter()
        .map(|(name, detail)| {
            let text = format!("{name}: {detail}");
            text.chars().filter(|c| !c.is_control()).take(room).collect()
        })
        .collect();
    shown.join(" · ")
}

/// The lane of an operation.
#[derive(Debug)]
pub(crate) struct Lane {
    board: Board,
    name: &'static str,
}

impl Progress for Lane {
    fn step(&mut self, text: &str) {
        let mut state = self.board.state();
        state.details.insert(self.name, text.to_owned());
        let name = self.name;
        state.line(&format!("{name}: {text}"));
    }

    fn tick(&mut self, detail: &str) {
        let mut state = self.board.state();
        if !detail.is_empty() {
            state.details.insert(self.name, detail.to_owned());
        }
        state.show_details();
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut state = self.board.state();
        state.details.remove(self.name);
        state.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_of_all_lanes_fit_into_a_line() {
        let long = "x".repeat(200);
        let lanes = BTreeMap::from([("build", "137 of 368 crates".to_owned()), ("e2e", long)]);
        let line = details(&lanes);
        assert!(line.starts_with("build: 137 of 368 crates · e2e: xxx"), "{line}");
        assert!(line.chars().count() <= WIDTH + 3, "{line}");
    }

    #[test]
    fn finished_lane_is_not_shown() {
        let board = Board::new();
        let mut lane = board.lane("build");
        lane.tick("137 of 368 crates");
        assert_eq!(board.state().details.len(), 1);
        drop(lane);
        assert!(board.state().details.is_empty());
    }
}

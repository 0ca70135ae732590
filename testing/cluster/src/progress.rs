//! Progress of long operations, for users.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Receives the steps of an operation that may take minutes.
pub trait Progress {
    /// A step starts. `text` describes it.
    fn step(&mut self, text: &str);
    /// Called several times a second during a step. `detail` is the newest output, or empty.
    fn tick(&mut self, detail: &str) {
        let _ = detail;
    }
}

/// Prints nothing.
#[derive(Debug, Default)]
pub struct Quiet;

impl Progress for Quiet {
    fn step(&mut self, _text: &str) {}
}

/// Prints `[ 12.3s] text` for each step, and the newest output of a long step.
///
/// Prints to standard error, because standard output is for results.
#[derive(Debug)]
pub struct Steps {
    began: Instant,
    step: String,
    shown: Instant,
    spinning: bool,
    terminal: bool,
}

/// Interval of reminders of a running step, if there is no terminal.
const REMINDER: Duration = Duration::from_secs(20);

impl Steps {
    /// Returns a value whose clock starts now.
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            began: now,
            step: String::new(),
            shown: now,
            spinning: false,
            terminal: std::io::stderr().is_terminal(),
        }
    }

    /// Returns the current step.
    pub fn current(&self) -> &str {
        &self.step
    }

    /// Returns the time since the start of the clock.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn clear(&mut self) {
        if self.spinning {
            eprint!("\r\x1b[K");
            self.spinning = false;
        }
    }
}

impl Default for Steps {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress for Steps {
    fn step(&mut self, text: &str) {
        self.clear();
        text.clone_into(&mut self.step);
        self.shown = Instant::now();
        eprintln!("[{:>6.1}s] {text}", self.began.elapsed().as_secs_f64());
    }

    fn tick(&mut self, detail: &str) {
        let seconds = self.began.elapsed().as_secs_f64();
        let detail: String = detail.chars().filter(|c| !c.is_control()).take(60).collect();
        if self.terminal {
            eprint!("\r\x1b[K[{seconds:>6.1}s]   … {detail}");
            let _ = std::io::stderr().flush();
            self.spinning = true;
        } else if self.shown.elapsed() >= REMINDER {
            self.shown = Instant::now();
            let colon = if detail.is_empty() { "" } else { ": " };
            eprintln!("[{seconds:>6.1}s]   … still {}{colon}{detail}", self.step);
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.clear();
    }
}

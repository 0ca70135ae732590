//! How long steps are shown to the person who waits for them.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Receives the steps of something that may take minutes.
pub trait Progress {
    /// A step begins; `text` says what is being done.
    fn step(&mut self, text: &str);
    /// Called some times a second while the step goes on; `detail` is the newest sign of life, or empty.
    fn tick(&mut self, detail: &str) {
        let _ = detail;
    }
}

/// Shows nothing.
#[derive(Debug, Default)]
pub struct Quiet;

impl Progress for Quiet {
    fn step(&mut self, _text: &str) {}
}

/// Prints `[ 12.3s] text` for each step, and a sign of life while a step takes long.
///
/// Lines go to standard error: standard output belongs to results.
#[derive(Debug)]
pub struct Steps {
    began: Instant,
    step: String,
    shown: Instant,
    spinning: bool,
    terminal: bool,
}

/// How often a step that goes on is mentioned where no terminal is.
const REMINDER: Duration = Duration::from_secs(20);

impl Steps {
    /// Starts the clock.
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

    /// The step that is being done.
    pub fn current(&self) -> &str {
        &self.step
    }

    /// Time since the clock was started.
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

//! What the library logs: passed on to our log, and its last lines kept for whoever is told of a failure.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, Once};

use log::{Level, LevelFilter, Log, Metadata, Record};
use serde_json::Value;

use super::Error;
use crate::{failure, secrets};

/// Lines that are kept, and the longest that one of them may be, in bytes.
const LINES: usize = 30;
const LONGEST: usize = 400;

/// Modules whose lines are the library's. Ours are not among them: they may come here on their way to nobody.
const MODULES: [&str; 2] = ["nmstate", "nispor"];
/// Where our log says that a line is the library's.
const LIBRARY: &str = "weft_nmstate::library";

static JOURNAL: Mutex<Journal> = Mutex::new(Journal::new());

#[derive(Debug)]
struct Journal {
    lines: VecDeque<String>,
    /// What is worked on, whose secrets nobody may read.
    document: Value,
}

impl Journal {
    const fn new() -> Self {
        Self {
            lines: VecDeque::new(),
            document: Value::Null,
        }
    }

    /// Notes a line, and returns it as others may read it.
    fn note(&mut self, level: Level, text: &str) -> String {
        let text = secrets::hidden_in(text.trim_end(), &self.document);
        if level <= Level::Info {
            let line = format!("[{level}] {}", failure::start(&text, LONGEST));
            if self.lines.len() == LINES {
                self.lines.pop_front();
            }
            self.lines.push_back(line);
        }
        text
    }

    fn text(&self) -> String {
        let lines: Vec<&str> = self.lines.iter().map(String::as_str).collect();
        lines.join("\n")
    }
}

fn journal() -> MutexGuard<'static, Journal> {
    kube_kit::lock(&JOURNAL)
}

/// The way of log lines from the library to us.
struct Listener;

impl Log for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        metadata.level() <= log::max_level() && MODULES.iter().any(|module| target.starts_with(module))
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let text = journal().note(record.level(), &record.args().to_string());
        match record.level() {
            Level::Error => tracing::error!(target: LIBRARY, "{text}"),
            Level::Warn => tracing::warn!(target: LIBRARY, "{text}"),
            Level::Info => tracing::info!(target: LIBRARY, "{text}"),
            Level::Debug | Level::Trace => tracing::debug!(target: LIBRARY, "{text}"),
        }
    }

    fn flush(&self) {}
}

/// Listens to the library from now on. What is asked for more than once is done once.
pub(super) fn listen() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        // Fails when somebody else listens already; then there is no tail.
        if log::set_logger(&Listener).is_ok() {
            let debug = tracing::enabled!(target: LIBRARY, tracing::Level::DEBUG);
            let level = if debug {
                LevelFilter::Debug
            } else {
                LevelFilter::Info
            };
            log::set_max_level(level);
        }
    });
}

/// Does something for a document; an error says what the library logged meanwhile, and none of the document's secrets.
pub(super) async fn kept<T>(
    document: Value,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    {
        let mut journal = journal();
        journal.lines.clear();
        journal.document = document;
    }
    // What the library does is large; it is not to be on the stack of whoever waits for one request of many.
    let done = Box::pin(work).await;
    let mut journal = journal();
    let document = std::mem::take(&mut journal.document);
    done.map_err(|error| Error {
        text: secrets::hidden_in(&error.text, &document),
        log: journal.text(),
        kind: error.kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_last_lines_are_kept_short_and_without_secrets() {
        let mut journal = Journal::new();
        journal.document = json!({ "interfaces": [{ "802.1x": { "password": "hunter2" } }] });
        for number in 0..100 {
            journal.note(Level::Info, &format!("line {number}"));
        }
        journal.note(Level::Debug, "how it works");
        assert_eq!(
            journal.note(Level::Warn, "sent hunter2\n"),
            "sent <_password_hid_by_nmstate>"
        );
        journal.note(Level::Error, &"ä".repeat(1000));
        let text = journal.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), LINES);
        assert_eq!(lines[0], "[INFO] line 72");
        assert_eq!(lines[28], "[WARN] sent <_password_hid_by_nmstate>");
        assert!(lines[29].ends_with("ä… (1600 more bytes)"), "{}", lines[29]);
        assert!(!text.contains("how it works") && !text.contains("hunter2"));
        assert!(text.len() < LINES * (LONGEST + 50));
    }
}

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

/// How the library begins a warning that it logs at each look at a host without wireless drivers.
const NO_WIRELESS: &str = "Failed to query WIFI information";
/// How the library begins the warnings about NetworkManager's version that it logs before each change.
const OLD_VERSION: [&str; 2] = [
    "Unsupported NetworkManager version",
    "Unknown NetworkManager version",
];
/// Added to such a warning: its meaning, and the place of the list of versions.
const ABOUT_VERSIONS: &str = "changes are applied all the same; the section \"NetworkManager versions\" of \
                              docs/node-network.md says what needs a newer one";

static JOURNAL: Mutex<Journal> = Mutex::new(Journal::new());

#[derive(Debug)]
struct Journal {
    lines: VecDeque<String>,
    /// What is worked on, whose secrets nobody may read.
    document: Value,
    /// Whether the warning about NetworkManager's version was logged.
    is_version_told: bool,
}

impl Journal {
    const fn new() -> Self {
        Self {
            lines: VecDeque::new(),
            document: Value::Null,
            is_version_told: false,
        }
    }

    /// Notes a line, unless it says nothing about the work under way or was noted before. Returns the line as others may
    /// read it, and the level at which to log it.
    fn note(&mut self, level: Level, text: &str) -> (Level, String) {
        let text = secrets::hidden_in(text.trim_end(), &self.document);
        if text.starts_with(NO_WIRELESS) {
            return (Level::Debug, text);
        }
        if OLD_VERSION.iter().any(|start| text.starts_with(start)) {
            let told = std::mem::replace(&mut self.is_version_told, true);
            let level = if told { Level::Debug } else { level };
            return (level, format!("{text}: {ABOUT_VERSIONS}"));
        }
        if level <= Level::Info {
            let line = format!("[{level}] {}", failure::start(&text, LONGEST));
            // The library repeats itself at each of its attempts.
            if !self.lines.contains(&line) {
                if self.lines.len() == LINES {
                    self.lines.pop_front();
                }
                self.lines.push_back(line);
            }
        }
        (level, text)
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
        let (level, text) = journal().note(record.level(), &record.args().to_string());
        match level {
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
            (Level::Warn, "sent <_password_hid_by_nmstate>".to_owned())
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

    // nmstate#109
    #[test]
    fn lines_that_say_nothing_about_the_work_are_logged_for_debugging_alone() {
        let mut journal = Journal::new();
        // As nispor words it.
        let wireless =
            "Failed to query WIFI information NetlinkError: No such file or directory (os error 2)";
        for _ in 0..3 {
            assert_eq!(
                journal.note(Level::Warn, wireless),
                (Level::Debug, wireless.to_owned())
            );
        }
        // As nmstate words it.
        let old = "Unsupported NetworkManager version 1.42.4, expecting >= 1.46.0";
        let levels: Vec<Level> = (0..3).map(|_| journal.note(Level::Warn, old).0).collect();
        assert_eq!(levels, [Level::Warn, Level::Debug, Level::Debug]);
        let (_, told) = journal.note(Level::Warn, old);
        assert!(
            told.starts_with(old) && told.contains("applied all the same"),
            "{told}"
        );
        assert_eq!(journal.text(), "");
    }

    // nmstate#109
    #[test]
    fn a_line_that_is_repeated_is_noted_once() {
        let mut journal = Journal::new();
        for _ in 0..5 {
            journal.note(Level::Error, "the cause");
            for attempt in 0..2 {
                let text = format!("Retrying on: attempt {attempt}");
                assert_eq!(journal.note(Level::Info, &text), (Level::Info, text));
            }
        }
        assert_eq!(
            journal.text(),
            "[ERROR] the cause\n[INFO] Retrying on: attempt 0\n[INFO] Retrying on: attempt 1"
        );
    }
}

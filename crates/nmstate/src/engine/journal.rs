//! The library's log: forwarded to our log, and its last lines added to errors.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, Once};

use log::{Level, LevelFilter, Log, Metadata, Record};
use serde_json::Value;

use super::Error;
use crate::{excerpt, secrets};

/// Maximum number of kept lines, and the maximum length of a line in bytes.
const LINES: usize = 30;
const LONGEST: usize = 400;

/// Log targets of the library. Our own targets are excluded: with no subscriber they may reach this logger.
const MODULES: [&str; 2] = ["nmstate", "nispor"];
/// Target of the forwarded lines in our log.
const LIBRARY: &str = "weft_nmstate::library";

/// Prefix of a warning that the library logs whenever it reads a host without wireless drivers.
const NO_WIRELESS: &str = "Failed to query WIFI information";
/// Prefixes of the warnings about NetworkManager's version that the library logs before each change.
const OLD_VERSION: [&str; 2] = [
    "Unsupported NetworkManager version",
    "Unknown NetworkManager version",
];
/// Explanation that is added to such a warning.
const ABOUT_VERSIONS: &str = "changes are applied all the same; the section \"NetworkManager versions\" of \
                              docs/node-network.md says what needs a newer one";

static JOURNAL: Mutex<Journal> = Mutex::new(Journal::new());

#[derive(Debug)]
struct Journal {
    lines: VecDeque<String>,
    /// The document of the current request, whose secrets are hidden.
    document: Value,
    /// Whether the warning about NetworkManager's version was logged.
    version_reported: bool,
}

impl Journal {
    const fn new() -> Self {
        Self {
            lines: VecDeque::new(),
            document: Value::Null,
            version_reported: false,
        }
    }

    /// Keeps a line, unless it does not concern the current request or is kept already. Returns the line without
    /// secrets, and the level at which to log it.
    fn note(&mut self, level: Level, text: &str) -> (Level, String) {
        let text = secrets::hidden_in(text.trim_end(), &self.document);
        if text.starts_with(NO_WIRELESS) {
            return (Level::Debug, text);
        }
        if OLD_VERSION.iter().any(|start| text.starts_with(start)) {
            let reported = std::mem::replace(&mut self.version_reported, true);
            let level = if reported { Level::Debug } else { level };
            return (level, format!("{text}: {ABOUT_VERSIONS}"));
        }
        if level <= Level::Info {
            let line = format!("[{level}] {}", excerpt::start(&text, LONGEST));
            // The library repeats its lines at each of its attempts.
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

/// Forwards the library's log lines to our log.
struct Forwarder;

impl Log for Forwarder {
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

/// Starts to forward the library's log; repeated calls have no effect.
pub(super) fn forward() {
    static FORWARDING: Once = Once::new();
    FORWARDING.call_once(|| {
        // Fails if the process has another logger; then errors have no log.
        if log::set_logger(&Forwarder).is_ok() {
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

/// Runs a request about a document. An error includes the library's log, without the document's secrets.
pub(super) async fn with_log<T>(
    document: Value,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    {
        let mut journal = journal();
        journal.lines.clear();
        journal.document = document;
    }
    // The future is large, and must not be on the stack of callers.
    let result = Box::pin(work).await;
    let mut journal = journal();
    let document = std::mem::take(&mut journal.document);
    result.map_err(|error| Error {
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
    fn last_lines_are_kept_short_and_without_secrets() {
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
    fn unrelated_lines_are_logged_at_debug() {
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
        let (_, line) = journal.note(Level::Warn, old);
        assert!(
            line.starts_with(old) && line.contains("applied all the same"),
            "{line}"
        );
        assert_eq!(journal.text(), "");
    }

    // nmstate#109
    #[test]
    fn repeated_line_is_kept_once() {
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

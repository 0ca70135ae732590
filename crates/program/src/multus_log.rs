//! Logging as multus' configuration defines it, in multus' format (multus.md §11).

use crate::logging::{Fields, Lined, VARIABLE, filter, with_digits};
use crate::rotated::{Rotated, Rotation};
use crate::terminal;
use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Log level of multus' configuration.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Verbosity {
    /// Only the end of the process.
    Panic,
    /// Failures.
    Error,
    /// Actions.
    #[default]
    Verbose,
    /// Details of actions.
    Debug,
}

impl Verbosity {
    /// Parses a level, case-insensitively.
    pub fn read(text: &str) -> Option<Self> {
        let levels = [
            ("panic", Self::Panic),
            ("error", Self::Error),
            ("verbose", Self::Verbose),
            ("debug", Self::Debug),
        ];
        let found = levels.iter().find(|(name, _)| text.eq_ignore_ascii_case(name))?;
        Some(found.1)
    }

    fn filter(self) -> &'static str {
        match self {
            Self::Panic => "off",
            // Multus has no warnings: they are logged as errors.
            Self::Error => "warn",
            Self::Verbose => "info",
            Self::Debug => "debug",
        }
    }

    fn name_of(level: Level) -> &'static str {
        match level {
            Level::ERROR | Level::WARN => "error",
            Level::INFO => "verbose",
            Level::DEBUG | Level::TRACE => "debug",
        }
    }
}

/// Destinations and level of the log.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Sinks {
    /// The log level.
    pub level: Verbosity,
    /// Whether to log to standard error.
    pub to_stderr: bool,
    /// The file with its rotation, if any.
    pub file: Option<(PathBuf, Rotation)>,
}

/// Starts logging as multus' configuration defines it. `WEFT_LOG` overrides the level. A file that cannot be opened is
/// reported and not used.
pub fn start(sinks: &Sinks) {
    let wanted = std::env::var(VARIABLE).unwrap_or_default();
    let mut to_stderr = sinks.to_stderr;
    let file = sinks.file.as_ref().and_then(|(path, rotation)| {
        Rotated::open(path, *rotation)
            .inspect_err(|error| {
                let path = path.display();
                terminal::remark(format_args!("multus logging: cannot open {path}: {error}\n"));
                to_stderr = true;
            })
            .ok()
    });
    let file = file.map(|file| {
        tracing_subscriber::fmt::layer()
            .with_writer(Mutex::new(file))
            .event_format(Lined(line))
    });
    let stderr = to_stderr.then(|| {
        tracing_subscriber::fmt::layer()
            .with_writer(io::stderr)
            .event_format(Lined(line))
    });
    let registry = tracing_subscriber::registry().with(filter(&wanted, sinks.level.filter()));
    let _ = registry.with(stderr).with(file).try_init();
}

/// Lines in the format of multus: `2026-01-02T03:04:05Z [verbose] text`, followed by the fields of the event (multus.md
/// §11).
fn line(metadata: &Metadata<'_>, fields: Fields, writer: &mut Writer<'_>) -> fmt::Result {
    let mut date = String::new();
    SystemTime.format_time(&mut Writer::new(&mut date))?;
    let level = Verbosity::name_of(*metadata.level());
    write!(
        writer,
        "{} [{level}] {}",
        with_digits(&date, 0),
        visible(&fields.message)
    )?;
    for (key, value) in fields.others {
        match value.as_str() {
            Some(text) if !text.contains(char::is_whitespace) => {
                write!(writer, " {key}={}", visible(text))?;
            }
            _ => write!(writer, " {key}={value}")?,
        }
    }
    writeln!(writer)
}

/// Escapes the control characters of a text, which could steer a terminal: plugins write arbitrary text.
fn visible(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let shown = text.chars().map(|c| {
        if steers(c) {
            c.escape_default().to_string()
        } else {
            c.to_string()
        }
    });
    Cow::Owned(shown.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("the sink").extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(level: Verbosity) -> Vec<String> {
        let sink = Sink::default();
        let writer = sink.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .event_format(Lined(line));
        let subscriber = tracing_subscriber::registry()
            .with(filter("", level.filter()))
            .with(lines);
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!(error = "no \u{1b}[2J", code = 7, "failed");
            tracing::warn!("left behind \u{1b}[31m");
            tracing::info!(network = "ns/a", "Add: ns:pod");
            tracing::debug!("how");
        });
        let bytes = sink.0.lock().expect("the sink").clone();
        let text = String::from_utf8(bytes).expect("text");
        text.lines()
            .map(|line| {
                let (time, rest) = line.split_once(' ').expect("a time");
                assert_eq!(time.len(), "2026-01-02T03:04:05Z".len(), "{line}");
                assert!(time.ends_with('Z') && time.as_bytes()[10] == b'T', "{line}");
                rest.to_owned()
            })
            .collect()
    }

    #[test]
    fn lines_have_upstream_format_and_configured_level() {
        let all = [
            r#"[error] failed error="no \u001b[2J" code=7"#,
            r"[error] left behind \u{1b}[31m",
            "[verbose] Add: ns:pod network=ns/a",
            "[debug] how",
        ];
        for (level, count) in [("panic", 0), ("Error", 2), ("VERBOSE", 3), ("debug", 4)] {
            let level = Verbosity::read(level).expect("a level");
            assert_eq!(logged(level), all[..count]);
        }
        assert_eq!(Verbosity::read("loud"), None);
    }
}

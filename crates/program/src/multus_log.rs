//! Where multus logs to as its configuration says, and what its lines look like (multus.md §11).

use crate::logging::{Fields, VARIABLE, filter, with_digits};
use crate::rotated::{Rotated, Rotation};
use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// How much multus logs, as its configuration calls it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Verbosity {
    /// Nothing but how the process ends.
    Panic,
    /// What failed.
    Error,
    /// What was done.
    #[default]
    Verbose,
    /// How it was done.
    Debug,
}

impl Verbosity {
    /// Reads a level, in whatever letter case.
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
            // There are no warnings in multus: what is not as it should be is an error.
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

/// Where multus logs to, and how much.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Sinks {
    /// How much.
    pub level: Verbosity,
    /// Whether to standard error.
    pub to_stderr: bool,
    /// Into which file.
    pub file: Option<(PathBuf, Rotation)>,
}

/// Sends log lines where multus' configuration says from now on, in the form that it has there. `WEFT_LOG` wins over
/// the level. A file that can't be written is told of and does without.
pub fn start(sinks: &Sinks) {
    let wanted = std::env::var(VARIABLE).unwrap_or_default();
    let mut to_stderr = sinks.to_stderr;
    let file = sinks.file.as_ref().and_then(|(path, rotation)| {
        Rotated::open(path, *rotation)
            .inspect_err(|error| {
                eprintln!("multus logging: cannot open {}: {error}", path.display());
                to_stderr = true;
            })
            .ok()
    });
    let file = file.map(|file| {
        tracing_subscriber::fmt::layer()
            .with_writer(Mutex::new(file))
            .event_format(Lines)
    });
    let stderr = to_stderr.then(|| {
        tracing_subscriber::fmt::layer()
            .with_writer(io::stderr)
            .event_format(Lines)
    });
    let registry = tracing_subscriber::registry().with(filter(&wanted, sinks.level.filter()));
    let _ = registry.with(stderr).with(file).try_init();
}

/// Lines as multus writes them: `2026-01-02T03:04:05Z [verbose] text`, and what else belongs to the event behind it
/// (multus.md §11).
struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut date = String::new();
        SystemTime.format_time(&mut Writer::new(&mut date))?;
        let level = Verbosity::name_of(*event.metadata().level());
        write!(
            writer,
            "{} [{level}] {}",
            with_digits(&date, 0),
            visible(&fields.message)
        )?;
        for (key, value) in &fields.others {
            match value.as_str() {
                Some(text) if !text.contains(char::is_whitespace) => {
                    write!(writer, " {key}={}", visible(text))?;
                }
                _ => write!(writer, " {key}={value}")?,
            }
        }
        writeln!(writer)
    }
}

/// A text without what could steer the terminal that it is shown in: plugins say what they like.
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

/// The time as backups of log files have it: `2026-01-02T03-04-05.678`.
pub(crate) fn stamp() -> String {
    let mut date = String::new();
    // Writing to a string cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut date));
    with_digits(&date, 3).trim_end_matches('Z').replace(':', "-")
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
            .event_format(Lines);
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
    fn lines_as_established_and_as_many_as_asked_for() {
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

    #[test]
    fn backups_are_named_after_the_time() {
        let stamp = stamp();
        assert_eq!(stamp.len(), "2026-01-02T03-04-05.678".len(), "{stamp}");
    }
}

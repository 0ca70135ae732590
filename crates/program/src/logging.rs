//! Destination and format of log lines.

use crate::terminal;
use crate::zap::{Encoder, Lines, TimeEncoding};
use serde_json::{Map, Value};
use std::fmt::{self, Write as _};
use std::io;
use std::sync::OnceLock;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

/// Default log level.
pub const DEFAULT: &str = "info";

/// Log level of commands that print for people.
pub const QUIET: &str = "error";

/// The environment variable that overrides the log level.
pub(crate) const VARIABLE: &str = "WEFT_LOG";

/// Libraries whose debug lines describe their internals. `kube_client` logs every unanswered request as an error, which the
/// caller reports itself. `hickory_proto` logs the contents of malformed DNS messages, which any client can send.
const NOISY: &str =
    "hyper=info,hyper_util=info,tower=info,rustls=info,kube_client::client::builder=off,hickory_proto=off";

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Time, level, module, text: for people.
    Text,
    /// The format of upstream's operator and its flags (operator.md §2).
    Zap(Lines),
    /// The format of klog: `I0102 15:04:05.000000       1 module] "text" key="value"`.
    Klog,
    /// Level in brackets and text, the format of upstream's DNS server (secondary-dns §7).
    Bracketed,
}

/// Format and level of the MAC pool: JSON in production, else text at debug level (kubemacpool §2.1).
pub fn zap(production: bool) -> (Format, &'static str) {
    let (encoder, level) = if production {
        (Encoder::Json, DEFAULT)
    } else {
        (Encoder::Console, "debug")
    };
    (Format::Zap(Lines { encoder, time: None }), level)
}

/// The filter of the running program.
static RUNNING: OnceLock<Filter> = OnceLock::new();

/// A filter that can change, and its state at the start.
struct Filter {
    handle: reload::Handle<Targets, Registry>,
    started: Targets,
}

impl Filter {
    fn new(started: Targets) -> (reload::Layer<Targets, Registry>, Self) {
        let (layer, handle) = reload::Layer::new(started.clone());
        (layer, Self { handle, started })
    }

    fn set(&self, level: Option<&str>) {
        let changed = level.map_or_else(|| self.started.clone(), |level| filter("", level));
        if let Err(error) = self.handle.reload(changed) {
            tracing::warn!(%error, "cannot change the log level");
        }
    }
}

/// Changes the log level of the running program; `None` returns to that of the start. Without [`start`] nothing happens.
pub fn set_level(level: Option<&str>) {
    if let Some(filter) = RUNNING.get() {
        filter.set(level);
    }
}

/// Starts logging to standard error. `WEFT_LOG` overrides `level`.
pub fn start(format: Format, level: &str) {
    let wanted = std::env::var(VARIABLE).unwrap_or_default();
    let (filter, running) = Filter::new(filter(&wanted, level));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(false);
    let registry = tracing_subscriber::registry().with(filter);
    let started = match format {
        Format::Text => registry.with(lines.compact()).try_init(),
        Format::Zap(form) => registry
            .with(lines.event_format(Lined(
                move |metadata: &Metadata<'_>, fields: Fields, writer: &mut Writer<'_>| {
                    zap_line(form, metadata, fields, writer)
                },
            )))
            .try_init(),
        Format::Klog => registry.with(lines.event_format(Lined(klog_line))).try_init(),
        Format::Bracketed => registry
            .with(lines.event_format(Lined(bracketed_line)))
            .try_init(),
    };
    // A second start is ignored.
    if started.is_ok() {
        let _ = RUNNING.set(running);
    }
}

/// Parses the filter of the variable; an invalid one is reported and ignored.
pub(crate) fn filter(wanted: &str, level: &str) -> Targets {
    let text = if wanted.is_empty() { level } else { wanted };
    match format!("{NOISY},{text}").parse() {
        Ok(filter) => filter,
        Err(error) => {
            terminal::remark(format_args!(
                "invalid {VARIABLE} \"{wanted}\", ignored: {error}\n"
            ));
            Targets::new().with_default(Level::INFO)
        }
    }
}

/// A format whose lines a function writes.
pub(crate) struct Lined<F>(pub(crate) F);

impl<S, N, F> FormatEvent<S, N> for Lined<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: Fn(&Metadata<'_>, Fields, &mut Writer<'_>) -> fmt::Result,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.0(event.metadata(), fields, &mut writer)
    }
}

/// Lines in the format of upstream's operator: one JSON object with `level`, `ts`, `logger`, `msg` and the fields of
/// the event, or the same as text.
fn zap_line(lines: Lines, metadata: &Metadata<'_>, fields: Fields, writer: &mut Writer<'_>) -> fmt::Result {
    let time = now(lines.time)?;
    match lines.encoder {
        Encoder::Json => {
            let mut line = Map::new();
            line.insert(
                "level".to_owned(),
                metadata.level().as_str().to_lowercase().into(),
            );
            line.insert("ts".to_owned(), time);
            line.insert("logger".to_owned(), metadata.target().into());
            line.insert("msg".to_owned(), fields.message.into());
            line.extend(fields.others);
            writeln!(writer, "{}", Value::Object(line))
        }
        Encoder::Console => {
            let time = time.as_str().map_or_else(|| time.to_string(), ToOwned::to_owned);
            let (level, logger) = (metadata.level(), metadata.target());
            write!(writer, "{time}\t{level}\t{logger}\t{}", fields.message)?;
            if !fields.others.is_empty() {
                write!(writer, "\t{}", Value::Object(fields.others))?;
            }
            writeln!(writer)
        }
    }
}

/// Lines in the format of klog: severity and date, time of day, process, module, text, and the fields of the event.
fn klog_line(metadata: &Metadata<'_>, fields: Fields, writer: &mut Writer<'_>) -> fmt::Result {
    let severity = match *metadata.level() {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        Level::INFO | Level::DEBUG | Level::TRACE => 'I',
    };
    let mut date = String::new();
    SystemTime.format_time(&mut Writer::new(&mut date))?;
    let process = std::process::id();
    let module = metadata.target();
    let head = klog_head(severity, &date);
    write!(writer, "{head} {process:>7} {module}] {:?}", fields.message)?;
    for (key, value) in fields.others {
        write!(writer, " {key}={value}")?;
    }
    writeln!(writer)
}

/// Lines in the format of upstream's DNS server: `[INFO] text`, and the fields of the event as JSON.
fn bracketed_line(metadata: &Metadata<'_>, fields: Fields, writer: &mut Writer<'_>) -> fmt::Result {
    let level = match *metadata.level() {
        Level::WARN => "WARNING",
        level => level.as_str(),
    };
    write!(writer, "[{level}] {}", fields.message)?;
    if !fields.others.is_empty() {
        write!(writer, " {}", Value::Object(fields.others))?;
    }
    writeln!(writer)
}

/// `I0102 15:04:05.000000`, from a date and time in RFC 3339.
fn klog_head(severity: char, date: &str) -> String {
    let date = with_digits(date, 6);
    let month = date.get(5..7).unwrap_or_default();
    let day = date.get(8..10).unwrap_or_default();
    let time = date.get(11..26).unwrap_or_default();
    format!("{severity}{month}{day} {time}")
}

/// The current time in a log line.
fn now(encoding: Option<TimeEncoding>) -> Result<Value, fmt::Error> {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let since_1970 = since_1970.unwrap_or_default();
    let mut date = String::new();
    SystemTime.format_time(&mut Writer::new(&mut date))?;
    Ok(match encoding {
        None => date.into(),
        Some(TimeEncoding::Epoch) => since_1970.as_secs_f64().into(),
        Some(TimeEncoding::Millis) => (since_1970.as_secs_f64() * 1000.0).into(),
        Some(TimeEncoding::Nano) => u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX).into(),
        Some(TimeEncoding::Iso8601) => with_digits(&date, 3).into(),
        Some(TimeEncoding::Rfc3339) => with_digits(&date, 0).into(),
        Some(TimeEncoding::Rfc3339nano) => {
            let digits = date.split_once('.').map_or("", |(_, digits)| digits);
            with_digits(&date, digits.trim_end_matches('Z').trim_end_matches('0').len()).into()
        }
    })
}

/// A date and time with this many digits of the second's fraction.
pub(crate) fn with_digits(date: &str, digits: usize) -> String {
    let date = date.trim_end_matches('Z');
    let (seconds, fraction) = date.split_once('.').unwrap_or((date, ""));
    if digits == 0 {
        return format!("{seconds}Z");
    }
    format!("{seconds}.{fraction:0<digits$.digits$}Z")
}

/// Message and fields of an event.
#[derive(Default)]
pub(crate) struct Fields {
    pub(crate) message: String,
    /// Other fields.
    pub(crate) others: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        self.others.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Writing to a string cannot fail.
            let _ = write!(self.message, "{value:?}");
        } else {
            self.put(field, format!("{value:?}").into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("the sink").extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A log line in this format.
    fn line(form: Lines) -> String {
        line_of(
            move |metadata: &Metadata<'_>, fields: Fields, writer: &mut Writer<'_>| {
                zap_line(form, metadata, fields, writer)
            },
        )
    }

    fn line_of<F>(form: F) -> String
    where
        F: Fn(&Metadata<'_>, Fields, &mut Writer<'_>) -> fmt::Result + Send + Sync + 'static,
    {
        let sink = Sink::default();
        let writer = sink.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .event_format(Lined(form));
        let subscriber = tracing_subscriber::registry().with(lines);
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(count = 3, object = "a/b", "something \"odd\"");
        });
        let bytes = sink.0.lock().expect("the sink").clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn level_of_running_program_changes_and_returns() {
        let (layer, running) = Filter::new(filter("", DEFAULT));
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            let debug = || tracing::enabled!(Level::DEBUG);
            let trace = || tracing::enabled!(Level::TRACE);
            assert_eq!((debug(), trace()), (false, false));
            running.set(Some("debug"));
            assert_eq!((debug(), trace()), (true, false));
            running.set(Some("trace"));
            assert_eq!((debug(), trace()), (true, true));
            assert!(
                !tracing::enabled!(target: "hyper", Level::DEBUG),
                "libraries stay quiet"
            );
            running.set(None);
            assert_eq!((debug(), trace()), (false, false));
        });
    }

    #[test]
    fn klog_line_has_severity_time_and_process() {
        let line = line_of(klog_line);
        let (head, text) = line.split_once("] ").expect("a head");
        assert_eq!(text, "\"something \\\"odd\\\"\" count=3 object=\"a/b\"\n");
        let parts: Vec<_> = head.split_whitespace().collect();
        let process = std::process::id().to_string();
        assert_eq!(parts[2..], [process.as_str(), "program::logging::tests"]);
        assert!(parts[0].starts_with('W') && parts[0].len() == 5, "{head}");
        assert_eq!(parts[1].len(), "15:04:05.000000".len(), "{head}");
        assert_eq!(
            klog_head('I', "2026-01-02T03:04:05.6789Z"),
            "I0102 03:04:05.678900"
        );
    }

    #[test]
    fn json_line_has_keys_of_upstream() {
        let line = line(Lines::default());
        let value: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(value["level"], "warn");
        assert_eq!(value["msg"], "something \"odd\"");
        assert_eq!(value["logger"], "program::logging::tests");
        assert_eq!(
            (&value["count"], &value["object"]),
            (&Value::from(3), &Value::from("a/b"))
        );
        assert!(value["ts"].as_str().is_some_and(|ts| ts.ends_with('Z')), "{line}");
    }

    #[test]
    fn bracketed_line_starts_with_level() {
        assert_eq!(
            line_of(bracketed_line),
            "[WARNING] something \"odd\" {\"count\":3,\"object\":\"a/b\"}\n"
        );
    }

    #[test]
    fn console_line_is_readable() {
        let line = line(Lines {
            encoder: Encoder::Console,
            time: Some(TimeEncoding::Rfc3339),
        });
        let parts: Vec<&str> = line.trim_end().split('\t').collect();
        assert_eq!(parts[0].len(), "2026-01-02T03:04:05Z".len(), "{line}");
        assert_eq!(
            parts[1..],
            [
                "WARN",
                "program::logging::tests",
                "something \"odd\"",
                "{\"count\":3,\"object\":\"a/b\"}"
            ]
        );
    }

    #[test]
    fn time_has_configured_encoding() {
        let ts = |time| {
            let form = Lines {
                encoder: Encoder::Json,
                time: Some(time),
            };
            serde_json::from_str::<Value>(&line(form)).expect("JSON")["ts"].clone()
        };
        let (seconds, millis) = (
            ts(TimeEncoding::Epoch).as_f64(),
            ts(TimeEncoding::Millis).as_f64(),
        );
        let (seconds, millis) = (seconds.expect("a number"), millis.expect("a number"));
        assert!(
            seconds > 1.7e9 && (millis / 1000.0 - seconds).abs() < 600.0,
            "{seconds} {millis}"
        );
        assert!(
            ts(TimeEncoding::Nano)
                .as_u64()
                .is_some_and(|nanos| nanos > 1_700_000_000_000_000_000)
        );
        for (date, digits, expected) in [
            ("2026-01-02T03:04:05.678900Z", 3, "2026-01-02T03:04:05.678Z"),
            ("2026-01-02T03:04:05.678900Z", 0, "2026-01-02T03:04:05Z"),
            ("2026-01-02T03:04:05Z", 0, "2026-01-02T03:04:05Z"),
            ("2026-01-02T03:04:05Z", 3, "2026-01-02T03:04:05.000Z"),
        ] {
            assert_eq!(with_digits(date, digits), expected);
        }
        let length = |time| ts(time).as_str().map(str::len);
        assert_eq!(
            length(TimeEncoding::Iso8601),
            Some("2026-01-02T03:04:05.678Z".len())
        );
        assert_eq!(length(TimeEncoding::Rfc3339), Some("2026-01-02T03:04:05Z".len()));
        assert!(length(TimeEncoding::Rfc3339nano) >= Some("2026-01-02T03:04:05Z".len()));
    }

    #[test]
    fn variable_overrides_level() {
        let enabled = |filter: &Targets, target: &str| filter.would_enable(target, &Level::DEBUG);
        assert!(!enabled(&filter("", "info"), "operator"));
        assert!(enabled(&filter("", "debug"), "operator"));
        assert!(!enabled(&filter("", "debug"), "hyper::proto"));
        assert!(enabled(&filter("debug,hyper=debug", "info"), "hyper::proto"));
        assert!(enabled(&filter("info,kube=debug", "info"), "kube::client"));
        assert!(!enabled(&filter("=,=", "debug"), "operator"));
        let http = "kube_client::client::builder";
        for (wanted, level) in [("", "info"), ("", "debug"), ("info,kube=debug", "info")] {
            assert!(
                !filter(wanted, level).would_enable(http, &Level::ERROR),
                "{wanted} {level}"
            );
        }
        assert!(filter(&format!("{http}=error"), "info").would_enable(http, &Level::ERROR));
    }

    #[test]
    fn malformed_dns_message_causes_no_line() {
        let options = "hickory_proto::rr::rdata::opt";
        for level in ["info", "debug"] {
            assert!(!filter("", level).would_enable(options, &Level::WARN), "{level}");
        }
        assert!(filter("hickory_proto=warn", "info").would_enable(options, &Level::WARN));
    }
}

//! Where log lines go and what they look like.

use serde_json::{Map, Value};
use std::fmt::{self, Write as _};
use std::io;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// What is logged unless somebody says otherwise.
pub(crate) const DEFAULT: &str = "info";

/// What commands log that print for people.
pub(crate) const QUIET: &str = "error";

/// The variable that says otherwise.
const VARIABLE: &str = "WEFT_LOG";

/// Libraries whose debug lines say how they work rather than what happens, and one that calls every request an error
/// that is not answered: whoever sends a request tells what came of it.
const NOISY: &str = "hyper=info,hyper_util=info,tower=info,rustls=info,kube_client::client::builder=off";

/// What a line looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Time, level, module, text: for people.
    Text,
    /// One JSON object with `level`, `ts`, `logger`, `msg` and what else belongs to the event (operator.md §2).
    Json,
}

/// Sends log lines to standard error from now on. `WEFT_LOG` wins over `level`.
pub(crate) fn start(format: Format, level: &str) {
    let wanted = std::env::var(VARIABLE).unwrap_or_default();
    let filter = filter(&wanted, level);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(false);
    let registry = tracing_subscriber::registry().with(filter);
    // It is started once: a second start would leave the first in place.
    let _ = match format {
        Format::Text => registry.with(lines.compact()).try_init(),
        Format::Json => registry.with(lines.event_format(JsonLines)).try_init(),
    };
}

/// The filter that the variable asks for; what it can't mean is told and left out.
fn filter(wanted: &str, level: &str) -> Targets {
    let text = if wanted.is_empty() { level } else { wanted };
    match format!("{NOISY},{text}").parse() {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!("{VARIABLE}={wanted} means nothing: {error}");
            Targets::new().with_default(Level::INFO)
        }
    }
}

/// Lines as the established operator writes them.
struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
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
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let metadata = event.metadata();
        let mut line = Map::new();
        line.insert(
            "level".to_owned(),
            metadata.level().as_str().to_lowercase().into(),
        );
        line.insert("ts".to_owned(), time.into());
        line.insert("logger".to_owned(), metadata.target().into());
        line.insert("msg".to_owned(), fields.message.into());
        line.extend(fields.others);
        writeln!(writer, "{}", Value::Object(line))
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
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

    #[test]
    fn json_lines_have_the_established_keys() {
        let sink = Sink::default();
        let writer = sink.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .event_format(JsonLines);
        let subscriber = tracing_subscriber::registry().with(lines);
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(count = 3, object = %"a/b", "something \"odd\"");
        });
        let line = String::from_utf8(sink.0.lock().expect("the sink").clone()).expect("text");
        let value: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(value["level"], "warn");
        assert_eq!(value["msg"], "something \"odd\"");
        assert_eq!(value["logger"], "weft::logging::tests");
        assert_eq!(
            (&value["count"], &value["object"]),
            (&Value::from(3), &Value::from("a/b"))
        );
        assert!(value["ts"].as_str().is_some_and(|ts| ts.ends_with('Z')), "{line}");
    }

    #[test]
    fn the_variable_wins_over_the_level() {
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
}

//! The log flags of upstream's programs: format and level of log lines (operator §2, nmstate §13.2).

use clap::{ArgAction, ValueEnum};

/// Log flags.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Flags {
    /// Log level: debug, info, error, or a number of steps above info. Overrides the environment
    #[arg(long = "zap-log-level", value_name = "LEVEL", value_parser = level)]
    level: Option<String>,
    /// For developers: log level debug, readable lines
    #[arg(long = "zap-devel", value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value = "false", default_missing_value = "true", hide_default_value = true, hide_possible_values = true)]
    devel: bool,
    /// Format of log lines: JSON objects, or text
    #[arg(long = "zap-encoder", value_name = "ENCODER")]
    encoder: Option<Encoder>,
    /// Format of the time in log lines
    #[arg(long = "zap-time-encoding", value_name = "ENCODING")]
    time: Option<TimeEncoding>,
    /// Accepted without effect: log lines have no stack traces
    #[arg(long = "zap-stacktrace-level", value_name = "LEVEL", value_parser = ["info", "error", "panic"],
        hide_possible_values = true)]
    stacktrace: Option<String>,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum Encoder {
    /// One JSON object per line.
    #[default]
    Json,
    /// Time, level, logger, message, and the fields as JSON, separated by tabs.
    Console,
}

/// Format of the time in log lines.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum TimeEncoding {
    /// Seconds since 1970, with a fraction.
    Epoch,
    /// Milliseconds since 1970, with a fraction.
    Millis,
    /// Nanoseconds since 1970.
    Nano,
    /// Date and time with milliseconds.
    Iso8601,
    /// Date and time with seconds.
    Rfc3339,
    /// Date and time with as many digits as needed.
    Rfc3339nano,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Lines {
    /// Format of a line.
    pub encoder: Encoder,
    /// Format of the time; RFC 3339 with microseconds by default.
    pub time: Option<TimeEncoding>,
}

impl Flags {
    /// The format of log lines.
    pub fn lines(&self) -> Lines {
        let usual = if self.devel {
            Encoder::Console
        } else {
            Encoder::Json
        };
        Lines {
            encoder: self.encoder.unwrap_or(usual),
            time: self.time,
        }
    }

    /// The log level from the flags and the environment.
    pub fn level(&self, environment: Option<&str>) -> &'static str {
        let devel = self.devel.then_some("debug");
        log_level(self.level.as_deref().or(devel), environment)
    }
}

/// Parses the log level of the flag.
fn level(text: &str) -> Result<String, String> {
    let steps = text.parse::<u8>().is_ok_and(|steps| steps > 0);
    if steps || ["debug", "info", "error", "panic"].contains(&text) {
        Ok(text.to_owned())
    } else {
        Err("neither debug, info, error, panic nor a number above 0".to_owned())
    }
}

/// The log level from the flag and the environment: the flag takes precedence, the environment has zap's number, and an
/// invalid value means `info`.
fn log_level(flag: Option<&str>, environment: Option<&str>) -> &'static str {
    match flag {
        Some("debug") => return "debug",
        Some("info") => return "info",
        Some("error" | "panic") => return "error",
        // A number counts the steps of verbosity above info.
        Some(number) if number.parse::<u8>().is_ok_and(|steps| steps > 0) => return "debug",
        _ => {}
    }
    match environment.and_then(|level| level.trim().parse::<i8>().ok()) {
        Some(..=-1) => "debug",
        Some(1) => "warn",
        Some(2..) => "error",
        _ => "info",
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        zap: Flags,
    }

    fn parse(flags: &[&str]) -> Result<Flags, String> {
        let argv = ["operator"].iter().chain(flags);
        Cli::try_parse_from(argv)
            .map(|cli| cli.zap)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn flags_set_level_and_format() {
        use Encoder::{Console, Json};
        for (flags, environment, level, encoder) in [
            (&[][..], None, "info", Json),
            (&[], Some("-1"), "debug", Json),
            (&["--zap-devel"], Some("0"), "debug", Console),
            (&["--zap-devel=true"], None, "debug", Console),
            (&["--zap-devel=false"], None, "info", Json),
            (
                &["--zap-devel", "--zap-encoder=json", "--zap-log-level=error"],
                None,
                "error",
                Json,
            ),
            (&["--zap-encoder", "console"], None, "info", Console),
            (&["--zap-log-level", "panic"], None, "error", Json),
            (
                &["--zap-log-level=5", "--zap-stacktrace-level=error"],
                Some("2"),
                "debug",
                Json,
            ),
        ] {
            let args = parse(flags).expect("flags");
            assert_eq!(
                (args.level(environment), args.lines().encoder),
                (level, encoder),
                "{flags:?}"
            );
        }
        let time = |value: &str| parse(&["--zap-time-encoding", value]).map(|args| args.lines().time);
        for (value, encoding) in [
            ("epoch", TimeEncoding::Epoch),
            ("millis", TimeEncoding::Millis),
            ("nano", TimeEncoding::Nano),
            ("iso8601", TimeEncoding::Iso8601),
            ("rfc3339", TimeEncoding::Rfc3339),
            ("rfc3339nano", TimeEncoding::Rfc3339nano),
        ] {
            assert_eq!(time(value), Ok(Some(encoding)));
        }
    }

    #[test]
    fn unknown_flag_value_is_refused() {
        for flags in [
            ["--zap-log-level=loud"],
            ["--zap-log-level=0"],
            ["--zap-encoder=xml"],
            ["--zap-time-encoding=sundial"],
            ["--zap-stacktrace-level=all"],
            ["--zap-devel=perhaps"],
            ["--zap-colour"],
        ] {
            assert!(parse(&flags).is_err(), "{flags:?}");
        }
    }

    #[test]
    fn flag_overrides_level_of_environment() {
        for (flag, environment, level) in [
            (None, None, "info"),
            (None, Some("0"), "info"),
            (None, Some("-1"), "debug"),
            (None, Some("1"), "warn"),
            (None, Some("2"), "error"),
            (None, Some("loud"), "info"),
            (Some("error"), Some("-1"), "error"),
            (Some("3"), Some("2"), "debug"),
            (Some("?"), Some("2"), "error"),
        ] {
            assert_eq!(log_level(flag, environment), level, "{flag:?} {environment:?}");
        }
    }
}

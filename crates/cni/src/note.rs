//! Log lines of plugins, which end up in the runtime's log (cni-plugins §20, row 27).
//!
//! Each is one line on standard error, in a form that log collectors parse:
//!
//! ```text
//! level=warn plugin=bridge verb=DEL container=0a1b2c ifname=net1 network=blue msg="nothing to remove"
//! ```

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};

use crate::plugin::Call;

/// Severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The call succeeds, but with a limitation.
    Warn,
    /// The call leaves a leftover.
    Error,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warn => "warn",
            Self::Error => "error",
        })
    }
}

/// Limits of a name and of the message, in bytes. A line is shorter than an atomic write to a pipe (4096), so lines
/// of concurrent plugins are not interleaved.
const NAME: usize = 128;
const MESSAGE: usize = 2048;

impl Call {
    /// Writes a log line to standard error, if that is open.
    pub fn note(&self, level: Level, message: impl fmt::Display) {
        let line = line(self, level, &message.to_string());
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

fn line(call: &Call, level: Level, message: &str) -> String {
    let mut line = format!("level={level}");
    for (key, value) in [
        ("plugin", call.plugin),
        ("verb", call.request.verb.as_str()),
        ("container", &call.request.container_id),
        ("ifname", &call.request.ifname),
        ("network", call.config.name()),
    ] {
        // GC and STATUS have no container.
        if !value.is_empty() {
            let _ = write!(line, " {key}={}", quoted(value));
        }
    }
    let _ = writeln!(line, " msg=\"{}\"", bounded(escaped(message), MESSAGE));
    line
}

/// A value, in quotes unless it is a single word.
fn quoted(value: &str) -> String {
    let value = bounded(value.to_owned(), NAME);
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '=' | '\\');
    if value.chars().all(plain) {
        value
    } else {
        format!("\"{}\"", escaped(&value))
    }
}

/// Escapes line breaks and other control characters, for use between quotes.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // Harmless between double quotes.
            '\'' => escaped.push(c),
            _ => escaped.extend(c.escape_debug()),
        }
    }
    escaped
}

/// Truncates a text to the limit, with a mark at the end.
fn bounded(mut text: String, limit: usize) -> String {
    const MARK: &str = "...";
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit - MARK.len()));
        text.push_str(MARK);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NetworkConfig;
    use crate::env::{Request, Variables};
    use crate::version::Version;

    fn call(verb: &str, ifname: &str) -> Call {
        let variables: Variables = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_IFNAME", ifname),
            ("CNI_PATH", "/x"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        Call {
            plugin: "bridge",
            request: Request::from_variables(&variables).unwrap(),
            config: NetworkConfig::parse(br#"{"name":"blue"}"#).unwrap(),
            version: Version::LATEST,
            stdin: Vec::new(),
            variables,
            resident: None,
        }
    }

    #[test]
    fn log_line_names_its_subject() {
        assert_eq!(
            line(
                &call("DEL", "net1"),
                Level::Warn,
                "it's \"no\"\nand a tab\t\u{1b}[0m"
            ),
            "level=warn plugin=bridge verb=DEL container=c1 ifname=net1 network=blue \
             msg=\"it's \\\"no\\\"\\nand a tab\\t\\u{1b}[0m\"\n"
        );
        assert_eq!(
            line(&call("GC", ""), Level::Error, "x"),
            "level=error plugin=bridge verb=GC network=blue msg=\"x\"\n"
        );
    }

    #[test]
    fn odd_names_are_quoted() {
        let text = line(&call("DEL", "a=\"\u{7}ü"), Level::Warn, "x");
        assert!(text.contains(" ifname=\"a=\\\"\\u{7}ü\" network="), "{text}");
    }

    #[test]
    fn a_line_is_bounded() {
        let mut call = call("DEL", "net1");
        call.request.container_id = "c".repeat(10_000);
        let text = line(&call, Level::Warn, &"ü\n".repeat(10_000));
        assert!(text.len() < 4096 && text.ends_with("...\"\n"), "{}", text.len());
        assert_eq!(text.lines().count(), 1);
    }
}

//! What is told about a change that could not be made (nmstate §2.4, §5.6): the root cause first, then no more of the
//! log than helps, and no secret anywhere.

use serde_json::Value;
use thiserror::Error;

use crate::{engine, secrets};

/// The longest root cause, in bytes: verification compares whole interfaces.
const CAUSE: usize = 2048;
/// The most that is told of the log, in bytes.
const LOG: usize = 1024;
/// Kinds of errors that the same document will always meet.
const FINAL: [&str; 4] = [
    engine::MALFORMED,
    engine::POLICY_ERROR,
    engine::NOT_IMPLEMENTED,
    engine::NOT_SUPPORTED,
];

/// A change that could not be made.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{text}")]
pub struct Failure {
    /// Why, for the condition: the root cause first, bounded, without secrets.
    pub text: String,
    /// Whether another attempt at the same document makes sense.
    pub retry: bool,
}

impl Failure {
    /// What the engine said about a document.
    pub fn of(error: &engine::Error, desired: &Value) -> Self {
        let mut text = start(&error.text, CAUSE);
        let log = end(&error.log, LOG);
        if !log.is_empty() {
            text.push_str("\nlog: ");
            text.push_str(&log);
        }
        Self {
            text: secrets::hidden_in(&text, desired),
            retry: !FINAL.contains(&error.kind.as_str()),
        }
    }

    /// What the engine said about a document while nothing was changed yet.
    pub fn of_unchanged(error: &engine::Error, desired: &Value) -> Self {
        let failure = Self::of(error, desired);
        Self {
            retry: failure.retry && error.kind != engine::INVALID,
            ..failure
        }
    }
}

/// The start of a text, cut where it gets longer than so many bytes.
pub(crate) fn start(text: &str, most: usize) -> String {
    let text = text.trim();
    if text.len() <= most {
        return text.to_owned();
    }
    let kept = &text[..text.floor_char_boundary(most)];
    format!("{kept}… ({} more bytes)", text.len() - kept.len())
}

/// The last whole lines of a text.
fn end(text: &str, most: usize) -> String {
    let text = text.trim();
    if text.len() <= most {
        return text.to_owned();
    }
    let from = text.ceil_char_boundary(text.len() - most);
    let tail = &text[from..];
    // A line that is cut says little; one that is the whole tail has to do.
    let tail = tail.split_once('\n').map_or(tail, |(_, lines)| lines);
    format!("…\n{tail}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(kind: &str, text: &str, log: &str) -> engine::Error {
        engine::Error {
            kind: kind.to_owned(),
            text: text.to_owned(),
            log: log.to_owned(),
        }
    }

    #[test]
    fn the_root_cause_comes_first_and_both_are_bounded() {
        let short = Failure::of(
            &error("PluginFailure", "no such device", "one\ntwo"),
            &Value::Null,
        );
        assert_eq!(short.text, "no such device\nlog: one\ntwo");
        assert!(short.retry);
        let lines: Vec<String> = (0..1000).map(|line| format!("line {line}")).collect();
        let long = Failure::of(
            &error("Bug", &format!("cause {}", "ä".repeat(5000)), &lines.join("\n")),
            &Value::Null,
        );
        assert!(long.text.starts_with("cause ä"), "{}", long.text);
        assert!(long.text.ends_with("line 998\nline 999"), "{}", long.text);
        assert!(long.text.contains("more bytes)\nlog: …\nline "), "{}", long.text);
        assert!(long.text.len() < 3300, "{}", long.text.len());
    }

    #[test]
    fn secrets_stay_out_of_the_cause_and_of_the_log() {
        let desired = json!({"interfaces": [{"name": "eth1", "802.1x": {"password": "hunter2"}}]});
        let failure = Failure::of(&error("Bug", "bad hunter2", "sent hunter2"), &desired);
        assert_eq!(
            failure.text,
            "bad <_password_hid_by_nmstate>\nlog: sent <_password_hid_by_nmstate>"
        );
    }

    #[test]
    fn what_the_same_document_will_always_meet_is_not_tried_again() {
        for (kind, retry) in [
            ("Malformed", false),
            ("PolicyError", false),
            ("NotSupportedError", false),
            ("InvalidArgument", true),
            ("VerificationError", true),
            ("PluginFailure", true),
        ] {
            assert_eq!(
                Failure::of(&error(kind, "", ""), &Value::Null).retry,
                retry,
                "{kind}"
            );
        }
    }

    #[test]
    fn a_mistake_in_the_document_is_final_while_nothing_is_changed() {
        let retry = |kind: &str| {
            let error = engine::Error {
                kind: kind.to_owned(),
                text: String::new(),
                log: String::new(),
            };
            Failure::of_unchanged(&error, &Value::Null).retry
        };
        assert!(!retry("InvalidArgument"));
        assert!(!retry("NotSupportedError"));
        assert!(retry("PluginFailure"));
    }
}

//! Errors of failed changes, for conditions (nmstate §2.4, §5.6): the root cause first, then the end of the log, and no
//! secrets.

use serde_json::Value;
use thiserror::Error;

use crate::{engine, excerpt, secrets};

/// Maximum length of the root cause in bytes: verification compares whole interfaces.
const CAUSE: usize = 2048;
/// Maximum length of the log in bytes.
const LOG: usize = 1024;
/// Kinds of errors that a retry of the same document cannot avoid.
const FINAL: [&str; 4] = [
    engine::MALFORMED,
    engine::POLICY_ERROR,
    engine::NOT_IMPLEMENTED,
    engine::NOT_SUPPORTED,
];

/// A failed change.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{text}")]
pub struct Failure {
    /// Text of the condition: the root cause first, bounded, without secrets.
    pub text: String,
    /// Whether a retry with the same document may succeed.
    pub retry: bool,
}

impl Failure {
    /// The failure of an engine's error about a document.
    pub fn of(error: &engine::Error, desired: &Value) -> Self {
        let mut text = excerpt::start(&error.text, CAUSE);
        let log = excerpt::end(&error.log, LOG);
        if !log.is_empty() {
            text.push_str("\nlog: ");
            text.push_str(&log);
        }
        Self {
            text: secrets::hidden_in(&text, desired),
            retry: !FINAL.contains(&error.kind.as_str()),
        }
    }

    /// The same while the host is unchanged: an invalid document is final.
    pub fn of_unchanged(error: &engine::Error, desired: &Value) -> Self {
        let failure = Self::of(error, desired);
        Self {
            retry: failure.retry && error.kind != engine::INVALID,
            ..failure
        }
    }
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
    fn failure_starts_with_the_cause_and_is_bounded() {
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
    fn secrets_are_hidden_in_cause_and_log() {
        let desired = json!({"interfaces": [{"name": "eth1", "802.1x": {"password": "hunter2"}}]});
        let failure = Failure::of(&error("Bug", "bad hunter2", "sent hunter2"), &desired);
        assert_eq!(
            failure.text,
            "bad <_password_hid_by_nmstate>\nlog: sent <_password_hid_by_nmstate>"
        );
    }

    #[test]
    fn final_kinds_of_errors_are_not_retried() {
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
    fn invalid_document_is_final_while_the_host_is_unchanged() {
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

//! YAML or JSON documents of users. [`crate::nmstatectl`] uses the parser of the nmstate library instead, like
//! upstream's tool.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy, Options};
use thiserror::Error;

/// A text is neither YAML nor JSON, or has another form.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{0}")]
pub struct Malformed(String);

/// All documents of a text, without empty ones.
pub fn documents(text: &str) -> Result<Vec<Value>, Malformed> {
    serde_saphyr::from_multiple_with_options(text, options()).map_err(|error| Malformed(error.to_string()))
}

/// The only document of a text.
pub(crate) fn document<T: DeserializeOwned>(text: &str) -> Result<T, Malformed> {
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| Malformed(error.to_string()))
}

/// Parses scalars like the library: `yes`, `010` and `1_000` are strings, the last of duplicate keys counts, and `<<`
/// is an ordinary key.
fn options() -> Options {
    serde_saphyr::options! {
        // The policies of a cluster exceed the parser's default budget.
        budget: serde_saphyr::budget! {
            max_documents: 50_000,
            max_nodes: 2_000_000,
            max_events: 6_000_000,
        },
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        leading_zero_numbers_as_strings: true,
        merge_keys: MergeKeyPolicy::AsOrdinary,
        strict_booleans: true,
        underscored_numbers_as_strings: true,
        with_snippet: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The same document as the library reads it.
    fn as_the_library(text: &str) -> Value {
        serde_yaml::from_str(text).expect("YAML")
    }

    #[test]
    fn scalars_are_parsed_like_the_library() {
        for (text, expected) in [
            (
                "a: yes\nb: on\nc: True\nd: ~",
                json!({ "a": "yes", "b": "on", "c": true, "d": null }),
            ),
            (
                "a: 010\nb: 1_000\nc: 0x1A\nd: 1e3",
                json!({ "a": "010", "b": "1_000", "c": 26, "d": 1000.0 }),
            ),
            (
                "a: 12:30:45\nb: 52:54:00:12:34:56",
                json!({ "a": "12:30:45", "b": "52:54:00:12:34:56" }),
            ),
            ("a: 1\na: 2", json!({ "a": 2 })),
            (
                "a: &x {c: 1}\nb:\n  <<: *x\n  d: 2",
                json!({ "a": { "c": 1 }, "b": { "<<": { "c": 1 }, "d": 2 } }),
            ),
            ("{\"a\": [true, null]}", json!({ "a": [true, null] })),
        ] {
            assert_eq!(as_the_library(text), expected, "{text}");
            assert_eq!(documents(text).expect("YAML"), [expected], "{text}");
        }
    }

    #[test]
    fn empty_documents_are_skipped() {
        assert_eq!(
            documents("---\n---\na: 1\n---\n# nothing\n").expect("YAML"),
            [json!({ "a": 1 })]
        );
        assert_eq!(documents("").expect("YAML"), [] as [Value; 0]);
        assert_eq!(document::<Option<Value>>("").expect("YAML"), None);
    }

    #[test]
    fn error_is_one_line_with_its_position() {
        let error = documents("a: 1\nb: c: d\n").expect_err("no YAML");
        assert_eq!(
            error.to_string(),
            "mapping values are not allowed in this context at line 2, column 5"
        );
        assert!(document::<Vec<u8>>("a: 1").is_err());
    }
}

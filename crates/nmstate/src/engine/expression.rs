//! Errors in captures, in one form whatever finds them: the error, the expression, and a caret below the position
//! (nmstate §6.1).

use serde_json::{Map, Value};

use super::{Error, POLICY_ERROR};

/// Prefix of these errors.
const BEGIN: &str = "PolicyError: ";
/// Prefix of references to other captures.
const CAPTURE: &str = "capture.";
/// Prefix of the library's error about an unknown section of an expression.
const UNKNOWN: &str = "Unsupported capture keyword '";

/// The error of the first reference to a missing capture.
pub(super) fn missing(captures: &Map<String, Value>) -> Option<Error> {
    captures
        .values()
        .filter_map(Value::as_str)
        .find_map(|expression| {
            let (at, name) = references(expression).find(|(_, name)| !captures.contains_key(*name))?;
            Some(new_error(&format!("Capture {name} not found"), expression, at))
        })
}

/// Unwraps an error of the library about captures, and adds the position if it has none.
pub(super) fn explained(mut error: Error, captures: &Map<String, Value>) -> Error {
    if let Some(at) = error.text.find(BEGIN) {
        POLICY_ERROR.clone_into(&mut error.kind);
        error.text.drain(..at);
        return error;
    }
    let unknown = error
        .text
        .split_once(UNKNOWN)
        .and_then(|(_, rest)| rest.split_once('\''));
    if let Some((keyword, _)) = unknown {
        let mut expressions = captures.values().filter_map(Value::as_str);
        let found = expressions.find_map(|expression| {
            let at = words(expression)
                .find(|(_, word)| word.split('.').next() == Some(keyword))?
                .0;
            Some((expression, at))
        });
        if let Some((expression, at)) = found {
            let log = std::mem::take(&mut error.log);
            return Error {
                log,
                ..new_error(&format!("{UNKNOWN}{keyword}'"), expression, at)
            };
        }
    }
    error
}

fn new_error(what: &str, expression: &str, at: usize) -> Error {
    let dots = ".".repeat(at);
    Error::new(POLICY_ERROR, format!("{BEGIN}{what}\n| {expression}\n| {dots}^"))
}

/// Names of captures that an expression refers to, with their positions.
fn references(expression: &str) -> impl Iterator<Item = (usize, &str)> {
    words(expression).filter_map(|(at, word)| {
        let name = word.strip_prefix(CAPTURE)?;
        Some((at, name.split('.').next().unwrap_or(name)))
    })
}

/// The words of an expression outside of quotes, with their positions in characters.
fn words(expression: &str) -> impl Iterator<Item = (usize, &str)> {
    let outside = expression.split('"').scan(0, |at, part| {
        let begin = *at;
        *at += part.chars().count() + 1;
        Some((begin, part))
    });
    // Every second part is quoted.
    outside.step_by(2).flat_map(|(begin, part)| {
        let ends = |character: char| character.is_whitespace() || "=!|:".contains(character);
        part.split(ends)
            .scan(begin, |at, word| {
                let begin = *at;
                *at += word.chars().count() + 1;
                Some((begin, word))
            })
            .filter(|(_, word)| !word.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn captures(captures: &Value) -> Map<String, Value> {
        captures.as_object().cloned().unwrap_or_default()
    }

    fn library(text: &str) -> Error {
        Error {
            kind: "InvalidArgument".to_owned(),
            text: text.to_owned(),
            log: "logged".to_owned(),
        }
    }

    #[test]
    fn missing_capture_is_reported_with_its_position() {
        let gone = captures(&json!({"a": "interfaces.name==capture.b.interfaces.0.name"}));
        assert_eq!(
            missing(&gone).map(|error| error.text).as_deref(),
            Some(
                "PolicyError: Capture b not found\n| interfaces.name==capture.b.interfaces.0.name\n| .................^"
            )
        );
        let there = captures(
            &json!({"a": "capture.b | interfaces.name:=\"capture.c\"", "b": "interfaces.name==\"x\""}),
        );
        assert_eq!(missing(&there), None);
        let piped = captures(&json!({"a": "capture.z|interfaces.name:=\"x\""}));
        assert_eq!(
            missing(&piped).map(|error| error.text).as_deref(),
            Some("PolicyError: Capture z not found\n| capture.z|interfaces.name:=\"x\"\n| ^")
        );
    }

    #[test]
    fn wrapped_library_error_is_unwrapped() {
        let error = explained(
            library(
                "InvalidArgument: Invalid property : PolicyError: No ending double quote\n| a.b==\"\n| .....^",
            ),
            &Map::new(),
        );
        assert_eq!(
            (error.kind.as_str(), error.text.as_str(), error.log.as_str()),
            (
                "PolicyError",
                "PolicyError: No ending double quote\n| a.b==\"\n| .....^",
                "logged"
            )
        );
        let other = library("PluginFailure: no bus");
        assert_eq!(explained(other.clone(), &Map::new()), other);
    }

    #[test]
    fn unknown_section_is_reported_with_its_position() {
        let error = explained(
            library("InvalidArgument: Unsupported capture keyword 'links'"),
            &captures(&json!({"a": "interfaces.name==\"links\"", "b": "capture.a | links.name:=\"x\""})),
        );
        assert_eq!(
            error.text,
            "PolicyError: Unsupported capture keyword 'links'\n| capture.a | links.name:=\"x\"\n| ............^"
        );
        assert_eq!(error.log, "logged");
    }
}

//! Splits a stream of JSON objects without delimiters.

use std::mem;

/// Maximum length of a message, bytes. A table of a thousand interfaces with all columns has fewer than two million.
pub(crate) const LONGEST_MESSAGE: usize = 16 << 20;

/// Maximum nesting: an update of a map in a row has ten levels, and the JSON parser fails at 128.
const DEEPEST: usize = 64;

/// Received bytes, and the state of the scan.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    buffer: Vec<u8>,
    scanned: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Splitter {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next message, or `None` until it is complete. The error describes the defect of the stream.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, String> {
        while let Some(&byte) = self.buffer.get(self.scanned) {
            if self.scanned == LONGEST_MESSAGE {
                return Err(format!("it has more than {LONGEST_MESSAGE} bytes"));
            }
            self.scanned += 1;
            if self.ends_with(byte)? {
                let rest = self.buffer.split_off(self.scanned);
                self.scanned = 0;
                return Ok(Some(mem::replace(&mut self.buffer, rest)));
            }
        }
        Ok(None)
    }

    /// Scans one byte. Returns true if it is the last byte of a message.
    fn ends_with(&mut self, byte: u8) -> Result<bool, String> {
        if self.in_string {
            self.in_string = self.escaped || byte != b'"';
            self.escaped = !self.escaped && byte == b'\\';
            return Ok(false);
        }
        match byte {
            b'{' | b'[' if self.depth == DEEPEST => {
                return Err(format!("it is nested more than {DEEPEST} levels deep"));
            }
            b'{' => self.depth += 1,
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ if self.depth == 0 => {
                return Err(format!(
                    "it starts with {:?} instead of an object",
                    char::from(byte)
                ));
            }
            b'[' => self.depth += 1,
            b'}' | b']' => self.depth -= 1,
            b'"' => self.in_string = true,
            _ => {}
        }
        Ok(self.depth == 0 && byte == b'}')
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// Splits a text that arrives in these pieces.
    fn split<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Value>, String> {
        let mut splitter = Splitter::default();
        let mut messages = Vec::new();
        for piece in pieces {
            splitter.push(piece);
            while let Some(message) = splitter.next()? {
                messages.push(serde_json::from_slice(&message).map_err(|error| error.to_string())?);
            }
        }
        Ok(messages)
    }

    fn error(text: &str) -> String {
        split([text.as_bytes()]).unwrap_err()
    }

    #[test]
    fn brackets_and_quotes_in_strings_do_not_count() {
        let messages = [json!({"a": "}]\\\"{["}), json!({}), json!({"b": [{"c": []}]})];
        let text: String = messages.iter().map(|message| format!(" {message}\n")).collect();
        assert_eq!(split([text.as_bytes()]).as_deref(), Ok(&messages[..]));
    }

    #[test]
    fn value_other_than_an_object_is_refused() {
        for text in ["[]", "1", "}", "\"a\"", "{}x", "\0"] {
            assert!(error(text).starts_with("it starts with "), "{text}");
        }
    }

    #[test]
    fn nesting_is_limited() {
        let nested = |depth| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(split([nested(DEEPEST - 1).as_bytes()]).map(|it| it.len()), Ok(1));
        assert_eq!(error(&nested(DEEPEST)), "it is nested more than 64 levels deep");
    }

    #[test]
    fn length_is_limited() {
        let longest = format!("{{\"a\":\"{}\"}}", "x".repeat(LONGEST_MESSAGE - 8));
        assert_eq!(longest.len(), LONGEST_MESSAGE);
        assert_eq!(split([longest.as_bytes()]).map(|it| it.len()), Ok(1));
        let longer = format!("{{ {}", &longest[1..]);
        assert_eq!(error(&longer), "it has more than 16777216 bytes");
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[\\[\\]{}\"\\\\]*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map(any::<String>(), inner, 0..4)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn messages_split_at_any_byte_are_joined(
            values in prop::collection::vec(any_value(), 0..4),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let messages: Vec<Value> = values.into_iter().map(|value| json!({"a": value})).collect();
            let text: Vec<u8> = messages.iter().flat_map(|message| message.to_string().into_bytes()).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]);
            prop_assert_eq!(split(pieces), Ok(messages));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let mut splitter = Splitter::default();
            splitter.push(&bytes);
            while let Ok(Some(message)) = splitter.next() {
                prop_assert_eq!(message.last(), Some(&b'}'));
            }
        }
    }
}

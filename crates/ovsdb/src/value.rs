//! Values of columns, in the notation of RFC 7047 section 5.1.

use std::slice;

use serde_json::{Value, json};

const UUID: &str = "uuid";
const NAMED_UUID: &str = "named-uuid";
const SET: &str = "set";
const MAP: &str = "map";

/// A reference to a row: `["uuid", id]`.
pub fn uuid(id: &str) -> Value {
    json!([UUID, id])
}

/// A reference to a row that the same transaction inserts: `["named-uuid", id]`. The server accepts letters, digits and
/// `_`, without a leading digit.
pub fn named_uuid(id: &str) -> Value {
    json!([NAMED_UUID, id])
}

/// A set: `["set", [value, …]]`.
pub fn set(values: impl IntoIterator<Item = Value>) -> Value {
    json!([SET, values.into_iter().collect::<Vec<_>>()])
}

/// A map of strings: `["map", [[key, value], …]]`.
pub fn map<K: Into<String>, V: Into<String>>(entries: impl IntoIterator<Item = (K, V)>) -> Value {
    let pair = |(key, value): (K, V)| json!([key.into(), value.into()]);
    json!([MAP, entries.into_iter().map(pair).collect::<Vec<_>>()])
}

/// Returns the id in `["uuid", id]`.
pub fn uuid_of(value: &Value) -> Option<&str> {
    tagged(value, UUID)?.as_str()
}

/// Returns the elements of a set. The server writes a set of one element as the element alone.
pub fn set_of(value: &Value) -> &[Value] {
    match tagged(value, SET) {
        Some(Value::Array(elements)) => elements,
        _ => slice::from_ref(value),
    }
}

/// Returns the entries of a map of strings. Other values have no entries.
pub fn map_of(value: &Value) -> impl Iterator<Item = (&str, &str)> {
    let entries = tagged(value, MAP).and_then(Value::as_array);
    entries.into_iter().flatten().filter_map(|entry| {
        let [key, value] = entry.as_array()?.as_slice() else {
            return None;
        };
        Some((key.as_str()?, value.as_str()?))
    })
}

fn tagged<'a>(value: &'a Value, tag: &str) -> Option<&'a Value> {
    match value.as_array()?.as_slice() {
        [found, content] if found == tag => Some(content),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_notation_of_the_rfc() {
        assert_eq!(uuid("a"), json!(["uuid", "a"]));
        assert_eq!(named_uuid("a"), json!(["named-uuid", "a"]));
        assert_eq!(set([json!(1), json!(2)]), json!(["set", [1, 2]]));
        assert_eq!(map([("a", "b")]), json!(["map", [["a", "b"]]]));
    }

    #[test]
    fn single_value_is_read_as_a_set() {
        assert_eq!(set_of(&json!(["set", [1, 2]])), [json!(1), json!(2)]);
        assert_eq!(set_of(&json!(["set", []])), [] as [Value; 0]);
        assert_eq!(set_of(&json!(7)), [json!(7)]);
        assert_eq!(set_of(&uuid("a")), [uuid("a")]);
    }

    #[test]
    fn malformed_entries_of_a_map_are_skipped() {
        let map = json!(["map", [["a", "b"], ["c"], ["d", 1], "e"]]);
        assert_eq!(map_of(&map).collect::<Vec<_>>(), [("a", "b")]);
        assert_eq!(map_of(&json!("a")).count(), 0);
        assert_eq!(map_of(&json!(["set", []])).count(), 0);
    }

    #[test]
    fn value_other_than_a_uuid_has_no_id() {
        assert_eq!(uuid_of(&uuid("a")), Some("a"));
        assert_eq!(uuid_of(&json!("a")), None);
        assert_eq!(uuid_of(&set([])), None);
    }
}

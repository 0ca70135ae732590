//! Reads members of JSON documents. A missing member and one of another type count as empty.

use serde_json::Value;

/// The text at a JSON pointer.
pub fn text<'a>(document: &'a Value, pointer: &str) -> &'a str {
    let text = document.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default()
}

/// The items of the list at a JSON pointer.
pub fn list<'a>(document: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    let list = document.pointer(pointer).and_then(Value::as_array);
    list.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn missing_member_and_member_of_another_type_are_empty() {
        let document = json!({ "a": { "name": "x", "items": [1, 2] } });
        assert_eq!(text(&document, "/a/name"), "x");
        assert_eq!(list(&document, "/a/items").count(), 2);
        for pointer in ["/a", "/b", "/a/name/x"] {
            assert_eq!(text(&document, pointer), "");
            assert_eq!(list(&document, pointer).count(), 0);
        }
    }
}

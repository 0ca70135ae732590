//! Compares a merged object with the live one, with regard to defaults and omitted values of the server.

use crate::defaults;
use serde_json::{Map, Value};
use std::fmt;

/// A difference of two objects.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Keys and list indices joined by dots.
    pub path: String,
    /// The desired value, `None` for an absent one.
    pub wanted: Option<Value>,
    /// The live value, `None` for an absent one.
    pub found: Option<Value>,
}

impl fmt::Display for Difference {
    /// The path alone: values may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

/// Metadata that is compared; the rest belongs to the API server.
const COMPARED_METADATA: [&str; 4] = ["labels", "annotations", "ownerReferences", "finalizers"];

/// All differences of the live object from the merged one.
pub(super) fn differences(merged: &Value, live: &Value) -> Vec<Difference> {
    let mut walk = Walk {
        kind: merged.get("kind").and_then(Value::as_str).unwrap_or_default(),
        path: Vec::new(),
        pattern: Vec::new(),
        differences: Vec::new(),
    };
    let (Some(wanted), Some(found)) = (merged.as_object(), live.as_object()) else {
        return walk.differences;
    };
    for key in keys(wanted, found) {
        match key {
            "apiVersion" | "kind" | "status" => {}
            "metadata" => {
                let part = |fields: &Map<String, Value>, key: &str| fields.get("metadata")?.get(key).cloned();
                for key in COMPARED_METADATA {
                    let (wanted, found) = (part(wanted, key), part(found, key));
                    walk.enter("metadata", "metadata", |walk| {
                        walk.field(key, wanted.as_ref(), found.as_ref(), &Value::Null);
                    });
                }
            }
            _ => walk.field(key, wanted.get(key), found.get(key), live),
        }
    }
    walk.differences
}

/// Whether the server may omit or fill in this value without changing the meaning.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Whether the server omits this value when it stores an object: the zero of its type.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        other => is_empty(other),
    }
}

/// The keys of both, without duplicates, in a stable order.
fn keys<'a>(a: &'a Map<String, Value>, b: &'a Map<String, Value>) -> Vec<&'a str> {
    let more = b.keys().filter(|key| !a.contains_key(*key));
    a.keys().chain(more).map(String::as_str).collect()
}

struct Walk<'a> {
    kind: &'a str,
    path: Vec<String>,
    /// The path with `*` for list indices.
    pattern: Vec<String>,
    differences: Vec<Difference>,
}

impl Walk<'_> {
    fn enter(&mut self, segment: &str, pattern: &str, inside: impl FnOnce(&mut Self)) {
        self.path.push(segment.to_owned());
        self.pattern.push(pattern.to_owned());
        inside(self);
        self.path.pop();
        self.pattern.pop();
    }

    fn field(&mut self, key: &str, wanted: Option<&Value>, found: Option<&Value>, parent: &Value) {
        self.enter(key, key, |walk| walk.compare(wanted, found, parent));
    }

    /// `parent` is the live object or list that holds `found`.
    fn compare(&mut self, wanted: Option<&Value>, found: Option<&Value>, parent: &Value) {
        let pattern: Vec<&str> = self.pattern.iter().map(String::as_str).collect();
        let means = |value: &Value| defaults::empty_has_meaning(&pattern, value);
        let present = |value: &&Value| !is_empty(value) || means(value);
        match (wanted.filter(present), found.filter(present)) {
            (None, None) => {}
            (Some(wanted), None) => {
                if !is_zero(wanted) || means(wanted) {
                    self.differ(Some(wanted), None);
                }
            }
            (None, Some(found)) => {
                if defaults::server_filled(self.kind, &pattern, found, parent) {
                    return;
                }
                match found {
                    Value::Object(fields) if !fields.is_empty() => {
                        for (key, value) in fields {
                            self.field(key, None, Some(value), found);
                        }
                    }
                    _ => self.differ(wanted, Some(found)),
                }
            }
            (Some(Value::Object(wanted)), Some(live @ Value::Object(found))) => {
                for key in keys(wanted, found) {
                    self.field(key, wanted.get(key), found.get(key), live);
                }
            }
            (Some(Value::Array(wanted)), Some(live @ Value::Array(found))) if wanted.len() == found.len() => {
                for (index, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                    self.enter(&index.to_string(), "*", |walk| walk.element(wanted, found, live));
                }
            }
            (Some(wanted), Some(found)) => {
                if !self.same_scalar(wanted, found) {
                    self.differ(Some(wanted), Some(found));
                }
            }
        }
    }

    /// An empty list element differs from an absent one: a rule `{}` allows everything.
    fn element(&mut self, wanted: &Value, found: &Value, list: &Value) {
        match (wanted, found) {
            (Value::Object(wanted), Value::Object(fields)) => {
                for key in keys(wanted, fields) {
                    self.field(key, wanted.get(key), fields.get(key), found);
                }
            }
            (Value::Array(_), Value::Array(_)) => self.compare(Some(wanted), Some(found), list),
            _ => {
                if !self.same_scalar(wanted, found) {
                    self.differ(Some(wanted), Some(found));
                }
            }
        }
    }

    fn same_scalar(&self, wanted: &Value, found: &Value) -> bool {
        if wanted == found {
            return true;
        }
        if let (Some(wanted), Some(found)) = (wanted.as_f64(), found.as_f64()) {
            return wanted.to_bits() == found.to_bits();
        }
        self.is_quantity() && quantity(wanted).is_some_and(|wanted| quantity(found) == Some(wanted))
    }

    /// Whether the value is a quantity, which the server normalizes.
    fn is_quantity(&self) -> bool {
        let mut back = self.pattern.iter().rev().map(String::as_str);
        let (last, before, before_that) = (back.next(), back.next(), back.next());
        matches!(last, Some("sizeLimit" | "divisor"))
            || (matches!(before, Some("requests" | "limits")) && before_that == Some("resources"))
    }

    fn differ(&mut self, wanted: Option<&Value>, found: Option<&Value>) {
        self.differences.push(Difference {
            path: self.path.join("."),
            wanted: wanted.cloned(),
            found: found.cloned(),
        });
    }
}

/// A quantity such as `100m`, `0.1` or `1Gi` in units of 10^-9, exactly; `None` if it is not a quantity or needs more
/// digits.
pub(super) fn quantity(value: &Value) -> Option<i128> {
    const NANO: i128 = 1_000_000_000;
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-' || c == '+'))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let unit: i128 = match suffix {
        "" => NANO,
        "n" => 1,
        "u" => 1_000,
        "m" => 1_000_000,
        "k" => NANO * 1_000,
        "M" => NANO * 1_000_000,
        "G" => NANO * 1_000_000_000,
        "T" => NANO * 1_000_000_000_000,
        "Ki" => NANO << 10,
        "Mi" => NANO << 20,
        "Gi" => NANO << 30,
        "Ti" => NANO << 40,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let total = digits.checked_mul(unit)?;
    (total % scale == 0).then_some(total / scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quantities_are_compared_by_value() {
        for (a, b) in [
            ("0.1", "100m"),
            ("1000m", "1"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("15Mi", "15728640"),
        ] {
            assert_eq!(quantity(&json!(a)), quantity(&json!(b)), "{a} {b}");
            assert!(quantity(&json!(a)).is_some(), "{a}");
        }
        assert_eq!(quantity(&json!(1)), quantity(&json!("1")));
        assert_ne!(quantity(&json!("10m")), quantity(&json!("11m")));
        assert_eq!(quantity(&json!("ten")), None);
    }
}

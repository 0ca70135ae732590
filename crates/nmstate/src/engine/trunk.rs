//! VLAN ranges of trunks. When the library compares documents, it expands ranges: all VLANs of a port become four
//! thousand entries, and differ from the reported range.

use serde_json::{Value, json};

/// Key of the list of VLANs.
const TAGS: &str = "trunk-tags";

/// Rewrites the VLANs of all trunks as ascending ranges. Lists with other entries stay.
pub(super) fn gather(document: &mut Value) {
    match document {
        Value::Array(items) => items.iter_mut().for_each(gather),
        Value::Object(members) => {
            for (key, value) in members {
                match value {
                    Value::Array(tags) if key == TAGS => {
                        if let Some(ranges) = ranges(tags) {
                            *value = ranges;
                        }
                    }
                    _ => gather(value),
                }
            }
        }
        _ => {}
    }
}

fn ranges(tags: &[Value]) -> Option<Value> {
    let mut spans = tags.iter().map(span).collect::<Option<Vec<_>>>()?;
    spans.sort_unstable();
    let mut gathered: Vec<(u64, u64)> = Vec::new();
    for (min, max) in spans {
        match gathered.last_mut() {
            Some((_, end)) if min <= end.saturating_add(1) => *end = max.max(*end),
            _ => gathered.push((min, max)),
        }
    }
    let tags = gathered.into_iter().map(|(min, max)| {
        if min == max {
            json!({ "id": min })
        } else {
            json!({ "id-range": { "min": min, "max": max } })
        }
    });
    Some(tags.collect())
}

/// The first and the last VLAN of an entry.
fn span(tag: &Value) -> Option<(u64, u64)> {
    let number = |pointer: &str| tag.pointer(pointer).and_then(Value::as_u64);
    match number("/id") {
        Some(id) => Some((id, id)),
        None => Some((number("/id-range/min")?, number("/id-range/max")?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(tags: &Value) -> Value {
        let mut document = json!({ "interfaces": [{ "bridge": { "port": [{ "vlan": { TAGS: tags } }] } }] });
        gather(&mut document);
        document["interfaces"][0]["bridge"]["port"][0]["vlan"][TAGS].take()
    }

    #[test]
    fn consecutive_tags_become_a_range() {
        let all: Vec<Value> = (2..=4094).map(|id| json!({ "id": id })).collect();
        assert_eq!(
            gathered(&json!(all)),
            json!([{ "id-range": { "min": 2, "max": 4094 } }])
        );
        let some = json!([
            { "id": 12 }, { "id-range": { "min": 20, "max": 30 } }, { "id": 10 }, { "id": 11 }, { "id": 100 },
            { "id-range": { "min": 31, "max": 33 } }, { "id": 25 },
        ]);
        let ranges = json!([
            { "id-range": { "min": 10, "max": 12 } }, { "id-range": { "min": 20, "max": 33 } }, { "id": 100 },
        ]);
        assert_eq!(gathered(&some), ranges);
        assert_eq!(gathered(&ranges), ranges);
    }

    #[test]
    fn other_lists_stay() {
        for tags in [
            json!([]),
            json!([{ "id": "ten" }, { "id": 1 }]),
            json!("all"),
            json!(null),
        ] {
            assert_eq!(gathered(&tags), tags);
        }
    }
}

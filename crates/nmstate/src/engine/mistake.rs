//! Finds the position of a mistake in a document: the library's error often lacks it.

use serde_json::{Map, Value};

/// The path of the smallest part of the document that causes the error: `interfaces[0].ipv4.adress`. `None` if the
/// document as a whole causes it.
///
/// `complaint` returns the error of a document. It is called with parts of the document, a few times for each level.
pub(super) fn path(document: &Value, complaint: &dyn Fn(&Value) -> Option<String>) -> Option<String> {
    let text = complaint(document)?;
    let search = Search { text, complaint };
    let mut path = String::new();
    if let Value::Object(sections) = document {
        // Sections are checked one by one, so that mistakes in others have no effect.
        for (section, value) in sections {
            let alone = |value: Value| Value::Object(Map::from_iter([(section.clone(), value)]));
            if search.fails_alike(&alone(value.clone())) {
                path.push_str(section);
                search.descend(value, &alone, &mut path);
                break;
            }
        }
    }
    (!path.is_empty()).then_some(path)
}

struct Search<'a> {
    text: String,
    complaint: &'a dyn Fn(&Value) -> Option<String>,
}

impl Search<'_> {
    /// Whether a document has the same error.
    fn fails_alike(&self, document: &Value) -> bool {
        (self.complaint)(document).is_some_and(|text| text == self.text)
    }

    /// Descends into a value. `within` builds a whole document from a replacement of the value.
    fn descend(&self, value: &Value, within: &dyn Fn(Value) -> Value, path: &mut String) {
        match value {
            Value::Array(items) => {
                for (position, item) in items.iter().enumerate() {
                    let alone = |item: Value| within(Value::Array(vec![item]));
                    if self.fails_alike(&alone(item.clone())) {
                        path.push_str(&format!("[{position}]"));
                        return self.descend(item, &alone, path);
                    }
                }
            }
            Value::Object(members) => {
                // If the error disappears with a member, the member caused it. Another error may appear because the
                // member is missing, so only a document without any error is certain. Without `type` any document may
                // pass, so that member is checked last.
                let (types, rest): (Vec<_>, Vec<_>) = members.iter().partition(|(key, _)| *key == "type");
                for (key, member) in rest.into_iter().chain(types) {
                    let mut others = members.clone();
                    others.shift_remove(key);
                    if (self.complaint)(&within(Value::Object(others))).is_none() {
                        let replaced = |member: Value| {
                            let mut members = members.clone();
                            members.insert(key.clone(), member);
                            within(Value::Object(members))
                        };
                        path.push_str(&format!(".{key}"));
                        return self.descend(member, &replaced, path);
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use nmstate::NetworkState;
    use rstest::rstest;
    use serde_json::{Value, json};

    #[rstest]
    #[case::key(json!({"interfaces": [
        {"name": "eth0", "type": "ethernet", "state": "up"},
        {"name": "eth1", "type": "ethernet", "state": "up", "ipv4": {"enabled": true, "adress": []}}]}),
        Some("interfaces[1].ipv4.adress"))]
    #[case::deep(json!({"interfaces": [{"name": "br1", "type": "linux-bridge", "state": "up", "bridge": {"port": [
        {"name": "eth1"}, {"name": "eth2", "vlan": {"mode": "trunc"}}]}}]}),
        Some("interfaces[0].bridge.port[1].vlan.mode"))]
    #[case::section(json!({"interfaces": [], "route": {}}), Some("route"))]
    #[case::type_of_a_value(json!({"routes": {"config": [{"destination": "0.0.0.0/0", "metric": "high"}]}}),
        Some("routes.config[0].metric"))]
    #[case::several(json!({"interfaces": [
        {"name": "eth0", "type": "ethernet", "mut": 1500},
        {"name": "eth1", "type": "ethernet", "mtuu": 1500}]}),
        Some("interfaces[0].mut"))]
    #[case::no_document(json!("interfaces"), None)]
    #[case::fine(json!({"interfaces": [{"name": "eth0", "type": "ethernet"}]}), None)]
    fn path_of_a_mistake_is_found(#[case] document: Value, #[case] expected: Option<&str>) {
        let complaint = |document: &Value| {
            let parsed: Result<NetworkState, _> = serde_json::from_value(document.clone());
            parsed.err().map(|error| error.to_string())
        };
        assert_eq!(super::path(&document, &complaint).as_deref(), expected);
    }
}

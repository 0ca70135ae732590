//! Fields that the definition of the configuration resource does not have, usually misspelled ones. The API server
//! drops them silently unless the client requests strict validation.

use serde_json::Value;

/// Paths of the unknown fields in `spec`, sorted.
pub(super) fn fields(object: &Value) -> Vec<String> {
    let definition = api::network_addons::crd()
        .ok()
        .and_then(|definition| serde_json::to_value(definition).ok());
    let schema = definition
        .as_ref()
        .and_then(|definition| definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec"));
    let mut unknown = Vec::new();
    if let (Some(schema), Some(spec)) = (schema, object.get("spec")) {
        walk(spec, schema, "spec", &mut unknown);
    }
    unknown.sort();
    unknown
}

fn walk(value: &Value, schema: &Value, path: &str, unknown: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            let any = schema.get("additionalProperties");
            let open = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
            for (key, member) in members {
                let path = format!("{path}.{key}");
                match schema
                    .pointer("/properties")
                    .and_then(|known| known.get(key))
                    .or(any)
                {
                    Some(schema) => walk(member, schema, &path, unknown),
                    None if open => {}
                    None => unknown.push(path),
                }
            }
        }
        Value::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                let schema = schema.get("items").unwrap_or(&Value::Null);
                walk(element, schema, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_lists_fields_without_definition() {
        let object = json!({ "metadata": { "nonsense": 1 }, "spec": {
            "multus": { "a": {} }, "ovs": null, "Ovs": {},
            "placementConfiguration": { "workloads": {
                "nodeSelector": { "any/key": "x" },
                "tolerations": [{ "key": "a" }, { "kee": "b" }],
                "affinity": { "nodeAffinity": {} },
            } },
        } });
        assert_eq!(
            fields(&object),
            [
                "spec.Ovs",
                "spec.multus.a",
                "spec.placementConfiguration.workloads.tolerations[1].kee"
            ]
        );
        assert_eq!(fields(&json!({})), Vec::<String>::new());
    }
}

//! Parts of the schemas that are not derived: defaults, rules, kinds of lists.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::Error;

/// An addition to a schema: the path of the node below the root, with `[]` for the items of a list, and the added
/// members.
pub(super) type Addition = (&'static str, Value);

/// An unsigned number of at most 32 bits. The API server has no such format, so the values are checked as 64 bits.
pub(super) fn uint32(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "format": "int64", "minimum": 0 })
}

/// An arbitrary object.
pub(super) fn document(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true })
}

/// A validation rule of the API server, with its message.
pub(super) fn rule(rule: &str, message: &str) -> Value {
    json!({ "x-kubernetes-validations": [{ "rule": rule, "message": message }] })
}

/// Adds members to the schemas of all versions.
///
/// # Errors
/// If a path does not exist, or the resulting schema does not fit into Kubernetes' types.
pub(super) fn add(
    crd: CustomResourceDefinition,
    additions: impl IntoIterator<Item = Addition>,
) -> Result<CustomResourceDefinition, Error> {
    let name = crd.metadata.name.clone().unwrap_or_default();
    let shape = |source| Error::Shape {
        name: name.clone(),
        source,
    };
    let mut value = serde_json::to_value(crd).map_err(shape)?;
    let additions: Vec<Addition> = additions.into_iter().collect();
    let versions = value.pointer_mut("/spec/versions").and_then(Value::as_array_mut);
    for version in versions.into_iter().flatten() {
        for (path, members) in &additions {
            let node = version
                .pointer_mut("/schema/openAPIV3Schema")
                .and_then(|root| descend(root, path))
                .ok_or_else(|| Error::NoNode {
                    name: name.clone(),
                    path: (*path).to_owned(),
                })?;
            node.extend(members.as_object().cloned().unwrap_or_default());
        }
    }
    serde_json::from_value(value).map_err(shape)
}

fn descend<'a>(root: &'a mut Value, path: &str) -> Option<&'a mut Map<String, Value>> {
    let mut node = root;
    for step in path.split('.').filter(|step| !step.is_empty()) {
        let name = step.trim_end_matches("[]");
        node = node.get_mut("properties")?.get_mut(name)?;
        if step.ends_with("[]") {
            node = node.get_mut("items")?;
        }
    }
    node.as_object_mut()
}

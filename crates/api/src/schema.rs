//! Corrections of every generated schema, so that the definition matches its specification: schemars and kube mark
//! optional fields as nullable and write defaults, and these APIs have neither.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Map, Value, json};

/// The generation of a definition failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The schema does not fit into Kubernetes' types.
    #[error("the generated schema of {name} does not fit into a CustomResourceDefinition")]
    Shape {
        /// Name of the definition.
        name: String,
        /// The error of serde.
        #[source]
        source: serde_json::Error,
    },
    /// The schema lacks a part to which members are added.
    #[error("the generated schema of {name} has no {path}")]
    NoNode {
        /// Name of the definition.
        name: String,
        /// Path of the part.
        path: String,
    },
}

const API_VERSION: &str = "Version of the schema of this object. Servers convert recognised versions to the \
                           stored one and reject others.";
const KIND: &str = "Kind of this object. It cannot be changed.";

/// Converts a derived definition into the shipped definition.
///
/// `nullable` names the properties that accept `null`. `texts` are the descriptions of `spec` and `status`, in this
/// order.
pub(crate) fn finish(
    crd: CustomResourceDefinition,
    nullable: &[&str],
    texts: &[&str],
) -> Result<CustomResourceDefinition, Error> {
    let name = crd.metadata.name.clone().unwrap_or_default();
    let shape = |source| Error::Shape {
        name: name.clone(),
        source,
    };
    let mut value = serde_json::to_value(crd).map_err(shape)?;
    if let Some(names) = value.pointer_mut("/spec/names").and_then(Value::as_object_mut) {
        drop_empty(names);
    }
    for version in value
        .pointer_mut("/spec/versions")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if let Some(version) = version.as_object_mut() {
            drop_empty(version);
        }
        if let Some(root) = version
            .pointer_mut("/schema/openAPIV3Schema")
            .and_then(Value::as_object_mut)
        {
            root.insert("type".into(), json!("object"));
            root.shift_remove("required");
            root.shift_remove("title");
            if let Some(properties) = root.get_mut("properties").and_then(Value::as_object_mut) {
                properties.insert(
                    "apiVersion".into(),
                    json!({ "type": "string", "description": API_VERSION }),
                );
                properties.insert("kind".into(), json!({ "type": "string", "description": KIND }));
                // The API server describes metadata, and accepts no description here.
                properties.insert("metadata".into(), json!({ "type": "object" }));
                for (key, text) in ["spec", "status"].into_iter().zip(texts) {
                    if let Some(Value::Object(node)) = properties.get_mut(key) {
                        node.insert("description".into(), json!(text));
                    }
                }
            }
            trim(root, false, nullable);
        }
    }
    serde_json::from_value(value).map_err(shape)
}

/// Sets the required properties of nodes. A node is named by its JSON pointer below the properties of the root. The
/// types do not declare these, because readers accept objects without them.
pub(crate) fn require(crd: &mut CustomResourceDefinition, required: &[(&str, &[&str])]) -> Result<(), Error> {
    let name = crd.metadata.name.clone().unwrap_or_default();
    let shape = |source| Error::Shape {
        name: name.clone(),
        source,
    };
    let mut value = serde_json::to_value(&*crd).map_err(shape)?;
    let versions = value.pointer_mut("/spec/versions").and_then(Value::as_array_mut);
    for version in versions.into_iter().flatten() {
        for (pointer, properties) in required {
            let pointer = format!("/schema/openAPIV3Schema/properties{pointer}");
            if let Some(Value::Object(node)) = version.pointer_mut(&pointer) {
                node.insert("required".into(), json!(properties));
            }
        }
    }
    *crd = serde_json::from_value(value).map_err(shape)?;
    Ok(())
}

/// Removes empty lists and objects, like the API server.
fn drop_empty(members: &mut Map<String, Value>) {
    members.retain(|_, member| *member != json!([]) && *member != json!({}));
}

/// Joins the lines of each paragraph, because `kubectl explain` prints line breaks of source files.
fn flowing(text: &str) -> String {
    let paragraphs: Vec<_> = text
        .split("\n\n")
        .map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    paragraphs.join("\n\n")
}

/// Visits the nodes of a schema. `property` maps are not nodes.
fn trim(node: &mut Map<String, Value>, may_be_null: bool, nullable: &[&str]) {
    node.shift_remove("default");
    if !may_be_null {
        node.shift_remove("nullable");
    }
    if let Some(Value::String(description)) = node.get_mut("description") {
        *description = flowing(description);
    }
    if let Some(Value::Object(properties)) = node.get_mut("properties") {
        for (name, property) in properties.iter_mut() {
            if let Some(property) = property.as_object_mut() {
                trim(property, nullable.contains(&name.as_str()), nullable);
            }
        }
    }
    for (key, text) in [
        ("items", "One of them."),
        ("additionalProperties", "Value of one key."),
    ] {
        if let Some(Value::Object(inner)) = node.get_mut(key) {
            trim(inner, false, nullable);
            // Types have descriptions of their fields, but not of scalars in lists.
            inner.entry("description").or_insert_with(|| json!(text));
        }
    }
}

//! Operand objects: read from the YAML files beside each component, completed by structural steps.
//!
//! The files are valid objects, complete but for what depends on the cluster and on the configuration;
//! a step that does not find what it is to complete is an error, never a silent omission.

mod pods;

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition, serde::Serialize,
};
use serde_json::{Map, Value, json};

pub use pods::{Container, Pods};

/// Why an operand could not be rendered. All of these are defects of the operator's own files, but for
/// the image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file is no YAML, or an object no JSON.
    #[error("{file} is not a list of objects: {cause}")]
    Syntax {
        /// File name, or kind of the object.
        file: &'static str,
        /// What the parser says.
        cause: String,
    },
    /// An object lacks what a step completes.
    #[error("{object} has no {part}")]
    Missing {
        /// Kind and name of the object.
        object: String,
        /// What it lacks.
        part: String,
    },
    /// There is nothing to run in a container that only our own image can run.
    #[error(
        "the operator's own image is unknown: set environment variable {} or {}",
        crate::names::env::POD_NAME,
        crate::names::env::OPERATOR_IMAGE
    )]
    OwnImage,
    /// There is nothing to run in a container.
    #[error(transparent)]
    Image(#[from] crate::images::UnknownImage),
}

/// An object to deploy.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest(Value);

/// Reads the objects of a file, in order. `file` is its name in messages.
pub fn parse(file: &'static str, yaml: &str) -> Result<Vec<Manifest>, Error> {
    let values: Vec<Value> = serde_saphyr::from_multiple(yaml).map_err(|cause| Error::Syntax {
        file,
        cause: cause.to_string(),
    })?;
    Ok(values.into_iter().map(Manifest).collect())
}

impl Manifest {
    /// Makes a manifest of a typed object; `kind` names it in messages.
    pub fn of(kind: &'static str, object: &impl Serialize) -> Result<Self, Error> {
        let value = serde_json::to_value(object);
        value.map(Self).map_err(|cause| Error::Syntax {
            file: kind,
            cause: cause.to_string(),
        })
    }

    /// Makes a manifest of a definition that is generated from our types.
    pub fn definition(definition: Result<CustomResourceDefinition, api::Error>) -> Result<Self, Error> {
        const KIND: &str = "CustomResourceDefinition";
        let definition = definition.map_err(|error| Error::Syntax {
            file: KIND,
            cause: error.to_string(),
        })?;
        Self::of(KIND, &definition)
    }

    /// Makes a manifest of an object as it stands in JSON.
    pub fn from_value(object: Value) -> Self {
        Self(object)
    }

    /// Kind of the object.
    pub fn kind(&self) -> &str {
        self.text("/kind")
    }

    /// Name of the object.
    pub fn name(&self) -> &str {
        self.text("/metadata/name")
    }

    /// The object as JSON.
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// The object as JSON.
    pub fn into_value(self) -> Value {
        self.0
    }

    fn text(&self, pointer: &str) -> &str {
        self.0
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    fn missing(&self, part: &str) -> Error {
        Error::Missing {
            object: format!("{} {}", self.kind(), self.name()),
            part: part.to_owned(),
        }
    }

    /// Moves the object, and the service accounts that it binds and the webhook services that it names, into
    /// the namespace. A Namespace gets its name; an object without a namespace has none.
    pub fn set_namespace(&mut self, namespace: &str) {
        if self.kind() == "Namespace" {
            self.0["metadata"]["name"] = json!(namespace);
        }
        if let Some(own) = self.0.pointer_mut("/metadata/namespace") {
            *own = json!(namespace);
        }
        for subject in self
            .0
            .get_mut("subjects")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(bound) = subject.get_mut("namespace") {
                *bound = json!(namespace);
            }
        }
        for webhook in self
            .0
            .get_mut("webhooks")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(served) = webhook.pointer_mut("/clientConfig/service/namespace") {
                *served = json!(namespace);
            }
        }
    }

    /// Labels of the object.
    pub fn labels_mut(&mut self) -> Result<&mut Map<String, Value>, Error> {
        let missing = self.missing("labels");
        object_at(self.metadata()?, "labels").ok_or(missing)
    }

    /// Annotations of the object.
    pub fn annotations(&self) -> Option<&Map<String, Value>> {
        self.0.pointer("/metadata/annotations").and_then(Value::as_object)
    }

    /// Adds an annotation to the object.
    pub fn annotate(&mut self, key: &str, value: &str) -> Result<(), Error> {
        let missing = self.missing("annotations");
        let annotations = object_at(self.metadata()?, "annotations").ok_or(missing)?;
        annotations.insert(key.to_owned(), json!(value));
        Ok(())
    }

    fn metadata(&mut self) -> Result<&mut Map<String, Value>, Error> {
        let missing = self.missing("metadata");
        self.0
            .get_mut("metadata")
            .and_then(Value::as_object_mut)
            .ok_or(missing)
    }

    /// Puts a member into the object's metadata.
    pub fn set_metadata(&mut self, key: &str, value: Value) -> Result<(), Error> {
        self.metadata()?.insert(key.to_owned(), value);
        Ok(())
    }

    /// Sets a member of the object's specification.
    pub fn set_spec(&mut self, key: &str, value: Value) -> Result<(), Error> {
        let missing = self.missing("specification");
        let spec = self.0.get_mut("spec").and_then(Value::as_object_mut);
        spec.ok_or(missing)?.insert(key.to_owned(), value);
        Ok(())
    }

    /// Takes a member of the object's specification away.
    pub fn without_spec(&mut self, key: &str) -> Result<(), Error> {
        let missing = self.missing("specification");
        let spec = self.0.get_mut("spec").and_then(Value::as_object_mut);
        spec.ok_or(missing)?.shift_remove(key);
        Ok(())
    }

    /// Sets any member of the object.
    pub fn set(&mut self, key: &str, value: Value) {
        if let Some(members) = self.0.as_object_mut() {
            members.insert(key.to_owned(), value);
        }
    }

    /// Replaces what is at a JSON pointer.
    pub fn replace(&mut self, pointer: &str, value: Value) -> Result<(), Error> {
        let missing = self.missing(pointer);
        *self.0.pointer_mut(pointer).ok_or(missing)? = value;
        Ok(())
    }

    /// The pods of a workload.
    pub fn pods(&mut self) -> Result<Pods<'_>, Error> {
        let missing = self.missing("pod template");
        let object = format!("{} {}", self.kind(), self.name());
        let template = self
            .0
            .pointer_mut("/spec/template")
            .and_then(Value::as_object_mut)
            .ok_or(missing)?;
        Ok(Pods { object, template })
    }

    /// Binds the role of a binding to one service account.
    pub fn bind_to(&mut self, namespace: &str, account: &str) {
        self.set(
            "subjects",
            json!([{ "kind": "ServiceAccount", "name": account, "namespace": namespace }]),
        );
    }

    /// Sets an entry of a ConfigMap, which has it already.
    pub fn set_data(&mut self, key: &str, value: &str) -> Result<(), Error> {
        let missing = self.missing(&format!("entry {key}"));
        let entry = self.0.get_mut("data").and_then(|data| data.get_mut(key));
        *entry.ok_or(missing)? = json!(value);
        Ok(())
    }

    /// The rules of a `PrometheusRule`, of all its groups.
    pub fn prometheus_rules(&mut self) -> impl Iterator<Item = &mut Map<String, Value>> {
        let groups = self.0.pointer_mut("/spec/groups").and_then(Value::as_array_mut);
        groups
            .into_iter()
            .flatten()
            .filter_map(|group| group.get_mut("rules").and_then(Value::as_array_mut))
            .flatten()
            .filter_map(Value::as_object_mut)
    }

    /// Whether the object is a workload, with a template of its pods.
    pub fn has_pods(&self) -> bool {
        matches!(
            self.kind(),
            "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet"
        )
    }
}

/// The object under a key, made if it is not there.
fn object_at<'a>(map: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Map<String, Value>> {
    map.entry(key).or_insert_with(|| json!({})).as_object_mut()
}

//! Operand objects: read from the YAML files beside each component, and completed by structural steps.
//!
//! The files contain valid objects without the values that depend on the cluster and on the configuration. A step
//! without its target is an error, never a silent omission.

mod pods;

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition, serde::Serialize,
};
use kube_kit::document;
use serde_json::{Map, Value, json};

pub use pods::{Container, Pods};

/// An operand that cannot be rendered. Except for an unknown image, each error is a defect of the operator's own files.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file is not YAML, or an object is not JSON.
    #[error("{file} is not a list of objects: {cause}")]
    Syntax {
        /// File name, or kind of the object.
        file: &'static str,
        /// Error of the parser.
        cause: String,
    },
    /// An object lacks the target of a step.
    #[error("{object} has no {part}")]
    Missing {
        /// Kind and name of the object.
        object: String,
        /// The missing part.
        part: String,
    },
    /// The image of a container that needs the operator's own image is unknown.
    #[error(
        "the operator's own image is unknown: set environment variable {} or {}",
        crate::names::env::POD_NAME,
        crate::names::env::OPERATOR_IMAGE
    )]
    OwnImage,
    /// The image of a container is unknown.
    #[error(transparent)]
    Image(#[from] crate::images::UnknownImage),
}

/// An object of Kubernetes.
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
    /// Converts a typed object; `kind` is its name in messages.
    pub(crate) fn of(kind: &'static str, object: &impl Serialize) -> Result<Self, Error> {
        let value = serde_json::to_value(object);
        value.map(Self).map_err(|cause| Error::Syntax {
            file: kind,
            cause: cause.to_string(),
        })
    }

    /// Converts a definition that is generated from the types of `api`.
    pub fn definition(definition: Result<CustomResourceDefinition, api::Error>) -> Result<Self, Error> {
        const KIND: &str = "CustomResourceDefinition";
        let definition = definition.map_err(|error| Error::Syntax {
            file: KIND,
            cause: error.to_string(),
        })?;
        Self::of(KIND, &definition)
    }

    /// Wraps an object.
    pub fn from_value(object: Value) -> Self {
        Self(object)
    }

    /// The kind; empty if it is missing.
    pub fn kind(&self) -> &str {
        self.text("/kind")
    }

    /// The name; empty if it is missing.
    pub fn name(&self) -> &str {
        self.text("/metadata/name")
    }

    /// The object.
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// The object.
    pub fn into_value(self) -> Value {
        self.0
    }

    fn text(&self, pointer: &str) -> &str {
        document::text(&self.0, pointer)
    }

    fn missing(&self, part: &str) -> Error {
        Error::Missing {
            object: format!("{} {}", self.kind(), self.name()),
            part: part.to_owned(),
        }
    }

    /// Sets the namespace of the object, of the bound service accounts and of the webhook services. A Namespace gets it
    /// as its name; cluster-scoped objects get none.
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

    /// The labels of the object, created if they are absent.
    pub fn labels_mut(&mut self) -> Result<&mut Map<String, Value>, Error> {
        let missing = self.missing("labels");
        object_at(self.metadata()?, "labels").ok_or(missing)
    }

    pub(crate) fn annotations(&self) -> Option<&Map<String, Value>> {
        self.0.pointer("/metadata/annotations").and_then(Value::as_object)
    }

    /// Sets an annotation of the object.
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

    /// Sets a field of the object's metadata.
    pub fn set_metadata(&mut self, key: &str, value: Value) -> Result<(), Error> {
        self.metadata()?.insert(key.to_owned(), value);
        Ok(())
    }

    /// Sets a field of the object's specification.
    pub fn set_spec(&mut self, key: &str, value: Value) -> Result<(), Error> {
        let missing = self.missing("specification");
        let spec = self.0.get_mut("spec").and_then(Value::as_object_mut);
        spec.ok_or(missing)?.insert(key.to_owned(), value);
        Ok(())
    }

    /// Removes a field of the object's specification.
    pub fn without_spec(&mut self, key: &str) -> Result<(), Error> {
        let missing = self.missing("specification");
        let spec = self.0.get_mut("spec").and_then(Value::as_object_mut);
        spec.ok_or(missing)?.shift_remove(key);
        Ok(())
    }

    /// Sets a top-level field of the object.
    pub fn set(&mut self, key: &str, value: Value) {
        if let Some(members) = self.0.as_object_mut() {
            members.insert(key.to_owned(), value);
        }
    }

    /// Replaces the value at a JSON pointer.
    pub fn replace(&mut self, pointer: &str, value: Value) -> Result<(), Error> {
        let missing = self.missing(pointer);
        *self.0.pointer_mut(pointer).ok_or(missing)? = value;
        Ok(())
    }

    /// The pod template of a workload.
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

    /// Makes one service account the subject of a binding.
    pub(crate) fn bind_to(&mut self, namespace: &str, account: &str) {
        self.set(
            "subjects",
            json!([{ "kind": "ServiceAccount", "name": account, "namespace": namespace }]),
        );
    }

    /// Sets an existing entry of a ConfigMap.
    pub(crate) fn set_data(&mut self, key: &str, value: &str) -> Result<(), Error> {
        let missing = self.missing(&format!("entry {key}"));
        let entry = self.0.get_mut("data").and_then(|data| data.get_mut(key));
        *entry.ok_or(missing)? = json!(value);
        Ok(())
    }

    /// Adds an entry to a ConfigMap.
    pub(crate) fn add_data(&mut self, key: &str, value: &str) -> Result<(), Error> {
        let missing = self.missing("data");
        let data = self.0.get_mut("data").and_then(Value::as_object_mut);
        data.ok_or(missing)?.insert(key.to_owned(), json!(value));
        Ok(())
    }

    /// The rules of all groups of a `PrometheusRule`.
    pub(crate) fn prometheus_rules(&mut self) -> impl Iterator<Item = &mut Map<String, Value>> {
        let groups = self.0.pointer_mut("/spec/groups").and_then(Value::as_array_mut);
        groups
            .into_iter()
            .flatten()
            .filter_map(|group| group.get_mut("rules").and_then(Value::as_array_mut))
            .flatten()
            .filter_map(Value::as_object_mut)
    }

    /// Whether the object is a workload with a pod template.
    pub fn has_pods(&self) -> bool {
        matches!(
            self.kind(),
            "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet"
        )
    }
}

/// The object under a key, created if it is absent.
fn object_at<'a>(map: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Map<String, Value>> {
    map.entry(key).or_insert_with(|| json!({})).as_object_mut()
}

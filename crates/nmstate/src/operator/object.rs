//! Edits of a manifest. An edit that does not find its place is an error.

use serde::Serialize;
use serde_json::{Value, json};
use thiserror::Error;

/// A manifest lacks the place of an edit.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{object} has no {part}")]
pub(crate) struct Missing {
    object: String,
    part: String,
}

/// An object to deploy.
#[derive(Debug)]
pub(crate) struct Object<'a>(pub &'a mut Value);

impl Object<'_> {
    /// Kind of the object.
    pub(crate) fn kind(&self) -> &str {
        self.0["kind"].as_str().unwrap_or_default()
    }

    /// Name of the object.
    pub(crate) fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Whether the object has a pod template.
    pub(crate) fn has_pods(&self) -> bool {
        matches!(self.kind(), "DaemonSet" | "Deployment")
    }

    fn missing(&self, part: &str) -> Missing {
        Missing {
            object: format!("{} {}", self.kind(), self.name()),
            part: part.to_owned(),
        }
    }

    /// The value at a pointer.
    pub(crate) fn at(&mut self, pointer: &str) -> Result<&mut Value, Missing> {
        let missing = self.missing(pointer);
        self.0.pointer_mut(pointer).ok_or(missing)
    }

    /// Replaces the value at a pointer.
    pub(crate) fn replace(&mut self, pointer: &str, value: impl Into<Value>) -> Result<(), Missing> {
        *self.at(pointer)? = value.into();
        Ok(())
    }

    /// Inserts a member into the object at a pointer; creates missing objects.
    pub(crate) fn insert(
        &mut self,
        pointer: &str,
        key: &str,
        value: impl Into<Value>,
    ) -> Result<(), Missing> {
        let missing = self.missing(pointer);
        let mut place = &mut *self.0;
        for part in pointer.split('/').skip(1) {
            let part = part.replace("~1", "/");
            if let Ok(index) = part.parse::<usize>() {
                place = place.get_mut(index).ok_or_else(|| missing.clone())?;
            } else {
                let members = place.as_object_mut().ok_or_else(|| missing.clone())?;
                place = members.entry(part).or_insert_with(|| json!({}));
            }
        }
        let members = place.as_object_mut().ok_or(missing)?;
        members.insert(key.to_owned(), value.into());
        Ok(())
    }

    /// Appends to the list of this key in the object at a pointer; creates a missing list.
    pub(crate) fn push(&mut self, pointer: &str, key: &str, value: Value) -> Result<(), Missing> {
        let missing = self.missing(pointer);
        let members = self.at(pointer)?.as_object_mut().ok_or_else(|| missing.clone())?;
        let list = members.entry(key).or_insert_with(|| json!([]));
        list.as_array_mut().ok_or(missing)?.push(value);
        Ok(())
    }

    /// Adds a label.
    pub(crate) fn label(&mut self, key: &str, value: &str) -> Result<(), Missing> {
        self.insert("/metadata/labels", key, value)
    }

    /// Sets an environment variable of the first container: replaces the manifest's value, or appends the variable.
    pub(crate) fn set_env(&mut self, name: &str, value: &str) -> Result<(), Missing> {
        let missing = self.missing("variables");
        let variables = self.at("/spec/template/spec/containers/0/env")?;
        let variables = variables.as_array_mut().ok_or(missing)?;
        let variable = json!({ "name": name, "value": value });
        match variables.iter_mut().find(|known| known["name"] == name) {
            Some(known) => *known = variable,
            None => variables.push(variable),
        }
        Ok(())
    }

    /// Removes a volume and its mount.
    pub(crate) fn remove_volume(&mut self, name: &str) -> Result<(), Missing> {
        for pointer in [
            "/spec/template/spec/volumes",
            "/spec/template/spec/containers/0/volumeMounts",
        ] {
            self.retain(pointer, |entry| entry["name"] != name)?;
        }
        Ok(())
    }

    /// Keeps the entries of a list that satisfy a condition.
    pub(crate) fn retain(&mut self, pointer: &str, keep: impl FnMut(&Value) -> bool) -> Result<(), Missing> {
        let missing = self.missing(pointer);
        let list = self.at(pointer)?.as_array_mut().ok_or(missing)?;
        list.retain(keep);
        Ok(())
    }

    /// Removes a member of an object, if it exists.
    pub(crate) fn remove(&mut self, pointer: &str, key: &str) -> Result<(), Missing> {
        let missing = self.missing(pointer);
        let members = self.at(pointer)?.as_object_mut().ok_or(missing)?;
        members.retain(|member, _| member != key);
        Ok(())
    }

    /// Sets a scheduling field of the pod template.
    pub(crate) fn set_in_pod(&mut self, key: &str, value: &impl Serialize) -> Result<(), Missing> {
        // Kubernetes' types can always be serialized.
        let value = serde_json::to_value(value).unwrap_or_default();
        self.insert("/spec/template/spec", key, value)
    }
}

/// Calls `change` for each string in a value, with the key of its member.
pub(crate) fn for_each_string(value: &mut Value, change: &mut impl FnMut(&str, &mut String)) {
    visit("", value, change);
}

fn visit(member: &str, value: &mut Value, change: &mut impl FnMut(&str, &mut String)) {
    match value {
        Value::String(text) => change(member, text),
        Value::Object(members) => {
            for (name, inner) in members.iter_mut() {
                visit(name, inner, change);
            }
        }
        Value::Array(items) => {
            for item in items {
                visit(member, item, change);
            }
        }
        _ => {}
    }
}

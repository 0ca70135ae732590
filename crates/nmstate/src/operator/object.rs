//! Steps that complete a manifest; one that does not find what it is to complete is an error.

use serde::Serialize;
use serde_json::{Value, json};
use thiserror::Error;

/// A manifest lacks what a step completes.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{object} has no {part}")]
pub struct Missing {
    object: String,
    part: String,
}

/// An object to deploy.
#[derive(Debug)]
pub struct Object<'a>(pub &'a mut Value);

impl Object<'_> {
    /// Its kind.
    pub fn kind(&self) -> &str {
        self.0["kind"].as_str().unwrap_or_default()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Whether it makes pods.
    pub fn has_pods(&self) -> bool {
        matches!(self.kind(), "DaemonSet" | "Deployment")
    }

    fn missing(&self, part: &str) -> Missing {
        Missing {
            object: format!("{} {}", self.kind(), self.name()),
            part: part.to_owned(),
        }
    }

    /// What is at a pointer.
    ///
    /// # Errors
    /// When there is nothing.
    pub fn at(&mut self, pointer: &str) -> Result<&mut Value, Missing> {
        let missing = self.missing(pointer);
        self.0.pointer_mut(pointer).ok_or(missing)
    }

    /// Puts something in the place of what is at a pointer.
    ///
    /// # Errors
    /// When there is nothing.
    pub fn replace(&mut self, pointer: &str, value: impl Into<Value>) -> Result<(), Missing> {
        *self.at(pointer)? = value.into();
        Ok(())
    }

    /// Puts something at a pointer, into an object that is there or made.
    ///
    /// # Errors
    /// When what should hold it is no object.
    pub fn insert(&mut self, pointer: &str, key: &str, value: impl Into<Value>) -> Result<(), Missing> {
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

    /// Adds to a list at a pointer, which is made if it is not there.
    ///
    /// # Errors
    /// When what should hold it is no object.
    pub fn push(&mut self, pointer: &str, key: &str, value: Value) -> Result<(), Missing> {
        let missing = self.missing(pointer);
        let members = self.at(pointer)?.as_object_mut().ok_or_else(|| missing.clone())?;
        let list = members.entry(key).or_insert_with(|| json!([]));
        list.as_array_mut().ok_or(missing)?.push(value);
        Ok(())
    }

    /// Adds a label.
    ///
    /// # Errors
    /// When it has no metadata.
    pub fn label(&mut self, key: &str, value: &str) -> Result<(), Missing> {
        self.insert("/metadata/labels", key, value)
    }

    /// Says what a variable of its container is, in the place of what the manifest says, or behind everything else.
    ///
    /// # Errors
    /// When it has no container with variables.
    pub fn variable(&mut self, name: &str, value: &str) -> Result<(), Missing> {
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

    /// Takes a volume away, and where it is mounted.
    ///
    /// # Errors
    /// When there are no volumes.
    pub fn without_volume(&mut self, name: &str) -> Result<(), Missing> {
        for pointer in [
            "/spec/template/spec/volumes",
            "/spec/template/spec/containers/0/volumeMounts",
        ] {
            self.retain(pointer, |entry| entry["name"] != name)?;
        }
        Ok(())
    }

    /// Keeps those entries of a list that satisfy a condition.
    ///
    /// # Errors
    /// When there is no list.
    pub fn retain(&mut self, pointer: &str, keep: impl FnMut(&Value) -> bool) -> Result<(), Missing> {
        let missing = self.missing(pointer);
        let list = self.at(pointer)?.as_array_mut().ok_or(missing)?;
        list.retain(keep);
        Ok(())
    }

    /// Removes a member of an object, if the object has it.
    ///
    /// # Errors
    /// When there is no object.
    pub fn remove(&mut self, pointer: &str, key: &str) -> Result<(), Missing> {
        let missing = self.missing(pointer);
        let members = self.at(pointer)?.as_object_mut().ok_or(missing)?;
        members.retain(|member, _| member != key);
        Ok(())
    }

    /// Says where its pods may run.
    ///
    /// # Errors
    /// When it has no pods.
    pub fn place(&mut self, key: &str, value: &impl Serialize) -> Result<(), Missing> {
        // Types of Kubernetes are JSON.
        let value = serde_json::to_value(value).unwrap_or_default();
        self.insert("/spec/template/spec", key, value)
    }
}

/// Shows every text in a value, with the member that it belongs to.
pub fn each_text(value: &mut Value, change: &mut impl FnMut(&str, &mut String)) {
    texts_of("", value, change);
}

fn texts_of(member: &str, value: &mut Value, change: &mut impl FnMut(&str, &mut String)) {
    match value {
        Value::String(text) => change(member, text),
        Value::Object(members) => {
            for (name, inner) in members.iter_mut() {
                texts_of(name, inner, change);
            }
        }
        Value::Array(items) => {
            for item in items {
                texts_of(member, item, change);
            }
        }
        _ => {}
    }
}

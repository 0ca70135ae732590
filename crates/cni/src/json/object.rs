//! A lossless JSON object.

use serde::de::{DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use super::{Error, folds_to, from_str};

/// An object in document order, with each value as verbatim text.
///
/// Lookups match keys as Go does. Setting a key replaces every spelling of it.
///
/// A field of a type may be an `Object` or a `RawValue` only if `serde_json` itself parses that type, with exact
/// keys: [`super::from_slice`] does not keep texts. Texts keep their white space; [`super::compact`] removes it.
#[derive(Debug, Clone, Default)]
pub struct Object(Vec<(String, Box<RawValue>)>);

impl Object {
    /// Parses an object.
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        Ok(serde_json::from_slice(text)?)
    }

    /// The text of a value, by any spelling of the key; the last one that is not `null`.
    pub fn get(&self, key: &str) -> Option<&RawValue> {
        let wanted =
            |(known, value): &&(String, Box<RawValue>)| folds_to(known, key) && value.get() != "null";
        self.0.iter().rev().find(wanted).map(|(_, value)| &**value)
    }

    /// A value parsed as `T` with Go's rules; `None` if missing or `null`. Errors name the key.
    pub fn read<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, Error> {
        self.get(key)
            .map(|value| from_str(value.get()))
            .transpose()
            .map_err(|error| Error(format!("{key}: {error}")))
    }

    /// A text value; `None` if missing, `null` or of another type.
    pub fn text(&self, key: &str) -> Option<String> {
        self.read(key).ok().flatten()
    }

    /// Whether a key exists, in any spelling, and is not `null`.
    pub fn contains(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Sets a key to the JSON of `value`.
    pub fn set(&mut self, key: &str, value: &impl Serialize) -> Result<(), Error> {
        let raw = serde_json::value::to_raw_value(value)?;
        self.set_raw(key, raw);
        Ok(())
    }

    /// Sets a key to a JSON text.
    pub fn set_raw(&mut self, key: &str, value: Box<RawValue>) {
        let index = self.0.iter().position(|(known, _)| folds_to(known, key));
        self.0.retain({
            let mut position = 0;
            move |(known, _)| {
                let keep = !folds_to(known, key) || Some(position) == index;
                position += 1;
                keep
            }
        });
        match index {
            Some(index) => self.0[index] = (key.to_owned(), value),
            None => self.0.push((key.to_owned(), value)),
        }
    }

    /// Removes a key in every spelling.
    pub fn remove(&mut self, key: &str) {
        self.0.retain(|(known, _)| !folds_to(known, key));
    }

    /// The entries in document order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.0.iter().map(|(key, value)| (key.as_str(), &**value))
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Merges `values` into the object at `path`, which is created if missing. The new values win; other keys are
    /// kept. A selection's `cni-args` reach a plugin at `["args", "cni"]` (multus §4.1).
    pub fn merge_at(&mut self, path: &[&str], values: &Self) -> Result<(), Error> {
        match path {
            [] => {
                for (key, value) in &values.0 {
                    // Exact match: these are a user's own keys.
                    match self.0.iter_mut().find(|(known, _)| known == key) {
                        Some(entry) => entry.1 = value.clone(),
                        None => self.0.push((key.clone(), value.clone())),
                    }
                }
                Ok(())
            }
            [first, rest @ ..] => {
                let mut inner = match self.get(first) {
                    Some(text) => Self::parse(text.get().as_bytes())
                        .map_err(|error| Error(format!("{first} is not an object: {error}")))?,
                    None => Self::default(),
                };
                inner.merge_at(rest, values)?;
                self.set(first, &inner)
            }
        }
    }

    /// The object's JSON text.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Object;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry::<String, Box<RawValue>>()? {
                    entries.push(entry);
                }
                Ok(Object(entries))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        let same =
            |a: &(String, Box<RawValue>), b: &(String, Box<RawValue>)| a.0 == b.0 && a.1.get() == b.1.get();
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(|(a, b)| same(a, b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> Object {
        Object::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn unset_keys_keep_their_text() {
        let mut config =
            object(r#"{"b": 12345678901234567890123, "a": 1.50, "Name": "x", "z": {"k": [1 , 2]}}"#);
        config.set("name", &"y").unwrap();
        assert_eq!(
            config.to_json(),
            r#"{"b":12345678901234567890123,"a":1.50,"name":"y","z":{"k": [1 , 2]}}"#
        );
    }

    #[test]
    fn keys_are_found_in_any_case() {
        let config =
            object(r#"{"CNIVersion": "1.0.0", "cniversion": "0.4.0", "dns": null, "cniVersion": null}"#);
        assert_eq!(config.text("cniVersion").as_deref(), Some("0.4.0"));
        assert!(!config.contains("dns"));
    }

    #[test]
    fn a_merge_creates_and_overrides() {
        // multus#17
        let mut config = object(r#"{"type": "t", "args": {"other": 1, "cni": {"k": "old", "x": 1}}}"#);
        config
            .merge_at(&["args", "cni"], &object(r#"{"k": "v"}"#))
            .unwrap();
        assert_eq!(
            config.to_json(),
            r#"{"type":"t","args":{"other":1,"cni":{"k":"v","x":1}}}"#
        );
        let mut config = object(r#"{"type": "t"}"#);
        config
            .merge_at(&["args", "cni"], &object(r#"{"k": "v"}"#))
            .unwrap();
        assert_eq!(config.to_json(), r#"{"type":"t","args":{"cni":{"k":"v"}}}"#);
        let mut config = object(r#"{"args": 1}"#);
        assert!(config.merge_at(&["args", "cni"], &object("{}")).is_err());
    }
}

//! Parsing of lists and events with malformed objects.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Wrapper of watched objects, `Api::<DeserializeGuard<Pod>>`: a malformed object does not affect the parsing of
/// others.
///
/// Like the client library's guard, but an object is parsed from its text, so unused fields are never built. Parses
/// JSON text alone.
#[derive(Clone, Debug)]
pub struct DeserializeGuard<K>(pub Result<K, Invalid>);

/// A malformed object.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub struct Invalid {
    /// Error of the parser.
    pub error: String,
    /// Metadata of the object.
    pub metadata: ObjectMeta,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for DeserializeGuard<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Named {
            metadata: ObjectMeta,
        }
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let invalid = match serde_json::from_str(text.get()) {
            Ok(object) => return Ok(Self(Ok(object))),
            Err(error) => error.to_string(),
        };
        let Named { metadata } = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        Ok(Self(Err(Invalid {
            error: invalid,
            metadata,
        })))
    }
}

impl<K: Resource> Resource for DeserializeGuard<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn plural(dynamic: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|invalid| &invalid.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0
            .as_mut()
            .map_or_else(|invalid| &mut invalid.metadata, K::meta_mut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::{ObjectList, WatchEvent};

    const LIST: &str = r#"{"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "7"}, "items": [
        {"metadata": {"name": "bad"}, "data": {"key": 1}},
        {"metadata": {"name": "good"}, "data": {"key": "1"}}
    ]}"#;

    #[test]
    fn malformed_object_does_not_affect_others_of_its_list() {
        let list: ObjectList<DeserializeGuard<ConfigMap>> = serde_json::from_str(LIST).expect("a list");
        let names: Vec<_> = list.items.iter().map(|it| it.meta().name.as_deref()).collect();
        assert_eq!(names, [Some("bad"), Some("good")]);
        let error = list.items[0].0.as_ref().expect_err("malformed").to_string();
        assert!(error.contains("invalid type: integer `1`"), "{error}");
        assert!(list.items[1].0.is_ok());
        assert_eq!(list.metadata.resource_version.as_deref(), Some("7"));
    }

    #[test]
    fn events_of_watch_are_guarded_too() {
        let event = r#"{"type":"MODIFIED","object":{"metadata":{"name":"good"},"data":{"key":"1"}}}"#;
        let event: WatchEvent<DeserializeGuard<ConfigMap>> = serde_json::from_str(event).expect("an event");
        assert!(matches!(event, WatchEvent::Modified(DeserializeGuard(Ok(_)))));
    }
}

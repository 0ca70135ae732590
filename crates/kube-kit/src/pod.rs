//! The metadata and the status of a pod for an update of its status: lossless, without spec. The API server keeps the
//! spec in such an update.

use crate::path::{self, NotAName};
use crate::watch::Name;
use axum::http::{Request, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Metadata and status of a pod at one resource version.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodBody {
    #[serde(default = "api_version")]
    api_version: String,
    #[serde(default = "kind")]
    kind: String,
    metadata: Map<String, Value>,
    #[serde(default = "no_status")]
    status: Box<RawValue>,
}

fn api_version() -> String {
    "v1".into()
}

fn kind() -> String {
    "Pod".into()
}

fn no_status() -> Box<RawValue> {
    RawValue::from_string("{}".into()).unwrap_or_default()
}

impl PodBody {
    /// Parses the API server's answer to a read.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let mut body: Self = serde_json::from_str(text)?;
        // An absent field means no change.
        body.metadata.shift_remove("managedFields");
        Ok(body)
    }

    /// Makes the body from an object of a watch.
    pub fn from_parts(mut metadata: ObjectMeta, status: &Value) -> Result<Self, serde_json::Error> {
        metadata.managed_fields = None;
        let Value::Object(metadata) = serde_json::to_value(metadata)? else {
            return Err(serde::ser::Error::custom("no object"));
        };
        let status = if status.is_null() {
            no_status()
        } else {
            serde_json::value::to_raw_value(status)?
        };
        Ok(Self {
            api_version: api_version(),
            kind: kind(),
            metadata,
            status,
        })
    }

    /// UID of the pod.
    pub fn uid(&self) -> &str {
        self.metadata
            .get("uid")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// Value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.get("annotations")?.get(key)?.as_str()
    }

    /// Sets an annotation.
    #[must_use]
    pub fn with_annotation(&self, key: &str, value: &str) -> Self {
        let mut changed = self.clone();
        let annotations = changed
            .metadata
            .entry("annotations")
            .or_insert_with(|| Value::Object(Map::new()));
        if !annotations.is_object() {
            *annotations = Value::Object(Map::new());
        }
        annotations[key] = value.into();
        changed
    }
}

/// The URL path of a pod.
///
/// # Errors
/// If namespace or name is not a valid path segment.
pub fn path(name: &Name) -> Result<String, NotAName> {
    path::namespaced("/api/v1", "pods", name)
}

/// Reads the text at a URL path of the API server.
///
/// # Errors
/// If the API server refuses or does not answer.
pub async fn get(client: &Client, path: &str) -> Result<String, kube::Error> {
    let request = Request::get(path)
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    client.request_text(request).await
}

/// Writes a pod's annotations and status with an update of `pods/status`: the roles of the network status writers do
/// not allow patches.
///
/// # Errors
/// If the API server refuses or does not answer; a conflict if the pod has changed since the read.
pub async fn replace_status(client: &Client, name: &Name, body: &PodBody) -> Result<(), kube::Error> {
    let text = serde_json::to_vec(body).map_err(kube::Error::SerdeError)?;
    let request = Request::put(format!("{}/status", path(name)?))
        .header(header::CONTENT_TYPE, "application/json")
        .body(text)
        .map_err(kube::Error::HttpError)?;
    client.request_text(request).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn with_annotation_changes_annotation_alone() {
        let text = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n"},
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "labels": {"app": "x"},
                "finalizers": ["f"], "managedFields": [{}]},
            "status": {"phase": "Pending", "unknown": 9_007_199_254_740_993_i64}});
        let body = PodBody::parse(&text.to_string()).unwrap();
        assert_eq!(body.uid(), "u");
        assert_eq!(body.annotation("k"), None);
        let changed = body.with_annotation("k", "v");
        assert_eq!(changed.annotation("k"), Some("v"));
        assert_eq!(
            serde_json::to_value(&changed).unwrap(),
            json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "labels": {"app": "x"},
                    "finalizers": ["f"], "annotations": {"k": "v"}},
                "status": {"phase": "Pending", "unknown": 9_007_199_254_740_993_i64}})
        );
    }

    #[test]
    fn body_of_watch_equals_body_of_read() {
        let value = json!({"metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {"x": "y"}}, "status": {"phase": "Pending"}});
        let metadata: ObjectMeta = serde_json::from_value(value["metadata"].clone()).unwrap();
        let watched = PodBody::from_parts(metadata, &value["status"]).unwrap();
        let read = PodBody::parse(&value.to_string()).unwrap();
        assert_eq!(
            serde_json::to_value(watched).unwrap(),
            serde_json::to_value(read).unwrap()
        );
    }
}

//! A pod as an update of its status needs it: metadata and status, lossless, without spec. The API server takes the
//! spec of such an update from what it has.

use crate::path::{self, NotAName};
use crate::watch::Name;
use axum::http::{Request, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Metadata and status of one pod at one version.
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
    /// From the API server's answer to a read.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let mut body: Self = serde_json::from_str(text)?;
        // Absent means: leave it as it is.
        body.metadata.shift_remove("managedFields");
        Ok(body)
    }

    /// From what a watch saw.
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

    /// The pod's UID.
    pub fn uid(&self) -> &str {
        self.metadata
            .get("uid")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.get("annotations")?.get(key)?.as_str()
    }

    /// The same pod with an annotation set.
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

/// Where the API server has a pod.
///
/// # Errors
/// When it can't have one of that name.
pub fn path(name: &Name) -> Result<String, NotAName> {
    path::namespaced("/api/v1", "pods", name)
}

/// Reads what lies at a path of the API server, as text.
///
/// # Errors
/// What the API server or the way to it says.
pub async fn get(client: &Client, path: &str) -> Result<String, kube::Error> {
    let request = Request::get(path)
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    client.request_text(request).await
}

/// Writes a pod's annotations and status by an update of `pods/status`: patching is more than the roles of those who
/// write network status allow.
///
/// # Errors
/// What the API server or the way to it says; a conflict when the pod has changed since it was read.
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
    fn everything_but_the_annotation_stays() {
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
    fn what_a_watch_saw_is_the_same_as_what_a_read_says() {
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

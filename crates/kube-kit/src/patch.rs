//! JSON patches (RFC 6902), for changes that must not touch anything else.

use crate::client;
use axum::http::{Method, Request, header::CONTENT_TYPE};
use kube::Client;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;
use thiserror::Error;

/// Deadline of a patch.
const TIMEOUT: Duration = Duration::from_secs(30);

/// One operation of a patch. Paths are JSON pointers, with segments escaped by [`escape`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Operation {
    /// Sets a member of an object, whether it exists or not, or inserts an element into a list.
    Add {
        /// JSON pointer of the target.
        path: String,
        /// The new value.
        value: Value,
    },
    /// Removes a value; the whole patch fails if it does not exist.
    Remove {
        /// JSON pointer of the target.
        path: String,
    },
    /// Replaces a value; the whole patch fails if it does not exist.
    Replace {
        /// JSON pointer of the target.
        path: String,
        /// The new value.
        value: Value,
    },
    /// Makes the whole patch fail unless the target has this value.
    Test {
        /// JSON pointer of the target.
        path: String,
        /// The expected value.
        value: Value,
    },
}

/// Escapes a key for a JSON pointer (RFC 6901): `~` becomes `~0`, `/` becomes `~1`.
pub fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// A patch that failed.
#[derive(Debug, Error)]
pub enum Error {
    /// The API server refused, or is unreachable.
    #[error("{}", client::message(.0))]
    Request(Box<kube::Error>),
    /// The request is invalid.
    #[error("cannot build the request")]
    Build(#[source] axum::http::Error),
    /// No answer within the deadline.
    #[error("no answer from the API server within {} seconds", .0.as_secs())]
    Timeout(Duration),
}

/// Applies a JSON patch to the object (or subresource) at a URL path, and returns the result.
///
/// # Errors
/// If the API server refuses or does not answer.
pub async fn apply<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    operations: &[Operation],
) -> Result<T, Error> {
    // These are texts and JSON values in a list, whose serialization cannot fail.
    let body = serde_json::to_vec(operations).unwrap_or_default();
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(path)
        .header(CONTENT_TYPE, "application/json-patch+json")
        .body(body)
        .map_err(Error::Build)?;
    match tokio::time::timeout(TIMEOUT, client.request(request)).await {
        Ok(answer) => answer.map_err(|error| Error::Request(Box::new(error))),
        Err(_) => Err(Error::Timeout(TIMEOUT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn operations_serialize_as_in_rfc_6902() {
        let path = format!("/metadata/labels/{}", escape("a.b/c~d"));
        let patch = [
            Operation::Remove { path: path.clone() },
            Operation::Add {
                path,
                value: json!("1"),
            },
        ];
        assert_eq!(
            serde_json::to_string(&patch).expect("JSON"),
            r#"[{"op":"remove","path":"/metadata/labels/a.b~1c~0d"},{"op":"add","path":"/metadata/labels/a.b~1c~0d","value":"1"}]"#
        );
    }
}

//! Reads and applies objects of any kind, for the controllers beside the main loop.

use kube::core::DynamicObject;
use kube::{Api, Client};
use kube_kit::apply::apply_always;
use kube_kit::object::Kind;
use serde_json::Value;

pub use kube_kit::document::{list, text};

/// Prefix of the field managers.
const MANAGER: &str = "cluster-network-operator";

/// Client for a kind. `namespace` is ignored for kinds without namespaces.
pub fn api(client: &Client, kind: &Kind, namespace: &str) -> Api<DynamicObject> {
    kind.api(client, Some(namespace))
}

/// Applies an object as the field manager of a part of the operator. Returns the stored object.
///
/// # Errors
/// If the API server refuses the object or does not answer.
pub async fn apply(client: &Client, kind: &Kind, part: &str, object: &Value) -> Result<Value, kube::Error> {
    apply_always(client, kind, &format!("{MANAGER}/{part}"), object).await
}

/// The texts of the list at a JSON pointer.
pub fn texts(object: &Value, pointer: &str) -> Vec<String> {
    let texts = list(object, pointer).filter_map(Value::as_str);
    texts.map(str::to_owned).collect()
}

/// The platform of an `Infrastructure`, which may be empty. Old clusters have the deprecated field alone.
pub fn platform(infrastructure: &Value) -> &str {
    match text(infrastructure, "/status/platformStatus/type") {
        "" => text(infrastructure, "/status/platform"),
        platform => platform,
    }
}

/// Resource version of an object, which may be empty.
pub fn version(object: &Value) -> &str {
    text(object, "/metadata/resourceVersion")
}

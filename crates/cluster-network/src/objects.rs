//! Reads and applies objects of any kind, for the controllers beside the main loop.

use kube::api::{Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{Api, Client};
use kube_kit::object::Kind;
use serde_json::Value;

pub use kube_kit::document::{list, text};

/// Prefix of the field managers.
const MANAGER: &str = "cluster-network-operator";

/// Client for a kind. `namespace` is ignored for kinds without namespaces.
pub fn api(client: &Client, kind: &Kind, namespace: &str) -> Api<DynamicObject> {
    let resource = kind.api_resource();
    if kind.namespaced {
        Api::namespaced_with(client.clone(), namespace, &resource)
    } else {
        Api::all_with(client.clone(), &resource)
    }
}

/// Applies an object as the field manager of a part of the operator. Returns the stored object.
///
/// # Errors
/// If the API server refuses the object or does not answer.
pub async fn apply(client: &Client, kind: &Kind, part: &str, object: &Value) -> Result<Value, kube::Error> {
    let params = PatchParams::apply(&format!("{MANAGER}/{part}")).force();
    let name = text(object, "/metadata/name");
    let api = api(client, kind, text(object, "/metadata/namespace"));
    let applied = api.patch(name, &params, &Patch::Apply(object)).await?;
    serde_json::to_value(applied).map_err(kube::Error::SerdeError)
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

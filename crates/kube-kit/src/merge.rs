//! Decides how to update a live object to the rendered one: pure, with JSON as input and a plan as output.
//!
//! ```text
//! rendered ──┐
//!            ├── merge (keep fields of the server and of others) ── compare after defaulting ──> Change
//! live ──────┘
//! ```
//!
//! The rules are those of operator.md §9.1: compare, then update with the live `resourceVersion`.

mod compare;
pub mod cover;
mod definition;

pub use compare::Difference;

use crate::document;
use crate::object::{self, ObjectId};
use k8s_openapi::ByteString;
use serde_json::{Map, Value};
use thiserror::Error;

const REVISION: &str = "deployment.kubernetes.io/revision";

/// Metadata of the API server, which is sent back unchanged.
const SERVER_METADATA: [&str; 8] = [
    "creationTimestamp",
    "selfLink",
    "generation",
    "uid",
    "resourceVersion",
    "generateName",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

/// A rendered object that can never be applied.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// The object has no name.
    #[error("object has no name")]
    NoName,
    /// The controller of service accounts owns that list.
    #[error("cannot create ServiceAccount with secrets")]
    ServiceAccountWithSecrets,
}

/// Ownership of rendered objects.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Kind of the owner of rendered objects, such as `NetworkAddonsConfig`. References to owners of this kind are
    /// managed: one that is not rendered is removed, and all others are kept. Only an object with such an owner is ever
    /// deleted and recreated.
    pub owner_kind: Option<String>,
}

impl Policy {
    /// Ownership by objects of this kind.
    pub fn owned_by(owner_kind: &str) -> Self {
        Self {
            owner_kind: Some(owner_kind.to_owned()),
        }
    }
}

/// The required write.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The object does not exist: create this one.
    Create(Value),
    /// Replace the live object with this one, which has the live `resourceVersion`.
    Update(Value),
    /// Delete the live object and create this one: an immutable field differs.
    Recreate(Value),
    /// Write nothing.
    Unchanged,
}

/// Decides how to update the live object to the rendered one.
///
/// # Errors
/// If the rendered object can never be applied.
pub fn plan(rendered: &Value, live: Option<&Value>, policy: &Policy) -> Result<Change, Error> {
    plan_knowing(rendered, live, policy, &[])
}

/// Like [`plan`], without the differences in the answer to an earlier write of the same rendered object: the server or
/// an admission webhook made them, and would make them again.
///
/// # Errors
/// If the rendered object can never be applied.
pub(crate) fn plan_knowing(
    rendered: &Value,
    live: Option<&Value>,
    policy: &Policy,
    known: &[Difference],
) -> Result<Change, Error> {
    let rendered = prepare(rendered)?;
    let Some(live) = live else {
        return Ok(Change::Create(rendered));
    };
    if is_tls_secret(live) {
        return Ok(Change::Unchanged);
    }
    let merged = merge(&rendered, live, policy);
    let differences = compare::differences(&merged, live);
    if differences.iter().all(|difference| known.contains(difference)) {
        return Ok(Change::Unchanged);
    }
    let owned = policy
        .owner_kind
        .as_deref()
        .is_some_and(|kind| object::owned_by(live, kind));
    if owned
        && differences
            .iter()
            .any(|difference| is_immutable(kind(&merged), &difference.path))
    {
        return Ok(Change::Recreate(rendered));
    }
    Ok(Change::Update(merged))
}

/// The differences between the live and the rendered object, after merging and defaulting: empty if nothing has to be
/// written. For logs, and to learn the defaults of the server.
///
/// # Errors
/// If the rendered object can never be applied.
pub fn differences(rendered: &Value, live: &Value, policy: &Policy) -> Result<Vec<Difference>, Error> {
    let rendered = prepare(rendered)?;
    if is_tls_secret(live) {
        return Ok(Vec::new());
    }
    Ok(compare::differences(&merge(&rendered, live, policy), live))
}

/// The rendered object in the form in which it is sent: validated, without status, with the text of a Secret encoded.
fn prepare(rendered: &Value) -> Result<Value, Error> {
    let id = ObjectId::of(rendered);
    if id.name.is_empty() {
        return Err(Error::NoName);
    }
    let has_secrets = rendered
        .get("secrets")
        .and_then(Value::as_array)
        .is_some_and(|secrets| !secrets.is_empty());
    if is_kind(rendered, object::SERVICE_ACCOUNT) && has_secrets {
        return Err(Error::ServiceAccountWithSecrets);
    }
    let mut prepared = rendered.clone();
    if let Some(fields) = prepared.as_object_mut() {
        fields.shift_remove("status");
        if is_kind(rendered, object::SECRET) {
            encode_string_data(fields);
        }
    }
    Ok(prepared)
}

/// `stringData` is write-only: the server stores it as `data` and never returns it.
fn encode_string_data(secret: &mut Map<String, Value>) {
    let Some(Value::Object(texts)) = secret.shift_remove("stringData") else {
        return;
    };
    let data = secret.entry("data").or_insert_with(|| Value::Object(Map::new()));
    let Some(data) = data.as_object_mut() else { return };
    for (key, text) in texts {
        let bytes = ByteString(text.as_str().unwrap_or_default().as_bytes().to_vec());
        data.insert(key, serde_json::to_value(bytes).unwrap_or_default());
    }
}

/// The object to send: all rendered fields, and the live fields of other owners.
fn merge(rendered: &Value, live: &Value, policy: &Policy) -> Value {
    let mut merged = rendered.clone();
    let Some(fields) = merged.as_object_mut() else {
        return merged;
    };
    let metadata = merge_metadata(rendered, live, policy);
    fields.insert("metadata".to_owned(), Value::Object(metadata));
    if let Some(status) = live.get("status") {
        fields.insert("status".to_owned(), status.clone());
    }
    if is_kind(live, object::SERVICE) {
        keep_cluster_address(fields, live);
    } else if is_kind(live, object::SERVICE_ACCOUNT) {
        keep(fields, live, "secrets");
        // The image pull secrets that OpenShift adds to every service account.
        if !fields.get("imagePullSecrets").is_some_and(Value::is_array) {
            keep(fields, live, "imagePullSecrets");
        }
    } else if is_kind(live, object::MUTATING_WEBHOOK_CONFIGURATION)
        || is_kind(live, object::VALIDATING_WEBHOOK_CONFIGURATION)
    {
        keep_ca_bundles(fields, live);
    } else if is_kind(live, object::CLUSTER_ROLE)
        && fields.get("aggregationRule").is_some_and(Value::is_object)
    {
        keep(fields, live, "rules");
    } else if is_kind(live, object::CUSTOM_RESOURCE_DEFINITION) && definition::is_wider(live, rendered) {
        keep(fields, live, "spec");
    }
    merged
}

fn merge_metadata(rendered: &Value, live: &Value, policy: &Policy) -> Map<String, Value> {
    let part = |object: &Value| {
        object
            .get("metadata")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default()
    };
    let mut metadata = part(rendered);
    let live_metadata = part(live);
    for key in SERVER_METADATA {
        match live_metadata.get(key) {
            Some(value) => metadata.insert(key.to_owned(), value.clone()),
            None => metadata.shift_remove(key),
        };
    }
    for key in ["labels", "annotations"] {
        let mut map = live_metadata
            .get(key)
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        let revision = map.get(REVISION).cloned();
        map.extend(
            metadata
                .get(key)
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default(),
        );
        if is_kind(live, object::DEPLOYMENT)
            && let Some(revision) = revision
        {
            map.insert(REVISION.to_owned(), revision);
        }
        set_unless_empty(&mut metadata, key, Value::Object(map.clone()), map.is_empty());
    }
    let owners = merge_owners(
        list(&metadata, "ownerReferences"),
        list(&live_metadata, "ownerReferences"),
        policy,
    );
    set_unless_empty(
        &mut metadata,
        "ownerReferences",
        Value::Array(owners.clone()),
        owners.is_empty(),
    );
    let mut finalizers = list(&live_metadata, "finalizers");
    for finalizer in list(&metadata, "finalizers") {
        if !finalizers.contains(&finalizer) {
            finalizers.push(finalizer);
        }
    }
    set_unless_empty(
        &mut metadata,
        "finalizers",
        Value::Array(finalizers.clone()),
        finalizers.is_empty(),
    );
    metadata
}

/// Live references in their order, managed ones replaced by the rendered ones or dropped, then new ones. An object has
/// at most one controller: a rendered controller takes that role from a foreign owner, which stays an owner.
fn merge_owners(rendered: Vec<Value>, live: Vec<Value>, policy: &Policy) -> Vec<Value> {
    let text = |owner: &Value, key: &str| {
        owner
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let group = |owner: &Value| {
        let api_version = text(owner, "apiVersion");
        api_version
            .split_once('/')
            .map(|(group, _)| group.to_owned())
            .unwrap_or_default()
    };
    let same = |a: &Value, b: &Value| {
        text(a, "kind") == text(b, "kind") && text(a, "name") == text(b, "name") && group(a) == group(b)
    };
    let controls = |owner: &Value| owner.get("controller").and_then(Value::as_bool) == Some(true);
    let we_control = rendered.iter().any(controls);
    let mut merged: Vec<Value> = Vec::new();
    for mut owner in live {
        if let Some(ours) = rendered.iter().find(|ours| same(ours, &owner)) {
            if !merged.contains(ours) {
                merged.push(ours.clone());
            }
        } else if policy.owner_kind.as_deref() != Some(text(&owner, "kind").as_str()) {
            if we_control
                && controls(&owner)
                && let Some(fields) = owner.as_object_mut()
            {
                fields.insert("controller".to_owned(), Value::Bool(false));
            }
            merged.push(owner);
        }
    }
    for ours in rendered {
        if !merged.contains(&ours) {
            merged.push(ours);
        }
    }
    merged
}

/// The cluster address of a Service is immutable, also if one is rendered.
fn keep_cluster_address(fields: &mut Map<String, Value>, live: &Value) {
    let address = |key: &str| {
        live.pointer(&format!("/spec/{key}"))
            .filter(|value| !compare::is_empty(value))
            .cloned()
    };
    let Some(cluster_ip) = address("clusterIP") else {
        return;
    };
    let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    spec.insert("clusterIP".to_owned(), cluster_ip);
    if spec.contains_key("clusterIPs")
        && let Some(cluster_ips) = address("clusterIPs")
    {
        spec.insert("clusterIPs".to_owned(), cluster_ips);
    }
}

/// The issuer of a certificate writes the bundle into the live object; a rendered bundle takes precedence.
fn keep_ca_bundles(fields: &mut Map<String, Value>, live: &Value) {
    let live_webhooks = live
        .get("webhooks")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let Some(webhooks) = fields.get_mut("webhooks").and_then(Value::as_array_mut) else {
        return;
    };
    for webhook in webhooks {
        let bundle = live_webhooks
            .iter()
            .find(|live| live.get("name") == webhook.get("name"))
            .and_then(|live| live.pointer("/clientConfig/caBundle"))
            .filter(|bundle| !compare::is_empty(bundle));
        let rendered = webhook
            .pointer("/clientConfig/caBundle")
            .is_some_and(|bundle| !compare::is_empty(bundle));
        if let (false, Some(bundle), Some(webhook)) = (rendered, bundle, webhook.as_object_mut()) {
            let client = webhook
                .entry("clientConfig")
                .or_insert_with(|| Value::Object(Map::new()));
            if let Some(client) = client.as_object_mut() {
                client.insert("caBundle".to_owned(), bundle.clone());
            }
        }
    }
}

/// Copies a field from the live object, or removes it if that has none.
fn keep(fields: &mut Map<String, Value>, live: &Value, key: &str) {
    match live.get(key) {
        Some(value) => fields.insert(key.to_owned(), value.clone()),
        None => fields.shift_remove(key),
    };
}

fn set_unless_empty(fields: &mut Map<String, Value>, key: &str, value: Value, empty: bool) {
    if empty {
        fields.shift_remove(key);
    } else {
        fields.insert(key.to_owned(), value);
    }
}

fn list(fields: &Map<String, Value>, key: &str) -> Vec<Value> {
    fields
        .get(key)
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default()
}

fn kind(object: &Value) -> &str {
    document::text(object, "/kind")
}

fn is_kind(object: &Value, wanted: object::Kind) -> bool {
    kind(object) == wanted.kind && document::text(object, "/apiVersion") == wanted.api_version()
}

fn is_tls_secret(live: &Value) -> bool {
    is_kind(live, object::SECRET) && live.get("type").and_then(Value::as_str) == Some("kubernetes.io/tls")
}

/// Fields that the API server refuses to change after creation.
fn is_immutable(kind: &str, path: &str) -> bool {
    let below =
        |field: &str| path == field || path.strip_prefix(field).is_some_and(|rest| rest.starts_with('.'));
    match kind {
        "DaemonSet" | "Deployment" | "StatefulSet" => below("spec.selector"),
        "ClusterRoleBinding" | "RoleBinding" => below("roleRef"),
        _ => false,
    }
}

#[cfg(test)]
mod tests;

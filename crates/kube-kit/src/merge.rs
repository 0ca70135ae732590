//! Decides what to write so that a live object becomes the rendered one: pure, JSON in and a plan out.
//!
//! ```text
//! rendered ──┐
//!            ├── merge (keep what is the server's or a stranger's) ── compare after defaulting ──> Change
//! live ──────┘
//! ```
//!
//! The rules are those of operator.md §9.1: compare, then update with the live `resourceVersion`.

mod compare;
pub mod cover;
mod definition;

pub use compare::Difference;

use crate::object::{self, ObjectId};
use k8s_openapi::ByteString;
use serde_json::{Map, Value};
use thiserror::Error;

const REVISION: &str = "deployment.kubernetes.io/revision";

/// Metadata that belongs to the API server and travels back to it untouched.
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

/// Why a rendered object can't be applied at all.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// There is nothing to look for.
    #[error("object has no name")]
    NoName,
    /// The controller of service accounts owns that list.
    #[error("cannot create ServiceAccount with secrets")]
    ServiceAccountWithSecrets,
}

/// What the caller knows about ownership.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Kind of the object that owns what is rendered, such as `NetworkAddonsConfig`. References to owners of this
    /// kind are ours: one that is not rendered is removed, all others are kept; and only an object with such an owner
    /// is ever deleted to be made anew.
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

/// What has to be written.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// There is no such object: create this one.
    Create(Value),
    /// Replace the live object by this one, which carries the live `resourceVersion`.
    Update(Value),
    /// Delete the live object and create this one: a field differs that the server never lets change.
    Recreate(Value),
    /// Write nothing.
    Unchanged,
}

/// Decides how the live object becomes the rendered one.
///
/// # Errors
/// When the rendered object could never be applied, whatever is live.
pub fn plan(rendered: &Value, live: Option<&Value>, policy: &Policy) -> Result<Change, Error> {
    plan_knowing(rendered, live, policy, &[])
}

/// Like [`plan`], but overlooks differences that a former write of the same rendered object came back with: they are
/// the server's (or an admission webhook's) doing and would come back again.
///
/// # Errors
/// When the rendered object could never be applied, whatever is live.
pub fn plan_knowing(
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

/// In what the live object differs from the rendered one, after merging and defaulting: empty when nothing needs to be
/// written. For logs, and to learn what the server fills in.
///
/// # Errors
/// When the rendered object could never be applied, whatever is live.
pub fn differences(rendered: &Value, live: &Value, policy: &Policy) -> Result<Vec<Difference>, Error> {
    let rendered = prepare(rendered)?;
    if is_tls_secret(live) {
        return Ok(Vec::new());
    }
    Ok(compare::differences(&merge(&rendered, live, policy), live))
}

/// The rendered object in the form in which it is sent: refused if it can't be, without status, with the text of a
/// Secret encoded.
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

/// `stringData` is a way of writing: the server stores it as `data` and never gives it back.
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

/// The object to send: everything rendered, and of the live object what is not ours to decide.
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

/// Live references in their order, ours replaced by the rendered ones or dropped, then what is new. An object has one
/// controller at most: when we are it, a stranger stays an owner but no longer controls.
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

/// The address of a Service never changes, not even to a rendered one.
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

/// Whoever issues certificates writes the bundle into the live object; a rendered bundle wins.
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

/// Takes a field from the live object, or takes it away when that has none.
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
    object.get("kind").and_then(Value::as_str).unwrap_or_default()
}

fn is_kind(object: &Value, wanted: object::Kind) -> bool {
    kind(object) == wanted.kind
        && object.get("apiVersion").and_then(Value::as_str) == Some(&wanted.api_version())
}

fn is_tls_secret(live: &Value) -> bool {
    is_kind(live, object::SECRET) && live.get("type").and_then(Value::as_str) == Some("kubernetes.io/tls")
}

/// Fields that the API server refuses to change once the object exists.
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

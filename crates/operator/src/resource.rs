//! The configuration resource as it was last seen.

use std::sync::Arc;

use api::network_addons::{NetworkAddonsConfigSpec, NetworkAddonsConfigStatus};
use k8s_openapi::api::core::v1::ObjectReference;
use kube_kit::object::{self, ObjectId, Owner};
use serde_json::{Value, json};

use crate::{cluster_facts::Cluster, configuration, labels::Stamp, settings::Settings, tls::TlsSettings};

/// Identity of the one configuration resource that counts.
pub fn id() -> ObjectId {
    object::NETWORK_ADDONS_CONFIG.object(None, api::names::NETWORK_ADDONS_SINGLETON)
}

/// Whether an object is deleted once all that it owns is.
pub fn is_deleted_in_foreground(object: &Value) -> bool {
    let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    object.pointer("/metadata/deletionTimestamp").is_some()
        && finalizers.is_some_and(|list| list.contains(&json!("foregroundDeletion")))
}

/// The configuration resource.
pub struct Resource {
    /// The object as JSON.
    pub object: Arc<Value>,
    /// Its uid.
    pub uid: String,
}

impl Resource {
    /// The specification, if it is valid; otherwise what is wrong with it.
    pub fn validated(&self, cluster: &Cluster) -> Result<NetworkAddonsConfigSpec, Vec<String>> {
        let spec = self.object.get("spec").cloned().unwrap_or_default();
        let spec = configuration::read(spec).map_err(|error| vec![error.to_string()])?;
        let errors = configuration::validate(&spec, cluster);
        if errors.is_empty() { Ok(spec) } else { Err(errors) }
    }

    /// What the TLS profile means, if it means anything.
    pub fn tls_settings(&self) -> Option<TlsSettings> {
        let profile = self.object.pointer("/spec/tlsSecurityProfile").cloned();
        let spec = json!({ "tlsSecurityProfile": profile });
        let spec = configuration::read(spec).ok()?;
        TlsSettings::of(spec.tls_security_profile.as_ref()).ok()
    }

    /// Whether the specification asks for the MAC pool.
    pub fn wants_mac_pool(&self) -> bool {
        self.object
            .pointer("/spec/kubeMacPool")
            .is_some_and(Value::is_object)
    }

    /// Whether the specification asks for node state.
    pub fn wants_node_state(&self) -> bool {
        self.object.pointer("/spec/nmstate").is_some_and(Value::is_object)
    }

    /// What its objects get: labels and owner.
    pub fn stamp(&self, settings: &Settings) -> Stamp {
        let labels = self.object.pointer("/metadata/labels").and_then(Value::as_object);
        let labels = labels.into_iter().flatten();
        Stamp {
            operator_version: settings.operator_version.clone(),
            operator_namespace: settings.operator_namespace.clone(),
            cr_labels: labels
                .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect(),
            owner: Owner {
                api_version: object::NETWORK_ADDONS_CONFIG.api_version(),
                kind: api::names::NETWORK_ADDONS_KIND.to_owned(),
                name: api::names::NETWORK_ADDONS_SINGLETON.to_owned(),
                uid: self.uid.clone(),
            },
        }
    }

    /// As the object of an event.
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(object::NETWORK_ADDONS_CONFIG.api_version()),
            kind: Some(api::names::NETWORK_ADDONS_KIND.to_owned()),
            name: Some(api::names::NETWORK_ADDONS_SINGLETON.to_owned()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }
}

/// The uid of the configuration resource that owns an object, if one does.
pub fn owner_uid(object: &Value) -> Option<&str> {
    let owners = object.pointer("/metadata/ownerReferences")?.as_array()?;
    let owner = owners
        .iter()
        .find(|owner| owner["kind"] == api::names::NETWORK_ADDONS_KIND)?;
    owner.get("uid")?.as_str()
}

/// A status that can't be read counts as none: it is written anew.
pub fn read_status(status: Value) -> NetworkAddonsConfigStatus {
    serde_json::from_value(status).unwrap_or_default()
}

/// A merge patch that leaves nothing of the old status. The API server refuses it for another object of the same name,
/// whose status is not this one's.
pub fn status_patch(uid: &str, live: &Value, status: &NetworkAddonsConfigStatus) -> Value {
    // Texts in lists: writing them cannot fail.
    let mut patch = serde_json::to_value(status).unwrap_or_default();
    if let (Some(patch), Some(live)) = (patch.as_object_mut(), live.as_object()) {
        for key in live.keys() {
            patch.entry(key).or_insert(Value::Null);
        }
    }
    json!({ "metadata": { "uid": uid }, "status": patch })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_written_over_the_old_one_of_the_same_object() {
        let live = json!({ "observedVersion": "1", "strange": 1 });
        let patch = status_patch("u", &live, &NetworkAddonsConfigStatus::default());
        assert_eq!(patch["metadata"], json!({ "uid": "u" }));
        assert_eq!(patch["status"].get("strange"), Some(&Value::Null));
    }

    #[test]
    fn only_a_deletion_in_the_foreground_removes_what_is_owned() {
        for (metadata, expected) in [
            (json!({}), false),
            (json!({ "finalizers": ["foregroundDeletion"] }), false),
            (
                json!({ "deletionTimestamp": "t", "finalizers": ["orphan"] }),
                false,
            ),
            (
                json!({ "deletionTimestamp": "t", "finalizers": ["a/b", "foregroundDeletion"] }),
                true,
            ),
        ] {
            let object = json!({ "metadata": metadata });
            assert_eq!(is_deleted_in_foreground(&object), expected, "{object}");
        }
    }
}

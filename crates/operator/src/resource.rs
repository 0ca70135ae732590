//! The configuration resource in its last observed state.

use std::sync::Arc;

use api::network_addons::{NetworkAddonsConfigSpec, NetworkAddonsConfigStatus};
use k8s_openapi::api::core::v1::ObjectReference;
use kube_kit::object::{self, ObjectId, Owner};
use serde_json::{Value, json};

use crate::{cluster_facts::Cluster, configuration, labels::Stamp, settings::Settings, tls::TlsSettings};

/// Identity of the only reconciled configuration resource.
pub fn id() -> ObjectId {
    object::NETWORK_ADDONS_CONFIG.object(None, api::names::NETWORK_ADDONS_SINGLETON)
}

/// Whether the deletion of an object deletes its dependents first.
pub(crate) fn is_deleted_in_foreground(object: &Value) -> bool {
    waits_for(object, "foregroundDeletion")
}

/// Whether Kubernetes itself deletes the dependents of a configuration resource, or releases them, because the resource
/// is being deleted. A resource that waits for another finalizer still needs them, unless they were released already:
/// then its record has no owner any more.
pub fn is_given_up(object: &Value, record: Option<&Value>) -> bool {
    is_deleted_in_foreground(object)
        || waits_for(object, "orphan")
        || (is_being_deleted(object) && record.is_some_and(|record| owner_uid(record).is_none()))
}

fn is_being_deleted(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

fn waits_for(object: &Value, finalizer: &str) -> bool {
    let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    is_being_deleted(object) && finalizers.is_some_and(|list| list.contains(&json!(finalizer)))
}

/// The configuration resource.
pub struct Resource {
    /// The whole object.
    pub object: Arc<Value>,
    /// Uid of the resource; empty outside of a cluster.
    pub uid: String,
}

impl Resource {
    /// The specification, or its errors.
    pub(crate) fn validated(&self, cluster: &Cluster) -> Result<NetworkAddonsConfigSpec, Vec<String>> {
        let spec = self.object.get("spec").cloned().unwrap_or_default();
        let spec = configuration::read(spec).map_err(|error| vec![error.to_string()])?;
        let errors = configuration::validate(&spec, cluster);
        if errors.is_empty() { Ok(spec) } else { Err(errors) }
    }

    /// The settings of the TLS profile, if it is valid.
    pub(crate) fn tls_settings(&self) -> Option<TlsSettings> {
        let profile = self.object.pointer("/spec/tlsSecurityProfile").cloned();
        let spec = json!({ "tlsSecurityProfile": profile });
        let spec = configuration::read(spec).ok()?;
        TlsSettings::of(spec.tls_security_profile.as_ref()).ok()
    }

    /// Whether the specification enables the MAC pool.
    pub(crate) fn wants_mac_pool(&self) -> bool {
        self.object
            .pointer("/spec/kubeMacPool")
            .is_some_and(Value::is_object)
    }

    /// Whether the specification enables node state.
    pub fn wants_node_state(&self) -> bool {
        self.object.pointer("/spec/nmstate").is_some_and(Value::is_object)
    }

    /// Labels and owner of the rendered objects.
    pub(crate) fn stamp(&self, settings: &Settings) -> Stamp {
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

    /// The subject of events about it.
    pub(crate) fn reference(&self) -> ObjectReference {
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

/// Parses a status. An unparsable one counts as empty, and is overwritten.
pub fn read_status(status: Value) -> NetworkAddonsConfigStatus {
    serde_json::from_value(status).unwrap_or_default()
}

/// A merge patch that replaces the whole status. The patch contains the uid, so that the API server refuses it for
/// another object of the same name.
pub(crate) fn status_patch(uid: &str, live: &Value, status: &NetworkAddonsConfigStatus) -> Value {
    // The status consists of texts and lists, whose serialization cannot fail.
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
    fn status_patch_replaces_whole_status_of_same_uid() {
        let live = json!({ "observedVersion": "1", "strange": 1 });
        let patch = status_patch("u", &live, &NetworkAddonsConfigStatus::default());
        assert_eq!(patch["metadata"], json!({ "uid": "u" }));
        assert_eq!(patch["status"].get("strange"), Some(&Value::Null));
    }

    // operator#96
    #[test]
    fn resource_that_waits_for_foreign_finalizer_is_not_given_up() {
        let owned =
            json!({ "metadata": { "ownerReferences": [{ "kind": "NetworkAddonsConfig", "uid": "1" }] } });
        let released = json!({ "metadata": { "ownerReferences": [] } });
        for (deleted, finalizers, record, expected) in [
            (false, json!(["a/b"]), Some(&released), false),
            (
                false,
                json!(["foregroundDeletion", "orphan"]),
                Some(&owned),
                false,
            ),
            (true, json!(["a/b"]), Some(&owned), false),
            (true, json!(["a/b"]), None, false),
            (true, json!(["a/b", "foregroundDeletion"]), Some(&owned), true),
            (true, json!(["a/b", "orphan"]), Some(&owned), true),
            (true, json!(["a/b"]), Some(&released), true),
        ] {
            let mut object = json!({ "metadata": { "finalizers": finalizers } });
            if deleted {
                object["metadata"]["deletionTimestamp"] = json!("t");
            }
            assert_eq!(is_given_up(&object, record), expected, "{object} {record:?}");
        }
    }

    #[test]
    fn only_foreground_deletion_is_deleted_in_foreground() {
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

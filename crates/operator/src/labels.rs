//! Labels and owner references of all rendered objects (operator §8.2, §8.3).

use std::collections::BTreeMap;

use api::names::{
    COMPONENT_LABEL, MANAGED_BY_LABEL, PART_OF_LABEL, PRODUCT_VERSION_LABEL, PROMETHEUS_LABEL,
    REJECT_OWNER_ANNOTATION, VERSION_LABEL,
};
use kube_kit::object::Owner;
use serde_json::{Map, Value, json};

use crate::{
    manifest::{Error, Manifest},
    names,
};

/// Maximum length of a label value.
const LABEL_LENGTH: usize = 63;

/// Labels that the operator's own namespace must not carry (operator §9.3).
pub(crate) const NOT_ON_OWN_NAMESPACE: [&str; 7] = [
    COMPONENT_LABEL,
    PART_OF_LABEL,
    PRODUCT_VERSION_LABEL,
    MANAGED_BY_LABEL,
    PROMETHEUS_LABEL,
    names::CONTROL_PLANE_LABEL,
    VERSION_LABEL,
];

/// The metadata that all objects of one reconcile share.
#[derive(Clone, Debug)]
pub struct Stamp {
    /// Version of the operator, before its conversion to a valid label value.
    pub operator_version: String,
    /// Namespace of the operator.
    pub operator_namespace: String,
    /// Labels of the configuration resource.
    pub cr_labels: BTreeMap<String, String>,
    /// The configuration resource as owner.
    pub owner: Owner,
}

/// Converts a version into a valid label value: one `_` replaces a run of forbidden characters. A value begins and ends
/// with a letter or a digit; leading and trailing punctuation is dropped.
pub fn label_safe(version: &str) -> String {
    let mut safe = String::new();
    let mut in_run = false;
    for c in version.chars() {
        let allowed = c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        if allowed {
            safe.push(c);
        } else if !in_run {
            safe.push('_');
        }
        in_run = !allowed;
    }
    let is_inner = |c: char| !c.is_ascii_alphanumeric();
    let mut safe = safe.trim_start_matches(is_inner).to_owned();
    safe.truncate(LABEL_LENGTH);
    safe.truncate(safe.trim_end_matches(is_inner).len());
    safe
}

impl Stamp {
    /// Sets labels and owner of an object.
    pub(crate) fn put_on(&self, object: &mut Manifest) -> Result<(), Error> {
        let own_namespace = object.kind() == "Namespace" && object.name() == self.operator_namespace;
        if own_namespace {
            object.labels_mut()?.shift_remove(names::CONTROL_PLANE_LABEL);
            return Ok(());
        }
        let mac_controller = object.labels_mut()?.get(names::CONTROL_PLANE_LABEL)
            == Some(&json!(names::MAC_CONTROLLER_MANAGER));
        let relationship = self.relationship_labels(!mac_controller);
        let labels = object.labels_mut()?;
        labels.insert(VERSION_LABEL.into(), json!(label_safe(&self.operator_version)));
        labels.extend(relationship.clone());
        if object.has_pods() {
            object.pods()?.labels_mut()?.extend(relationship);
        }
        let rejected = object
            .annotations()
            .is_some_and(|found| found.contains_key(REJECT_OWNER_ANNOTATION));
        if object.kind() != "CustomResourceDefinition" && !rejected {
            object.set_metadata("ownerReferences", json!([self.owner.reference()]))?;
        }
        Ok(())
    }

    fn relationship_labels(&self, scraped: bool) -> Map<String, Value> {
        let component = self
            .cr_labels
            .get(COMPONENT_LABEL)
            .map_or(names::DEFAULT_COMPONENT, String::as_str);
        let mut labels = Map::new();
        labels.insert(
            PROMETHEUS_LABEL.into(),
            json!(if scraped { "true" } else { "false" }),
        );
        labels.insert(MANAGED_BY_LABEL.into(), json!(names::MANAGED_BY));
        labels.insert(COMPONENT_LABEL.into(), json!(component));
        for copied in [PART_OF_LABEL, PRODUCT_VERSION_LABEL] {
            if let Some(value) = self.cr_labels.get(copied) {
                labels.insert(copied.into(), json!(value));
            }
        }
        labels
    }
}

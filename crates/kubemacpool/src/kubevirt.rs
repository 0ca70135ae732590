//! Partial types of pods, virtual machines and instances: other fields are not parsed, and may have any form.
//!
//! Metadata is partial too: only the labels and annotations that this crate reads, and no managed fields.

use std::collections::BTreeMap;
use std::fmt;

use api::kubevirt::{self, InstanceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, de};

use crate::machines::Spec;
use crate::names;

#[cfg(test)]
mod tests;

/// A virtual machine.
#[derive(Clone, Debug, Default, Deserialize, kube::Resource)]
#[resource(inherit = api::kubevirt::VirtualMachine)]
pub struct VirtualMachine {
    /// Partial metadata.
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// The desired virtual machine.
    #[serde(default)]
    pub spec: Option<Spec>,
}

/// An interface of an instance.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Interface {
    name: String,
    masquerade: Option<IgnoredAny>,
}

/// A network of an instance.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Network {
    name: String,
    multus: Option<IgnoredAny>,
}

/// A running virtual machine.
#[derive(Clone, Debug, Default, Deserialize, kube::Resource)]
#[resource(inherit = api::kubevirt::VirtualMachineInstance)]
pub struct VirtualMachineInstance {
    /// Partial metadata.
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// The desired instance.
    #[serde(default)]
    pub spec: Option<InstanceSpec<Vec<Option<Interface>>, Network>>,
    /// The observed instance.
    #[serde(default)]
    pub status: Option<InstanceStatus>,
}

impl VirtualMachineInstance {
    /// Names of supported interfaces (§10.1): with masquerade, or on a multus network.
    pub fn supported(&self) -> impl Iterator<Item = &str> {
        let spec = self.spec.as_ref();
        let interfaces = spec.and_then(InstanceSpec::interfaces).into_iter().flatten();
        let networks = spec.and_then(|spec| spec.networks.as_deref()).unwrap_or_default();
        let supported = move |interface: &&Interface| {
            let mut attached = networks
                .iter()
                .flatten()
                .filter(|network| network.multus.is_some());
            interface.masquerade.is_some() || attached.any(|network| network.name == interface.name)
        };
        interfaces
            .flatten()
            .filter(supported)
            .map(|interface| interface.name.as_str())
    }
}

/// The observed instance.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InstanceStatus {
    /// `Running`, or anything else.
    pub phase: String,
    interfaces: Option<Vec<Option<InterfaceStatus>>>,
    migration_state: Option<MigrationState>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct InterfaceStatus {
    name: Option<String>,
    mac: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct MigrationState {
    source_state: Option<MigrationSide>,
    target_state: Option<MigrationSide>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct MigrationSide {
    #[serde(rename = "migrationUID")]
    uid: Option<String>,
}

impl InstanceStatus {
    /// Names and addresses of its interfaces; empty strings if they are missing.
    pub fn interfaces(&self) -> impl Iterator<Item = (&str, &str)> {
        let interfaces = self.interfaces.iter().flatten().flatten();
        interfaces.map(|interface| {
            (
                interface.name.as_deref().unwrap_or_default(),
                interface.mac.as_deref().unwrap_or_default(),
            )
        })
    }

    /// UIDs of the migrations with the instance as source and as target.
    pub fn migrations(&self) -> (Option<&str>, Option<&str>) {
        let Some(state) = &self.migration_state else {
            return (None, None);
        };
        let source = state.source_state.as_ref().and_then(|side| side.uid.as_deref());
        let target = state.target_state.as_ref().and_then(|side| side.uid.as_deref());
        (source, target)
    }
}

/// A pod.
#[derive(Clone, Debug, Default, Deserialize, kube::Resource)]
#[resource(inherit = k8s_openapi::api::core::v1::Pod)]
pub struct Pod {
    /// Partial metadata.
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Observed state.
    #[serde(default)]
    status: Option<PodStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: String,
}

impl Pod {
    /// `Running`, or anything else.
    pub fn phase(&self) -> &str {
        self.status.as_ref().map_or("", |status| &status.phase)
    }

    /// The annotation with its networks.
    pub fn networks(&self) -> Option<&str> {
        self.annotation(names::NETWORKS)
    }

    /// Whether its networks are attached.
    pub fn is_attached(&self) -> bool {
        self.annotation(names::NETWORK_STATUS).is_some()
    }

    /// Whether its label marks it as the pod of a virtual machine.
    pub fn is_launcher(&self) -> bool {
        let (key, value) = names::LAUNCHER;
        let labels = self.metadata.labels.as_ref();
        labels
            .and_then(|labels| labels.get(key))
            .is_some_and(|it| it == value)
    }

    /// Name of the instance that owns it, which equals that of its virtual machine.
    pub fn instance(&self) -> Option<&str> {
        let mut owners = self.metadata.owner_references.iter().flatten();
        let instance = owners.find(|owner| owner.kind == kubevirt::INSTANCE)?;
        Some(&instance.name)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        let annotations = self.metadata.annotations.as_ref()?;
        annotations.get(key).map(String::as_str)
    }
}

/// Keys of the labels and annotations that are kept.
const KEPT: [&str; 4] = [
    names::TRANSACTION_TIMESTAMP,
    names::NETWORKS,
    names::NETWORK_STATUS,
    names::LAUNCHER.0,
];

/// The key whose value is dropped: only its presence matters, and it may be long.
const NOT_READ: &str = names::NETWORK_STATUS;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<Owner>>,
    annotations: Option<Kept>,
    labels: Option<Kept>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Owner {
    kind: String,
    name: String,
}

fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let metadata = Metadata::deserialize(deserializer)?;
    let owner = |owner: Owner| OwnerReference {
        kind: owner.kind,
        name: owner.name,
        ..OwnerReference::default()
    };
    let owners = metadata.owner_references.into_iter().flatten();
    let owners: Vec<_> = owners
        .filter(|owner| owner.kind == kubevirt::INSTANCE)
        .map(owner)
        .collect();
    Ok(ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        deletion_timestamp: metadata.deletion_timestamp,
        finalizers: metadata.finalizers,
        owner_references: (!owners.is_empty()).then_some(owners),
        annotations: metadata.annotations.map(|kept| kept.0),
        labels: metadata.labels.map(|kept| kept.0),
        ..ObjectMeta::default()
    })
}

/// The kept labels or annotations.
struct Kept(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Kept {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keep;
        impl<'de> Visitor<'de> for Keep {
            type Value = Kept;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("texts by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kept, A::Error> {
                let mut kept = BTreeMap::new();
                while let Some(Key(key)) = map.next_key()? {
                    match key {
                        Some(key) if key == NOT_READ => {
                            map.next_value::<IgnoredAny>()?;
                            kept.insert(key.to_owned(), String::new());
                        }
                        Some(key) => {
                            kept.insert(key.to_owned(), map.next_value()?);
                        }
                        None => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(Kept(kept))
            }
        }
        deserializer.deserialize_map(Keep)
    }
}

/// A key, if it is one of [`KEPT`].
struct Key(Option<&'static str>);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Find;
        impl Visitor<'_> for Find {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Key, E> {
                Ok(Key(KEPT.into_iter().find(|kept| *kept == text)))
            }
        }
        deserializer.deserialize_str(Find)
    }
}

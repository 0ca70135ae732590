//! Definitions of kinds without a required `spec`, which kube's derivation does not support.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Value, json};

use super::GROUP;
use crate::{Error, schema};

/// The parts of a definition besides its schema.
pub(super) struct Definition {
    pub(super) kind: &'static str,
    pub(super) singular: &'static str,
    pub(super) plural: &'static str,
    pub(super) short: &'static str,
    /// The versions, with true for deprecated versions. The first version is stored.
    pub(super) versions: &'static [(&'static str, bool)],
    /// Columns: name, type, and the printed field of the condition that is true.
    pub(super) columns: &'static [(&'static str, &'static str, &'static str)],
    /// Properties that may be `null`.
    pub(super) nullable: &'static [&'static str],
    /// Descriptions of `spec` and `status`.
    pub(super) texts: [&'static str; 2],
}

/// Columns that policies and enactments share.
pub(super) const STATUS: (&str, &str, &str) = ("Status", "string", "type");
/// See [`STATUS`].
pub(super) const REASON: (&str, &str, &str) = ("Reason", "string", "reason");

impl Definition {
    /// Returns the definition of the resource with objects of type `T`.
    pub(super) fn of<T: JsonSchema>(&self) -> Result<CustomResourceDefinition, Error> {
        let name = format!("{}.{GROUP}", self.plural);
        let mut root = SchemaSettings::openapi3()
            .with(|settings| {
                settings.inline_subschemas = true;
                settings.meta_schema = None;
            })
            .with_transform(kube::core::schema::StructuralSchemaRewriter)
            .into_generator()
            .into_root_schema_for::<T>()
            .to_value();
        if let Some(root) = root.as_object_mut() {
            root.shift_remove("components");
        }
        let columns: Vec<Value> = self
            .columns
            .iter()
            .map(|(name, kind, field)| {
                let path = format!(r#".status.conditions[?(@.status=="True")].{field}"#);
                json!({ "name": name, "type": kind, "jsonPath": path })
            })
            .collect();
        let versions: Vec<Value> = self
            .versions
            .iter()
            .enumerate()
            .map(|(position, (name, deprecated))| {
                let mut version = json!({
                    "name": name,
                    "served": true,
                    "storage": position == 0,
                    "schema": { "openAPIV3Schema": root },
                    "subresources": { "status": {} },
                    "additionalPrinterColumns": columns,
                });
                if *deprecated {
                    version["deprecated"] = json!(true);
                }
                version
            })
            .collect();
        let definition = json!({
            "metadata": { "name": name },
            "spec": {
                "group": GROUP,
                "scope": "Cluster",
                "names": {
                    "kind": self.kind,
                    "singular": self.singular,
                    "plural": self.plural,
                    "shortNames": [self.short],
                },
                "versions": versions,
            },
        });
        let definition =
            serde_json::from_value(definition).map_err(|source| Error::Shape { name, source })?;
        schema::finish(definition, self.nullable, &self.texts)
    }
}

/// Implements `kube::Resource` for a type with the fields of a Kubernetes object.
macro_rules! resource {
    ($type:ident, $version:literal, $plural:literal, $($field:ident),+) => {
        impl kube::Resource for $type {
            type DynamicType = ();
            type Scope = kube::core::ClusterResourceScope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                stringify!($type).into()
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                $crate::node_state::GROUP.into()
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                $version.into()
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }

        impl Default for $type {
            fn default() -> Self {
                Self {
                    api_version: Self::own_api_version(),
                    kind: Self::own_kind(),
                    metadata: ObjectMeta::default(),
                    $($field: Default::default(),)+
                }
            }
        }

        impl $type {
            /// Returns an object with only a name.
            pub fn new(name: &str) -> Self {
                let mut object = Self::default();
                object.metadata.name = Some(name.to_owned());
                object
            }

            fn own_api_version() -> String {
                <Self as kube::Resource>::api_version(&()).into_owned()
            }

            fn own_kind() -> String {
                stringify!($type).to_owned()
            }
        }
    };
}
pub(super) use resource;

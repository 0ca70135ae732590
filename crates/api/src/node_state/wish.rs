//! `NMState`: the wish for the node state components, and how they are set up (nmstate §2.2).

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Affinity, Toleration},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
    },
};
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Condition;
pub use crate::network_addons::SelfSignConfiguration;
use crate::{Error, schema};

/// Version for manifests of former releases.
const OLD_VERSION: &str = "v1beta1";

/// How the node state components are set up. What is not said is the node state operator's choice.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "nmstate.io",
    version = "v1",
    kind = "NMState",
    plural = "nmstates",
    singular = "nmstate",
    status = "NMStateStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.conditions[?(@.status==\"True\")].type"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.status==\"True\")].reason"}"#,
    doc = "Deploys the node state components of the cluster."
)]
#[serde(rename_all = "camelCase")]
pub struct NMStateSpec {
    /// Affinity of the handler, which runs on the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Nodes on which the handler runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Taints that the handler tolerates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Vec<Toleration>>,
    /// Affinity of everything but the handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infra_affinity: Option<Affinity>,
    /// Nodes on which everything but the handler runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infra_node_selector: Option<BTreeMap<String, String>>,
    /// Taints that everything but the handler tolerates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infra_tolerations: Option<Vec<Toleration>>,
    /// Intervals of the webhook's certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub self_sign_configuration: Option<SelfSignConfiguration>,
    /// How a node is probed after its configuration was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe_configuration: Option<ProbeConfiguration>,
    /// Where metrics are served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_configuration: Option<MetricsConfiguration>,
    /// Choices beyond the established ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler_configuration: Option<HandlerConfiguration>,
    /// How much the handler logs: info or debug.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "log_level")]
    pub log_level: String,
}

/// How a node is probed.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct ProbeConfiguration {
    /// Look-ups of names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<DnsProbe>,
}

/// A look-up of a name.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct DnsProbe {
    /// Name that is looked up.
    pub host: String,
}

/// Where metrics are served.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricsConfiguration {
    /// Address and port; 0 serves none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bind_address: String,
}

/// Choices about the handler beyond the established ones.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HandlerConfiguration {
    /// How nodes are configured: by NetworkManager, or without it, in the kernel alone, which lasts until a node is
    /// started anew.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "backend")]
    pub backend: String,
    /// Whether the original design is served: what `NodeNetworkState` says in spec, and policies that match interfaces.
    /// Without it, nobody configures a node by writing its `NodeNetworkState`. It is served unless this says false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_design: Option<bool>,
    /// How often nodes are compared with their policies, and brought back to them, in seconds. Never unless said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "seconds")]
    pub drift_seconds: Option<u32>,
}

/// How the deployment is going.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct NMStateStatus {
    /// Aspects of the state of the deployment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

fn backend(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["networkmanager", "kernel"] })
}

fn seconds(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "minimum": 0 })
}

fn log_level(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["info", "debug"] })
}

/// The definition of the resource in both versions.
///
/// # Errors
/// When the generated schema is not the one that Kubernetes' types can hold; a test rules it out.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    use kube::CustomResourceExt;
    let texts = [
        "How the node state components are set up.",
        "How the deployment is going.",
    ];
    let mut crd = schema::finish(NMState::crd(), &[], &texts)?;
    let mut old = crd.spec.versions.clone();
    for version in &mut old {
        OLD_VERSION.clone_into(&mut version.name);
        version.storage = false;
        version.deprecated = Some(true);
        version.deprecation_warning = Some("nmstate/v1beta1 deprecated, use nmstate/v1 instead".into());
    }
    crd.spec.versions.extend(old);
    for version in &mut crd.spec.versions {
        let schema = version.schema.as_mut();
        let Some(root) = schema.and_then(|schema| schema.open_api_v3_schema.as_mut()) else {
            continue;
        };
        for name in ["affinity", "infraAffinity", "tolerations", "infraTolerations"] {
            if let Some(node) = descend(root, &["spec", name]) {
                // Kubernetes' own texts would be nine tenths of the definition.
                without_texts(node, false);
            }
        }
        set_default(root, &["spec"], json!({}));
        set_default(root, &["spec", "probeConfiguration"], json!({}));
        let host = "root-servers.net";
        set_default(
            root,
            &["spec", "probeConfiguration", "dns"],
            json!({ "host": host }),
        );
        set_default(root, &["spec", "probeConfiguration", "dns", "host"], json!(host));
        if version.storage {
            set_default(root, &["spec", "metricsConfiguration"], json!({}));
        }
        set_default(
            root,
            &["spec", "metricsConfiguration", "bindAddress"],
            json!(":8089"),
        );
        set_default(root, &["spec", "logLevel"], json!("info"));
    }
    Ok(crd)
}

fn descend<'a>(root: &'a mut JSONSchemaProps, path: &[&str]) -> Option<&'a mut JSONSchemaProps> {
    let mut node = root;
    for name in path {
        node = node.properties.as_mut()?.get_mut(*name)?;
    }
    Some(node)
}

fn set_default(root: &mut JSONSchemaProps, path: &[&str], value: serde_json::Value) {
    if let Some(node) = descend(root, path) {
        node.default = Some(JSON(value));
    }
}

/// Drops the descriptions below a node, and its own if it is a part of another one.
fn without_texts(node: &mut JSONSchemaProps, part: bool) {
    if part {
        node.description = None;
    }
    for property in node.properties.iter_mut().flat_map(BTreeMap::values_mut) {
        without_texts(property, true);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut node.items {
        without_texts(items, true);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut node.additional_properties {
        without_texts(values, true);
    }
}

//! `NMState`: the deployment of the node state components and their settings (nmstate §2.2).

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

/// The version of manifests of former releases.
const OLD_VERSION: &str = "v1beta1";

/// Settings of the node state components. The node state operator chooses defaults for unset fields.
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
    /// Affinity of the handler on the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Node selector of the handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Tolerations of the handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Vec<Toleration>>,
    /// Affinity of all components except the handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infra_affinity: Option<Affinity>,
    /// Node selector of all components except the handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infra_node_selector: Option<BTreeMap<String, String>>,
    /// Tolerations of all components except the handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infra_tolerations: Option<Vec<Toleration>>,
    /// Renewal intervals of the webhook's certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub self_sign_configuration: Option<SelfSignConfiguration>,
    /// Probes of a node after a change of its configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe_configuration: Option<ProbeConfiguration>,
    /// Listen address of metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_configuration: Option<MetricsConfiguration>,
    /// Settings of Weft's handler that upstream does not have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler_configuration: Option<HandlerConfiguration>,
    /// Log level of the handler: info or debug.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "log_level")]
    pub log_level: String,
}

/// Probes of a node.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct ProbeConfiguration {
    /// DNS probe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<DnsProbe>,
}

/// A DNS probe.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct DnsProbe {
    /// Name that the probe resolves.
    pub host: String,
}

/// Listen address of metrics.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetricsConfiguration {
    /// Address and port. 0 disables metrics.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bind_address: String,
}

/// Settings of Weft's handler that upstream does not have.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HandlerConfiguration {
    /// Backend of the configuration: NetworkManager, or the kernel alone, whose configuration lasts until the node
    /// restarts.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "backend")]
    pub backend: String,
    /// If false, the original design is disabled: the spec of `NodeNetworkState`, and policies that match interfaces.
    /// The default is true. If disabled, writes to a `NodeNetworkState` configure no node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_design: Option<bool>,
    /// Interval in seconds between comparisons of nodes with their policies, which repair drift. By default, nodes are
    /// not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "seconds")]
    pub drift_seconds: Option<u32>,
}

/// The state of the deployment.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct NMStateStatus {
    /// Conditions of the deployment.
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

/// Returns the definition of the resource in both versions.
///
/// # Errors
/// If the generated schema does not fit into Kubernetes' types. A test excludes this.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    use kube::CustomResourceExt;
    let texts = [
        "Settings of the node state components.",
        "The state of the deployment.",
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
                // The descriptions of Kubernetes' types would be nine tenths of the definition.
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

/// Removes the descriptions below a node, and the node's own description if it is part of another node.
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

//! `EgressRouter`: a pod with an address of its own outside of the cluster, which redirects connections to external
//! systems (cluster-network §17.5).

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Condition, null_as_default, schemas};
use crate::{Error, schema};

/// The desired egress router.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "network.operator.openshift.io",
    version = "v1",
    kind = "EgressRouter",
    plural = "egressrouters",
    singular = "egressrouter",
    namespaced,
    status = "EgressRouterStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Condition","type":"string","jsonPath":".status.conditions[*].type"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.conditions[*].status"}"#,
    doc = "A pod with an address outside of the cluster, which redirects connections of other pods to external systems. A namespace has one at most."
)]
#[serde(rename_all = "camelCase", default)]
pub struct EgressRouterSpec {
    /// Mode of the router. Redirect is the only one.
    pub mode: String,
    /// Connections that the router redirects.
    #[serde(deserialize_with = "null_as_default")]
    pub redirect: Redirect,
    /// The interface of the pod outside of the cluster.
    #[serde(deserialize_with = "null_as_default")]
    pub network_interface: NetworkInterface,
    /// Addresses of the interface. The router uses the first one.
    #[serde(deserialize_with = "null_as_default")]
    pub addresses: Vec<Address>,
}

/// Connections that the router redirects.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Redirect {
    /// Ports of the router, and their destinations.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub redirect_rules: Vec<RedirectRule>,
    /// Destination of the connections that no rule selects.
    #[serde(
        rename = "fallbackIP",
        deserialize_with = "null_as_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub fallback_ip: String,
}

/// A port of the router, and its destination.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RedirectRule {
    /// Address of the destination.
    #[serde(rename = "destinationIP")]
    pub destination_ip: String,
    /// Port to which clients connect.
    pub port: i32,
    /// TCP, UDP or SCTP.
    pub protocol: String,
    /// Port of the destination. The default is the value of port.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_zero")]
    pub target_port: i32,
}

/// The interface of the pod outside of the cluster.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct NetworkInterface {
    /// An interface by macvlan, the only kind.
    #[serde(deserialize_with = "null_as_default")]
    pub macvlan: Macvlan,
}

/// An interface by macvlan.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct Macvlan {
    /// Bridge, Private, VEPA or Passthru.
    pub mode: String,
    /// Link of the node. The default is the link of the node's default route.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub master: String,
}

/// An address of the interface, and its gateway.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct Address {
    /// Address with its prefix length, such as 192.0.2.10/24.
    pub ip: String,
    /// Address of the gateway, through which the pod reaches all destinations.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub gateway: String,
}

/// The state of the router.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct EgressRouterStatus {
    /// Conditions of the router: Available and Degraded.
    pub conditions: Vec<Condition>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// Returns the definition of the resource, with the rules of upstream's definition.
///
/// # Errors
/// If the generated schema does not fit into Kubernetes' types. A test excludes this.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    use kube::CustomResourceExt;
    let texts = ["The desired egress router.", "The state of the router."];
    let crd = schema::finish(EgressRouter::crd(), &["lastTransitionTime"], &texts)?;
    schemas::add(crd, additions())
}

fn additions() -> Vec<schemas::Addition> {
    let address = || json!({ "anyOf": [{ "format": "ipv4" }, { "format": "ipv6" }] });
    let port = || json!({ "minimum": 1, "maximum": 65535 });
    let choice = |values: &[&str]| json!({ "enum": values });
    let required = |fields: &[&str]| json!({ "required": fields });
    let with_default = |mut members: Value, default: Value| {
        members["default"] = default;
        members
    };
    vec![
        ("", required(&["spec"])),
        (
            "spec",
            required(&["addresses", "mode", "networkInterface", "redirect"]),
        ),
        (
            "spec.mode",
            with_default(choice(&["Redirect"]), json!("Redirect")),
        ),
        (
            "spec.networkInterface",
            with_default(required(&["macvlan"]), json!({ "macvlan": { "mode": "Bridge" } })),
        ),
        (
            "spec.networkInterface.macvlan",
            with_default(required(&["mode"]), json!({ "mode": "Bridge" })),
        ),
        (
            "spec.networkInterface.macvlan.mode",
            with_default(
                choice(&["Bridge", "Private", "VEPA", "Passthru"]),
                json!("Bridge"),
            ),
        ),
        ("spec.addresses[]", required(&["ip"])),
        ("spec.addresses[].gateway", address()),
        ("spec.redirect.fallbackIP", address()),
        (
            "spec.redirect.redirectRules[]",
            required(&["destinationIP", "port", "protocol"]),
        ),
        ("spec.redirect.redirectRules[].destinationIP", address()),
        ("spec.redirect.redirectRules[].port", port()),
        ("spec.redirect.redirectRules[].targetPort", port()),
        (
            "spec.redirect.redirectRules[].protocol",
            choice(&["TCP", "UDP", "SCTP"]),
        ),
        ("status", required(&["conditions"])),
        (
            "status.conditions",
            json!({ "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"] }),
        ),
        (
            "status.conditions[]",
            required(&["lastTransitionTime", "status", "type"]),
        ),
        (
            "status.conditions[].type",
            choice(&["Available", "Progressing", "Degraded"]),
        ),
        (
            "status.conditions[].status",
            choice(&["True", "False", "Unknown"]),
        ),
    ]
}

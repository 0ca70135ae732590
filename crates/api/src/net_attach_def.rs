//! `NetworkAttachmentDefinition`: a network that a pod can be attached to (multus §1).

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, schema};

/// What a network is made of.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "k8s.cni.cncf.io",
    version = "v1",
    kind = "NetworkAttachmentDefinition",
    plural = "network-attachment-definitions",
    singular = "network-attachment-definition",
    shortname = "nad",
    shortname = "net-attach-def",
    namespaced,
    derive = "PartialEq",
    doc = "A network that pods can be attached to, as the Network Plumbing Working Group specifies it."
)]
#[serde(default)]
pub struct NetworkAttachmentDefinitionSpec {
    /// CNI configuration of the network as JSON text: one plugin, or a list of plugins. When it is
    /// empty, the configuration is looked up by name among the files of the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub config: String,
}

/// The definition of the resource, as the operator deploys it with multus (operands §1.2).
///
/// # Errors
/// When the generated schema is not the one that Kubernetes' types can hold; a test rules it out.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    use kube::CustomResourceExt;
    schema::finish(
        NetworkAttachmentDefinition::crd(),
        &[],
        &["Specification of the network."],
    )
}

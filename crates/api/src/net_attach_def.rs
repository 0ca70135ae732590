//! `NetworkAttachmentDefinition`: a network that a pod can be attached to (multus §1).

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, schema};

/// The configuration of the network.
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
    /// CNI configuration of the network as JSON text: a plugin or a list of plugins. If empty, the node's configuration
    /// files are searched for the name of the network.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub config: String,
}

/// Returns the definition of the resource, as the operator deploys it with multus (operands §1.2).
///
/// # Errors
/// If the generated schema does not fit into Kubernetes' types. A test excludes this.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    use kube::CustomResourceExt;
    schema::finish(
        NetworkAttachmentDefinition::crd(),
        &[],
        &["Specification of the network."],
    )
}

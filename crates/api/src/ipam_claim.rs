//! `IPAMClaim`: the persistent addresses of a virtual machine, across its pods (kubevirt-ipam §4.1).

mod name;

pub use name::claim_name;

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, schema};

/// The network of the claimed addresses.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "k8s.cni.cncf.io",
    version = "v1alpha1",
    kind = "IPAMClaim",
    plural = "ipamclaims",
    singular = "ipamclaim",
    namespaced,
    status = "IPAMClaimStatus",
    derive = "PartialEq",
    doc = "A claim for addresses that outlive the pod they were given to."
)]
pub struct IPAMClaimSpec {
    /// Name of the network in its CNI configuration.
    pub network: String,
    /// Interface of the pod. Always present, perhaps as an empty text.
    pub interface: String,
}

/// The assigned addresses, written by the CNI plugin of the network.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IPAMClaimStatus {
    /// Addresses with their prefix lengths.
    pub ips: Vec<String>,
    /// The pod that currently uses the addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_pod: Option<OwnerPod>,
    /// Conditions of the claim.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// The pod that uses the addresses of a claim.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct OwnerPod {
    /// Name of the pod.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// Returns the definition of the resource, as the operator deploys it with the KubeVirt IPAM controller (operands §8).
///
/// # Errors
/// If the generated schema does not fit into Kubernetes' types. A test excludes this.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    use kube::CustomResourceExt;
    let texts = [
        "The network of the claimed addresses.",
        "The assigned addresses, written by the CNI plugin of the network.",
    ];
    let mut crd = schema::finish(IPAMClaim::crd(), &[], &texts)?;
    crd.spec.names.list_kind = Some("IPAMClaimList".to_owned());
    // An unused member, present since the first version of the definition.
    let annotation = ("controller-gen.kubebuilder.io/version", "v0.13.0");
    crd.metadata.annotations = Some([annotation].map(|(key, value)| (key.into(), value.into())).into());
    Ok(crd)
}

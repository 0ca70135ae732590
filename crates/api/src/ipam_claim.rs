//! `IPAMClaim`: addresses that stay with a virtual machine while its pods come and go (kubevirt-ipam §4.1).

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

/// For which network addresses are claimed.
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
    /// Name of the network, as its CNI configuration says it.
    pub network: String,
    /// Interface of the pod; written as an empty text, and never left out.
    pub interface: String,
}

/// What was given, by the CNI plugin of the network.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IPAMClaimStatus {
    /// Addresses with the length of their prefix.
    pub ips: Vec<String>,
    /// The pod that has them now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_pod: Option<OwnerPod>,
    /// How the claim is going.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// The pod that has the addresses of a claim.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct OwnerPod {
    /// Its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// The definition of the resource, as the operator deploys it with the KubeVirt IPAM controller (operands §8).
///
/// # Errors
/// When the generated schema is not the one that Kubernetes' types can hold; a test rules it out.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    use kube::CustomResourceExt;
    let texts = [
        "For which network addresses are claimed.",
        "What was given, by the CNI plugin of the network.",
    ];
    let mut crd = schema::finish(IPAMClaim::crd(), &[], &texts)?;
    crd.spec.names.list_kind = Some("IPAMClaimList".to_owned());
    // Read by nobody, and there since the first version.
    let annotation = ("controller-gen.kubebuilder.io/version", "v0.13.0");
    crd.metadata.annotations = Some([annotation].map(|(key, value)| (key.into(), value.into())).into());
    Ok(crd)
}

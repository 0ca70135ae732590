//! The claims of a pod for devices, parsed from its spec and status (multus.md §4.4, 3).

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;

/// The fields of a pod's claims that its networks may need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodClaims {
    pub(crate) node: String,
    pub(crate) names: BTreeSet<String>,
    pub(crate) extended: Option<ExtendedClaim>,
}

/// The claim that Kubernetes generates for extended resources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ExtendedClaim {
    pub(crate) resource_claim_name: String,
    pub(crate) request_mappings: Vec<RequestMapping>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RequestMapping {
    pub(crate) request_name: String,
    pub(crate) resource_name: String,
}

/// The fields of a pod's spec that are read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodSpec {
    node_name: String,
    resource_claims: Option<Vec<ClaimName>>,
}

/// A claim of a pod. For a claim from a template, the pod's status has the name.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ClaimName {
    resource_claim_name: Option<String>,
}

impl PodClaims {
    /// The claims of a pod; `None` for most pods.
    pub(crate) fn of(spec: PodSpec, status: &Value) -> Option<Self> {
        let read = |key: &str| status.get(key).filter(|value| !value.is_null());
        let generated = read("resourceClaimStatuses")
            .and_then(|value| Vec::<ClaimName>::deserialize(value).ok())
            .unwrap_or_default();
        let extended =
            read("extendedResourceClaimStatus").and_then(|value| ExtendedClaim::deserialize(value).ok());
        let claims = spec.resource_claims.into_iter().flatten().chain(generated);
        let names: BTreeSet<_> = claims.filter_map(|claim| claim.resource_claim_name).collect();
        (!names.is_empty() || extended.is_some()).then_some(Self {
            node: spec.node_name,
            names,
            extended,
        })
    }
}

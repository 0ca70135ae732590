//! `OperatorPKI`: a certificate with its certificate authority, renewed by the cluster network operator
//! (cluster-network §17.4).

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{Error, schema};

/// The requested certificate.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "network.operator.openshift.io",
    version = "v1",
    kind = "OperatorPKI",
    plural = "operatorpkis",
    singular = "operatorpki",
    namespaced,
    derive = "PartialEq",
    doc = "A request for a certificate authority and a certificate of its own: the Secrets NAME-ca and NAME-cert, and the ConfigMap NAME-ca."
)]
#[serde(rename_all = "camelCase")]
pub struct OperatorPKISpec {
    /// The certificate.
    #[serde(default)]
    pub target_cert: TargetCert,
}

/// A certificate for server and client.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetCert {
    /// Common name of the certificate.
    #[serde(default)]
    #[schemars(schema_with = "name")]
    pub common_name: String,
}

fn name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "minLength": 1 })
}

/// Returns the definition of the resource, as deployed by the cluster network operator.
///
/// # Errors
/// If the generated schema does not fit into Kubernetes' types. A test excludes this.
pub fn crd() -> Result<CustomResourceDefinition, Error> {
    use kube::CustomResourceExt;
    let mut crd = schema::finish(OperatorPKI::crd(), &[], &["The requested certificate."])?;
    let required: [(&str, &[&str]); 2] = [
        ("/spec", &["targetCert"]),
        ("/spec/properties/targetCert", &["commonName"]),
    ];
    schema::require(&mut crd, &required)?;
    crd.spec.names.list_kind = Some("OperatorPKIList".to_owned());
    Ok(crd)
}

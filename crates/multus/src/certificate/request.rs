//! A certificate by way of the cluster: a key, a `CertificateSigningRequest`, and what becomes of it.

use crate::names;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use std::time::Duration;

/// What the certificate may be used for.
pub const USAGES: [&str; 2] = ["digital signature", "client auth"];
/// Names of requests begin so.
const NAME: &str = "multus-";

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No key or no request can be made.
    #[error("cannot make a key and a request for a certificate")]
    Make(#[from] rcgen::Error),
    /// The API server says no, or nothing.
    #[error("cannot ask for a certificate")]
    Ask(#[source] Box<kube::Error>),
    /// The request can't be followed.
    #[error("cannot follow the request for a certificate")]
    Follow(#[source] Box<kube::runtime::wait::Error>),
    /// It was denied, or the signer failed.
    #[error("the request for a certificate was refused: {0}")]
    Refused(String),
    /// It was deleted.
    #[error("the request for a certificate is gone")]
    Gone,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Nothing yet.
    Pending,
    /// It is signed (PEM).
    Issued(String),
    /// It never will be.
    Refused(String),
}

/// Looks at a request.
pub fn answer(request: &CertificateSigningRequest) -> Answer {
    let Some(status) = &request.status else {
        return Answer::Pending;
    };
    let mut conditions = status.conditions.iter().flatten();
    if let Some(condition) =
        conditions.find(|condition| matches!(condition.type_.as_str(), "Denied" | "Failed"))
    {
        let text = condition.message.clone().or_else(|| condition.reason.clone());
        return Answer::Refused(format!("{}: {}", condition.type_, text.unwrap_or_default()));
    }
    match status
        .certificate
        .as_ref()
        .map(|certificate| String::from_utf8(certificate.0.clone()))
    {
        Some(Ok(pem)) if !pem.is_empty() => Answer::Issued(pem),
        Some(Err(_)) => Answer::Refused("what was signed is no text".into()),
        _ => Answer::Pending,
    }
}

/// Asks for a certificate of this name and waits for it, for as long as it takes. Certificate and key (PEM).
pub async fn obtain(client: &Client, common_name: &str, duration: Duration) -> Result<String, RequestError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, names::CERTIFICATE_GROUP);
    params.distinguished_name.push(DnType::CommonName, common_name);
    let request = params.serialize_request(&key)?.pem()?;

    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let wanted = CertificateSigningRequest {
        metadata: ObjectMeta {
            generate_name: Some(NAME.into()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: names::SIGNER.into(),
            usages: Some(USAGES.map(str::to_owned).to_vec()),
            expiration_seconds: Some(i32::try_from(duration.as_secs()).unwrap_or(i32::MAX)),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let created = requests.create(&PostParams::default(), &wanted).await;
    let name = created
        .map_err(|error| RequestError::Ask(Box::new(error)))?
        .metadata
        .name
        .unwrap_or_default();
    tracing::info!(request = name, "asked for a certificate");
    let decided = |request: Option<&CertificateSigningRequest>| {
        request.is_none_or(|request| answer(request) != Answer::Pending)
    };
    let found = await_condition(requests, &name, decided).await;
    let found = found.map_err(|error| RequestError::Follow(Box::new(error)))?;
    match answer(&found.ok_or(RequestError::Gone)?) {
        Answer::Issued(certificate) => Ok(format!("{}\n{}", certificate.trim_end(), key.serialize_pem())),
        Answer::Refused(why) => Err(RequestError::Refused(why)),
        Answer::Pending => Err(RequestError::Gone),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn with(status: &Value) -> CertificateSigningRequest {
        let spec = json!({"request": "", "signerName": "s"});
        serde_json::from_value(json!({"metadata": {}, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn a_request_is_pending_issued_or_refused() {
        assert_eq!(answer(&with(&json!({}))), Answer::Pending);
        let approved = json!([{"type": "Approved", "status": "True"}]);
        assert_eq!(
            answer(&with(&json!({"conditions": approved}))),
            Answer::Pending,
            "nobody signed yet"
        );
        assert_eq!(
            answer(&with(&json!({"conditions": approved, "certificate": "UEVN"}))),
            Answer::Issued("PEM".into())
        );
        let denied = json!([{"type": "Denied", "status": "True", "message": "no such node"}]);
        assert_eq!(
            answer(&with(&json!({"conditions": denied}))),
            Answer::Refused("Denied: no such node".into())
        );
    }
}

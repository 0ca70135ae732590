//! Obtains a certificate from the cluster: creates a key and a `CertificateSigningRequest`, and waits until it is
//! signed.

use crate::names;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use std::time::Duration;

/// Key usages of the certificate.
pub const USAGES: [&str; 2] = ["digital signature", "client auth"];
/// Prefix of the requests' names.
const NAME: &str = "multus-";

/// The certificate cannot be obtained.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The key or the signing request cannot be generated.
    #[error("cannot make a key and a request for a certificate")]
    Make(#[from] rcgen::Error),
    /// The object cannot be created.
    #[error("cannot create the CertificateSigningRequest")]
    Ask(#[source] Box<kube::Error>),
    /// The object cannot be watched.
    #[error("cannot watch the CertificateSigningRequest")]
    Follow(#[source] Box<kube::runtime::wait::Error>),
    /// The request was denied, or the signer failed.
    #[error("the CertificateSigningRequest was refused: {0}")]
    Refused(String),
    /// The object was deleted.
    #[error("the CertificateSigningRequest was deleted")]
    Gone,
}

/// The state of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestState {
    /// Not decided or not signed yet.
    Pending,
    /// The certificate (PEM).
    Issued(String),
    /// Denied or failed, for this reason.
    Refused(String),
}

/// The state of a request by its status.
pub fn state(request: &CertificateSigningRequest) -> RequestState {
    let Some(status) = &request.status else {
        return RequestState::Pending;
    };
    let mut conditions = status.conditions.iter().flatten();
    if let Some(condition) =
        conditions.find(|condition| matches!(condition.type_.as_str(), "Denied" | "Failed"))
    {
        let text = condition.message.clone().or_else(|| condition.reason.clone());
        return RequestState::Refused(format!("{}: {}", condition.type_, text.unwrap_or_default()));
    }
    match status
        .certificate
        .as_ref()
        .map(|certificate| String::from_utf8(certificate.0.clone()))
    {
        Some(Ok(pem)) if !pem.is_empty() => RequestState::Issued(pem),
        Some(Err(_)) => RequestState::Refused("the issued certificate is not PEM".into()),
        _ => RequestState::Pending,
    }
}

/// Requests a certificate of this name and waits for it without a limit. Returns certificate and key (PEM).
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
    tracing::info!(request = name, "requested a certificate");
    let decided = |request: Option<&CertificateSigningRequest>| {
        request.is_none_or(|request| state(request) != RequestState::Pending)
    };
    let found = await_condition(requests, &name, decided).await;
    let found = found.map_err(|error| RequestError::Follow(Box::new(error)))?;
    match state(&found.ok_or(RequestError::Gone)?) {
        RequestState::Issued(certificate) => {
            Ok(format!("{}\n{}", certificate.trim_end(), key.serialize_pem()))
        }
        RequestState::Refused(why) => Err(RequestError::Refused(why)),
        RequestState::Pending => Err(RequestError::Gone),
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
    fn request_is_pending_issued_or_refused() {
        assert_eq!(state(&with(&json!({}))), RequestState::Pending);
        let approved = json!([{"type": "Approved", "status": "True"}]);
        assert_eq!(
            state(&with(&json!({"conditions": approved}))),
            RequestState::Pending,
            "not signed yet"
        );
        assert_eq!(
            state(&with(&json!({"conditions": approved, "certificate": "UEVN"}))),
            RequestState::Issued("PEM".into())
        );
        let denied = json!([{"type": "Denied", "status": "True", "message": "no such node"}]);
        assert_eq!(
            state(&with(&json!({"conditions": denied}))),
            RequestState::Refused("Denied: no such node".into())
        );
    }
}

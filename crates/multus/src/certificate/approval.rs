//! Decides whether to approve a `CertificateSigningRequest` of multus (multus.md §7.8). Pure.

use super::request::USAGES;
use crate::names;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer as _;

/// Prefixes of permitted users, each followed by the node's name: the node itself, and multus on it.
const USERS: [&str; 2] = ["system:node", names::CERTIFICATE_GROUP];
/// The only groups that the user may be in.
const GROUPS: [&str; 3] = ["system:nodes", names::CERTIFICATE_GROUP, "system:authenticated"];
/// Limit of a certificate's lifetime, in seconds.
const LONGEST: i32 = 365 * 24 * 60 * 60;
/// Limit of a node's name, in bytes.
const LONGEST_NAME: usize = 253;

/// The decision about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Ignore it: it is not about multus, or already decided.
    Leave,
    /// Approve it.
    Approve,
    /// Deny it, for this reason.
    Deny(String),
}

/// Decides about a request.
pub fn decide(request: &CertificateSigningRequest) -> Decision {
    let decided = request.status.as_ref().is_some_and(|status| {
        status.certificate.is_some() || status.conditions.iter().flatten().next().is_some()
    });
    if decided || request.spec.signer_name != names::SIGNER {
        return Decision::Leave;
    }
    let Some(subject) = Subject::read(&request.spec.request.0) else {
        return Decision::Leave;
    };
    if !subject.common_name.starts_with(names::CERTIFICATE_GROUP) {
        return Decision::Leave;
    }
    match violation(request, &subject) {
        None => Decision::Approve,
        Some(violation) => Decision::Deny(violation),
    }
}

fn violation(request: &CertificateSigningRequest, subject: &Subject) -> Option<String> {
    let spec = &request.spec;
    let user = spec.username.as_deref().unwrap_or_default();
    let node = USERS
        .iter()
        .find_map(|prefix| user.strip_prefix(prefix)?.strip_prefix(':'));
    let Some(node) = node else {
        return Some(format!("user {user:?} is neither a node nor multus on a node"));
    };
    if !is_subdomain(node) {
        return Some(format!("user {user:?} has no name of a node"));
    }
    let mut usages: Vec<&str> = spec.usages.iter().flatten().map(String::as_str).collect();
    usages.sort_unstable_by_key(|usage| USAGES.iter().position(|known| known == usage));
    if usages != USAGES {
        return Some(format!("usages {usages:?} are not {USAGES:?}"));
    }
    if let Some(group) = spec
        .groups
        .iter()
        .flatten()
        .find(|group| !GROUPS.contains(&group.as_str()))
    {
        return Some(format!("user {user:?} is in group {group:?}"));
    }
    let wanted = format!("{}:{node}", names::CERTIFICATE_GROUP);
    if subject.common_name != wanted {
        return Some(format!("common name {:?} is not {wanted:?}", subject.common_name));
    }
    if subject.organizations != [names::CERTIFICATE_GROUP] {
        return Some(format!(
            "organizations {:?} are not [{:?}]",
            subject.organizations,
            names::CERTIFICATE_GROUP
        ));
    }
    match spec.expiration_seconds {
        None => Some("expirationSeconds is not set".into()),
        Some(seconds) if seconds > LONGEST => {
            Some(format!("expirationSeconds {seconds} is more than {LONGEST}"))
        }
        Some(_) => None,
    }
}

/// The subject of the requested certificate.
struct Subject {
    common_name: String,
    organizations: Vec<String>,
}

impl Subject {
    fn read(pem: &[u8]) -> Option<Self> {
        let (_, block) = parse_x509_pem(pem).ok()?;
        let (_, request) = X509CertificationRequest::from_der(&block.contents).ok()?;
        let subject = &request.certification_request_info.subject;
        // The API server uses the last common name too.
        let common_name = subject.iter_common_name().last()?.as_str().ok()?.to_owned();
        let organizations = subject
            .iter_organization()
            .map(|name| name.as_str().map(str::to_owned));
        Some(Self {
            common_name,
            organizations: organizations.collect::<Result<_, _>>().ok()?,
        })
    }
}

/// Whether a name is a DNS subdomain (RFC 1123).
fn is_subdomain(name: &str) -> bool {
    let label = |label: &str| {
        let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= LONGEST_NAME && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
    use serde_json::json;

    fn pem(common_name: &str, organizations: &[&str]) -> ByteString {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for organization in organizations {
            params
                .distinguished_name
                .push(DnType::OrganizationName, *organization);
        }
        params.distinguished_name.push(DnType::CommonName, common_name);
        let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();
        ByteString(request.pem().unwrap().into_bytes())
    }

    fn good() -> CertificateSigningRequest {
        let mut request: CertificateSigningRequest =
            serde_json::from_value(json!({"metadata": {"name": "r"},
            "spec": {"request": "", "signerName": "kubernetes.io/kube-apiserver-client",
                "username": "system:node:n1.example.com", "groups": ["system:nodes", "system:authenticated"],
                "usages": ["client auth", "digital signature"], "expirationSeconds": 600}}))
            .unwrap();
        request.spec.request = pem("system:multus:n1.example.com", &["system:multus"]);
        request
    }

    #[test]
    fn requests_of_nodes_and_their_multus_are_approved() {
        assert_eq!(decide(&good()), Decision::Approve);
        let mut renewal = good();
        renewal.spec.username = Some("system:multus:n1.example.com".into());
        renewal.spec.groups = Some(vec!["system:multus".into(), "system:authenticated".into()]);
        renewal.spec.expiration_seconds = Some(LONGEST);
        assert_eq!(decide(&renewal), Decision::Approve);
    }

    #[test]
    fn request_of_other_subject_is_ignored() {
        let mut request = good();
        request.spec.signer_name = "kubernetes.io/kubelet-serving".into();
        assert_eq!(decide(&request), Decision::Leave);
        let mut request = good();
        request.spec.request = pem("system:node:n1", &["system:nodes"]);
        assert_eq!(decide(&request), Decision::Leave);
        let mut request = good();
        request.spec.request = ByteString(b"nonsense".to_vec());
        assert_eq!(decide(&request), Decision::Leave);
        for status in [
            json!({"conditions": [{"type": "Denied", "status": "True"}]}),
            json!({"certificate": "QQ=="}),
        ] {
            let mut request = good();
            request.status = Some(serde_json::from_value(status).unwrap());
            assert_eq!(decide(&request), Decision::Leave);
        }
    }

    #[test]
    fn forged_request_is_denied_with_reason() {
        type Change = fn(&mut CertificateSigningRequest);
        let cases: [(Change, &str); 11] = [
            (
                |it| it.spec.username = Some("admin".into()),
                "user \"admin\" is neither a node nor multus on a node",
            ),
            (
                |it| it.spec.username = Some("system:node:".into()),
                "user \"system:node:\" has no name of a node",
            ),
            (
                |it| it.spec.username = Some("system:node:N_1".into()),
                "user \"system:node:N_1\" has no name of a node",
            ),
            (
                |it| it.spec.usages = Some(vec!["client auth".into()]),
                "usages [\"client auth\"] are not [\"digital signature\", \"client auth\"]",
            ),
            (
                |it| it.spec.usages.as_mut().unwrap().push("server auth".into()),
                "usages ",
            ),
            (
                |it| it.spec.groups.as_mut().unwrap().push("system:masters".into()),
                "user \"system:node:n1.example.com\" is in group \"system:masters\"",
            ),
            (
                |it| it.spec.username = Some("system:node:n2".into()),
                "common name \"system:multus:n1.example.com\" is not \"system:multus:n2\"",
            ),
            (
                |it| it.spec.request = pem("system:multus:n1.example.com", &["system:masters"]),
                "organizations [\"system:masters\"] are not [\"system:multus\"]",
            ),
            (
                |it| it.spec.request = pem("system:multus:n1.example.com", &[]),
                "organizations [] are not [\"system:multus\"]",
            ),
            (
                |it| it.spec.expiration_seconds = None,
                "expirationSeconds is not set",
            ),
            (
                |it| it.spec.expiration_seconds = Some(LONGEST + 1),
                "expirationSeconds 31536001 is more than 31536000",
            ),
        ];
        for (change, reason) in cases {
            let mut request = good();
            change(&mut request);
            match decide(&request) {
                Decision::Deny(text) => assert!(text.starts_with(reason), "{text}"),
                other => panic!("{reason}: {other:?}"),
            }
        }
    }
}

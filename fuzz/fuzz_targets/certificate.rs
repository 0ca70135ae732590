//! Certificate signing requests: a mistake of their approver would sign a certificate of another node.

#![no_main]

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use libfuzzer_sys::fuzz_target;
use multus::certificate::approval::{Decision, decide};

/// The only subject that the user below may have.
const SUBJECT: &[u8] = b"system:multus:node01";

fuzz_target!(|der: &[u8]| {
    // Kubernetes' bytes are Base64 in JSON.
    let base64 = serde_json::to_string(&ByteString(der.to_vec())).expect("JSON");
    let base64 = base64.trim_matches('"');
    let pem = format!("-----BEGIN CERTIFICATE REQUEST-----\n{base64}\n-----END CERTIFICATE REQUEST-----\n");
    let words = |words: [&str; 2]| Some(words.map(str::to_owned).to_vec());
    let mut request = CertificateSigningRequest::default();
    request.spec.request = ByteString(pem.into_bytes());
    request.spec.signer_name = "kubernetes.io/kube-apiserver-client".to_owned();
    request.spec.username = Some("system:node:node01".to_owned());
    request.spec.groups = words(["system:nodes", "system:authenticated"]);
    request.spec.usages = words(["digital signature", "client auth"]);
    request.spec.expiration_seconds = Some(3600);
    if decide(&request) == Decision::Approve {
        assert!(der.windows(SUBJECT.len()).any(|part| part == SUBJECT));
    }
});

//! Certificate signing requests: a mistake of their approver would sign a certificate of another node.

#![no_main]

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use libfuzzer_sys::fuzz_target;
use multus::certificate::approval::{Decision, decide};

fuzz_target!(|pem: &[u8]| {
    let mut request = CertificateSigningRequest::default();
    request.spec.request = ByteString(pem.to_vec());
    request.spec.signer_name = "kubernetes.io/kube-apiserver-client".to_owned();
    request.spec.username = Some("system:node:node01".to_owned());
    // Usages and groups are missing.
    assert_ne!(decide(&request), Decision::Approve);
});

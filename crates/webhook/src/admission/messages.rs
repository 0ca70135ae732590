//! Texts about malformed requests (kubemacpool §12).

/// Content type of requests and responses.
pub(super) const JSON: &str = "application/json";

/// The code of forbidden requests, and its reason (kubevirt-ipam §6.1).
pub(super) const FORBIDDEN: (u16, &str) = (403, "Forbidden");
pub(super) const EMPTY: &str = "request body is empty";
pub(super) const TOO_SLOW: &str = "request body takes too long";

pub(super) const PANICKED: &str = "internal error: the webhook failed, see its log";

pub(super) fn too_large(limit: usize) -> String {
    format!("request entity is too large; limit is {limit} bytes")
}

pub(super) fn content_type(found: &str) -> String {
    format!("contentType={found}, expected {JSON}")
}

pub(super) fn not_a_review(kind: &str, version: &str) -> String {
    format!(
        "expected an AdmissionReview of admission.k8s.io/v1 or admission.k8s.io/v1beta1, got kind {kind:?} of {version:?}"
    )
}

pub(super) const NO_REQUEST: &str = "the AdmissionReview has no request";

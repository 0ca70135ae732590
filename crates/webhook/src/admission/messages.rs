//! What is said of requests that can't be answered (kubemacpool §12).

/// What is asked and answered in.
pub(super) const JSON: &str = "application/json";

/// The code of what is not allowed, and the reason that goes with it (kubevirt-ipam §6.1).
pub(super) const FORBIDDEN: (u16, &str) = (403, "Forbidden");
/// There is nothing to answer.
pub(super) const EMPTY: &str = "request body is empty";
/// The review does not come to an end.
pub(super) const TOO_SLOW: &str = "request body takes too long";

/// The handler panicked.
pub(super) const PANICKED: &str = "internal error: the webhook failed, its log says how";

/// There is more than is read.
pub(super) fn too_large(limit: usize) -> String {
    format!("request entity is too large; limit is {limit} bytes")
}

/// It is not said to be JSON.
pub(super) fn content_type(found: &str) -> String {
    format!("contentType={found}, expected {JSON}")
}

/// It is JSON, but no review.
pub(super) fn not_a_review(kind: &str, version: &str) -> String {
    format!(
        "expected an AdmissionReview of admission.k8s.io/v1 or admission.k8s.io/v1beta1, got kind {kind:?} of {version:?}"
    )
}

/// It is a review that asks nothing.
pub(super) const NO_REQUEST: &str = "the AdmissionReview has no request";

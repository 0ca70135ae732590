//! Literals of certificate managers (kubemacpool §1, nmstate §8, §13).

pub(super) const ANNOTATION: &str = "kubevirt.io/kube-admission-webhook";
/// Type of the CA's Secret.
pub(super) const OPAQUE: &str = "Opaque";
/// Type of the server's Secret.
pub(super) const TLS: &str = "kubernetes.io/tls";

/// The variable that selects this mode, with any value.
pub(super) const MODE: &str = "RUN_CERT_MANAGER";

/// A variable with a duration, and its name in error texts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Interval {
    pub(super) variable: &'static str,
    pub(super) option: &'static str,
}

pub(super) const POD_NAMESPACE: &str = "POD_NAMESPACE";

/// Lifetime of a CA.
pub(super) const CA_ROTATE: Interval = Interval {
    variable: "CA_ROTATE_INTERVAL",
    option: "CARotateInterval",
};
/// How long before its expiry a new CA is issued.
pub(super) const CA_OVERLAP: Interval = Interval {
    variable: "CA_OVERLAP_INTERVAL",
    option: "CAOverlapInterval",
};
/// Lifetime of the server's certificate.
pub(super) const CERT_ROTATE: Interval = Interval {
    variable: "CERT_ROTATE_INTERVAL",
    option: "CertRotateInterval",
};
/// How long before its expiry a new one is served.
pub(super) const CERT_OVERLAP: Interval = Interval {
    variable: "CERT_OVERLAP_INTERVAL",
    option: "CertOverlapInterval",
};

/// Variables that become labels of the Secrets, unless empty.
pub(super) const LABELS: [(&str, &str); 4] = [
    ("COMPONENT", "app.kubernetes.io/component"),
    ("PART_OF", "app.kubernetes.io/part-of"),
    ("VERSION", "app.kubernetes.io/version"),
    ("MANAGED_BY", "app.kubernetes.io/managed-by"),
];

//! Literals of certificate managers (kubemacpool §1, nmstate §8, §13).

/// Annotation of both Secrets.
pub(super) const ANNOTATION: &str = "kubevirt.io/kube-admission-webhook";
/// Type of the authority's Secret.
pub(super) const OPAQUE: &str = "Opaque";
/// Type of the server's Secret.
pub(super) const TLS: &str = "kubernetes.io/tls";

/// The variable by which this mode is asked for, whatever it holds.
pub(super) const MODE: &str = "RUN_CERT_MANAGER";

/// A variable that holds a duration, and how texts about it call it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Interval {
    pub(super) variable: &'static str,
    pub(super) option: &'static str,
}

/// The variable with the namespace of the pod.
pub(super) const POD_NAMESPACE: &str = "POD_NAMESPACE";

/// Life of an authority.
pub(super) const CA_ROTATE: Interval = Interval {
    variable: "CA_ROTATE_INTERVAL",
    option: "CARotateInterval",
};
/// How long before its end a new authority is there.
pub(super) const CA_OVERLAP: Interval = Interval {
    variable: "CA_OVERLAP_INTERVAL",
    option: "CAOverlapInterval",
};
/// Life of the server's certificate.
pub(super) const CERT_ROTATE: Interval = Interval {
    variable: "CERT_ROTATE_INTERVAL",
    option: "CertRotateInterval",
};
/// How long before its end a new one is served.
pub(super) const CERT_OVERLAP: Interval = Interval {
    variable: "CERT_OVERLAP_INTERVAL",
    option: "CertOverlapInterval",
};

/// Variables that become labels of the Secrets, unless they are empty.
pub(super) const LABELS: [(&str, &str); 4] = [
    ("COMPONENT", "app.kubernetes.io/component"),
    ("PART_OF", "app.kubernetes.io/part-of"),
    ("VERSION", "app.kubernetes.io/version"),
    ("MANAGED_BY", "app.kubernetes.io/managed-by"),
];

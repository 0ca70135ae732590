//! Errors of a specification (operator §5.1), for the operator and its admission policy: each text is a function of its
//! values, so that the policy can insert CEL expressions where the operator inserts values.

use std::fmt::Display;

/// OpenShift deploys multus itself, or is configured to deploy none.
pub(crate) const MULTUS_DISABLED: &str =
    "multus has been requested, but is disabled on OpenShift Cluster Network Operator";
/// Only one end of the range is set.
pub(crate) const HALF_A_RANGE: &str = "both or none of the KubeMacPool ranges needs to be configured";
/// The first address of the range cannot be parsed.
pub(crate) const INVALID_START: &str = "failed to parse rangeStart because the mac address is invalid";
/// The last address of the range cannot be parsed.
pub(crate) const INVALID_END: &str = "failed to parse rangeEnd because the mac address is invalid";
/// Dynamic networks on OpenShift.
pub(crate) const DYNAMIC_ON_OPENSHIFT: &str =
    "`multusDynamicNetworks` configuration is not supported on Openshift yet";
/// Dynamic networks without multus.
pub(crate) const DYNAMIC_WITHOUT_MULTUS: &str = "the `multus` configuration is required";
/// Macvtap on OpenShift.
pub(crate) const MACVTAP_ON_OPENSHIFT: &str =
    "`macvtap` has been requested, but is not supported on OpenShift";
/// A TLS profile without a type.
pub(crate) const TLS_TYPE_MISSING: &str = "failed to validate tlsSecurityProfile: type is missing";
/// A custom TLS profile without its settings.
pub(crate) const TLS_CUSTOM_MISSING: &str =
    "failed to validate tlsSecurityProfile: custom is missing for type Custom";

/// The range ends before it starts.
pub(crate) fn range_order(start: impl Display, end: impl Display) -> String {
    format!(
        "failed to set mac address range: invalid range. Range end is lesser than or equal to its start. start: {start} \
         end: {end}"
    )
}

/// One end of the range, `RangeStart` or `RangeEnd`, is a multicast address with this first octet.
pub(crate) fn multicast(end: &str, octet: impl Display) -> String {
    format!(
        "failed to set {end}: invalid mac address. Multicast addressing is not supported. Unicast addressing must be \
         used. The first octet is 0X{octet}"
    )
}

/// The TTL of the secondary DNS is out of bounds.
pub(crate) fn dns_ttl(ttl: impl Display) -> String {
    format!("kubeSecondaryDNS: ttl {ttl} is not a number of seconds from 0 to 86400")
}

/// A prefix of the secondary DNS cannot be parsed.
pub(crate) fn dns_prefix(prefix: impl Display) -> String {
    format!("kubeSecondaryDNS: allowedPrefixes: \"{prefix}\" is not a prefix such as 10.0.0.0/8")
}

/// A namespace that cannot exist.
pub(crate) fn global_namespace(name: impl Display) -> String {
    format!("multus: globalNamespaces: \"{name}\" is not the name of a namespace")
}

/// An unknown pull policy.
pub(crate) fn pull_policy(policy: impl Display) -> String {
    format!("requested imagePullPolicy '{policy}' is not valid")
}

fn self_sign(problem: impl Display) -> String {
    format!("failed to validate selfSignConfiguration: {problem}")
}

/// An interval is missing.
pub(crate) fn interval_missing(name: &str) -> String {
    self_sign(format_args!("{name} is missing"))
}

/// An interval is not a duration; the cause is the text of Go's parser.
pub(crate) fn interval_unreadable(name: &str, cause: impl Display) -> String {
    self_sign(format_args!("error parsing {name}: {cause}"))
}

/// An interval is zero or negative.
pub(crate) fn interval_not_positive(name: &str) -> String {
    self_sign(format_args!("{name} duration has to be > 0"))
}

/// An interval exceeds its bound.
pub(crate) fn interval_too_long(small: &str, short: impl Display, big: &str, long: impl Display) -> String {
    self_sign(format_args!("{small}({short}) has to be <= {big}({long})"))
}

/// An unsupported socket.
pub(crate) fn cri_socket(supported: &[&str]) -> String {
    format!("`hostCRISocketPath` must be one of: {}", supported.join(", "))
}

/// An unknown type of TLS profile.
pub(crate) fn tls_type(kind: impl Display) -> String {
    format!("failed to validate tlsSecurityProfile: type '{kind}' is not valid")
}

/// A directory of CNI, `bin` or `conf`, has an invalid path.
pub(crate) fn cni_directory(field: &str, path: impl Display) -> String {
    format!(
        "requested cniDirectories.{field} '{path}' is not valid: it has to be an absolute path of letters, digits, '.', \
         '_', '+' and '-', without '..'"
    )
}

/// A directory of CNI, `bin` or `conf`, is outside of the allowed directories: pods may write there.
pub(crate) fn cni_place(field: &str, path: impl Display, places: &[&str]) -> String {
    format!(
        "requested cniDirectories.{field} '{path}' is not valid: it has to be one of {}, or below",
        places.join(", ")
    )
}

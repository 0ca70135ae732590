//! Errors of a specification (operator §5.1), told by the operator and by its admission policy: each text is a function
//! of its values, so that the policy can put expressions where the operator puts what it found.

use std::fmt::Display;

/// OpenShift deploys multus, or is told not to.
pub const MULTUS_DISABLED: &str =
    "multus has been requested, but is disabled on OpenShift Cluster Network Operator";
/// Only one end of the pool.
pub const HALF_A_RANGE: &str = "both or none of the KubeMacPool ranges needs to be configured";
/// The first address of the pool is none.
pub const INVALID_START: &str = "failed to parse rangeStart because the mac address is invalid";
/// The last address of the pool is none.
pub const INVALID_END: &str = "failed to parse rangeEnd because the mac address is invalid";
/// Dynamic networks on OpenShift.
pub const DYNAMIC_ON_OPENSHIFT: &str =
    "`multusDynamicNetworks` configuration is not supported on Openshift yet";
/// Dynamic networks alone.
pub const DYNAMIC_WITHOUT_MULTUS: &str = "the `multus` configuration is required";
/// Macvtap on OpenShift.
pub const MACVTAP_ON_OPENSHIFT: &str = "`macvtap` has been requested, but is not supported on OpenShift";
/// A TLS profile of no type.
pub const TLS_TYPE_MISSING: &str = "failed to validate tlsSecurityProfile: type is missing";
/// A custom TLS profile without its settings.
pub const TLS_CUSTOM_MISSING: &str =
    "failed to validate tlsSecurityProfile: custom is missing for type Custom";

/// The pool ends before it begins.
pub fn range_order(start: impl Display, end: impl Display) -> String {
    format!(
        "failed to set mac address range: invalid range. Range end is lesser than or equal to its start. start: {start} \
         end: {end}"
    )
}

/// One end of the pool, `RangeStart` or `RangeEnd`, is a multicast address with this first octet.
pub fn multicast(end: &str, octet: impl Display) -> String {
    format!(
        "failed to set {end}: invalid mac address. Multicast addressing is not supported. Unicast addressing must be \
         used. The first octet is 0X{octet}"
    )
}

/// A pull policy that there is not.
pub fn pull_policy(policy: impl Display) -> String {
    format!("requested imagePullPolicy '{policy}' is not valid")
}

fn self_sign(problem: impl Display) -> String {
    format!("failed to validate selfSignConfiguration: {problem}")
}

/// An interval is not given.
pub fn interval_missing(name: &str) -> String {
    self_sign(format_args!("{name} is missing"))
}

/// An interval is no duration; the cause is in Go's words.
pub fn interval_unreadable(name: &str, cause: impl Display) -> String {
    self_sign(format_args!("error parsing {name}: {cause}"))
}

/// An interval lasts no time.
pub fn interval_not_positive(name: &str) -> String {
    self_sign(format_args!("{name} duration has to be > 0"))
}

/// An interval is longer than the one that it is a part of.
pub fn interval_too_long(small: &str, short: impl Display, big: &str, long: impl Display) -> String {
    self_sign(format_args!("{small}({short}) has to be <= {big}({long})"))
}

/// A socket that is none of these.
pub fn cri_socket(supported: &[&str]) -> String {
    format!("`hostCRISocketPath` must be one of: {}", supported.join(", "))
}

/// A type of TLS profile that there is not.
pub fn tls_type(kind: impl Display) -> String {
    format!("failed to validate tlsSecurityProfile: type '{kind}' is not valid")
}

/// A directory of CNI, `bin` or `conf`, is none.
pub fn cni_directory(field: &str, path: impl Display) -> String {
    format!(
        "requested cniDirectories.{field} '{path}' is not valid: it has to be an absolute path of letters, digits, '.', \
         '_', '+' and '-', without '..'"
    )
}

/// A directory of CNI, `bin` or `conf`, is at a place where pods may write.
pub fn cni_place(field: &str, path: impl Display, places: &[&str]) -> String {
    format!(
        "requested cniDirectories.{field} '{path}' is not valid: it has to be one of {}, or below",
        places.join(", ")
    )
}

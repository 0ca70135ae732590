//! Texts for users of the webhooks (multus.md §16).

/// Limit of a denial's text, in bytes: errors may quote the user's text.
const LONGEST: usize = 1024;
/// Limit of a warning, in bytes: API servers truncate longer ones.
const LONGEST_WARNING: usize = 256;

/// Denial of a definition.
pub(super) fn refused(errors: &[String]) -> String {
    clipped(format!("spec.config: {}", errors.join("; ")), LONGEST)
}

/// Warning about a definition.
pub(super) fn warning(text: &str) -> String {
    clipped(format!("spec.config: {text}"), LONGEST_WARNING)
}

pub(super) fn unsupported_version(version: &str) -> String {
    format!("unsupported cniVersion {version:?}")
}

pub(super) fn invalid_name(name: &str) -> String {
    format!("invalid characters found in network name {name:?}")
}

pub(super) fn invalid_plugin(plugin: &str) -> String {
    format!("invalid plugin name: {plugin}")
}

pub(super) fn unknown_key(plugin: &str, key: &str) -> String {
    format!("plugin {plugin} does not know the key {key:?}")
}

pub(super) fn more_warnings(count: usize) -> String {
    warning(&format!("{count} more keys are not known"))
}

pub(super) const NO_NAME: &str = "no name: that of the definition is taken";
pub(super) const NO_VERSION: &str =
    "no cniVersion: 0.1.0 is assumed, with at most one address of each family and without CHECK";
pub(super) const BOTH: &str = "with type and plugins, plugins is not looked at";

/// Warning: the definition's name is not a DNS label.
pub(super) fn no_label(name: &str) -> String {
    clipped(
        format!("{name} can be named only in the JSON form of the pods' annotation: it is no DNS label"),
        LONGEST_WARNING,
    )
}

/// Warning: the annotation does not hold the name of a resource.
pub(super) fn no_resource(annotation: &str, text: &str) -> String {
    clipped(
        format!("annotation {annotation}: {text:?} is no name of a resource, as vendor.example/name is"),
        LONGEST_WARNING,
    )
}

/// Warning: the networks of a pod are unknown, so no resources are requested.
pub(super) fn unknown_networks(cause: &str) -> String {
    clipped(
        format!("cannot determine the networks of the pod: {cause}"),
        LONGEST_WARNING,
    )
}

/// Warning: a network could not be looked up.
pub(super) fn not_looked_up(network: &str, cause: &str) -> String {
    clipped(
        format!("no resources are requested: cannot look up network {network}: {cause}"),
        LONGEST_WARNING,
    )
}

/// Warning: a container requests a count that is not a number.
pub(super) fn no_count(resource: &str, text: &str) -> String {
    clipped(
        format!("no resources are requested: {text:?} of {resource} is no whole number"),
        LONGEST_WARNING,
    )
}

fn clipped(text: String, longest: usize) -> String {
    const MORE: &str = "...";
    if text.len() <= longest {
        return text;
    }
    format!(
        "{}{MORE}",
        &text[..text.floor_char_boundary(longest - MORE.len())]
    )
}

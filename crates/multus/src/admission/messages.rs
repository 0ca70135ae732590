//! Texts that users of the webhooks read (multus.md §16).

/// The longest text that is answered, in bytes: errors may repeat what a user wrote.
const LONGEST: usize = 1024;
/// The longest warning, in bytes: API servers cut longer ones.
const LONGEST_WARNING: usize = 256;

/// A definition is refused.
pub(super) fn refused(errors: &[String]) -> String {
    clipped(format!("spec.config: {}", errors.join("; ")), LONGEST)
}

/// Something about a definition is doubtful.
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

/// The definition's own name is no DNS label.
pub(super) fn no_label(name: &str) -> String {
    clipped(
        format!("{name} can be named only in the JSON form of the pods' annotation: it is no DNS label"),
        LONGEST_WARNING,
    )
}

/// The annotation with the resource holds none.
pub(super) fn no_resource(annotation: &str, text: &str) -> String {
    clipped(
        format!("annotation {annotation}: {text:?} is no name of a resource, as vendor.example/name is"),
        LONGEST_WARNING,
    )
}

/// The networks of a pod can't be told, so nothing is injected.
pub(super) fn annotation(cause: &str) -> String {
    clipped(format!("its networks can't be told: {cause}"), LONGEST_WARNING)
}

/// A network can't be looked up.
pub(super) fn not_looked_up(network: &str, cause: &str) -> String {
    clipped(
        format!("no resources are requested: network {network} can't be looked up: {cause}"),
        LONGEST_WARNING,
    )
}

/// What a container requests is no number.
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

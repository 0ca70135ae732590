//! Validates the configuration of a NetworkAttachmentDefinition: errors refuse it, warnings do not (multus.md §16.1).

use super::messages;
use crate::networks::delegate::Config;
use cni::Version;
use cni::env::is_identifier;
use cni::json::Object;
use cni::names::{RESOURCE_NAME_ANNOTATION, key};
use kube_kit::path::is_label;
use plugins::lint::lint;
use serde::Deserialize;
use std::collections::BTreeMap;
use webhook::admission::{Operation, Request, Verdict};

/// HTTP status of a refused definition.
const INVALID: u16 = 422;
/// Limit of warnings about unknown keys: API servers truncate long lists.
const MAX_UNKNOWN_KEYS: usize = 10;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Definition {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    config: Option<String>,
}

impl Definition {
    fn config(&self) -> &str {
        self.spec.config.as_deref().unwrap_or_default()
    }
}

/// Errors and warnings about a definition.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Findings {
    /// Reasons why no pod could be attached to the network.
    pub errors: Vec<String>,
    /// Probable mistakes.
    pub warnings: Vec<String>,
}

/// Admits or refuses a definition that is created or updated. An update that leaves the configuration unchanged is
/// admitted: an invalid definition that is already stored must stay removable.
pub fn decide(request: &Request) -> Verdict {
    if !matches!(request.operation, Operation::Create | Operation::Update) {
        return Verdict::allowed();
    }
    let read = |object: Option<&serde_json::value::RawValue>| -> Result<Definition, serde_json::Error> {
        object.map_or_else(
            || Ok(Definition::default()),
            |text| serde_json::from_str(text.get()),
        )
    };
    let new = match read(request.object.as_deref()) {
        Ok(new) => new,
        Err(error) => return Verdict::denied(400, error.to_string()),
    };
    if request.operation == Operation::Update
        && read(request.old_object.as_deref()).is_ok_and(|old| old.config() == new.config())
    {
        return Verdict::allowed();
    }
    let name = if new.metadata.name.is_empty() {
        &request.name
    } else {
        &new.metadata.name
    };
    let Findings { errors, mut warnings } = findings(name, new.config());
    if !errors.is_empty() {
        return Verdict::denied(INVALID, messages::refused(&errors));
    }
    // The short form of the annotation requires a label.
    if !name.is_empty() && !is_label(name) {
        warnings.push(messages::no_label(name));
    }
    let resource = new
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(RESOURCE_NAME_ANNOTATION));
    if let Some(resource) = resource.filter(|resource| !is_resource(resource)) {
        warnings.push(messages::no_resource(RESOURCE_NAME_ANNOTATION, resource));
    }
    Verdict {
        warnings,
        ..Verdict::allowed()
    }
}

/// Validates the configuration of a definition with this name. An empty configuration refers to a file on the nodes
/// and is valid.
pub fn findings(name: &str, config: &str) -> Findings {
    let mut findings = Findings::default();
    if config.is_empty() {
        return findings;
    }
    // The API server generates the name later.
    let name = if name.is_empty() { "generated" } else { name };
    let parsed = match Config::parse_named(config.as_bytes(), name) {
        Ok(parsed) => parsed,
        Err(error) => {
            findings.errors.push(error.to_string());
            return findings;
        }
    };
    let network = match parsed.network() {
        Ok(network) => network,
        Err(error) => {
            findings.errors.push(error.to_string());
            return findings;
        }
    };
    let version = network.version().unwrap_or_else(|| {
        findings
            .errors
            .push(messages::unsupported_version(&network.version_text));
        Version::LATEST
    });
    if !is_identifier(&network.name) {
        findings.errors.push(messages::invalid_name(&network.name));
    }
    let mut unknown = Vec::new();
    for plugin in &network.plugins {
        if plugin.plugin().contains('/') {
            findings.errors.push(messages::invalid_plugin(plugin.plugin()));
        }
        let mut lint = lint(plugin, version);
        findings.errors.append(&mut lint.errors);
        unknown.append(&mut lint.unknown);
    }
    findings.warnings = warnings(config, &unknown);
    findings
}

fn warnings(config: &str, unknown: &[(String, String)]) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Ok(object) = Object::parse(config.as_bytes()) {
        let lacks = |key| object.text(key).unwrap_or_default().is_empty();
        if lacks(key::NAME) {
            warnings.push(messages::warning(messages::NO_NAME));
        }
        if lacks(key::CNI_VERSION) && !object.contains(key::CNI_VERSIONS) {
            warnings.push(messages::warning(messages::NO_VERSION));
        }
        if !lacks(key::TYPE) && object.contains(key::PLUGINS) {
            warnings.push(messages::warning(messages::BOTH));
        }
    }
    let keys = unknown.iter().take(MAX_UNKNOWN_KEYS);
    warnings.extend(keys.map(|(plugin, key)| messages::warning(&messages::unknown_key(plugin, key))));
    if unknown.len() > MAX_UNKNOWN_KEYS {
        warnings.push(messages::more_warnings(unknown.len() - MAX_UNKNOWN_KEYS));
    }
    warnings
}

/// Whether a text is the name of an extended resource: a domain, a slash and a name.
fn is_resource(text: &str) -> bool {
    let parts: Vec<_> = text.split('/').collect();
    let name = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    parts.len() == 2 && parts.into_iter().all(name)
}

#[cfg(test)]
mod tests;

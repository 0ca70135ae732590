//! The work of one pass, decided from observations alone (§5).
//!
//! ```text
//! operator configuration ──> canonicalise ──> validate ──> defaults ──> safety check ──> render ──> Plan
//!                                                └─────────────┴────────────┴─ Rejection: nothing is applied
//! ```

use api::cluster_network::{config::NetworkDiagnostics, operator::NetworkSpec};
use serde_json::{Value, json};

use crate::{
    canonical,
    defaults::{self, UnknownMtu},
    facts::Facts,
    messages, names, operator_config,
    render::{self, Context, Rendered},
    safety,
    settings::Settings,
};

/// Everything that a plan depends on.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The operator configuration, with what the cluster configuration decides.
    pub spec: &'a NetworkSpec,
    /// The configuration that is applied; none when everything is safe.
    pub previous: Option<&'a NetworkSpec>,
    /// Checks of connectivity, from the cluster configuration.
    pub diagnostics: &'a NetworkDiagnostics,
    /// The cluster.
    pub facts: &'a Facts,
    /// The operator's own settings.
    pub settings: &'a Settings,
}

/// The work of one pass.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The configuration with all defaults, as the operator configuration is to be.
    pub filled: NetworkSpec,
    /// The configuration as it is recorded: the MTU is that at the end of a migration.
    pub applied: NetworkSpec,
    /// What is to be there.
    pub rendered: Rendered,
}

/// The configuration as a whole changes nothing.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Rejection {
    /// It is wrong.
    #[error("{}", messages::invalid_operator_config(.0))]
    Invalid(Vec<String>),
    /// It must not follow the applied one.
    #[error("{}", messages::unsafe_change(.0))]
    Unsafe(Vec<String>),
    /// Packets of pods are larger than those of nodes.
    #[error("{0}")]
    NoOverlay(String),
    /// Nobody knows how large packets may be.
    #[error("Failed to probe MTU: {0}")]
    Mtu(#[from] UnknownMtu),
}

impl Plan {
    /// Decides the work. A part that can't be rendered does not keep the others from it.
    ///
    /// # Errors
    /// When the configuration is wrong, or must not follow the applied one.
    pub fn of(input: &Input<'_>) -> Result<Self, Rejection> {
        let Input {
            spec,
            previous,
            diagnostics,
            facts,
            settings,
        } = *input;
        let mut spec = spec.clone();
        if canonical::canonicalise(&mut spec) {
            tracing::warn!("values of the operator configuration have a deprecated spelling");
        }
        let errors = operator_config::errors(&spec);
        if !errors.is_empty() {
            return Err(Rejection::Invalid(errors));
        }
        let mut filled = spec;
        defaults::fill(&mut filled, previous, facts)?;
        if let Some(error) = defaults::no_overlay_error(&filled, facts) {
            return Err(Rejection::NoOverlay(error));
        }
        if let Some(previous) = previous {
            let mut before = previous.clone();
            // What an older operator did not write down counts as what it meant.
            defaults::fill(&mut before, Some(previous), facts)?;
            let errors = safety::errors(&before, &filled, &facts.platform);
            if !errors.is_empty() {
                return Err(Rejection::Unsafe(errors));
            }
        }
        let rendered = render::render(&Context {
            spec: &filled,
            diagnostics,
            facts,
            settings,
        });
        Ok(Self {
            applied: at_the_end(&filled),
            filled,
            rendered,
        })
    }
}

/// The configuration once its migration is through: the MTU of pods is the new one (§6.1).
fn at_the_end(spec: &NetworkSpec) -> NetworkSpec {
    let mut spec = spec.clone();
    let migration = spec
        .migration
        .as_ref()
        .and_then(|migration| migration.mtu.as_ref());
    let to = migration.and_then(|mtu| mtu.network.as_ref()?.to);
    if let (Some(to), Some(ovn)) = (to, &mut spec.default_network.ovn_kubernetes_config) {
        ovn.mtu = Some(to);
    }
    spec
}

/// The ConfigMap that records the applied configuration.
pub fn record(applied: &NetworkSpec, namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": names::APPLIED, "namespace": namespace },
        "data": { names::APPLIED_KEY: json!(applied).to_string() },
    })
}

/// The configuration that such a ConfigMap records.
///
/// # Errors
/// When it is there and can't be read: it must not be taken for none, or everything would be safe.
pub fn recorded(config_map: &Value) -> Result<NetworkSpec, String> {
    let text = config_map["data"][names::APPLIED_KEY].as_str();
    let text =
        text.ok_or_else(|| format!("ConfigMap {} has no key {}", names::APPLIED, names::APPLIED_KEY))?;
    serde_json::from_str(text)
        .map_err(|error| format!("ConfigMap {} is not readable: {error}", names::APPLIED))
}

#[cfg(test)]
mod tests;

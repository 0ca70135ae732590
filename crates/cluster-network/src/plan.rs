//! Decides one reconciliation from the observed state alone (§5).
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

/// Input of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The operator configuration, merged with the cluster configuration.
    pub spec: &'a NetworkSpec,
    /// The applied configuration. Without one, every change is safe.
    pub previous: Option<&'a NetworkSpec>,
    /// Connectivity checks, from the cluster configuration.
    pub diagnostics: &'a NetworkDiagnostics,
    /// The cluster.
    pub facts: &'a Facts,
    /// The operator's own settings.
    pub settings: &'a Settings,
}

/// Plan of one reconciliation.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The configuration with all defaults: the desired content of the operator configuration.
    pub filled: NetworkSpec,
    /// The configuration to record as applied, with the MTU after a migration.
    pub applied: NetworkSpec,
    /// The desired objects.
    pub rendered: Rendered,
}

/// The configuration is rejected, and nothing is applied.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Rejection {
    /// The configuration is invalid.
    #[error("{}", messages::invalid_operator_config(.0))]
    Invalid(Vec<String>),
    /// The change from the applied configuration is unsafe.
    #[error("{}", messages::unsafe_change(.0))]
    Unsafe(Vec<String>),
    /// The MTU of pods exceeds the MTU of the nodes.
    #[error("{0}")]
    NoOverlay(String),
    /// The MTU of the nodes has not been probed.
    #[error("Failed to probe MTU: {0}")]
    Mtu(#[from] UnknownMtu),
}

impl Plan {
    /// Makes the plan. A part that cannot be rendered does not block the other parts.
    ///
    /// # Errors
    /// If the configuration is invalid, or the change from the applied configuration is unsafe.
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
            // An older operator may not have recorded the defaults that it applied.
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

/// The configuration after its migration: the MTU of pods is the new one (§6.1).
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

/// Parses the applied configuration in its ConfigMap.
///
/// # Errors
/// If the configuration cannot be parsed. Without the error, every change would be safe.
pub fn recorded(config_map: &Value) -> Result<NetworkSpec, String> {
    let text = config_map["data"][names::APPLIED_KEY].as_str();
    let text =
        text.ok_or_else(|| format!("ConfigMap {} has no key {}", names::APPLIED, names::APPLIED_KEY))?;
    serde_json::from_str(text)
        .map_err(|error| format!("ConfigMap {} is not readable: {error}", names::APPLIED))
}

#[cfg(test)]
mod tests;

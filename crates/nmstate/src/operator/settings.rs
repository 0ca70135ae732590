//! Settings of the operator from its environment (nmstate §10.4).

use std::path::PathBuf;

use thiserror::Error;

use super::names::{self, env, namespace};

/// A required variable is missing.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("environment variable {0} is not set")]
pub struct Missing(&'static str);

/// Settings of the operator.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    /// Namespace of the deployed objects.
    pub handler_namespace: String,
    /// The operator's own namespace.
    pub operator_namespace: String,
    /// Namespace of the Prometheus that may read metrics.
    pub monitoring_namespace: String,
    /// Image of the deployed workloads.
    pub image: String,
    /// Pull policy of that image.
    pub pull_policy: String,
    /// Prefix of the names of deployed objects; empty for none.
    pub prefix: String,
    /// Variables that are forwarded to the handler, in order.
    pub forwarded: Vec<(&'static str, String)>,
    /// Whether and on which port the workloads serve profiles, as given.
    pub profiler: (String, String),
    /// The console plugin, on OpenShift.
    pub plugin: Plugin,
    /// Directory of manifests that replace those in the program.
    pub manifests: Option<PathBuf>,
}

/// The console plugin.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Plugin {
    /// Name of its objects.
    pub name: String,
    /// Image.
    pub image: String,
    /// Port.
    pub port: u16,
}

impl Settings {
    /// Reads the settings.
    ///
    /// # Errors
    /// If a required variable is missing.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Missing> {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let needed = |name: &'static str| given(name).ok_or(Missing(name));
        let handler_namespace = needed(crate::names::env::HANDLER_NAMESPACE)?;
        let forwarded = names::FORWARDED
            .into_iter()
            .filter_map(|name| Some((name, given(name)?)));
        let or = |name: &str, default: &str| given(name).unwrap_or_else(|| default.to_owned());
        Ok(Self {
            operator_namespace: given(env::OPERATOR_NAMESPACE)
                .or_else(|| given(crate::names::env::POD_NAMESPACE))
                .unwrap_or_else(|| handler_namespace.clone()),
            handler_namespace,
            monitoring_namespace: or(env::MONITORING_NAMESPACE, namespace::MONITORING),
            image: needed(env::HANDLER_IMAGE)?,
            pull_policy: or(env::PULL_POLICY, "IfNotPresent"),
            prefix: given(crate::names::env::PREFIX).unwrap_or_default(),
            forwarded: forwarded.collect(),
            profiler: (or(env::ENABLE_PROFILER, "False"), or(env::PROFILER_PORT, "6060")),
            plugin: Plugin {
                name: or(env::PLUGIN_NAME, names::PLUGIN),
                image: or(
                    env::PLUGIN_IMAGE,
                    "quay.io/nmstate/nmstate-console-plugin:release-1.0.0",
                ),
                port: given(env::PLUGIN_PORT)
                    .and_then(|port| port.parse().ok())
                    .unwrap_or(9443),
            },
            manifests: given(env::MANIFESTS).map(PathBuf::from),
        })
    }

    /// The name of an object in this installation.
    pub fn name(&self, default: &str) -> String {
        match self.prefix.as_str() {
            "" => default.to_owned(),
            prefix => format!("{prefix}-{default}"),
        }
    }
}
